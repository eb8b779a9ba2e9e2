"""Make data/judged_groups, groups of trajectories for evaluating judges: `python -m data judged_groups` (a minute).

The trajectories are by players of known skill, without a model, and have known outcomes. The scenarios are from the test
splits, because the offline judge's criteria were developed on training scenarios.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import art_nb as art
from course.judged_groups import save_groups
from data.item import write_item, write_text
from email_search import environment as email_search
from email_search.players import heuristic_player, play, searcher
from game_2048 import environment as game_2048
from game_2048.players import Player, corner_player, expectimax_player, random_player

SIZE, WINNING_TILE = 8, 128
SKILLS = (0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
CARELESS = (0.0, 0.01, 0.05, 0.3)  # shares of random answers

Policy = Callable[[Any, int], art.Trajectory]  # (scenario, seed) -> its trajectory


class GroupPlan(NamedTuple):
    """A group to play. members: (name of a policy, its seed) of each trajectory."""

    task: str
    scenario: Any
    members: list[tuple[str, int]]


def build(folder: Path, groups: int = 100, seed: int = 0) -> dict:
    """Play this number of groups of each task and write them to `folder` atomically. Returns the card's facts."""
    played = [play_group(plan) for plan in plans(groups, seed)]
    facts = {"groups": len(played), "size": SIZE, "tile": WINNING_TILE, "seed": seed}

    def fill(new: Path) -> None:
        save_groups(new / "groups.jsonl.gz", played)
        write_text(new / "README.md", CARD.format(**facts, rows="\n".join(rows(played))))

    write_item(folder, fill)
    return facts


def plans(groups: int, seed: int = 0) -> Iterator[GroupPlan]:
    """Yield the groups of each task: test scenarios in order, random policies and seeds. Deterministic in the seed."""
    rng = random.Random(seed)
    for task, (module, policies) in TASKS.items():
        for scenario in module.scenarios("test", groups):
            names = rng.choices(list(policies), k=SIZE)
            yield GroupPlan(task, scenario, [(name, rng.randrange(2**32)) for name in names])


def play_group(plan: GroupPlan) -> art.TrajectoryGroup:
    """Play a group."""
    about = scenario_metadata(plan.task, plan.scenario)
    _, policies = TASKS[plan.task]
    trajectories = [policies[name](plan.scenario, seed) for name, seed in plan.members]
    for trajectory, (name, _) in zip(trajectories, plan.members, strict=True):
        trajectory.metadata = about | {"policy": name}
    return art.TrajectoryGroup(trajectories, metadata=about)


def scenario_metadata(task: str, scenario: Any) -> dict[str, Any]:
    """Return the metadata that identify the task and the scenario."""
    if task == "email_search":
        return {"task": task, "scenario": scenario.id}
    return {"task": task, "seed": scenario, "winning_tile": WINNING_TILE}


def email_policies() -> dict[str, Policy]:
    """Return searchers of different skill, and the heuristic player."""

    def by_skill(skill: float, scenario: email_search.Scenario, seed: int) -> art.Trajectory:
        return play(searcher(skill, seed), email_search.EmailSearch(email_search.course_mailbox(), scenario)).trajectory()

    def by_heuristic(scenario: email_search.Scenario, seed: int) -> art.Trajectory:
        return play(heuristic_player, email_search.EmailSearch(email_search.course_mailbox(), scenario)).trajectory()

    return {f"searcher of skill {skill}": partial(by_skill, skill) for skill in SKILLS} | {"heuristic": by_heuristic}


def game_policies() -> dict[str, Policy]:
    """Return three players, each with several shares of random answers."""
    players = {"random": random_player, "corner": lambda seed: corner_player, "search": lambda seed: expectimax_player(1)}

    def played(make: Callable[[int], Player], share: float, scenario: int, seed: int) -> art.Trajectory:
        return game(careless(make(seed), share, seed), scenario)

    return {f"{name}, careless {c}": partial(played, make, c) for name, make in players.items() for c in CARELESS}


def careless(player: Player, share: float, seed: int) -> Player:
    """Return a player that gives a random answer, possibly illegal or malformed, in a share of its turns."""
    rng = random.Random(seed)
    return lambda board: rng.choice([*game_2048.MOVES, "stay"]) if rng.random() < share else player(board)


def game(player: Player, seed: int) -> art.Trajectory:
    """Play one game as in notebook 02, 2048: each turn is a board and a one-word answer."""
    played, messages = game_2048.Game(seed, winning_tile=WINNING_TILE), []
    while not played.over:
        messages += [{"role": "user", "content": played.render()}, {"role": "assistant", "content": player(played.board)}]
        played.move(messages[-1]["content"])
    metrics = {"won": played.won, "moves": played.moves, "max_tile": played.max_tile}
    return art.Trajectory(messages_and_choices=messages, reward=game_2048.outcome_reward(played), metrics=metrics)


TASKS = {"email_search": (email_search, email_policies()), "game_2048": (game_2048, game_policies())}


def rows(groups: Sequence[art.TrajectoryGroup]) -> Iterator[str]:
    """Yield the rows of the card's table: trajectories and mean reward of each policy."""
    for task in TASKS:
        found = [t for group in groups if group.metadata["task"] == task for t in group]
        for name in sorted({t.metadata["policy"] for t in found}):
            rewards = [t.reward for t in found if t.metadata["policy"] == name]
            yield f"| {task} | {name} | {len(rewards)} | {fmean(rewards):.2f} |"


CARD = """\
---
license: apache-2.0
---
# Groups for evaluating judges

`groups.jsonl.gz`: {groups} groups of {size} trajectories with known outcomes, one group per line: messages, true reward, metrics and
policy. `course.judged_groups.judged_groups()` loads them; notebooks/05_ruler.ipynb and `python -m benchmarks.judge` evaluate
judges with them. The winning tile of 2048 is {tile}. All emails are generated.

Made by `python -m data judged_groups` (data/judged_groups/maker.py) from seed {seed} in test scenarios, by players without a
model.

| task | policy | trajectories | mean reward |
| --- | --- | --- | --- |
{rows}

SHA256SUMS lists the files' hashes. Licence: Apache-2.0, like the project.
"""  # noqa: E501 - a table's row is one line
