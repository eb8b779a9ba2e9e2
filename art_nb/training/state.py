"""Save and load the trained state: the adapter in PEFT's format and the optimizer's state, both as safetensors."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from art_nb.storage.checkpoints import DamagedCheckpoint

if TYPE_CHECKING:
    from art_nb.training.policy import Policy

ADAPTER, OPTIMIZER = "adapter_model.safetensors", "optimizer.safetensors"
OptimizerState = dict[int, dict[str, Any]]  # as under "state" in `Optimizer.state_dict()`


def save_policy_state(policy: Policy, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Write adapter and optimizer state into an existing folder."""
    # Without save_embedding_layers=False PEFT checks on the hub whether the vocabulary was resized. It never is.
    policy.model.save_pretrained(folder, selected_adapters=["default"], save_embedding_layers=False)
    tensors = {
        f"{index}.{name}": torch.as_tensor(value).contiguous()
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }
    save_file(tensors, folder / OPTIMIZER)


def read_adapter(policy: Policy, folder: Path) -> dict[str, torch.Tensor]:
    """Return the adapter of a checkpoint on the policy's device, its tensors named as in PEFT's files.

    Raises: DamagedCheckpoint; ValueError when names or shapes differ from those of the policy's adapter.
    """
    expected = get_peft_model_state_dict(policy.model, save_embedding_layers=False)
    adapter = _load(folder / ADAPTER, policy.device)
    if {name: t.shape for name, t in adapter.items()} != {name: t.shape for name, t in expected.items()}:
        raise ValueError(
            f"the adapter in {folder} does not fit this model: it was made with another base model, rank or "
            "target_modules. Give the model another name, or use the settings that the adapter was made with."
        )
    return adapter


def load_policy_state(policy: Policy, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Load the files of `save_policy_state`. Raises, with nothing loaded: as `read_adapter`."""
    adapter, optimizer_state = read_adapter(policy, folder), _load(folder / OPTIMIZER)
    set_peft_model_state_dict(policy.model, adapter)
    state: OptimizerState = {}
    for key, value in optimizer_state.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value.clone()  # unmaps the file: Windows cannot delete a mapped file
    set_optimizer_state(optimizer, state)


def _load(path: Path, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    try:
        return load_file(path, device=str(device))
    except (SafetensorError, FileNotFoundError) as error:
        raise DamagedCheckpoint(f"{path} is missing or damaged ({error})") from error


def set_optimizer_state(optimizer: torch.optim.Optimizer, state: OptimizerState) -> None:
    """Replace the optimizer's state, drop its gradients, keep its settings. Drops state that lacks this class's entries."""
    if state:
        kind, settings = type(getattr(optimizer, "optimizer", optimizer)), dict(optimizer.param_groups[0])
        probe = torch.nn.Parameter(settings["params"][0].new_zeros(2, 2))  # a step creates the entries that this class keeps
        probe.grad, settings["params"] = torch.zeros_like(probe), [probe]
        new = kind(**{name: settings[name] for name in inspect.signature(kind).parameters.keys() & settings.keys()})
        new.step()
        state = {i: each for i, each in state.items() if new.state[probe] and new.state[probe].keys() <= each.keys()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    optimizer.zero_grad(set_to_none=True)
