"""Train data/policy_tic_tac_toe, the policy of tic-tac-toe after some of its steps: `python -m data policy_tic_tac_toe`.

The training is that of notebook 03: demonstrations, then self-play. benchmarks/rise_self_play.py executes the same cells.
"""

from __future__ import annotations

import ast
import asyncio
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.rise_self_play import NOTEBOOK, program
from course.policy_files import kept_steps
from data.item import write_described
from data.policy_steps import checkpoints_of, games_table, save_steps

COLUMNS = ("won against random", "drawn against perfect")  # of the notebook's `measure`
MEASURE = """
for step in kept_steps(await model.get_step()):
    row = await measure(f"after step {step}", model.get_inference_name(step) if step else model.base_model)
    won_after[step] = {column: round(100 * sum(row[column]) / len(row[column]), 2) for column in COLUMNS}
"""


def build(folder: Path, *, seed: int = 0) -> dict:
    """Train and write the policy's steps to `folder`, whole or not at all. Returns the facts of training.json."""
    os.environ.setdefault("MPLBACKEND", "agg")
    found: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as files:
        code = compile(program(files, seed) + MEASURE, str(NOTEBOOK), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        names: dict[str, Any] = {"display": lambda shown: None, "kept_steps": kept_steps, "won_after": found}
        names["COLUMNS"] = COLUMNS
        started = time.perf_counter()
        asyncio.run(eval(code, names))
        facts = {
            "game": "tic_tac_toe", "base": "nano_tic_tac_toe", "seed": seed, "steps": max(found), "demonstration_steps": 1,
            "minutes": round((time.perf_counter() - started) / 60, 1),
            "device": f"cpu, {torch.get_num_threads()} threads", "torch": torch.__version__,
            "games": len(names["GAMES_OF"]["test"]), "won": {str(step): row for step, row in found.items()},
        }  # fmt: skip
        card = MODEL_CARD.replace("{table}", games_table("after step", found))
        checkpoints = checkpoints_of(names["model"], files)
        write_described(folder, partial(_save, checkpoints, list(found), facts), facts, card)
    return facts


def _save(checkpoints: Path, steps: list[int], facts: dict, folder: Path) -> None:
    facts["scale"] = save_steps(checkpoints, steps, folder)


MODEL_CARD = """\
---
license: apache-2.0
library_name: peft
---
# The policy of tic-tac-toe, step by step

LoRA adapters of data/nano_tic_tac_toe after some steps of one training run, NNNN.safetensors after step NNNN, in 8 bits.
Step 1 is the training on demonstrations, all others are self-play. The page "Watch it learn" of the book runs them in the
browser.

Made by `python -m data policy_tic_tac_toe` (data/policy_tic_tac_toe/maker.py) in {minutes} minutes (with the notebook's
measurements) on {device}, torch {torch}, seed {seed}. The recipe is the cells of notebooks/03_tic_tac_toe.ipynb.

| | |
| --- | --- |
| steps | {steps} |
| format | W + {scale} B A for each matrix W of data/nano_tic_tac_toe; A and B in int8, times NAME_scale for each row |

Share of {games} games from test openings, at the temperature that draws most validation games, with the adapters before
quantisation:

{table}

training.json has these figures, SHA256SUMS the files' hashes. Licence: Apache-2.0, like the project.
"""
