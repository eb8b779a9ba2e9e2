"""The exercises of notebook 13, Environments from elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from numbers import Integral
from statistics import fmean
from typing import TYPE_CHECKING, Any

from course.exercises import Exercise, checker, is_number
from course.exercises.training import draw, draws, gather, percents, with_new_model

if TYPE_CHECKING:
    from art_nb import TrainableModel

# 1. An adapter of an API


class Safe:
    """The API of another project: a safe that opens at the secret number, if the dial is turned to it within eight turns."""

    def __init__(self, code: int, highest: int = 50):
        self.code, self.highest, self.turned, self.open = code, highest, 0, False

    def turn(self, number: int) -> str:
        """Turn the dial. Returns "higher", "lower" or "open". Raises: RuntimeError when the safe is open or blocked."""
        if self.open or self.turned >= 8:
            raise RuntimeError("the safe is open or blocked")
        self.turned += 1
        self.open = number == self.code
        return "open" if self.open else "higher" if number < self.code else "lower"


def code_of(index: int) -> int:
    """Return the secret number of a scenario, 1 to 50."""
    return random.Random(index).randint(1, 50)


class SafeEnvironment:
    """The solution: an adapter of `Safe` to TRL's environment contract."""

    def reset(self, index: int = 0, **row: Any) -> str:
        self.safe = Safe(code_of(index))
        return "Open the safe: find the number from 1 to 50 in eight turns."

    def turn(self, number: int) -> str:
        """
        Turn the dial to a number.

        Args:
            number: 1 to 50.
        """
        return self.safe.turn(number)

    def get_reward(self) -> float:
        return float(self.safe.open)

    @property
    def over(self) -> bool:
        return self.safe.open or self.safe.turned >= 8


def _bisect(environment: Any, index: int) -> list[str]:
    """Turn the dial of this safe to the middle of the remaining range until the end. Returns the tool's answers."""
    environment.reset(index=index)
    low, high, middle = 1, 50, 0
    said: list[str] = []
    while len(said) < 8 and not environment.over and middle != code_of(index):
        middle = (low + high) // 2
        said.append(str(environment.turn(number=middle)))
        words = [word for word in ("higher", "lower") if word in said[-1].lower()]
        is_higher = words == ["higher"] if len(words) == 1 else middle < code_of(index)  # said in other words
        low, high = (middle + 1, high) if is_higher else (low, middle - 1)
    return said


def _wrong_adapter(adapter: Callable[[], Any]) -> str | None:
    from art_nb.environments import environment_tools

    environment, other = adapter(), adapter()
    observation = environment.reset(index=1)
    if not isinstance(observation, str) or not observation:
        return f"`reset` must return the task as text, which follows the prompt; it returned {observation!r}."
    other.reset(index=2)
    tools = list(environment_tools(environment))
    if tools != ["turn"]:
        return f"The model must see one tool, turn; it sees {', '.join(tools) or 'none'}. Every public method is a tool."
    if environment.get_reward() != 0 or environment.over:
        return "After `reset` the reward must be 0 and `over` false."
    said = _bisect(environment, 1)
    if environment.get_reward() != 1 or not environment.over:
        return (
            f"Always turned to the middle of the remaining range for `code_of(1)`, your safe said {', '.join(said)}. Then "
            f"`get_reward()` must be 1 and `over` true; they are {environment.get_reward()!r} and {environment.over!r}."
        )
    if other.over or other.get_reward() != 0:
        return "Opening one safe changed another: an environment must keep its own state."
    environment.reset(index=1)
    if environment.over or environment.get_reward() != 0:
        return "`reset` must start again: `over` and the reward are still those of the last safe."
    for index in range(20):
        environment.reset(index=index)
        environment.turn(number=code_of(index))
        if environment.get_reward() != 1:
            return f"The number of the safe {index} must be `code_of({index})`: in `reset`, use `code_of(index)`."
    for index in (0, 1):  # the number is above 10, then below
        environment.reset(index=index)
        said.append(str(environment.turn(number=10)))
    if len(set(said)) < 3 or said[-1] == said[-2]:  # higher, lower and open
        return f"The model must read whether the number is higher or lower; the tool said {', '.join(said)}."
    for _ in range(8):
        other.turn(number=code_of(2) % 50 + 1)
    if not other.over or other.get_reward() != 0:
        return "After eight wrong turns `over` must be true and the reward 0."
    return None


# 2. A task worth training

Row = dict[str, float]


def _worth(tasks: dict[str, Row]) -> str:
    def room(row: Row) -> float:
        return row["pass@8"] - max(value for name, value in row.items() if name != "pass@8")

    return max(tasks, key=lambda name: room(tasks[name]))


