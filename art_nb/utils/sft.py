"""ART's `art.utils.sft`: split demonstrations into calls of `model.train_sft`, with their learning rates.

A .jsonl file contains one conversation per line: {"messages": [...], "tools": [...]}; "tools" may be absent.
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
    """Arguments of one `model.train_sft` call. step, epoch_step: number of earlier batches, in total and in this epoch."""

    trajectories: list[Trajectory]
    config: TrainSFTConfig
    step: int
    epoch: int
    epoch_step: int


def create_lr_schedule(
    total_steps: int, peak_lr: float, method: Schedule = "linear", warmup_steps: int = 0, min_lr: float = 0.0
) -> list[float]:
    """Return the learning rate of each step: linear warmup from `min_lr` to `peak_lr`, then decay to `min_lr` by `method`.

    "constant" does not decay. Raises: ValueError for an unknown method.
    """
    if method not in ("cosine", "linear", "constant"):
        raise ValueError(f"method is {method!r}: expected 'cosine', 'linear' or 'constant'")
    rates = [min_lr + (peak_lr - min_lr) * (step + 1) / warmup_steps for step in range(min(warmup_steps, total_steps))]
    decay_steps = total_steps - warmup_steps
    for step in range(decay_steps):
        progress = step / max(1, decay_steps - 1)  # from 0 to 1
        factor = {"constant": 1.0, "linear": 1.0 - progress, "cosine": (1.0 + math.cos(math.pi * progress)) / 2}[method]
        rates.append(min_lr + (peak_lr - min_lr) * factor)
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
    """Yield the demonstrations in chunks for `await model.train_sft(chunk.trajectories, chunk.config)`.

    Args:
        chunk_size: batches per chunk, i.e. optimizer steps per call; each call writes a checkpoint.
        batch_size: trajectories per optimizer step.
        peak_lr, schedule_type, warmup_ratio: of one schedule over all epochs; warmup_ratio is a fraction of its steps.
        shuffle, seed: `random.Random(seed + e)` shuffles the trajectories for epoch e (from 0), as in ART.
        initial_step: start with chunk number `initial_step // chunk_size` (from 0), counted over all epochs.
        show_progress: show a progress bar.

    Raises, at the first iteration: ValueError when chunk_size or batch_size is less than 1, or schedule_type is unknown.
    """
    for name, given in {"chunk_size": chunk_size, "batch_size": batch_size}.items():
        if given < 1:
            raise ValueError(f"{name} is {given}: expected 1 or more")
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
    """Return the number of non-empty lines of a .jsonl file. Raises: ValueError for another extension."""
    return sum(1 for _ in _lines(file_path))


def iterate_file(
    file_path: str, epochs: int = 1, shuffle_buffer_size: int = 10000, seed: int = 42, initial_skip: int = 0
) -> Iterator[Trajectory]:
    """Iterate over a file's conversations `epochs` times, each drawn from a buffer of `shuffle_buffer_size`, in ART's order.

    initial_skip: conversations to skip at the start.

    Raises, during iteration: ValueError if the extension is not .jsonl, or (naming the line) a line holds no conversation.
    """

    def shuffled() -> Iterator[Trajectory]:
        for epoch in range(epochs):
            generator, buffer = random.Random(seed + epoch), list[Trajectory]()
            for number, line in _lines(file_path):
                buffer.append(_conversation(line, f"{file_path}, line {number}"))
                if len(buffer) >= shuffle_buffer_size:
                    yield buffer.pop(generator.randint(0, len(buffer) - 1))
            generator.shuffle(buffer)
            yield from buffer

    return islice(shuffled(), initial_skip, None)


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
    """Call `model.train_sft` once with the conversations of a file, all of which are read into memory.

    Args:
        initial_step, final_step: range of batches, counted over all epochs (a batch may span two); None: to the end.
        verbose: print the number of batches and the learning-rate schedule.
        Others: as in `create_sft_dataset_iterator` and `iterate_file`.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: expected 1 or more")
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
    """Replace "auto" with the default."""
    return default_batch_size if batch_size == "auto" else batch_size


def _lines(file_path: str) -> Iterator[tuple[int, str]]:
    if not file_path.endswith(".jsonl"):
        raise ValueError(f"{file_path!r}: expected a .jsonl file, one conversation per line")
    with Path(file_path).open(encoding="utf-8") as file:
        yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())


def _conversation(line: str, where: str) -> Trajectory:
    try:
        fields = json.loads(line)
        messages = [{"role": message["role"], **message} for message in fields["messages"]]
        return Trajectory(messages_and_choices=messages, tools=fields.get("tools"))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{where}: expected {{"messages": [...]}}, got {line.strip()[:80]!r} ({error})') from error
