"""Train data/policy_2048, the policy of 2048 after some of its training steps: `python -m data policy_2048`.

The training is that of benchmarks/rise.py (notebook 02) with one of its seeds.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

import art_nb as art
from art_nb.storage.checkpoints import list_checkpoints
from benchmarks.gathering import BASE, registered
from benchmarks.result import say
from benchmarks.rise import ANSWER, GROUPS, SIZE, WINNING_TILE, TrainingRecipe, train_player
from course.policy_files import kept_steps
from data.item import write_described
from data.policy_steps import checkpoints_of, games_table, save_steps
from game_2048 import Game, scenarios

TRAINING = TrainingRecipe()
STEPS = TRAINING.steps
GAMES = 100  # of the validation split, at each temperature, for each kept step
TEMPERATURES = (1.0, 0.5)


def build(folder: Path, *, steps: int = STEPS, games: int = GAMES, seed: int = 0) -> dict:
    """Train and write the policy's steps to `folder`, whole or not at all. Returns the facts of the card and training.json.

    steps: fewer than STEPS for a short run. The learning rate falls over these steps.
    """
    with tempfile.TemporaryDirectory() as files:
        model, seconds, won = asyncio.run(_trained(files, steps, games, seed))
        checkpoints = checkpoints_of(model, files)
        facts = {
            "game": "2048", "base": "nano", "winning_tile": WINNING_TILE, "seed": seed, **asdict(TRAINING), "steps": steps,
            "recipe_steps": STEPS, "games_a_step": GROUPS * SIZE, "groups": GROUPS,
            "minutes": round(seconds / 60, 1), "device": f"cpu, {torch.get_num_threads()} threads",
            "torch": torch.__version__, "games": games, "won": {str(step): row for step, row in won.items()},
        }  # fmt: skip
        short = "" if steps == STEPS else f"**A short run: {steps} of the recipe's {STEPS} steps.** "
        card = MODEL_CARD.replace("{short}", short).replace("{table}", games_table("after step", won))
        write_described(folder, partial(_save, checkpoints, list(won), facts), facts, card)
    return facts


def _save(checkpoints: Path, steps: list[int], facts: dict, folder: Path) -> None:
    facts["scale"] = save_steps(checkpoints, steps, folder)


async def _trained(files: str, steps: int, games: int, seed: int) -> tuple[art.TrainableModel, float, dict]:
    """Return the model, the seconds of training, and for each kept step the percent of games won at each temperature."""
    model = await registered(files, str(BASE), "steps", seed=seed)
    seconds = await train_player(model, replace(TRAINING, steps=steps))
    assert steps in list_checkpoints(checkpoints_of(model, files))
    won = {}
    for step in kept_steps(steps):
        name = model.get_inference_name(step) if step else model.base_model
        won[step] = {f"at temperature {t:g}": await _percent_won(model, name, t, games) for t in TEMPERATURES}
        say(f"after step {step}: {won[step]}")
    return model, seconds, won


async def _percent_won(model: art.TrainableModel, name: str, temperature: float, games: int) -> float:
    client = model.openai_client()

    async def play(seed: int) -> art.Trajectory:
        game = Game(seed, winning_tile=WINNING_TILE)
        while not game.over:
            board = {"role": "user", "content": game.render()}
            answer = await client.chat.completions.create(
                model=name, messages=[board], max_tokens=ANSWER, temperature=temperature
            )
            game.move(answer.choices[0].message.content)
        return art.Trajectory(messages_and_choices=[], reward=float(game.won))

    played = await art.gather_trajectories([play(seed) for seed in scenarios("val", games)], pbar_desc=None)
    return round(100 * sum(trajectory.reward for trajectory in played) / len(played), 2)


MODEL_CARD = """\
---
license: apache-2.0
library_name: peft
---
# The policy of 2048, step by step

{short}LoRA adapters of data/nano after some steps of one training run, NNNN.safetensors after step NNNN, in 8 bits. The
page "Watch it learn" of the book runs them in the browser. A game is won at the {winning_tile} tile.

Made by `python -m data policy_2048` (data/policy_2048/maker.py) in {minutes} minutes on {device}, torch {torch},
seed {seed}. The recipe is that of benchmarks/rise.py.

| | |
| --- | --- |
| steps | {steps} of {games_a_step} games each, in {groups} groups |
| learning rate | {first_rate}, falling linearly to a tenth of it |
| temperature of the training games | {temperature} |
| discount of turn rewards | {turn_discount} |
| weight of closeness to a corner; value of a board | {closeness}; {board_value} |
| share of the moves that a step trains on | {trained_share} |
| format | W + {scale} B A for each matrix W of data/nano; A and B in int8, times NAME_scale for each row |

Games won, of {games} games of the validation split, with the adapters before quantisation:

{table}

training.json has these figures, SHA256SUMS the files' hashes. Licence: Apache-2.0, like the project.
"""