def _tables() -> list[tuple[dict[str, Row]]]:
    def row(*percent: float) -> Row:
        return dict(zip(("T = 1", "T = 0.5", "T = 0.3", "T = 0", "rule", "pass@8"), percent, strict=True))

    shown = {
        "sharpening": row(10, 30, 50, 70, 5, 75),
        "constant": row(10, 15, 20, 25, 80, 85),
        "hopeless": row(0, 0, 0, 0, 0, 2),
        "worth it": row(5, 8, 8, 7, 3, 35),
    }
    rng = random.Random(5)
    found = [(shown,)]
    for _ in range(20):
        found.append(({name: row(*(rng.randint(0, 60) for _ in range(5)), rng.randint(40, 100)) for name in "abcdef"},))
    return found


# 3. Training maps

STEPS, MAPS, TRIES = 15, 8, 8


def train_on(maps: Callable[[int], list[int]]) -> tuple[list[float], float, float]:
    """Train a new policy on these maps. Returns the share of walks that reached the goal: at each step of training, then for
    the trained policy on its own maps and on unseen maps, 64 walks each."""
    import art_nb as art
    from art_nb.environments import rollout_environment
    from course.frozen_lake import MAX_TURNS, lake

    async def use(model: TrainableModel) -> tuple[list[float], float, float]:
        async def walk(seed: int) -> art.Trajectory:
            return await rollout_environment(
                model.openai_client(), lambda: lake(seed), model=model.get_inference_name(), row={"seed": seed}, tools=None,
                max_turns=MAX_TURNS, max_tokens=4, timeout=None,
            )  # fmt: skip

        for step in range(STEPS):
            groups = await gather([walk(seed) for _ in range(TRIES)] for seed in maps(step))
            rate = 3e-3 * (1 - 0.9 * step / max(1, STEPS - 1))
            await model.train(groups, art.TrainConfig(learning_rate=rate))
        curve = model.history().query("split == 'train'").reward.tolist()
        seen = [seed for step in range(STEPS) for seed in maps(step)]
        of_seen, of_others = await gather(
            [walk(seed) for seed in seeds] for seeds in (seen[:64], range(1_000_000, 1_000_064))
        )
        return curve, *(fmean(t.reward for t in group) for group in (of_seen, of_others))

    return with_new_model("nano", use)


def _why_not_memorised(maps: Callable[[int], list[int]]) -> str | None:
    lakes = [maps(step) for step in range(STEPS)]  # once: another call could return others
    for step, chosen in enumerate(lakes):
        if not isinstance(chosen, list) or len(chosen) != MAPS or not all(is_number(seed, Integral) for seed in chosen):
            return f"Expected a list of {MAPS} seeds for each step; for step {step} it is {chosen!r}."
        if any(seed >= 1_000_000 for seed in chosen):
            return "Seeds from 1,000,000 on are held out."
    curve, seen, others = train_on(lambda step: [int(seed) for seed in lakes[step]])
    if draws():
        new, *_ = train_on(lambda step: [MAPS * step + i for i in range(MAPS)])
        curves = {"your lakes": [curve], "eight new lakes a step": [new]}
        roles = {"your lakes": "failed", "eight new lakes a step": "trained"}
        draw({"share that reaches the goal in training": curves}, roles)
    told = f"At the end the policy reaches the goal on {seen:.0%} of its own maps and on {others:.0%} of others"
    if seen < 0.8:
        return f"{told}; by step in training: {percents(curve)}. Give it fewer different maps."
    if others > seen - 0.4:
        return f"{told}. It has learned to cross lakes in general; make it memorise its own maps."
    return None


EXERCISES = {
    "adapter": Exercise(right=SafeEnvironment, accept=_wrong_adapter),
    "worth": Exercise(
        right=_worth, cases=_tables, mistakes={
            "This chooses the highest pass@8, even where a lower temperature or the rule is as good.": lambda tasks: max(
                tasks, key=lambda name: tasks[name]["pass@8"]
            ),
            "This compares with temperature 1 only: a lower one is free as well.": lambda tasks: max(
                tasks, key=lambda name: tasks[name]["pass@8"] - tasks[name]["T = 1"]
            ),
            "This forgets the rule.": lambda tasks: max(
                tasks, key=lambda n: tasks[n]["pass@8"] - max(v for k, v in tasks[n].items() if k not in ("pass@8", "rule"))
            ),
        },
    ),
    "memorised": Exercise(right=lambda step: [0] * MAPS, cases=lambda: [(0,)], accept=_why_not_memorised),
}  # fmt: skip

check = checker(EXERCISES)
