"""2048 to the 256 tile, as in notebook 02: what training teaches beyond a lower temperature, and beyond a rule.

`python -m benchmarks.rise --seeds 0 1 2` prints one JSON line. `runs` has for each seed of the backend (initial adapter and
all samples), in percent of 200 test games: `untrained_t1` and `trained_t1` at temperature 1, `untrained_best` and
`trained_best` at the temperature that won each policy the most of 100 validation games, `rule` (the corner rule), `greedy`
(the player that always makes the move with the highest turn reward), `pass_at_8_untrained` (of 50 test games), the paired
rise of the trained over the untrained policy, each at its best, with a 95% interval, the same over the rule, the training
games won at each step, and the seconds of training. `ratio` is the mean of `trained_best` over that of `untrained_best`.

The settings are the notebook's. `--split val` takes 200 further validation games in place of the test games, to choose
settings. Each field of `TrainingRecipe` is an option, for example `--board-value 0`, which leaves out
the baseline. `python -m benchmarks.rise > data/results/rise_2048.jsonl` writes the results that notebook 02 shows. With
`--trained-share 1` they belong in rise_2048_all_moves.jsonl. In both files an answer is one token. The
older runs of rise_2048_settings.jsonl, all with `--trained-share 1`, also sampled the end token of each answer; they
differ in `--board-value` and `--turn-discount`.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, fields
from functools import partial
from statistics import fmean

import art_nb as art
from benchmarks.gathering import BASE, registered
from benchmarks.result import print_result, say
from benchmarks.rising import decayed_rate, run_seeds, train
from benchmarks.skills import game
from course import comparison
from game_2048 import TurnWeights, random_move_reward, scenarios
from game_2048.players import corner_player, greedy_player, play
from game_2048.rules import parse

WINNING_TILE, GROUPS, SIZE = 256, 2, 16
ANSWER = 1  # tokens: each of the four words is one
VALIDATION, TEST, PASSES, TRIES = 100, 200, 50, 8  # games; games for pass@k; k


@dataclass(frozen=True)
class TrainingRecipe:
    """Settings of training.

    first_rate: the learning rate, which falls linearly over the steps. temperature: of the answers in training.
    closeness: weight of the tiles' closeness to one corner in the reward of a move. board_value: a board's value,
    as a multiple of the mean reward of its legal moves; the value of the board before a move is subtracted from the move's
    return (potential-based shaping: Ng, Harada and Russell, ICML 1999). trained_share: each step trains on this share of
    the moves, those with the largest absolute advantages.
    """

    steps: int = 24
    first_rate: float = 3e-3
    turn_discount: float = 0.7
    temperature: float = 0.8
    closeness: float = 0.2
    board_value: float = 2.5
    trained_share: float = 0.5

    def weights(self) -> TurnWeights:
        """Return the weights of the turn rewards."""
        return TurnWeights(
            merges=0.1, empty=0.3, monotonicity=0.3, smoothness=0.3, illegal=-2, loss=-1, win=3, closeness=self.closeness
        )


async def episode(model: art.TrainableModel, recipe: TrainingRecipe, seed: int, temperature: float) -> art.Trajectory:
    """Play one game with the notebook's winning tile and the rewards of this recipe."""
    weights = recipe.weights()
    trajectory = await game(model, seed, False, WINNING_TILE, temperature, weights, ANSWER)
    boards = [parse(str(message["content"])) for message in trajectory.messages() if message["role"] == "user"]
    values = [recipe.board_value * random_move_reward(board, WINNING_TILE, weights) for board in boards]
    trajectory.turn_rewards = shaped(trajectory.turn_rewards, values, recipe.turn_discount)
    return trajectory


def shaped(rewards: list[float], values: list[float], discount: float) -> list[float]:
    """Return turn rewards that lower the return of each move by the value of the board before it."""
    return [r + discount * later - value for r, value, later in zip(rewards, values, [*values[1:], 0.0], strict=True)]


async def wins(model: art.TrainableModel, seed: int, temperature: float) -> bool:
    """Play one game. Returns whether it was won."""
    return bool((await game(model, seed, False, WINNING_TILE, temperature, max_tokens=ANSWER)).metrics["won"])


async def train_player(model: art.TrainableModel, recipe: TrainingRecipe) -> float:
    """Train by this recipe. Returns seconds."""
    configs = [
        art.TrainConfig(
            learning_rate=decayed_rate(step, recipe.steps, recipe.first_rate),
            turn_discount=recipe.turn_discount,
            trained_share=recipe.trained_share,
            grpo={"temperature": recipe.temperature},
        )
        for step in range(recipe.steps)
    ]
    rollout, seeds = partial(episode, model, recipe), scenarios("train", recipe.steps * GROUPS)
    return await train(model, rollout, seeds, configs, GROUPS, SIZE, ["won"], temperature=recipe.temperature)


async def measure_seed(
    folder: str, seed: int, recipe: TrainingRecipe, split: str = "test",
    validation: int = VALIDATION, test: int = TEST, passes: int = PASSES,
) -> dict:  # fmt: skip
    """Train from one seed. Returns percent of held-out games, and seconds of gathering and updating."""
    model = await registered(folder, BASE, f"rise-{seed}", seed=seed)
    chosen = scenarios("val", validation)
    games = scenarios("test", test) if split == "test" else scenarios("val", validation + test)[validation:]
    plays, held_out = partial(wins, model), (chosen, games)
    untrained = await comparison.measure(plays, *held_out)
    tries = await comparison.tries_at(plays, games[:passes], TRIES)
    seconds = await train_player(model, recipe)
    trained = await comparison.measure(plays, *held_out)
    rule, greedy = (
        [play(player, s, winning_tile=WINNING_TILE).won for s in held_out[1]]
        for player in (corner_player, greedy_player(recipe.weights(), WINNING_TILE))
    )
    found = comparison.compare(untrained, trained, rule, "corner rule", tries)
    say(f"{model.name}: {found.table()}")
    curve = [100 * won for won in model.history().query("split == 'train'").won]
    return {
        "seed": seed, **found.summary(), "greedy": 100 * fmean(greedy), "seconds": seconds,
        "won_in_training": curve, "validation": found.validation,
    }  # fmt: skip


def measure(seeds: list[int], recipe: TrainingRecipe, split: str = "test") -> dict:
    """Train from each seed."""
    return {"settings": asdict(recipe), "split": split, **run_seeds(measure_seed, seeds, recipe, split)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the backend, one run for each")
    parser.add_argument("--split", choices=["test", "val"], default="test", help="of the games; use val to choose settings")
    for field in fields(TrainingRecipe):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, help="see TrainingRecipe")
    arguments = vars(parser.parse_args())
    seeds, split = arguments.pop("seeds"), arguments.pop("split")
    print_result("rise", lambda: measure(seeds, TrainingRecipe(**arguments), split))
