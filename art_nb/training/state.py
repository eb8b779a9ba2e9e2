"""What a policy has learnt, in a folder: the adapter as PEFT saves it, and the optimizer's moments. Safetensors only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from art_nb.training.policy import Policy

ADAPTER, OPTIMIZER = "adapter_model.safetensors", "optimizer.safetensors"


def save_policy_state(policy: Policy, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Write both into an existing folder."""
    # Embeddings are not trained; left to itself PEFT looks at the hub whether they were.
    policy.model.save_pretrained(folder, selected_adapters=["default"], save_embedding_layers=False)
    tensors = {
        f"{index}.{name}": torch.as_tensor(value).contiguous()
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }
    save_file(tensors, folder / OPTIMIZER)


def read_adapter(policy: Policy, folder: Path) -> dict[str, torch.Tensor]:
    """The adapter of a checkpoint, under the names of PEFT's files.

    Raises: ValueError when it does not fit the model.
    """
    adapter, needed = load_file(folder / ADAPTER), get_peft_model_state_dict(policy.model, save_embedding_layers=False)
    if {name: t.shape for name, t in adapter.items()} != {name: t.shape for name, t in needed.items()}:
        raise ValueError(
            f"the adapter in {folder} does not fit this model: another base model, rank or target_modules. "
            "Give the model another name, or go back to the settings that the adapter was made with."
        )
    return adapter


def load_policy_state(policy: Policy, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Read back what `save_policy_state` wrote.

    Raises: ValueError when the adapter does not fit the model.
    """
    set_peft_model_state_dict(policy.model, read_adapter(policy, folder))
    remembered: dict[int, dict[str, Any]] = {}
    for key, value in load_file(folder / OPTIMIZER).items():
        index, name = key.split(".", 1)
        remembered.setdefault(int(index), {})[name] = value.clone()  # lets go of the file: Windows deletes none in use
    remember(optimizer, remembered)


def remember(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> None:
    """Give an optimizer the moments of another run; its settings stay its own."""
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    optimizer.zero_grad(set_to_none=True)
