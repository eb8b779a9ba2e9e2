"""What the nano base model is taught about customer service: the tools of the desks, by a mediocre clerk.

It knows which calls make sense in form (`shop_demonstrations`, `airline_demonstrations`): nothing is carried out before
something is on the form, an item is one of the order, a way to pay is one that the customer has. Among these it draws, and
too often without thinking: what a hurried clerk would do and what a careful one would do are only more likely than the rest.
The target is what it might do (a distribution), not what was drawn. Its customers live in other worlds than the course's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from art_nb.tasks.customer_service.airline_clerk import AirlineClerk
from art_nb.tasks.customer_service.airline_desk import AirlineDesk
from art_nb.tasks.customer_service.clerks import Clerk, RuleClerk
from art_nb.tasks.customer_service.desk import Desk
from art_nb.tasks.customer_service.front_desk import FrontDesk
from art_nb.tasks.customer_service.world import World
from data.customer_service.maker import make
from data.demonstration import Demonstration, Recorder
from data.nano_service.airline_demonstrations import AIRLINE_WORDS, Calls, airline_calls
from data.nano_service.shop_demonstrations import SHOP_WORDS, shop_calls

Shares = dict[str, float]

CARE, HASTE = 0.15, 0.45  # how likely it does what a careful and what a hurried clerk does; else anything that makes sense


class Workplace(NamedTuple):
    """A desk, the clerk by rule who knows it, which calls make sense there, their words, and how often it is shown."""

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
    """Conversations at each desk in `worlds` made-up worlds. `desk`: that of the last one."""

    def __init__(self, rng: random.Random, worlds: int = 2):
        self.rng, self.served = rng, {}
        for domain in WORKPLACES:
            made = [make(domain, rng.randrange(1, 2**31)) for _ in range(worlds)]  # seed 0 is the course's own
            self.served[domain] = [(World(domain, data), task) for data, tasks in made for task in tasks]

    def __call__(self) -> Demonstration:
        """One conversation."""
        domain = drawn(self.rng, {domain: place.share for domain, place in WORKPLACES.items()})
        self.desk = WORKPLACES[domain].desk(*self.rng.choice(self.served[domain]))
        clerk = MediocreClerk(self.rng, self.desk)
        recorder = Recorder(self.desk.talk.opening)
        while not self.desk.over:
            name, arguments, shares = clerk.next_call()
            recorder.call(name, arguments, clerk.make(name, arguments), shares)
        return recorder.demonstration(self.rng, self.desk.tools)


class MediocreClerk:
    """Works at a desk, call by call."""

    def __init__(self, rng: random.Random, desk: Desk):
        self.rng, self.desk, self.place = rng, desk, WORKPLACES[desk.domain]
        self.careful, self.hurried = self.place.clerk(), self.place.clerk(hurried=True)
        for clerk in (self.careful, self.hurried):
            clerk.desk, clerk.written = desk, None

    def next_call(self) -> tuple[str, dict[str, str], tuple[Shares, ...]]:
        """(a tool, its arguments, the distributions that the words of the call are drawn from, the tool's first)."""
        advice = [(CARE, self.careful.next_call()), (HASTE, self.hurried.next_call())]
        sensible = self.place.calls(self.desk)
        tools = mixed(sensible, [(weight, name) for weight, (name, _) in advice])
        name = drawn(self.rng, tools)
        arguments: dict[str, str] = {}
        shares = [{opening_of(tool, next(iter(sensible[tool]), None)): share for tool, share in tools.items()}]
        for parameter, words_of in sensible[name].items():
            advised = [(weight, given[parameter]) for weight, (tool, given) in advice if tool == name]
            shares.append(mixed(words_of(arguments), advised))
            arguments[parameter] = drawn(self.rng, shares[-1])
        return name, arguments, tuple(shares)

    def make(self, name: str, arguments: dict[str, str]) -> str:
        """Makes the call and returns what is said to it."""
        said = self.desk.call(name, arguments)
        if said.startswith("Written down"):
            self.careful.written = self.hurried.written = name, arguments
        return said


def mixed(words: Iterable[str], advised: list[tuple[float, str]]) -> Shares:
    """Each advised word with its weight, and all that is left evenly on the words; a word that makes no sense counts not."""
    known = list(words)
    advised = [(weight, word) for weight, word in advised if word in known]
    rest = 1 - sum(weight for weight, _ in advised)
    return {word: rest / len(known) + sum(weight for weight, said in advised if said == word) for word in known}


def opening_of(tool: str, parameter: str | None) -> str:
    """How the call of a tool begins, as far as its first argument."""
    return f'{{"name": "{tool}", "arguments": {{' + (f'"{parameter}": "' if parameter else "")


def drawn(rng: random.Random, shares: Shares) -> str:
    return rng.choices(list(shares), list(shares.values()))[0]
