"""Live views for notebooks: training as it runs, trajectories turn by turn, one group side by side."""

from .group_view import GroupView
from .training_view import TrainingView
from .trajectory_viewer import TrajectoryViewer

__all__ = ["GroupView", "TrainingView", "TrajectoryViewer"]
