"""`get_model_step`: a model's latest training step, from its files alone."""

from pathlib import Path

from art_nb.model import Model
from art_nb.storage import checkpoints


def get_model_step(model: Model, art_path: str) -> int:
    """Return the step of the latest checkpoint under `art_path`, a backend's path; 0 without a checkpoint."""
    return checkpoints.latest(Path(art_path) / model.project / "models" / model.name / "checkpoints") or 0
