"""art_nb: agent reinforcement learning that runs on a laptop, with the calls of ART (`import art_nb as art`).

Importing it loads nothing heavy: each public name is fetched from its module when it is first used (PEP 562).
"""

import importlib
import os
import pkgutil
from typing import TYPE_CHECKING

# Read when torch is imported (on Linux, where its threads are libgomp's). Between two products they wait busily for each
# other, by default for milliseconds: long enough that two trainings on the same cores all but stop (`benchmarks.beside`).
# https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:  # for editors and type checkers, which do not follow `__getattr__`
    from .backend import LocalBackend
    from .cluster.ray_backend import RayBackend
    from .gather import gather_trajectories, gather_trajectory_groups, trajectory_group_batches
    from .model import Backend, Model, TrainableModel
    from .remote import RemoteBackend
    from .rollouts.retrying import retry
    from .trajectories import Trajectory, TrajectoryGroup
    from .trajectories.recording import auto_trajectory, capture_auto_trajectory
    from .trajectories.yielding import capture_yielded_trajectory, yield_trajectory
    from .types import LocalTrainResult, Messages, MessagesAndChoices, Tools, TrainConfig, TrainResult, TrainSFTConfig

# public name -> the module that defines it
_HOME = {
    "Backend": "model",
    "Model": "model",
    "TrainableModel": "model",
    "LocalBackend": "backend",
    "RemoteBackend": "remote",
    "RayBackend": "cluster.ray_backend",
    "Trajectory": "trajectories",
    "TrajectoryGroup": "trajectories",
    "auto_trajectory": "trajectories.recording",
    "capture_auto_trajectory": "trajectories.recording",
    "yield_trajectory": "trajectories.yielding",
    "capture_yielded_trajectory": "trajectories.yielding",
    "gather_trajectories": "gather",
    "gather_trajectory_groups": "gather",
    "trajectory_group_batches": "gather",
    "retry": "rollouts.retrying",
    "TrainConfig": "types",
    "TrainSFTConfig": "types",
    "TrainResult": "types",
    "LocalTrainResult": "types",
    "Messages": "types",
    "MessagesAndChoices": "types",
    "Tools": "types",
}
# `art.utils`, `art.rewards`, ... work without importing them first, as they do in ART
_SUBMODULES = {m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")}

__all__ = [
    "Backend", "Model", "TrainableModel", "LocalBackend", "RemoteBackend", "RayBackend", "Trajectory", "TrajectoryGroup",
    "auto_trajectory", "capture_auto_trajectory", "yield_trajectory", "capture_yielded_trajectory", "gather_trajectories",
    "gather_trajectory_groups", "trajectory_group_batches", "retry", "TrainConfig", "TrainSFTConfig", "TrainResult",
    "LocalTrainResult", "Messages", "MessagesAndChoices", "Tools",
]  # fmt: skip


def __getattr__(name: str):
    if name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_SUBMODULES})
