"""What every desk shares: a world's tools in few words, for a model that can't copy ids or write sentences.

It is the task of `environment`, made smaller: the same customers, database, tools of tau-bench underneath, rules and reward.
What is made smaller: the desk writes the sentences, reads numbers and names out of what the customer has said, and turns
the words of a call (`Boots`, `gift card`) into ids. What to ask, look up, change, have confirmed or decline is left to the
agent; so are all rules that the world's own tools do not enforce.

The shop's desk is in `front_desk`, the airline's in `airline_desk`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from art_nb.tasks.customer_service.conversation import OVER, Conversation
from art_nb.tasks.customer_service.customer import STOP, Customer, RuleCustomer
from art_nb.tasks.customer_service.environment import ServiceEnvironment, method_of
from art_nb.tasks.customer_service.milestones import Milestones
from art_nb.tasks.customer_service.policy import refused
from art_nb.tasks.customer_service.tasks import Task
from art_nb.tasks.customer_service.world import World
from art_nb.tasks.tool_calls import ByToolCalls, malformed, quoted

DESK_TURNS = 14


def desk_tool(name: str, description: str, **parameters: str) -> dict:
    """The schema of a tool whose arguments are all text and needed; parameters: what each is."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties} | ({"required": list(parameters)} if parameters else {})
    function = {"name": name, "description": description, "parameters": schema, "return": {"type": "string"}}
    return {"type": "function", "function": function}


def choice(words: Iterable[str]) -> str:
    """These words as what an argument may be: `one, two or three.`"""
    *others, last = words
    return f"{', '.join(others)} or {last}."


class NotYet(Exception):
    """What a desk can't do as things stand; its text tells the agent why."""


