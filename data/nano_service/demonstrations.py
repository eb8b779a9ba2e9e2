"""Demonstrations of customer service for the nano base model: a mediocre clerk at both desks.

The clerk chooses among the executable calls (`shop_demonstrations`, `airline_demonstrations`): for example, it carries out
nothing before the form is filled in, and names only items of the order. The calls of a hurried and of a careful clerk are
only more likely than the rest. The target is this distribution, not the sampled call. The customers are not those of the
course.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from customer_service.airline_clerk import AirlineClerk
from customer_service.airline_desk import AirlineDesk
from customer_service.clerks import Clerk, RuleClerk
from customer_service.desk import Desk
from customer_service.front_desk import FrontDesk
from customer_service.world import World
from data.demonstration import Demonstration, Recorder
from data.nano_service.airline_demonstrations import AIRLINE_WORDS, Calls, airline_calls
from data.nano_service.shop_demonstrations import SHOP_WORDS, shop_calls
from environments.customer_service.maker.maker import make

Shares = dict[str, float]

CARE, HASTE = 0.15, 0.45  # extra probability of a careful and of a hurried clerk's call; the rest is uniform
REPEATED = {"exchange": 2, "other_variant": 2}  # wishes that are shown more often: their calls have the most arguments


class Workplace(NamedTuple):
    """A desk, its rule-based clerk, its executable calls, their words, and its share of the demonstrations."""

    desk: type[Desk]
    clerk: type[RuleClerk]
    calls: Callable[[Any], Calls]
    words: tuple[str, ...]
    share: float


WORKPLACES = {
    "retail": Workplace(FrontDesk, Clerk, shop_calls, SHOP_WORDS, 0.8),
    "airline": Workplace(AirlineDesk, AirlineClerk, airline_calls, AIRLINE_WORDS, 0.2),
}


class DemonstrationsService:
    """Conversations at both desks, in `worlds` generated worlds each. `desk` is the desk of the last one."""

    def __init__(self, rng: random.Random, worlds: int = 2):
        self.rng, self.tasks = rng, {}
        for domain in WORKPLACES:
            made = [make(domain, rng.randrange(1, 2**31)) for _ in range(worlds)]  # seed 0 is the course's own
            tasks = [(World(domain, data), task) for data, tasks in made for task in tasks]
            self.tasks[domain] = [each for each in tasks for _ in range(REPEATED.get(each[1].wants["kind"], 1))]

    def __call__(self) -> Demonstration:
        """Return one conversation."""
        domain = sample(self.rng, {domain: place.share for domain, place in WORKPLACES.items()})
        self.desk = WORKPLACES[domain].desk(*self.rng.choice(self.tasks[domain]))
        clerk = MediocreClerk(self.rng, self.desk)
        recorder = Recorder(self.desk.conversation.opening)
        while not self.desk.over:
            name, arguments, shares = clerk.next_call()
            recorder.call(name, arguments, clerk.make(name, arguments), shares)
        return recorder.demonstration(self.rng, self.desk.tools)


class MediocreClerk:
    """An agent at a desk that makes random calls, biased towards those of both rule-based clerks."""

    def __init__(self, rng: random.Random, desk: Desk):
        self.rng, self.desk, self.place = rng, desk, WORKPLACES[desk.domain]
        self.careful, self.hurried = self.place.clerk(), self.place.clerk(hurried=True)
        for clerk in (self.careful, self.hurried):
            clerk.desk, clerk.written = desk, None

    def next_call(self) -> tuple[str, dict[str, str], tuple[Shares, ...]]:
        """Return (a tool, its arguments, the distributions of the call's words, the tool's first)."""
        advice = [(CARE, self.careful.next_call()), (HASTE, self.hurried.next_call())]
        executable = self.place.calls(self.desk)
        tools = mixture(executable, [(weight, name) for weight, (name, _) in advice])
        name = sample(self.rng, tools)
        arguments: dict[str, str] = {}
        shares = [{opening_of(tool, next(iter(executable[tool]), None)): share for tool, share in tools.items()}]
        for parameter, words_of in executable[name].items():
            advised = [(weight, given[parameter]) for weight, (tool, given) in advice if tool == name]
            shares.append(mixture(words_of(arguments), advised))
            arguments[parameter] = sample(self.rng, shares[-1])
        return name, arguments, tuple(shares)

    def make(self, name: str, arguments: dict[str, str]) -> str:
        """Make the call and return the observation."""
        observation = self.desk.call(name, arguments)
        if observation.startswith("Written down"):
            self.careful.written = self.hurried.written = name, arguments
        return observation


def mixture(words: Iterable[str], advised: list[tuple[float, str]]) -> Shares:
    """Return the advised words with their weights, plus the rest uniformly over all words. Ignores unknown advice."""
    known = list(words)
    advised = [(weight, word) for weight, word in advised if word in known]
    rest = 1 - sum(weight for weight, _ in advised)
    return {word: rest / len(known) + sum(weight for weight, advice in advised if advice == word) for word in known}


def opening_of(tool: str, parameter: str | None) -> str:
    """Return the text of a tool call up to its first argument."""
    return f'{{"name": "{tool}", "arguments": {{' + (f'"{parameter}": "' if parameter else "")


def sample(rng: random.Random, shares: Shares) -> str:
    return rng.choices(list(shares), list(shares.values()))[0]
