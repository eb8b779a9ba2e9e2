"""Trajectories, groups of trajectories, and their JSON form: the types that all packages share.

Runs a group's rollouts with the package `rollouts`. Does not depend on models, tasks, training or files.
"""

from art_nb.trajectories.group import PydanticException, TrajectoryGroup
from art_nb.trajectories.trajectory import History, MetadataValue, Trajectory

__all__ = ["History", "MetadataValue", "PydanticException", "Trajectory", "TrajectoryGroup"]
