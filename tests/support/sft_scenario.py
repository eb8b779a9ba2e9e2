"""Schedules, chunks and orders of demonstrations for random arguments as JSON, by ART's `utils.sft` and by ours.

python tests/support/sft_scenario.py art_nb
"""

import asyncio
import importlib
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any


class Listening:
    """A stand-in for a model that records the arguments of `train_sft`."""

    async def train_sft(self, trajectories, config, _config=None, verbose=False):
        self.given = [texts(trajectories), config.learning_rate, config.batch_size]


def texts(trajectories) -> list[str]:
    return [str(t.messages_and_choices[-1]["content"]) for t in trajectories]


def scenario(package: str, seed: int) -> list[Any]:
    sft, trajectories = (importlib.import_module(f"{package}.{name}") for name in ("utils.sft", "trajectories"))
    draws = random.Random(seed)
    method = draws.choice(["cosine", "linear", "constant"])
    common = {"batch_size": draws.randint(1, 4), "peak_lr": draws.random(), "schedule_type": method, "warmup_ratio": draws.random()}
    rows = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": str(i)}] for i in range(draws.randint(1, 23))]
    items = [trajectories.Trajectory(messages_and_choices=row) for row in rows]
    found: list[Any] = [sft.create_lr_schedule(draws.randint(0, 20), 1.0, method, draws.randint(0, 9), draws.choice([0.0, 0.1]))]
    chunks = sft.create_sft_dataset_iterator(
        items, draws.randint(1, 5), draws.randint(1, 3), shuffle=draws.random() < 0.8, seed=draws.randint(0, 9),
        initial_step=draws.randint(0, 6), show_progress=False, **common,
    )  # fmt: skip
    found += [[texts(c.trajectories), c.config.learning_rate, c.config.batch_size, c.step, c.epoch, c.epoch_step] for c in chunks]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demonstrations.jsonl"
        path.write_text("".join(json.dumps({"messages": row}) + draws.choice(["\n", "\n\n"]) for row in rows))
        found.append(sft.get_file_row_count(str(path)))
        found.append(texts(sft.iterate_file(str(path), draws.randint(1, 3), draws.randint(1, 30), draws.randint(0, 9), draws.randint(0, 5))))
        model = Listening()
        asyncio.run(
            sft.train_sft_from_file(
                model, str(path), draws.randint(1, 3), initial_step=draws.randint(0, 1), final_step=draws.choice([None, 3, 99]),
                shuffle_buffer_size=draws.randint(1, 30), **common,
            )
        )  # fmt: skip
        found.append(getattr(model, "given", None))
    return found


if __name__ == "__main__":
    print(json.dumps([scenario(sys.argv[1], seed) for seed in range(40)]))
