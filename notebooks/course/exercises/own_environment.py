"""The exercises of notebook 09, Your own environment."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from itertools import product
from statistics import fmean
from threading import get_ident
from types import CellType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from zlib import crc32

from course.exercises import Exercise, checker, is_number
from course.exercises.training import draw, draws, gather, percents, with_new_model

if TYPE_CHECKING:
    from art_nb import TrainableModel

STEPS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
CELLS = list(product(range(4), repeat=2))
WAYS = [(place, home) for place in CELLS for home in CELLS if place != home]
NAMES = [name for n in range(1000) for name in (f"walk {n}", f"Walk {n}.txt", f"{n} ways home")]


def _distance(place, home) -> int:
    return abs(place[0] - home[0]) + abs(place[1] - home[1])


def _direction(place, home) -> str:
    if place[0] != home[0]:
        return "up" if place[0] > home[0] else "down"
    return "left" if place[1] > home[1] else "right"


def _wrong_way(direction) -> str | None:
    for place, home in WAYS:
        said = direction(place, home)
        if said not in [*STEPS]:
            return f"Expected one of {', '.join(STEPS)}; from {place} to {home} it is {said!r}."
        after = (place[0] + STEPS[said][0], place[1] + STEPS[said][1])
        if _distance(after, home) > _distance(place, home):
            return f"From {place}, {said!r} leads to {after}, which is farther from {home}. (0, 0) is top left."
    return None


def _split_of(name: str) -> str:
    part = crc32(name.encode()) % 10
    return "test" if part == 0 else "val" if part == 1 else "train"


def _calls_hash(split_of) -> bool:
    """Return whether the function calls `hash` on anything but an integer, itself or through a helper, in this thread."""
    unpatched, thread, calls = hash, get_ident(), []

    def recorded(value):
        calls.append(get_ident() == thread and not isinstance(value, int))
        return unpatched(value)

    with patch("builtins.hash", recorded):
        for name in NAMES:
            split_of(name)
    return any(calls)


def _names(code: CodeType) -> set[str]:
    return {*code.co_names}.union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _with_copied_state(value: Any, module: str, copies: dict[int, Any]) -> Any:
    """Copy a function, method or object of `module` with its state.

    The state of a function: the collections, functions and objects that it names, its attributes, defaults and closure.

    copies: those made so far, by the id of the original. Other values are returned as they are.
    """
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, dict | list | set):
        copies[id(value)] = deepcopy(value)
    elif isinstance(value, FunctionType) and value.__module__ == module:
        names = dict(value.__globals__)
        cells = [CellType() for _ in value.__closure__ or ()]
        copy = FunctionType(value.__code__, names, value.__name__, deepcopy(value.__defaults__), tuple(cells))
        copy.__kwdefaults__ = deepcopy(value.__kwdefaults__)
        copy.__dict__.update(deepcopy(value.__dict__))
        copies[id(value)] = copy  # before its closure is copied, which may contain the function itself
        for cell, original in zip(cells, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                cell.cell_contents = _with_copied_state(original.cell_contents, module, copies)
        for name in _names(value.__code__):
            if name in names:
                names[name] = _with_copied_state(names[name], module, copies)
    elif isinstance(value, MethodType) and value.__func__.__module__ == module:
        copies[id(value)] = MethodType(value.__func__, _with_copied_state(value.__self__, module, copies))
    elif type(value).__module__ == module:  # an object of the learner's own class
        copies[id(value)] = deepcopy(value)
    return copies.get(id(value), value)


def _wrong_split(split_of) -> str | None:
    split_of = inspect.unwrap(split_of)  # a cache would hide that the answer depends on more than the name
    here, there, hashing = (_with_copied_state(split_of, getattr(split_of, "__module__", ""), {}) for _ in range(3))
    if _calls_hash(hashing):
        return "hash() of a string differs each time Python starts: tomorrow's test split would hold today's training data."
    first, again = [here(name) for name in NAMES], [there(name) for name in reversed(NAMES)][::-1]
    if first != again:
        return "In another order some names are in another split. The split must depend on the name alone."
    shares = {split: count / len(NAMES) for split, count in Counter(map(str, first)).items()}
    if unknown := set(shares) - {"train", "val", "test"}:
        return f"Expected train, val or test, got {', '.join(map(repr, sorted(unknown)))}."
    if missing := {"train", "val", "test"} - set(shares):
        return f"Of {len(NAMES)} names, none is in {' or '.join(sorted(missing))}."
    if not 0.7 < shares["train"] < 0.9 or min(shares.values()) < 0.05:
        return f"Expected about eight names of ten in train and one in each other split, got {shares}."
    return None


SPLITS = Exercise(right=_split_of, cases=lambda: [("walk 1",)], accept=_wrong_split)
DIRECTION = Exercise(right=_direction, cases=lambda: WAYS, accept=_wrong_way)

# 3. A reward with a hole

StepReward = Callable[[int, int], float]
HOME, MAX_TURNS, FARTHEST = (0, 0), 8, 6
WALK_STEPS, STARTS, WALKS = 6, 8, 8


def progress(before: int, after: int) -> float:
    """Return the reward without a hole: the number of cells by which the step comes nearer."""
    return float(before - after)


def walk_home(step_reward: StepReward) -> tuple[list[float], list[float]]:
    """Train the robot of notebook 09 with this reward per step. Returns, by training step, the mean reward of a walk and the
    share of walks that end at home."""
    from openai.types.chat import ChatCompletionUserMessageParam

    import art_nb as art

    async def use(model: TrainableModel) -> tuple[list[float], list[float]]:
        client = model.openai_client()

        async def rollout(start: tuple[int, ...]) -> art.Trajectory:
            place, trajectory = start, art.Trajectory(messages_and_choices=[])
            rewards: list[float] = []
            while place != HOME and len(rewards) < MAX_TURNS:
                rows = (" ".join("2" if (row, column) == place else "." for column in range(4)) for row in range(4))
                board: ChatCompletionUserMessageParam = {"role": "user", "content": "\n".join(rows)}
                name = model.get_inference_name()
                completion = await client.chat.completions.create(model=name, messages=[board], max_tokens=4)
                trajectory.messages_and_choices += [board, completion.choices[0]]
                row, column = STEPS.get(completion.choices[0].message.content or "", (0, 0))  # other text: no step
                after = min(3, max(0, place[0] + row)), min(3, max(0, place[1] + column))
                rewards.append(float(step_reward(_distance(place, HOME), _distance(after, HOME))))
                place = after
            trajectory.reward, trajectory.turn_rewards = sum(rewards), rewards
            trajectory.metrics["home"] = place == HOME
            return trajectory

        rng = random.Random(0)
        starts = [rng.choice([cell for cell in CELLS if cell != HOME]) for _ in range(WALK_STEPS * STARTS)]
        for step in range(WALK_STEPS):
            here = starts[step * STARTS : (step + 1) * STARTS]
            groups = await gather([rollout(start) for _ in range(WALKS)] for start in here)
            rate = 2e-3 * (1 - 0.9 * step / (WALK_STEPS - 1))
            await model.train(groups, art.TrainConfig(learning_rate=rate, turn_discount=1.0))
        rows = model.history().query("split == 'train'")
        return rows.reward.tolist(), rows.home.tolist()

    return with_new_model("nano", use)


def _why_no_hole(step_reward: StepReward) -> str | None:
    for before in range(1, FARTHEST + 1):
        afters = range(before - 1, min(before + 1, FARTHEST) + 1)
        nearer, *others = earned = [step_reward(before, after) for after in afters]
        if not all(is_number(each) or isinstance(each, bool) for each in earned):
            return f"Expected numbers; from distance {before} to {', '.join(map(str, afters))} they are {earned}."
        if nearer <= max(others):
            return f"From distance {before}, the step nearer to home must earn more than any other step."
    reward, home = walk_home(step_reward)
    if draws():
        names = "before - after", "your reward"
        panels = {
            "reward of a walk": {names[1]: [reward]},
            "share of walks that end at home": {names[0]: [walk_home(progress)[1]], names[1]: [home]},
        }
        draw(panels, {names[0]: "trained", names[1]: "failed"})
    if fmean(home[-2:]) < 0.5:
        return None
    return (f"The hole is too small: by step, these shares of walks ended at home: {percents(home)}; in the last two steps "
            "fewer than half must. Let a longer walk collect more.")  # fmt: skip


HOLE = Exercise(right=lambda before, after: 7.0 - after, cases=lambda: [(3, 2)], accept=_why_no_hole)

EXERCISES = {"splits": SPLITS, "direction": DIRECTION, "hole": HOLE}

check = checker(EXERCISES)
