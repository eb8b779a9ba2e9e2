"""`art.utils.get_trajectory_messages`, which ART's older examples import from a module of this name."""

from art_nb.trajectories import Trajectory
from art_nb.types import Messages


def get_trajectory_messages(trajectory: Trajectory) -> Messages:
    """Return the conversation as plain messages: `trajectory.messages()`."""
    return trajectory.messages()
