"""2048 to the tile 256, as in notebook 02: what training teaches beyond a lower temperature, and beyond a rule.

`python -m benchmarks.rise --seeds 0 1 2` prints one JSON line. `runs` has for each seed of the backend (initial adapter and
all samples), in percent of 200 test games: `untrained_t1` and `trained_t1` at temperature 1, `untrained_best` and
`trained_best` at the temperature that won most of 100 validation games on each side, `rule` (the corner rule),
`pass_at_8_untrained` (of 50 test games), the paired rise of the trained over the untrained policy, each at its best, with a
95% interval, the same over the rule, the training games won at each step, and the seconds of training. `ratio` is the mean
of `trained_best` over that of `untrained_best`. The settings are the notebook's; `--turn-discount` changes one of them.

`python -m benchmarks.rise >> data/results/rise_2048.jsonl` appends the results; notebook 02 shows all lines of this file.
`data/results/rise_2048_before.jsonl` has the results of earlier settings: temperature 1, discount 0.8, no reward for a
corner, no baseline for the board, 40 steps from a learning rate of 3e-3.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from functools import partial
from statistics import fmean

import art_nb as art
from benchmarks.gathering import BASE, registered
from benchmarks.result import print_result, say
from benchmarks.rising import decayed_rate, train
from course import comparison
from game_2048 import Game, TurnWeights, outcome_reward, scenarios, turn_reward
from game_2048.players import corner_player, play

WINNING_TILE, STEPS, GROUPS, SIZE = 256, 32, 2, 16
FIRST_RATE, TURN_DISCOUNT, TEMPERATURE = 2e-3, 0.5, 0.8
WEIGHTS = TurnWeights(merges=0.1, empty=0.3, monotonicity=0.3, smoothness=0.3, corner=0.3, illegal=-2, loss=-1, win=3)
BOARD_VALUE = 1.5  # of a board, relative to its reward: the baseline of a move's return
VALIDATION, TEST, PASSES, TRIES = 100, 200, 50, 8  # games; games for pass@k; k


async def episode(model: art.TrainableModel, turn_discount: float, seed: int, temperature: float) -> art.Trajectory:
    """Play one game with the notebook's winning tile and rewards."""
    game, client, values = Game(seed, winning_tile=WINNING_TILE, weights=WEIGHTS), model.openai_client(), []
    trajectory = art.Trajectory(messages_and_choices=[])
    while not game.over:
        board = {"role": "user", "content": game.render()}
        values.append(BOARD_VALUE * turn_reward(game.board, 0, WINNING_TILE, WEIGHTS))
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=[board], max_tokens=4, temperature=temperature
        )
        trajectory.messages_and_choices += [board, completion.choices[0]]
        game.move(completion.choices[0].message.content)
    moves = zip(game.turn_rewards, values, [*values[1:], 0.0], strict=True)
    trajectory.turn_rewards = [reward - value + turn_discount * following for reward, value, following in moves]
    trajectory.reward, trajectory.metrics["won"] = outcome_reward(game), game.won
    return trajectory


async def wins(model: art.TrainableModel, seed: int, temperature: float) -> bool:
    """Play one game. Returns whether it was won."""
    return bool((await episode(model, TURN_DISCOUNT, seed, temperature)).metrics["won"])


async def train_player(model: art.TrainableModel, steps: int = STEPS, turn_discount: float = TURN_DISCOUNT) -> float:
    """Train with the notebook's settings. The learning rate falls over `steps`. Returns seconds."""
    configs = [
        art.TrainConfig(
            learning_rate=decayed_rate(step, steps, FIRST_RATE),
            turn_discount=turn_discount,
            grpo={"temperature": TEMPERATURE},
        )
        for step in range(steps)
    ]
    rollout, seeds = partial(episode, model, turn_discount), scenarios("train", steps * GROUPS)
    return await train(model, rollout, seeds, configs, GROUPS, SIZE, ["won"], temperature=TEMPERATURE)


async def measure_seed(
    folder: str, seed: int, turn_discount: float = TURN_DISCOUNT, steps: int = STEPS,
    validation: int = VALIDATION, test: int = TEST, passes: int = PASSES,
) -> dict:  # fmt: skip
    """Train from one seed. Returns percent of test games, and seconds of gathering and updating."""
    model = await registered(folder, BASE, f"rise-{turn_discount}-{seed}", seed=seed)
    plays, held_out = partial(wins, model), (scenarios("val", validation), scenarios("test", test))
    untrained = await comparison.measure(plays, *held_out)
    tries = await comparison.tries_at(plays, scenarios("test", passes), TRIES)
    seconds = await train_player(model, steps, turn_discount)
    trained = await comparison.measure(plays, *held_out)
    rule = [play(corner_player, s, winning_tile=WINNING_TILE).won for s in held_out[1]]
    found = comparison.compare(untrained, trained, rule, "corner rule", tries)
    say(f"{model.name}: {found.table()}")
    curve = [100 * won for won in model.history().query("split == 'train'").won]
    return {"seed": seed, **found.summary(), "seconds": seconds, "won_in_training": curve, "validation": found.validation}


def measure(seeds: list[int], turn_discount: float) -> dict:
    """Train from each seed."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, seed, turn_discount)) for seed in seeds]
    ratio = fmean(run["trained_best"] for run in runs) / fmean(run["untrained_best"] for run in runs)
    return {"turn_discount": turn_discount, "runs": runs, "ratio": ratio}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the backend, one run for each")
    parser.add_argument("--turn-discount", type=float, default=TURN_DISCOUNT, help="weight of a reward one turn later")
    arguments = parser.parse_args()
    print_result("rise", lambda: measure(arguments.seeds, arguments.turn_discount))
