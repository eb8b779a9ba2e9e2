"""Export checkpoints: PEFT adapter, merged weights, GGUF; upload them to the Hugging Face hub, Together or W&B.

Every export is compared with the checkpoint before it is kept. Does not depend on tasks, or on how a run was trained.
"""

from art_nb.export.checkpoint import Checkpoint, find_checkpoint
from art_nb.export.formats import export_checkpoint

__all__ = ["Checkpoint", "export_checkpoint", "find_checkpoint"]
