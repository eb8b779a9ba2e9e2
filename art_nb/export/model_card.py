"""Write the model card of an export: README.md as the Hugging Face hub displays it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from art_nb.export.checkpoint import Checkpoint, is_hub_name
from art_nb.export.parity import ParityReport

LIBRARY = {"adapter": "peft", "merged": "transformers", "gguf": "gguf"}
CONTENTS = {
    "adapter": "the adapter alone, in PEFT's layout",
    "merged": "base model and adapter in one, as transformers stores it",
    "gguf": "base model and adapter in one, for llama.cpp",
}


def write_card(folder: Path, checkpoint: Checkpoint, form: str, base: str, parity: ParityReport) -> None:
    """Write README.md to `folder`, from logged and measured facts only, without local paths. form: a key of LIBRARY."""
    on_the_hub = is_hub_name(base)
    base_name = _without_markup(base if on_the_hub else Path(base).name)
    trained = checkpoint.trained_on()
    tags = "reinforcement-learning, grpo, lora" if trained["trajectories"] else "lora"
    front = [f"library_name: {LIBRARY[form]}", f"tags: [{tags}]", *([f"base_model: {base}"] if on_the_hub else [])]
    sampled = f"{trained['trajectories']} trajectories sampled from the model, in {trained['groups']} groups (GRPO)"
    shown = f"{trained['demonstrations']} demonstrations (supervised fine-tuning)"
    data = [text for text, name in ((shown, "demonstrations"), (sampled, "trajectories")) if trained[name]]
    rows = [
        f"| {_without_markup(split)} | {_without_markup(name)} | {value:.4g} | {int(metrics['trajectories'])} |"
        for split, metrics in checkpoint.results().items()
        for name, value in metrics.items()
        if name != "trajectories"
    ]
    table = ["| split | metric | mean | trajectories |", "| --- | --- | --- | --- |", *rows]
    lines = [
        "---", *front, "---", f"# {_without_markup(checkpoint.name)}, step {checkpoint.step}", "",
        f"`{base_name}` with a LoRA adapter (rank {checkpoint.settings()['r']}), trained by art_nb "
        f"{version('art-nb')} (TRL, PEFT); this is {CONTENTS[form]}.", "",
        f"- base model: `{base_name}`",
        f"- project: `{_without_markup(checkpoint.project)}`",
        f"- data: {' and '.join(data) or 'none was logged'}",
        f"- steps: {trained['steps']}",
        f"- compared with the checkpoint: {parity}", "",
        "## Results", "", *(table if rows else ["No evaluation of this step was logged."]),
    ]  # fmt: skip
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def _without_markup(text: str) -> str:
    """Replace all but letters, digits and `-_./ @` with spaces, to disable Markdown and HTML in a user's names."""
    return "".join(character if character.isalnum() or character in "-_./ @" else " " for character in text)
