"""How fast games are gathered through the public API, against stock TRL with environment_factory.

`python -m benchmarks.rollout` prints one JSON line. `ratio`: sampled tokens a second of gathering 64 games of
40 turns, over those of stock TRL's generation phase (`GRPOTrainer._generate`, nothing else of it) in the same
run: same base model and adapter, prompts, tool schema and tool results, limit of tokens per turn, temperature
1. Ours counts all of `gather_trajectory_groups`. On both sides the games are of `EndlessEnvironment`, and end
after exactly 40 turns, or at an answer without a tool call, because TRL's loop can't go on from there
(`turns` says how long they were in the mean). It stops if the two sides did not read the same prompts.

`turn_cost_ratio`: a second measurement, of ours alone: what turn 80 of 64 games costs over what turn 10 of 64 others does.
The two sets are played in turn, around those turns, and the ratio is the median of nine pairs. A malformed answer ends no
game there, so that late turns do not look cheap because games are missing.

`python -m benchmarks.rollout --task email` races on the email task: see benchmarks/rollout_email.py. With `--model real` the
real language model answers, against itself in float32: see benchmarks/rollout_real.py.
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
from art_nb.tasks.game_2048 import MOVE_TOOL, Game, Game2048Environment
from benchmarks import rollout_code, rollout_email, rollout_real, rollout_service
from benchmarks.gathering import BASE, compared, gather, registered, stock_generation
from benchmarks.result import print_result, say

MAX_TOKENS = 16  # of one answer; a move takes 5


class EndlessEnvironment(Game2048Environment):
    """2048 where a game lasts for as many turns as its player takes, however badly it is played.

    An illegal move changes nothing and ends nothing; a board that is won or stuck makes way for a new game's. The
    player's loop sets the length, 40 turns in this benchmark: `play` by its `turns`, TRL by
    max_tool_calling_iterations.
    """

    def move(self, direction: str) -> str:
        self.game.move(str(direction))
        if self.game.ended_by in ("won", "stuck"):
            self.game = Game(self.game.seed + 10_000_000, self.size, self.winning_tile)
        self.game.ended_by = None
        return self.game.render()

    move.__doc__ = Game2048Environment.move.__doc__  # the tool's schema is made from it


class Play:
    """A game as TRL's loop plays it, turn by turn.

    goes_on: after a malformed answer the board is shown again and the game goes on, where TRL's loop ends. So there are as
    many games at a late turn as at an early one.
    """

    def __init__(self, model: art.TrainableModel, seed: int, goes_on: bool = False):
        self.model, self.goes_on, self.environment = model, goes_on, EndlessEnvironment()
        first = {"role": "user", "content": self.environment.reset(seed=seed)}
        self.trajectory = art.Trajectory(messages_and_choices=[first])
        self.client = model.openai_client()

    async def turn(self) -> bool:
        """One answer, and what the game says to it. Returns whether there is a next turn."""
        completion = await self.client.chat.completions.create(
            model=self.model.get_inference_name(),
            messages=self.trajectory.messages(),
            tools=[MOVE_TOOL],
            max_tokens=MAX_TOKENS,
        )
        choice = completion.choices[0]
        calls = choice.message.tool_calls or []
        again = [{"role": "user", "content": self.environment.game.render()}] if self.goes_on else []
        said = [tool_message(self.environment, call) for call in calls] or again
        self.trajectory.messages_and_choices += [choice, *said]
        return bool(said)


async def play(model: art.TrainableModel, seed: int, turns: int) -> art.Trajectory:
    """One game of at most `turns` turns; it ends with an answer, as TRL's does."""
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
    """What TRL's loop answers to a tool call, the model's mistakes included."""
    name = call.function.name
    try:
        if name != "move":
            raise ValueError(f"Tool {name} not found.")
        content = environment.move(**json.loads(call.function.arguments))
    except Exception as error:  # as TRL does: the model is told of any error
        content = str({"error": str(error)})
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def games(model: art.TrainableModel, groups: int, size: int, turns: int) -> list:
    """Groups of games to be played, each group from a seed of its own."""
    return [[play(model, seed, turns) for _ in range(size)] for seed in range(groups)]


async def measure_ours(folder: str, base: str, groups: int, size: int, turns: int) -> dict:
    """`gather` with nothing cached, after a few turns of another model have warmed torch up."""
    await gather(games(await registered(folder, base, "warm-up"), groups, size, turns=2))
    return await gather(games(await registered(folder, base, "model"), groups, size, turns))


async def turn_costs(folder: str, base: str, games: int, late: int, early: int = 10, pairs: int = 9) -> dict:
    """Median seconds that a turn of all games takes at turn `early` and at turn `late`, and the median of their ratio.

    Two sets of games are played up to those turns, and from there on in turn, one turn of each: a machine that is slower for
    a while is slower for both.
    """
    model = await registered(folder, base, "long")
    sets = {first: [Play(model, first + seed, goes_on=True) for seed in range(games)] for first in (early, late)}

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
    """The same games by stock TRL."""
    seeds = [{"seed": seed} for seed in range(groups)]
    return stock_generation(folder, base, seeds, size, EndlessEnvironment, turns, MAX_TOKENS)


def measure(base: str, groups: int, size: int, turns: int, late: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        say(f"ours: {groups * size} games of {turns} turns")
        ours = asyncio.run(measure_ours(folder, base, groups, size, turns))
        say(f"ours: turn {late} of {groups * size} games against turn 10 of as many")
        costs = asyncio.run(turn_costs(folder, base, groups * size, late))
        say(f"stock TRL: {groups * size} games of {turns} turns")
        stock = measure_stock(folder, base, groups, size, turns)
    return compared(ours, stock) | costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=["2048", "email", "code", "retail"], default="2048")
    parser.add_argument("--model", choices=["nano", "real"], default="nano")
    parser.add_argument("--base", help="folder or hub name of the base model; by default the task's nano model")
    parser.add_argument("--groups", type=int, help="by default 8 of 2048, 16 of the others")
    parser.add_argument("--size", type=int, default=8, help="games or searches in a group")
    parser.add_argument("--turns", type=int, default=80, help="the late turn whose cost is compared with turn 10's")
    parser.add_argument("--game-turns", type=int, default=40, help="turns of a game of the race against TRL")
    a = parser.parse_args()
    if a.model == "real":
        print_result("rollout_real", lambda: rollout_real.measure(a.base or "", a.groups or 8, a.size))
    elif a.task == "2048":
        print_result("rollout", lambda: measure(a.base or str(BASE), a.groups or 8, a.size, a.game_turns, a.turns))
    elif a.task == "code":
        base = a.base or str(rollout_code.CODE_BASE)
        print_result("rollout_code", lambda: rollout_code.measure(base, a.groups or 16, a.size))
    elif a.task == "retail":
        base = a.base or str(rollout_service.SERVICE_BASE)
        print_result("rollout_service", lambda: rollout_service.measure(base, a.groups or 16, a.size))
    else:
        base = a.base or str(rollout_email.EMAIL_BASE)
        print_result("rollout_email", lambda: rollout_email.measure(base, a.groups or 16, a.size))


if __name__ == "__main__":
    main()
