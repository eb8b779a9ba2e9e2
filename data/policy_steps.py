"""Keep a training run step by step, small enough for a web page: the adapter after some of the steps, in 8 bits.

Shared by data/policy_2048 and data/policy_tic_tac_toe, which the page "Watch it learn" of the book reads (book/watch.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import art_nb as art
from art_nb.storage.checkpoints import step_folder


def checkpoints_of(model: art.TrainableModel, path: str | Path) -> Path:
    """Return the folder of the checkpoints of a model that was trained by `LocalBackend(path=path)`."""
    return Path(path) / model.project / "models" / model.name / "checkpoints"


def quantised(adapter: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return each matrix in int8, and as NAME_scale (rows, 1) in float16 the factors of its rows."""
    found = {}
    for name, tensor in adapter.items():
        scale = (tensor.float().abs().amax(1, keepdim=True) / 127).clamp(min=1e-6).half()
        found[name] = (tensor.float() / scale.float()).round().clamp(-127, 127).to(torch.int8)
        found[f"{name}_scale"] = scale
    return found


def save_steps(checkpoints: Path, steps: list[int], folder: Path) -> float:
    """Write the quantised adapter after each step to `folder`/NNNN.safetensors. Returns their scale, lora_alpha / r."""
    for step in steps:
        if step:
            adapter = load_file(step_folder(checkpoints, step) / "adapter_model.safetensors")
            save_file(quantised(adapter), folder / f"{step:04d}.safetensors")
    settings = json.loads((step_folder(checkpoints, steps[-1]) / "adapter_config.json").read_text("utf-8"))
    return settings["lora_alpha"] / settings["r"]


def games_table(head: str, rows: dict[int, dict[str, float]]) -> str:
    """Return a Markdown table with a row per step. head: of the first column. rows: step -> {column: percent}."""
    columns = list(next(iter(rows.values())))
    lines = [f"| {head} | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    for step, row in rows.items():
        lines.append(f"| {step} | {' | '.join(f'{row[name]:g}%' for name in columns)} |")
    return "\n".join(lines)
