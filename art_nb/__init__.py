"""art_nb: agent reinforcement learning that runs on a laptop, with ART's API (`import art_nb as art`).

Importing it loads nothing heavy: a public name is imported when it is first used (PEP 562). It sets, unless set already,
HF_HUB_DISABLE_TELEMETRY (also in an imported huggingface_hub), DISABLE_SAFETENSORS_CONVERSION and GOMP_SPINCOUNT.
"""

import importlib
import os
import pkgutil
import sys
from typing import TYPE_CHECKING

# Torch's OpenMP library on Linux, libgomp, reads this when torch is imported. Its threads busy-wait between operations, by
# default for milliseconds: long enough that two training runs on the same cores almost stop (`benchmarks.beside`).
# https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Unless these are set, the Hugging Face libraries send usage telemetry (TRL: for every trainer), and ask the hub to convert
# models without safetensors. The first is read when huggingface_hub is imported, perhaps before this package.
for _variable in ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_SAFETENSORS_CONVERSION"):
    os.environ.setdefault(_variable, "1")
_hub = sys.modules.get("huggingface_hub.constants")
if _hub and os.environ["HF_HUB_DISABLE_TELEMETRY"].upper() in _hub.ENV_VARS_TRUE_VALUES:
    _hub.HF_HUB_DISABLE_TELEMETRY = True  # type: ignore[attr-defined]

if TYPE_CHECKING:  # for editors and type checkers, which do not follow `__getattr__`
    from .backends.local import LocalBackend
    from .backends.ray.backend import RayBackend
    from .backends.remote import RemoteBackend
    from .gather import gather_trajectories, gather_trajectory_groups, trajectory_group_batches
    from .model import Backend, Model, TrainableModel
    from .trajectories import Trajectory, TrajectoryGroup
    from .trajectories.recording import (
        auto_trajectory,
        capture_auto_trajectory,
        capture_yielded_trajectory,
        yield_trajectory,
    )
    from .types import LocalTrainResult, Messages, MessagesAndChoices, Tools, TrainConfig, TrainResult, TrainSFTConfig
    from .utils.retry import retry

_PUBLIC = {
    "model": ("Backend", "Model", "TrainableModel"),
    "backends.local": ("LocalBackend",),
    "backends.remote": ("RemoteBackend",),
    "backends.ray.backend": ("RayBackend",),
    "trajectories": ("Trajectory", "TrajectoryGroup"),
    "trajectories.recording": (
        "auto_trajectory", "capture_auto_trajectory", "yield_trajectory", "capture_yielded_trajectory",
    ),
    "gather": ("gather_trajectories", "gather_trajectory_groups", "trajectory_group_batches"),
    "utils.retry": ("retry",),
    "types": (
        "TrainConfig", "TrainSFTConfig", "TrainResult", "LocalTrainResult", "Messages", "MessagesAndChoices", "Tools",
    ),
}  # fmt: skip
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
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
