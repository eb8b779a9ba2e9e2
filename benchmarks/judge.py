"""How far a judge can be trusted: its report on groups of trajectories whose outcome is known.

`python -m benchmarks.judge [--judge openai/o3]` prints one JSON line: for each task of data/judged_groups.jsonl.gz the
figures of `art_nb.rewards.JudgeReport`, each with its 95% interval over groups, against the true reward; for the email
task also `pairwise_correct`, over pairs of a right and a wrong search. Without `--judge` it is the offline judge.

`--write` makes the groups anew first: `--groups` of each task, of 8 trajectories, each by a policy drawn for it. Policies
are players without a model, of different skill; `--models DIR ...` adds models (base models on disk). Scenarios are of the
test splits: the offline judge's rules were made by looking at training scenarios alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import art_nb as art
from art_nb.rewards import RubricJudge, judge_report, ruler_score_group
from art_nb.rewards.agreement import Estimate, mean, pairs_right
from art_nb.rewards.judged_groups import DATA, judged_groups, save_groups
from art_nb.rewards.judges import Judge
from art_nb.tasks.email_search import environment as email_search
from art_nb.tasks.email_search.players import RecordedSearch, heuristic_player, play, searcher
from art_nb.tasks.game_2048 import environment as game_2048
from art_nb.tasks.game_2048.players import Player, corner_player, expectimax_player, random_player
from benchmarks.result import print_result, say

SIZE, WINNING_TILE = 8, 128
SKILLS = (0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
CARELESS = (0.0, 0.01, 0.05, 0.3)  # the share of turns that are played without looking

CARD = """\
# Groups to hold a judge against

`judged_groups.jsonl.gz`: {groups} groups of {size} trajectories whose true outcome is known, one group a line; what was
said, the true reward, metrics, and which policy it was. `art_nb.rewards.judged_groups.judged_groups()` reads them. Made by
`python -m benchmarks.judge --write` from test scenarios; 2048 is won with the tile {tile}.

