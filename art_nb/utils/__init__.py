"""ART's `art.utils`: small functions for training scripts, each in a module of the same name.

`benchmarking` compares models, `sft` prepares demonstrations, `deployment` uploads checkpoints.
"""

from art_nb.utils.format_message import format_message
from art_nb.utils.get_model_step import get_model_step
from art_nb.utils.iterate_dataset import DatasetBatch, iterate_dataset
from art_nb.utils.limit_concurrency import limit_concurrency
from art_nb.utils.retry import retry

__all__ = ["DatasetBatch", "format_message", "get_model_step", "iterate_dataset", "limit_concurrency", "retry"]
