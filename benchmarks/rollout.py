"""Throughput of games through the public API, compared with stock TRL with environment_factory.

`python -m benchmarks.rollout` prints one JSON line. `ratio`: sampled tokens per second of gathering 64 games of 40 turns,
over those of stock TRL's generation phase (`GRPOTrainer._generate` alone) in the same run: same base model and adapter,
prompts, tool schema and results, token limit per turn, temperature 1. Ours is the time of `gather_trajectory_groups`. Both
sides play in `EndlessEnvironment`, and games end after 40 turns, or with an answer without a tool call, where TRL's
loop ends (`turns` is the mean length). Raises SystemExit if the two sides had different first prompts.

`turn_cost_ratio`: a second measurement, of ours alone: the time of turn 80 of 64 games over that of turn 10 of 64 others.
Turns of the two sets alternate, and the ratio is the median of nine pairs. A malformed answer does not end these games,
so that all of them reach the late turns.

`--task email`, `code` and `retail` measure other tasks: see benchmarks/rollout_email.py, rollout_code.py and
rollout_service.py. `--model real` compares the real language model with itself in float32: see
benchmarks/rollout_real.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from statistics import median

from openai.types.chat.chat_completion import Choice

import art_nb as art
from benchmarks import rollout_code, rollout_email, rollout_real, rollout_service
from benchmarks.gathering import BASE, compared, gather, registered, stock_generation
from benchmarks.result import print_result, say
from game_2048 import MOVE_TOOL, Game, Game2048Environment

MAX_TOKENS = 16  # of one answer; a move takes 5


class EndlessEnvironment(Game2048Environment):
    """2048 without an end, so that the number of turns does not depend on the moves.

    An illegal move changes nothing; a game that is won or stuck is replaced by a new one. The caller's loop limits the
    number of turns: `play` by `turns`, TRL by max_tool_calling_iterations.
    """

    def move(self, direction: str) -> str:  # documented below
        self.game.move(str(direction))
        if self.game.ended_by in ("won", "stuck"):
            self.game = Game(self.game.seed + 10_000_000, self.size, self.winning_tile)
        self.game.ended_by = None
        return self.game.render()

    move.__doc__ = Game2048Environment.move.__doc__  # the tool's schema is generated from it


class Play:
    """A game, turn by turn, as in TRL's loop.

    continue_after_malformed: after a malformed answer the board is shown again, where TRL's loop would end, so that no
    game ends early.
    """

    def __init__(self, model: art.TrainableModel, seed: int, continue_after_malformed: bool = False):
        self.model, self.continue_after_malformed = model, continue_after_malformed
        self.environment = EndlessEnvironment()
        first = {"role": "user", "content": self.environment.reset(seed=seed)}
        self.trajectory = art.Trajectory(messages_and_choices=[first])
        self.client = model.openai_client()

    async def turn(self) -> bool:
        """Sample one answer and make its calls. Returns whether there is a next turn."""
        completion = await self.client.chat.completions.create(
            model=self.model.get_inference_name(),
            messages=self.trajectory.messages(),
            tools=[MOVE_TOOL],
            max_tokens=MAX_TOKENS,
        )
        choice = completion.choices[0]
        calls = choice.message.tool_calls or []
        again = [{"role": "user", "content": self.environment.game.render()}] if self.continue_after_malformed else []
        results = [tool_message(self.environment, call) for call in calls] or again
        self.trajectory.messages_and_choices += [choice, *results]
        return bool(results)


async def play(model: art.TrainableModel, seed: int, turns: int) -> art.Trajectory:
    """Play one game of at most `turns` turns. It ends with an answer, as in TRL."""
    game = Play(model, seed)
    for _ in range(turns):
        if not await game.turn():
            break
    else:
        while not isinstance(game.trajectory.messages_and_choices[-1], Choice):
            game.trajectory.messages_and_choices.pop()
    game.trajectory.reward = game.environment.get_reward()
    return game.trajectory


def tool_message(environment: EndlessEnvironment, call) -> dict:
    """Return the tool message for a call, with the content that TRL gives it, also for an error."""
    name = call.function.name
    try:
        if name != "move":
            raise ValueError(f"Tool {name} not found.")
        content = environment.move(**json.loads(call.function.arguments))
    except Exception as error:  # as in TRL, where the model reads any error
        content = str({"error": str(error)})
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def games(model: art.TrainableModel, groups: int, size: int, turns: int) -> list:
    """Return groups of games to gather; the seed differs by group."""
    return [[play(model, seed, turns) for _ in range(size)] for seed in range(groups)]


async def measure_ours(folder: str, base: str, groups: int, size: int, turns: int) -> dict:
    """Gather the games with an empty cache, after a warm-up with another model."""
    for name, length in (("warm-up", 2), ("model", turns)):
        measured = await gather(games(await registered(folder, base, name, engine="transformers"), groups, size, length))
    return measured


async def turn_costs(folder: str, base: str, games: int, late: int, early: int = 10, pairs: int = 9) -> dict:
    """Return the median seconds of a turn of all games at turns `early` and `late`, and the median of their ratio.

    Two sets of games are played up to those turns and then alternately, so that a slow phase of the machine affects both.
    """
    model = await registered(folder, base, "long", engine="transformers")
    sets = {
        first: [Play(model, first + seed, continue_after_malformed=True) for seed in range(games)] for first in (early, late)
    }

    async def turn(first: int) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(game.turn() for game in sets[first]))
        return time.perf_counter() - started

    for first in sets:
        for _ in range(first - 1 - pairs // 2):
            await turn(first)
    seconds = [(await turn(early), await turn(late)) for _ in range(pairs)]
    cost = {f"turn_{first}_s": median(each) for first, each in zip(sets, zip(*seconds, strict=True), strict=True)}
    return cost | {"turn_cost_ratio": median(b / a for a, b in seconds)}


def measure_stock(folder: str, base: str, groups: int, size: int, turns: int) -> dict:
    """Generate the same games with stock TRL."""
    seeds = [{"seed": seed} for seed in range(groups)]
    return stock_generation(folder, base, seeds, size, EndlessEnvironment, turns, MAX_TOKENS)


def measure(base: str, groups: int, size: int, turns: int, late: int) -> dict:
    """Compare both sides, and early with late turns."""
    with tempfile.TemporaryDirectory() as folder:
        say(f"ours: {groups * size} games of {turns} turns")
        ours = asyncio.run(measure_ours(folder, base, groups, size, turns))
        say(f"ours: turn {late} of {groups * size} games, compared with turn 10")
        costs = asyncio.run(turn_costs(folder, base, groups * size, late))
        say(f"stock TRL: {groups * size} games of {turns} turns")
        stock = measure_stock(folder, base, groups, size, turns)
    return compared(ours, stock) | costs


def main() -> None:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=["2048", "email", "code", "retail"], default="2048")
    parser.add_argument("--model", choices=["nano", "real"], default="nano")
    parser.add_argument("--base", help="folder or hub name of the base model (default: the task's nano model)")
    parser.add_argument("--groups", type=int, help="number of groups (default: 8 for 2048, 16 for other tasks)")
    parser.add_argument("--size", type=int, default=8, help="rollouts per group")
    parser.add_argument("--turns", type=int, default=80, help="the late turn that is compared with turn 10")
    parser.add_argument("--game-turns", type=int, default=40, help="turns per game in the comparison with TRL")
    arguments = parser.parse_args()
    if arguments.model == "real":
        base, groups = arguments.base or "", arguments.groups or 8
        print_result("rollout_real", lambda: rollout_real.measure(base, groups, arguments.size))
    elif arguments.task == "2048":
        base, groups = arguments.base or str(BASE), arguments.groups or 8
        print_result("rollout", lambda: measure(base, groups, arguments.size, arguments.game_turns, arguments.turns))
    elif arguments.task == "code":
        base = arguments.base or str(rollout_code.CODE_BASE)
        print_result("rollout_code", lambda: rollout_code.measure(base, arguments.groups or 16, arguments.size))
    elif arguments.task == "retail":
        base = arguments.base or str(rollout_service.SERVICE_BASE)
        print_result("rollout_service", lambda: rollout_service.measure(base, arguments.groups or 16, arguments.size))
    else:
        base = arguments.base or str(rollout_email.EMAIL_BASE)
        print_result("rollout_email", lambda: rollout_email.measure(base, arguments.groups or 16, arguments.size))


if __name__ == "__main__":
    main()
