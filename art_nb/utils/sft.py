"""`art.utils.sft`: demonstrations from a file or a list, cut into calls of `model.train_sft`, each with its learning rates.

A file holds one conversation a line, as JSON: {"messages": [...], "tools": [...]}, tools only where there are any.
"""

import json
import math
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tqdm.auto import tqdm

from art_nb.model import TrainableModel
from art_nb.trajectories import Trajectory
from art_nb.types import TrainSFTConfig

Schedule = Literal["cosine", "linear", "constant"]


class SFTChunk(NamedTuple):
    """What one call of `model.train_sft` takes. step, epoch_step: batches before it, over all epochs and in its own."""

    trajectories: list[Trajectory]
    config: TrainSFTConfig
    step: int
    epoch: int
    epoch_step: int


def create_lr_schedule(
    total_steps: int,
    peak_lr: float,
    method: Schedule = "linear",
    warmup_steps: int = 0,
    min_lr: float = 0.0,
) -> list[float]:
    """The learning rate of each step: up to `peak_lr` in a straight line, then by `method` down to `min_lr`, or constant.

    Raises: ValueError when there is no such method.
    """
    if method not in ("cosine", "linear", "constant"):
        raise ValueError(f"method is {method!r}: expected 'cosine', 'linear' or 'constant'")
    rates = [min_lr + (peak_lr - min_lr) * (step + 1) / warmup_steps for step in range(min(warmup_steps, total_steps))]
    falling = total_steps - warmup_steps
    for step in range(falling):
        gone = step / max(1, falling - 1)  # from 0 to 1
        left = {"constant": 1.0, "linear": 1.0 - gone, "cosine": (1.0 + math.cos(math.pi * gone)) / 2}[method]
        rates.append(min_lr + (peak_lr - min_lr) * left)
    return rates


def create_sft_dataset_iterator(
    trajectories: list[Trajectory],
    chunk_size: int = 10,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Schedule = "linear",
    warmup_ratio: float = 0.1,
    shuffle: bool = True,
    seed: int = 42,
    initial_step: int = 0,
    show_progress: bool = True,
) -> Iterator[SFTChunk]:
    """Cut demonstrations into chunks for `await model.train_sft(chunk.trajectories, chunk.config)`.

    Args:
        chunk_size: batches in a chunk, and so optimizer steps in a call; a call leaves a checkpoint.
        batch_size: trajectories of one optimizer step.
        peak_lr, schedule_type, warmup_ratio: of a schedule over all epochs; warmup_ratio: the share of it that goes up.
        shuffle, seed: the order of epoch e is ART's: `random.Random(seed + e)` shuffles the trajectories.
        initial_step: go on with the chunk that this batch is in, counted over all epochs.
        show_progress: show a bar.

    Raises: ValueError when chunk_size or batch_size is less than 1.
    """
    for name, given in {"chunk_size": chunk_size, "batch_size": batch_size}.items():
        if given < 1:
            raise ValueError(f"{name} is {given}: give 1 or more")
    per_epoch = math.ceil(len(trajectories) / batch_size)
    starts = range(0, per_epoch, chunk_size)
    rates = create_lr_schedule(per_epoch * epochs, peak_lr, schedule_type, int(per_epoch * epochs * warmup_ratio))
    chunks = [(epoch, start) for epoch in range(epochs) for start in starts][initial_step // chunk_size :]
    hidden = not (show_progress and chunks)
    with tqdm(initial=initial_step, total=len(rates), desc="SFT", unit="batch", disable=hidden) as bar:
        for epoch, start in chunks:
            order = list(trajectories)
            if shuffle:
                random.Random(seed + epoch).shuffle(order)
            step, size = epoch * per_epoch + start, min(chunk_size, per_epoch - start)
            config = TrainSFTConfig(learning_rate=rates[step : step + size], batch_size=batch_size)
            chosen = order[start * batch_size : (start + size) * batch_size]
            yield SFTChunk(chosen, config, step, epoch, start)
            bar.update(size)


def get_file_row_count(file_path: str) -> int:
    """Lines of a .jsonl file that are not empty. Raises: ValueError when its name has another end."""
    with _opened(file_path) as lines:
        return sum(bool(line.strip()) for line in lines)


def iterate_file(
    file_path: str,
    epochs: int = 1,
    shuffle_buffer_size: int = 10000,
    seed: int = 42,
    initial_skip: int = 0,
) -> Iterator[Trajectory]:
    """The conversations of a file, `epochs` times, shuffled as ART does: each is drawn from so many that wait.

    initial_skip: leave out so many of the first ones.

    Raises: ValueError when the file's name does not end in .jsonl, or a line holds no conversation; it says which line.
    """
    return islice(_shuffled(file_path, epochs, shuffle_buffer_size, seed), initial_skip, None)


def _shuffled(file_path: str, epochs: int, waiting_at_most: int, seed: int) -> Iterator[Trajectory]:
    for epoch in range(epochs):
        draws, waiting = random.Random(seed + epoch), list[Trajectory]()
        with _opened(file_path) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                waiting.append(_conversation(line, f"{file_path}, line {number}"))
                if len(waiting) >= waiting_at_most:
                    yield waiting.pop(draws.randint(0, len(waiting) - 1))
        draws.shuffle(waiting)
        yield from waiting


async def train_sft_from_file(
    model: TrainableModel,
    file_path: str,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Schedule = "linear",
    warmup_ratio: float = 0.1,
    initial_step: int = 0,
    final_step: int | None = None,
    _config: dict[str, Any] | None = None,
    verbose: bool = False,
    shuffle_buffer_size: int = 10000,
) -> None:
    """One call of `model.train_sft` on the conversations of a file.

    Args:
        initial_step, final_step: from this batch up to that one, of all epochs together; None: to the end.
        verbose: print how much is trained on, and at which rates.
        Others: as of `create_sft_dataset_iterator` and `iterate_file`.

    What lies between the two steps is in memory while it is trained on.
    """
    total = math.ceil(get_file_row_count(file_path) * epochs / batch_size)
    schedule = create_lr_schedule(total, peak_lr, schedule_type, int(total * warmup_ratio))
    rates = schedule[initial_step:final_step]
    if verbose:
        print(f"{len(rates)} of {total} batches of {batch_size}, {schedule_type} schedule, up to {peak_lr:g}")
    if not rates:
        return
    found = iterate_file(file_path, epochs, shuffle_buffer_size, initial_skip=initial_step * batch_size)
    config = TrainSFTConfig(learning_rate=rates, batch_size=batch_size)
    await model.train_sft(islice(found, len(rates) * batch_size), config, _config=_config, verbose=verbose)


def resolve_sft_batch_size(*, batch_size: int | Literal["auto"], default_batch_size: int) -> int:
    """The size that is meant: "auto" means the default."""
    return default_batch_size if batch_size == "auto" else batch_size


def _opened(file_path: str) -> Any:
    if not file_path.endswith(".jsonl"):
        raise ValueError(f"{file_path!r}: expected a .jsonl file, one conversation a line")
    return Path(file_path).open(encoding="utf-8")


def _conversation(line: str, where: str) -> Trajectory:
    try:
        fields = json.loads(line)
        messages = [{"role": message["role"], **message} for message in fields["messages"]]
        return Trajectory(messages_and_choices=messages, tools=fields.get("tools"))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{where}: expected {{"messages": [...]}}, got {line.strip()[:80]!r} ({error})') from error
