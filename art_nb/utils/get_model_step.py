"""`get_model_step`: how far a model was trained, from its files alone."""

from pathlib import Path

from art_nb.model import Model
from art_nb.storage import checkpoints


def get_model_step(model: Model, art_path: str) -> int:
    """The step of the latest checkpoint under `art_path`, the path of a backend; 0 when there is none."""
    return checkpoints.latest(Path(art_path) / model.project / "models" / model.name / "checkpoints") or 0
