"""The base class of the desks: a conversation with simpler tools, for a model that cannot copy ids or write sentences.

Customers, database, underlying tools, policy and reward are those of `environment`. The desk writes the sentences, extracts
numbers and names from the customer's messages, and maps words of a call (`Boots`, `gift card`) to ids. The agent decides
what to ask, look up, change, confirm or decline, and must follow the policy, which the desk does not enforce.

The shop's desk is in `front_desk`, the airline's in `airline_desk`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from art_nb.environments import RefusedCall, ToolEnvironment, ToolEpisode, quoted, tool
from customer_service.conversation import OVER, Conversation
from customer_service.customer import STOP, Customer, RuleCustomer
from customer_service.environment import ServiceEnvironment
from customer_service.milestones import Milestones
from customer_service.policy_monitor import YES
from customer_service.tasks import Task
from customer_service.world import World, is_error

DESK_TURNS = 14


class Desk(ToolEpisode):
    """A conversation through simple tools.

    Attributes: conversation (the underlying `Conversation`), customer_messages, user (the customer's record once it is
    looked up, else None), form (the prepared change, or None: an underlying tool's name, its arguments, and the change in
    words), and lists with one entry per call: turn_rewards (by `milestones`), progress_rewards (the change of
    `Conversation.progress`) and violations (of the policy). ended_by: None, "customer", "malformed" or "turns".
    """

    domain: ClassVar[str]
    questions: ClassVar[dict[str, str]]
    """Topics of the tool `ask`, and the questions that the desk asks."""
    payment_sources: ClassVar[dict[str, str]]
    """Payment methods in words, and their names in the data."""
    over_message = OVER

    def __init__(self, world: World, task: Task, customer: Customer | None = None, max_turns: int = DESK_TURNS):
        """world: the state at the start of the task; it is copied. customer: by default a `RuleCustomer`.

        Raises: ValueError if the world is not of this desk's domain.
        """
        if world.domain != self.domain:
            raise ValueError(f"this desk is for {self.domain}; the world is {world.domain}: pass a matching one")
        super().__init__(max_turns)
        # A call at the desk takes at most two turns of the conversation.
        self.conversation = Conversation(world, task, customer or RuleCustomer(task), max_turns=2 * max_turns + 1)
        self.customer_messages = [self.conversation.opening]
        self.user: dict | None = None
        self.form: tuple[str, dict[str, Any], str] | None = None
        self.progress_rewards: list[float] = []
        self.violations: list[int] = []
        self._confirmed_at: int | None = None  # successful calls until the customer's last yes
        self._progress = self.conversation.progress()
        self._milestones = Milestones(self)

    @property
    def confirmed(self) -> bool:
        """Whether the last successful call got the customer's yes to the form."""
        return self._confirmed_at == self.turns - self.refused

    def first_message(self) -> str:
        """Return the customer's first message."""
        return self.conversation.opening

    def end_turn(self) -> None:
        """Append the call's rewards and violations."""
        before, self._progress = self._progress, self.conversation.progress()
        self.progress_rewards.append(self._progress - before)
        self.violations.append(sum(self.conversation.monitor.violations.values()) - sum(self.violations))
        self.turn_rewards.append(self._milestones.reward_call())

    def last_match(self, pattern: re.Pattern) -> str | None:
        """Return the last match of the pattern in the customer's messages."""
        found = pattern.findall("\n".join(self.customer_messages))
        return found[-1] if found else None

    def reward(self) -> float:
        """Return 1 if the task is solved, else 0. An unfinished conversation is scored in its current state.

        Source: tau-bench.
        """
        return self.conversation.reward()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the conversation, the number of calls at the desk, and how it ended there."""
        ended = {"malformed": "malformed", "out_of_turns": "turns"}
        own = {name: float(self.ended_by == end) for name, end in ended.items()}
        return self.conversation.metrics() | own | {"calls": float(self.turns)}

    @tool
    def decline(self) -> str:
        """Tell the customer that it can't be done."""
        return self._say("I am sorry, this can't be done.")

    @tool
    def confirm(self) -> str:
        """Read the form to the customer and ask for a yes."""
        _, _, words = self._filled_form()
        reply = self._say(f"I will {words}. Do you confirm? (yes/no)")
        if YES.search(reply) and STOP not in reply:
            self._confirmed_at = self.turns - self.refused
        return reply

    @tool
    def carry_out(self) -> str:
        """Make the change that is on the form and tell the customer."""
        name, arguments, _ = self._filled_form()
        self.form = None
        self._use(name, **arguments)
        return self._say("It has been done.")

    def _say(self, message: str) -> str:
        reply = self.conversation.say(message)
        self.customer_messages.append(reply)
        if self.conversation.over:
            self.ended_by = "customer"
        return reply

    def _ask(self, about: str) -> str:
        if about not in self.questions:
            raise RefusedCall(f"there is no question about {quoted(about)}")
        return self._say(self.questions[about])

    def _use(self, name: str, **arguments: Any) -> Any:
        """Call an underlying tool. Returns its answer, parsed if it is JSON. Raises: RefusedCall if it is an error."""
        answer = self.conversation.call(name, arguments)
        if is_error(answer):
            raise RefusedCall(answer.removeprefix("Error: "))
        return json.loads(answer) if answer.startswith(("{", "[")) else answer

    def _customer(self) -> dict:
        """Return the customer's record. Raises: RefusedCall until it has been looked up."""
        if self.user is None:
            raise RefusedCall("it is not known who the customer is")
        return self.user

    def _owner_of(self, record: dict) -> str:
        """Return "their" or "another's", or "somebody's" until the customer has been looked up."""
        if self.user is None:
            return "somebody's"
        return "their" if record["user_id"] == self.user["user_id"] else "another's"

    def _payment_methods(self) -> dict[str, str]:
        """Return the customer's payment methods in words, and their ids."""
        words = {source: word for word, source in self.payment_sources.items()}
        return {words[method["source"]]: key for key, method in self._customer()["payment_methods"].items()}

    def _payment_method(self, payment: str) -> str:
        methods = self._payment_methods()
        if payment not in methods:
            raise RefusedCall(f"they have no {quoted(payment)}")
        return methods[payment]

    def _filled_form(self) -> tuple[str, dict[str, Any], str]:
        if self.form is None:
            raise RefusedCall("the form is empty")
        return self.form

    def _fill_form(self, words: str, name: str, **arguments: Any) -> str:
        self.form = name, arguments, words
        return "Written down."


class DeskEnvironment(ServiceEnvironment, ToolEnvironment):
    """A desk for TRL's `environment_factory`. A subclass names its desk: `episode=FrontDesk`."""

    desk_type: ClassVar[type[Desk]]

    def __init_subclass__(cls, episode: type[Desk], **kwargs: Any) -> None:
        super().__init_subclass__(episode=episode, **kwargs)
        cls.desk_type, cls.domain = episode, episode.domain

    def __init__(
        self,
        world: World | None = None,
        tasks: Iterable[Task] | None = None,
        customer: Callable[[Task], Customer] = RuleCustomer,
        max_turns: int = DESK_TURNS,
    ):
        super().__init__(world, tasks, customer, max_turns)

    def _start(self, task: Task) -> Conversation:
        self.episode = self.desk_type(self._world, task, self._customer(task), self._max_turns)
        return self.episode.conversation
