"""`iterate_dataset`: the scenarios of each training step."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from tqdm.auto import tqdm

T = TypeVar("T")


@dataclass
class DatasetBatch(Generic[T]):
    """The items of one training step. step counts over all epochs, epoch_step within one; all counts start at 0."""

    items: list[T]
    step: int
    epoch: int
    epoch_step: int


def iterate_dataset(
    dataset: list[T], groups_per_step: int = 1, num_epochs: int = 1, initial_step: int = 0, use_tqdm: bool = True
) -> Iterator[DatasetBatch[T]]:
    """Iterate over `dataset` in batches, shuffled per epoch, in the same order in every run.

    Args:
        groups_per_step: items per batch; an epoch's last batch may be smaller. num_epochs: passes over the dataset.
        initial_step: first step to yield; pass `await model.get_step()` to resume a run.
        use_tqdm: show a progress bar.

    Epoch e has ART's order: `random.Random(e)` shuffles the indices. Raises: ValueError when groups_per_step is less than 1.
    """
    if groups_per_step < 1:
        raise ValueError(f"iterate_dataset: groups_per_step is {groups_per_step}; expected 1 or more.")
    per_epoch = math.ceil(len(dataset) / groups_per_step)
    total = per_epoch * num_epochs
    hidden = not (use_tqdm and total)
    with tqdm(initial=initial_step, total=total, desc="Iterating dataset", unit="batch", disable=hidden) as bar:
        for step in range(initial_step, total):
            epoch, epoch_step = divmod(step, per_epoch)
            order = list(range(len(dataset)))
            random.Random(epoch).shuffle(order)
            chosen = order[epoch_step * groups_per_step : (epoch_step + 1) * groups_per_step]
            yield DatasetBatch([dataset[i] for i in chosen], step, epoch, epoch_step)
            bar.update(1)
