"""Live views in a notebook: training, trajectories, groups, servers.

Depends on trajectory records and the browser, not on tasks, models or backends.
"""

from .group_view import GroupView
from .live_page import LivePage
from .training_view import TrainingView
from .trajectory_viewer import TaskPane, TrajectoryViewer

__all__ = ["GroupView", "LivePage", "TaskPane", "TrainingView", "TrajectoryViewer"]
