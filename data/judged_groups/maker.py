"""Makes data/judged_groups, groups of trajectories to hold a judge against: `python -m data judged_groups` (a minute).

Every trajectory is by a player without a model, each of known skill, and its true outcome is known. Scenarios are of the
test splits: the offline judge's rules were made by looking at training scenarios alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import art_nb as art
from art_nb.rewards.judged_groups import save_groups
from art_nb.tasks.email_search import environment as email_search
from art_nb.tasks.email_search.players import RecordedSearch, heuristic_player, play, searcher
from art_nb.tasks.game_2048 import environment as game_2048
from art_nb.tasks.game_2048.players import Player, corner_player, expectimax_player, random_player
from data.item import write_item, write_text

SIZE, WINNING_TILE = 8, 128
SKILLS = (0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
CARELESS = (0.0, 0.01, 0.05, 0.3)  # the share of turns that are played without looking

Policy = Callable[[Any, int], art.Trajectory]  # (scenario, seed) -> its trajectory


class Plan(NamedTuple):
    """A group that has not been played yet. members: (name of a policy, its seed) each."""

    task: str
    scenario: Any
    members: list[tuple[str, int]]


def build(folder: Path, groups: int = 100, seed: int = 0) -> dict:
    """Play so many groups of each task and write them to `folder`, whole or not at all. Returns the card's facts."""
    played = [gathered(plan) for plan in plans(groups, seed)]
    facts = {"groups": len(played), "size": SIZE, "tile": WINNING_TILE, "seed": seed}

    def fill(new: Path) -> None:
        save_groups(new / "groups.jsonl.gz", played)
        write_text(new / "README.md", CARD.format(**facts, rows="\n".join(rows(played))))

    write_item(folder, fill)
    return facts


def plans(groups: int, seed: int = 0) -> Iterator[Plan]:
    """So many groups of each task: test scenarios in order, policies and their seeds drawn. The same from the same seed."""
    rng = random.Random(seed)
    for task, (module, policies) in TASKS.items():
        for scenario in module.scenarios("test", groups):
            names = rng.choices(list(policies), k=SIZE)
            yield Plan(task, scenario, [(name, rng.randrange(2**32)) for name in names])


def gathered(plan: Plan) -> art.TrajectoryGroup:
    """The group of a plan, played."""
    about = where(plan.task, plan.scenario)
    _, policies = TASKS[plan.task]
    trajectories = [policies[name](plan.scenario, seed) for name, seed in plan.members]
    for trajectory, (name, _) in zip(trajectories, plan.members, strict=True):
        trajectory.metadata = about | {"policy": name}
    return art.TrajectoryGroup(trajectories, metadata=about)


def where(task: str, scenario: Any) -> dict[str, Any]:
    """The metadata that say which task and scenario it is."""
    if task == "email_search":
        return {"task": task, "scenario": scenario.id}
    return {"task": task, "seed": scenario, "winning_tile": WINNING_TILE}


def email_policies() -> dict[str, Policy]:
    """Searchers of different skill, and the heuristic."""

    def by_skill(skill: float, scenario: email_search.Scenario, seed: int) -> art.Trajectory:
        return play(searcher(skill, seed), RecordedSearch(email_search.course_mailbox(), scenario)).trajectory()

    def by_heuristic(scenario: email_search.Scenario, seed: int) -> art.Trajectory:
        return play(heuristic_player, RecordedSearch(email_search.course_mailbox(), scenario)).trajectory()

    return {f"searcher of skill {skill}": partial(by_skill, skill) for skill in SKILLS} | {"heuristic": by_heuristic}


def game_policies() -> dict[str, Policy]:
    """Three players, each of them careless to a different degree."""
    players = {"random": random_player, "corner": lambda seed: corner_player, "search": lambda seed: expectimax_player(1)}

    def played(make: Callable[[int], Player], share: float, scenario: int, seed: int) -> art.Trajectory:
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


TASKS = {"email_search": (email_search, email_policies()), "game_2048": (game_2048, game_policies())}


def rows(groups: Sequence[art.TrajectoryGroup]) -> Iterator[str]:
    """The card's table: how often each policy plays, and its mean reward."""
    for task in TASKS:
        found = [t for group in groups if group.metadata["task"] == task for t in group]
        for name in sorted({t.metadata["policy"] for t in found}):
            rewards = [t.reward for t in found if t.metadata["policy"] == name]
            yield f"| {task} | {name} | {len(rewards)} | {fmean(rewards):.2f} |"


CARD = """\
---
license: apache-2.0
---
# Groups to hold a judge against

`groups.jsonl.gz`: {groups} groups of {size} trajectories whose true outcome is known, one group a line; what was said, the
true reward, metrics, and which policy it was. `art_nb.rewards.judged_groups.judged_groups()` reads them; notebooks/04_ruler.ipynb
and `python -m benchmarks.judge` measure judges with them. 2048 is won with the tile {tile}. All mails are made up.

Made by `python -m data judged_groups` (data/judged_groups/maker.py) from seed {seed}, in test scenarios, by players without a
model.

| task | policy | trajectories | mean reward |
| --- | --- | --- | --- |
{rows}

SHA256SUMS lists the files' hashes. Licence: Apache-2.0, as all of the project.
"""  # noqa: E501 - a table's row is one line
