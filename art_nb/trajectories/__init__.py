"""Trajectories, groups of trajectories, and their JSON form: the types that all packages share.

Knows messages and rewards, and how to run the rollouts of a group. Knows nothing about models, tasks, training or files.
"""

from art_nb.trajectories.group import PydanticException, TrajectoryGroup
from art_nb.trajectories.trajectory import History, MetadataValue, Trajectory

__all__ = ["History", "MetadataValue", "PydanticException", "Trajectory", "TrajectoryGroup"]