class Desk(ByToolCalls):
    """One conversation by few-word tools: a call of `tools` is answered by the method of its name with `_` before it.

    Fields: talk (the conversation underneath, with its world and watch), heard (what the customer has said), user (who was
    looked up, or None), form (None or the change that is on it: a tool's name, its arguments, and the change in words),
    agreed (whether the last thing said was a yes to the form), calls, turn_rewards and breaches (for each call what it added
    to the conversation's `progress`, and how many rules it broke), gains (for each call what it earned by `milestones`),
    ended_by (None while it runs, then "customer", "malformed" or "turns").
    """

    domain: str
    tools: list[dict]
    questions: dict[str, str]
    """What can be asked about, and how it is asked."""
    sources: dict[str, str]
    """Ways to pay, in words, and what the data call them."""

    def __init__(self, world: World, task: Task, customer: Customer | None = None, max_turns: int = DESK_TURNS):
        """world: as the task finds it; it is left alone. max_turns: of calls at the desk.

        Raises: ValueError for another world than the desk's.
        """
        if world.domain != self.domain:
            raise ValueError(f"this desk is for {self.domain}; the world is {world.domain}")
        # A call at the desk takes at most two turns of the conversation.
        self.talk = Conversation(world, task, customer or RuleCustomer(task), max_turns=2 * max_turns + 1)
        self.max_turns, self.calls = max_turns, 0
        self.heard = [self.talk.opening]
        self.user: dict | None = None
        self.form: tuple[str, dict[str, Any], str] | None = None
        self.agreed = False
        self.turn_rewards: list[float] = []
        self.breaches: list[int] = []
        self.gains: list[float] = []
        self._milestones = Milestones(self)

    def call(self, name: str | None, arguments: str | dict | None) -> str:
        """As `ByToolCalls.call`; the agent reads the customer's reply, or what was found."""
        if self.over:
            return OVER
        progress, broken = self.talk.progress(), self._broken()
        said = self._make(name, arguments)
        self.turn_rewards.append(self.talk.progress() - progress)
        self.breaches.append(self._broken() - broken)
        self.gains.append(self._milestones.gain())
        return said

    def _make(self, name: str | None, arguments: str | dict | None) -> str:
        self.calls += 1
        wrong, given = malformed(self.tools, name, arguments)
        if wrong:
            self.ended_by = "malformed"
            return f"Malformed: {wrong[1]}. {OVER}"
        agreed, self.agreed = self.agreed, False
        try:
            said = getattr(self, f"_{name}")(**given)
        except NotYet as refusal:
            said, self.agreed = f"Refused: {refusal}.", agreed
        if self.talk.over:
            self.ended_by = "customer"
        elif self.calls >= self.max_turns:
            self.ended_by = "turns"
        return said

    def _broken(self) -> int:
        return sum(self.talk.watch.broken.values())

    def given(self, pattern: re.Pattern) -> str | None:
        """What the customer has said last that fits."""
        found = pattern.findall("\n".join(self.heard))
        return found[-1] if found else None

    def reward(self) -> float:
        """1 for a solved task, else 0; a conversation that was broken off is judged as it stands. Source: tau-bench."""
        return self.talk.reward()

    def metrics(self) -> dict[str, float]:
        """Those of the conversation underneath; `calls` at the desk, and how they ended."""
        ended = {"malformed": "malformed", "out_of_turns": "turns"}
        mine = {name: float(self.ended_by == by) for name, by in ended.items()}
        return self.talk.metrics() | mine | {"calls": float(self.calls)}

    # What the desk says to the customer

    def _say(self, message: str) -> str:
        reply = self.talk.say(message)
        self.heard.append(reply)
        return reply

    def _ask(self, about: str) -> str:
        if about not in self.questions:
            raise NotYet(f"there is no question about {quoted(about)}")
        return self._say(self.questions[about])

    def _decline(self) -> str:
        return self._say("I am sorry, this can't be done.")

    def _confirm(self) -> str:
        _, _, words = self._filled()
        reply = self._say(f"I will {words}. Do you confirm? (yes/no)")
        self.agreed = "Yes" in reply and STOP not in reply
        return reply

    # What it looks up

    def _look(self, name: str, **arguments: Any) -> Any:
        answer = self.talk.call(name, arguments)
        if refused(answer):
            raise NotYet(answer.removeprefix("Error: "))
        return json.loads(answer) if answer.startswith(("{", "[")) else answer

    def _known(self) -> dict:
        """The customer's record."""
        if self.user is None:
            raise NotYet("it is not known who the customer is")
        return self.user

    def _owner_of(self, record: dict) -> str:
        """Whose it is: theirs, another's, or somebody's while it is not known who the customer is."""
        if self.user is None:
            return "somebody's"
        return "their" if record["user_id"] == self.user["user_id"] else "another's"

    def _methods(self) -> dict[str, str]:
        """The customer's ways to pay, in words, and the id of each."""
        words = {source: word for word, source in self.sources.items()}
        return {words[method["source"]]: key for key, method in self._known()["payment_methods"].items()}

    def _method(self, payment: str) -> str:
        methods = self._methods()
        if payment not in methods:
            raise NotYet(f"they have no {quoted(payment)}")
        return methods[payment]

    # What goes on the form

    def _filled(self) -> tuple[str, dict[str, Any], str]:
        if self.form is None:
            raise NotYet("the form is empty")
        return self.form

    def _fill(self, words: str, name: str, **arguments: Any) -> str:
        self.form = name, arguments, words
        return "Written down."

    def _carry_out(self) -> str:
        name, arguments, _ = self._filled()
        self.form = None
        self._look(name, **arguments)
        return self._say("It has been done.")


class DeskEnvironment(ServiceEnvironment):
    """A desk as a tool-calling episode for TRL's `environment_factory`; a subclass names its desk: `at=FrontDesk`."""

    _at: type[Desk]

    def __init_subclass__(cls, at: type[Desk]) -> None:
        cls._at, cls.domain = at, at.domain
        for schema in at.tools:
            setattr(cls, schema["function"]["name"], method_of(schema))

    def __init__(
        self,
        world: World | None = None,
        tasks: Iterable[Task] | None = None,
        customer: Callable[[Task], Customer] = RuleCustomer,
        max_turns: int = DESK_TURNS,
    ):
        super().__init__(world, tasks, customer, max_turns)

    def _begin(self, task: Task) -> str:
        self.desk = self._at(self._world, task, self._customer(task), self._max_turns)
        return self.desk.talk.opening

    def _answer(self, name: str, arguments: dict) -> str:
        return self.desk.call(name, arguments)

    def get_reward(self) -> float:
        """1 for a solved task, else 0; a conversation that was broken off is judged as it stands."""
        return self.desk.reward()
