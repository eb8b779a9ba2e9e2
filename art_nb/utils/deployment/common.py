"""What deploying takes everywhere: a configuration, the files of an adapter, a key."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel

# The two files that a server of adapters reads; a checkpoint holds more.
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


class DeploymentConfig(BaseModel):
    """What a provider needs to know besides the checkpoint."""


def adapter_files(checkpoint_path: str) -> list[Path]:
    """The files of a checkpoint that are deployed. Raises: FileNotFoundError when one is missing."""
    files = [Path(checkpoint_path) / name for name in ADAPTER_FILES]
    if missing := [path.name for path in files if not path.is_file()]:
        raise FileNotFoundError(f"{checkpoint_path} is no checkpoint of an adapter: {', '.join(missing)} is missing")
    return files


def key_from_environment(name: str) -> str:
    """Raises: ValueError when it is not set."""
    if not (key := os.environ.get(name)):
        raise ValueError(f"{name} is not set: the key is read from the environment")
    return key