| task | policy | trajectories | mean reward |
| --- | --- | --- | --- |
{rows}
"""

Policy = Callable[[Any, int], Awaitable[art.Trajectory]]  # (scenario, seed) -> its trajectory


def email_policies() -> dict[str, Policy]:
    """Searchers of different skill, and the heuristic."""

    async def by_skill(skill: float, scenario: email_search.Scenario, seed: int) -> art.Trajectory:
        return play(searcher(skill, seed), RecordedSearch(email_search.course_mailbox(), scenario)).trajectory()

    async def by_heuristic(scenario: email_search.Scenario, seed: int) -> art.Trajectory:
        return play(heuristic_player, RecordedSearch(email_search.course_mailbox(), scenario)).trajectory()

    return {f"searcher of skill {skill}": partial(by_skill, skill) for skill in SKILLS} | {"heuristic": by_heuristic}


def game_policies() -> dict[str, Policy]:
    """Three players, each of them careless to a different degree."""
    players = {"random": random_player, "corner": lambda seed: corner_player, "search": lambda seed: expectimax_player(1)}

    async def played(make: Callable[[int], Player], share: float, scenario: int, seed: int) -> art.Trajectory:
        return game(careless(make(seed), share, seed), scenario)

    return {f"{name}, careless {c}": partial(played, make, c) for name, make in players.items() for c in CARELESS}


def careless(player: Player, share: float, seed: int) -> Player:
    """Answers with any word in a share of its turns; that may be illegal, or no move at all."""
    rng = random.Random(seed)
    return lambda board: rng.choice([*game_2048.MOVES, "stay"]) if rng.random() < share else player(board)


def game(player: Player, seed: int) -> art.Trajectory:
    """One game as notebook 02 plays: each board by itself, each answer a word."""
    played, said = game_2048.Game(seed, winning_tile=WINNING_TILE), []
    while not played.over:
        said += [{"role": "user", "content": played.render()}, {"role": "assistant", "content": player(played.board)}]
        played.move(said[-1]["content"])
    metrics = {"won": played.won, "moves": played.moves, "max_tile": played.max_tile}
    return art.Trajectory(messages_and_choices=said, reward=game_2048.outcome_reward(played), metrics=metrics)


async def model_policies(folder: str, base: str) -> dict[str, Policy]:
    """How a base model plays each task."""
    from benchmarks import rollout_email, time_to_skill
    from benchmarks.gathering import registered

    model = await registered(folder, base, Path(base).name)
    return {
        "email_search": lambda scenario, seed: rollout_email.rollout(model, scenario),
        "game_2048": lambda scenario, seed: time_to_skill.rollout(model, scenario, by_tool=False),
    }


def where(task: str, scenario: Any) -> dict[str, Any]:
    """The metadata that say which task and scenario it is."""
    if task == "email_search":
        return {"task": task, "scenario": scenario.id}
    return {"task": task, "seed": scenario, "winning_tile": WINNING_TILE}


def pending(task: str, policies: dict[str, Policy], groups: int, rng: random.Random) -> Iterator:
    """Groups to be gathered: test scenarios in order, policies and their seeds drawn."""

    async def rollout(name: str, scenario: Any, seed: int) -> art.Trajectory:
        trajectory = await policies[name](scenario, seed)
        trajectory.metadata = where(task, scenario) | {"policy": name}
        return trajectory

    known = {"email_search": email_search, "game_2048": game_2048}
    for scenario in known[task].scenarios("test", groups):
        names = rng.choices(list(policies), k=SIZE)
        members = [rollout(name, scenario, rng.randrange(2**32)) for name in names]
        yield art.TrajectoryGroup(members, metadata=where(task, scenario))


async def make(groups: int, bases: Sequence[str] = (), seed: int = 0) -> list[art.TrajectoryGroup]:
    """So many groups of each task; without models the same every time from the same seed."""
    rng, policies = random.Random(seed), {"email_search": email_policies(), "game_2048": game_policies()}
    with tempfile.TemporaryDirectory() as folder:
        for base in bases:
            for task, policy in (await model_policies(folder, base)).items():
                policies[task][f"model {Path(base).name}"] = policy
        waiting = [group for task, known in policies.items() for group in pending(task, known, groups, rng)]
        return await art.gather_trajectory_groups(waiting, pbar_desc=None)


def describe(groups: Sequence[art.TrajectoryGroup]) -> str:
    """The card of the stored groups."""
    lines = []
    for task in ("email_search", "game_2048"):
        found = [t for group in groups if group.metadata["task"] == task for t in group]
        policies = sorted({t.metadata["policy"] for t in found})
        rewards = {name: [t.reward for t in found if t.metadata["policy"] == name] for name in policies}
        lines += [f"| {task} | {name} | {len(got)} | {fmean(got):.2f} |" for name, got in rewards.items()]
    return CARD.format(groups=len(groups), size=SIZE, tile=WINNING_TILE, rows="\n".join(lines))


async def report(judge: str | Judge, groups: Sequence[art.TrajectoryGroup]) -> dict:
    """The figures of `JudgeReport` for one task's groups, as [value, low, high] each."""
    found = await judge_report(judge, groups, truth=lambda trajectory: trajectory.reward)
    say(str(found))
    figures = {name: numbers(estimate) for name, estimate in found.estimates().items()}
    return {"groups": found.groups, "trajectories": found.trajectories, "failed": len(found.failed), **figures}


async def pairwise_correct(judge: str | Judge, groups: Sequence[art.TrajectoryGroup]) -> list[float] | None:
    """The share of pairs of a right and a wrong search that the judge orders rightly, with its interval."""
    scored = [await ruler_score_group(group, judge, swallow_exceptions=True) for group in groups]
    pairs = [pairs_right([t.metrics["correct"] for t in g], [t.reward for t in g]) for g in scored if g]
    varied = [(share, number) for share, number in pairs if number]
    return numbers(mean(*map(list, zip(*varied, strict=True)))) if varied else None


def numbers(estimate: Estimate) -> list[float]:
    return [estimate.value, estimate.low, estimate.high]


def measure(judge: str | Judge, path: Path = DATA) -> dict:
    found = {}
    for task in ("email_search", "game_2048"):
        say(task)
        found[task] = asyncio.run(report(judge, judged_groups(task, path=path)))
    correct = asyncio.run(pairwise_correct(judge, judged_groups("email_search", path=path)))
    return found | {"pairwise_correct": correct}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judge", default=RubricJudge(), help="a model as LiteLLM names it; default: the offline judge")
    parser.add_argument("--write", action="store_true", help="make the groups anew")
    parser.add_argument("--groups", type=int, default=100, help="of each task, with --write")
    parser.add_argument("--models", nargs="*", default=[], help="base models that play too, with --write")
    a = parser.parse_args()
    if a.write:
        groups = asyncio.run(make(a.groups, a.models))
        save_groups(DATA, groups)
        DATA.with_name("judged_groups.md").write_text(describe(groups))
    print_result("judge", lambda: measure(a.judge))


if __name__ == "__main__":
    main()
