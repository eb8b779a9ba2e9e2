"""What rollouts leave behind: trajectories, groups of them, and their form as JSON. The words that all rooms share.

Knows messages, rewards and what is written down of them. Knows nothing about models, tasks, training or files.
"""

from art_nb.trajectories.group import PydanticException, TrajectoryGroup
from art_nb.trajectories.trajectory import History, MetadataValue, Trajectory

__all__ = ["History", "MetadataValue", "PydanticException", "Trajectory", "TrajectoryGroup"]
