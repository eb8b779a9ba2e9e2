"""`art.utils`: ART's home of `iterate_dataset`, `retry` and other small things; `benchmarking` compares models."""

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Generic, TypeVar

from tqdm.auto import tqdm

from art_nb.model import Model
from art_nb.rollouts.retrying import retry
from art_nb.storage import checkpoints
from art_nb.types import Message
from art_nb.utils.get_trajectory_messages import get_trajectory_messages

__all__ = [
    "DatasetBatch", "format_message", "get_model_step", "get_trajectory_messages", "iterate_dataset", "limit_concurrency",
    "retry",
]  # fmt: skip

T = TypeVar("T")


@dataclass
class DatasetBatch(Generic[T]):
    """The items of one training step.

    All count from 0. step: over all epochs; epoch_step: within its epoch.
    """

    items: list[T]
    step: int
    epoch: int
    epoch_step: int


def iterate_dataset(
    dataset: list[T],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    use_tqdm: bool = True,
) -> Iterator[DatasetBatch[T]]:
    """Go through `dataset` in batches, shuffled anew in each epoch, the same way in every run.

    Args:
        groups_per_step: items in a batch; the last batch of an epoch may hold fewer.
        initial_step: the first step to yield: pass `await model.get_step()` to go on where a run stopped.
        use_tqdm: show a progress bar.

    The order of epoch e is ART's: `random.Random(e)` shuffles the indices. The global generator is untouched.
    """
    if groups_per_step < 1:
        raise ValueError(f"iterate_dataset: groups_per_step is {groups_per_step}; give 1 or more.")
    per_epoch = math.ceil(len(dataset) / groups_per_step)
    total = per_epoch * num_epochs
    hidden = not (use_tqdm and total)
    with tqdm(
        initial=initial_step, total=total, desc="Iterating dataset", unit="batch", disable=hidden
    ) as bar:
        for step in range(initial_step, total):
            epoch, epoch_step = divmod(step, per_epoch)
            order = _shuffled(len(dataset), epoch)
            chosen = order[epoch_step * groups_per_step : (epoch_step + 1) * groups_per_step]
            yield DatasetBatch([dataset[i] for i in chosen], step, epoch, epoch_step)
            bar.update(1)


def _shuffled(size: int, epoch: int) -> list[int]:
    order = list(range(size))
    random.Random(epoch).shuffle(order)
    return order


def limit_concurrency(n: int, derive_key: Callable[..., str] | None = None) -> Callable[[Callable], Callable]:
    """A decorator for async functions: at most `n` calls run at once, or `n` for each key that `derive_key(*args)` gives."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        running: defaultdict[str | None, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(n))

        @wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            async with running[derive_key(*args, **kwargs) if derive_key else None]:
                return await function(*args, **kwargs)

        return limited

    return decorate


def format_message(message: Message) -> str:
    """A message as text to read: its role, what it says, and the functions that it calls."""
    fields: Any = message
    calls = [call["function"] for call in fields.get("tool_calls") or () if "function" in call]
    said = [str(fields.get("content") or ""), *(f"{function['name']}({function['arguments']})" for function in calls)]
    return "\n".join([f"{fields['role'].capitalize()}:", *filter(None, said)])


def get_model_step(model: Model, art_path: str) -> int:
    """The step of the latest checkpoint under `art_path`, the path of a backend; 0 when there is none."""
    return checkpoints.latest(Path(art_path) / model.project / "models" / model.name / "checkpoints") or 0
