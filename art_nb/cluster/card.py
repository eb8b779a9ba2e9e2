"""The card of an export, README.md as the hub shows it: base, data, steps, what was measured, what was proved."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from art_nb.cluster.checkpoint import Checkpoint
from art_nb.cluster.proof import Proof

LIBRARY = {"adapter": "peft", "merged": "transformers", "gguf": "gguf"}


def write_card(folder: Path, checkpoint: Checkpoint, form: str, base: str, proof: Proof) -> None:
    """Write README.md. Nothing is in it but what was logged or measured; no path of this machine."""
    on_the_hub = base.count("/") == 1 and not Path(base).exists()
    named = base if on_the_hub else Path(base).name
    front = [f"library_name: {LIBRARY[form]}", "tags: [reinforcement-learning, grpo, lora]"]
    front += [f"base_model: {base}"] if on_the_hub else []
    trained = checkpoint.trained_on()
    lines = [
        "---", *front, "---", f"# {_plain(checkpoint.name)}, step {checkpoint.step}", "",
        f"`{_plain(named)}` with a LoRA adapter (rank {checkpoint.settings()['r']}), trained with GRPO by art_nb "
        f"{version('art-nb')} (TRL, PEFT); this is {_WHAT[form]}.", "",
        f"- base model: `{_plain(named)}`",
        f"- project: `{_plain(checkpoint.project)}`",
        f"- data: {trained['trajectories']} trajectories of the model itself, in {trained['groups']} groups",
        f"- steps: {trained['steps']}",
        f"- checked against the checkpoint: {proof}", "",
        "## Measured", "", *_measured(checkpoint),
    ]  # fmt: skip
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


_WHAT = {
    "adapter": "the adapter alone, in PEFT's layout",
    "merged": "base model and adapter in one, as transformers stores it",
    "gguf": "base model and adapter in one, for llama.cpp",
}


def _measured(checkpoint: Checkpoint) -> list[str]:
    results = checkpoint.results()
    if not results:
        return ["Nothing was logged about this step but its training: no result is claimed."]
    rows = [
        f"| {_plain(split)} | {_plain(name)} | {value:.4g} | {int(metrics['trajectories'])} |"
        for split, metrics in results.items()
        for name, value in metrics.items()
        if name != "trajectories"
    ]
    return ["| split | metric | mean | trajectories |", "| --- | --- | --- | --- |", *rows]


def _plain(text: str) -> str:
    """Names are whatever somebody called a thing: no markup."""
    return "".join(sign if sign.isalnum() or sign in "-_./ @" else " " for sign in text)
