"""Clerks by rule at a desk: one that does everything right, and one in a hurry. They read what is said and shown.

`Clerk` is the shop's; the airline's is in `airline_clerk`.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

from art_nb.tasks.customer_service.desk import Desk
from art_nb.tasks.customer_service.front_desk import NUMBER, SOURCES, WHO, FrontDesk
from art_nb.tasks.customer_service.policy import refused
from art_nb.tasks.customer_service.retail import REASONS

Call = tuple[str, dict[str, str]]
AnyDesk = TypeVar("AnyDesk", bound=Desk)

CHANGES = {
    "cancel order": "cancel", "return the": "return_item", "exchange the": "exchange_item", "change the": "change_item",
    "pay order": "change_payment", "How much": "tell_price",
}  # fmt: skip
"""What the course's customers say, and the tool that is for it."""
FITTING = {
    "cancel": "pending", "change_item": "pending", "change_payment": "pending", "return_item": "delivered",
    "exchange_item": "delivered",
}  # fmt: skip
"""The status of an order that can be changed so."""


class RuleClerk(Generic[AnyDesk]):
    """Works at a desk until the conversation is over.

    hurried: has nothing confirmed, and declines nothing that can be carried out.
    """

    desk: AnyDesk

    def __init__(self, hurried: bool = False):
        self.hurried = hurried
        self.refused = False  # whether the desk could not do the last call

    def __call__(self, desk: AnyDesk) -> AnyDesk:
        self.desk, self.refused = desk, False
        self.written: Call | None = None  # what is on the form
        while not desk.over:
            call = self.next_call()
            answer = desk.call(*call)
            self.refused = answer.startswith("Refused")
            if answer.startswith("Written down"):
                self.written = call
        return desk

    def next_call(self) -> Call:
        """What to do as things stand."""
        raise NotImplementedError

    def _failed(self) -> bool:
        """Whether the last thing that happened was a refusal."""
        last = self.desk.talk.log[-1]
        return self.refused or last["role"] == "tool" and refused(last["content"])

    def _heard(self, pattern: str) -> Any:
        return self.desk.given(re.compile(pattern))


class Clerk(RuleClerk[FrontDesk]):
    """The shop's."""

    def next_call(self) -> Call:
        desk = self.desk
        if desk.user is None:
            return ("find_customer", {}) if desk.given(WHO) and not self.refused else ("ask", {"about": "who"})
        if not desk.given(NUMBER):
            return "ask", {"about": "order"}
        if desk.order is None or desk.order["order_id"] != desk.given(NUMBER):
            return ("decline", {}) if self._failed() else ("find_order", {})
        tool = self._wish()
        allowed = self.hurried or desk.owner == "their"
        if tool is None or self._failed() or not allowed or desk.order["status"] != FITTING.get(tool, desk.order["status"]):
            return "decline", {}
        wanted = self._filled_in(tool)
        if None in wanted[1].values():
            return "decline", {}
        if wanted[0] != tool or tool == "tell_price" or self.written != wanted:
            return wanted
        return ("carry_out", {}) if desk.agreed or self.hurried else ("confirm", {})

    def _wish(self) -> str | None:
        """The tool for what the customer said last that is a wish; None for wishes that the clerk knows no words for."""
        return next((tool for text in reversed(self.desk.heard) for words, tool in CHANGES.items() if words in text), None)

    def _filled_in(self, tool: str) -> Call:
        """The call with what the customer has said; before it a question, or a look at variants, where that is lacking."""
        arguments = {}
        if tool == "cancel":
            if not (reason := self._heard("|".join(REASONS))):
                return "ask", {"about": "reason"}
            arguments["reason"] = reason
        if tool.endswith("_item") or tool == "tell_price":
            arguments["item"] = self._heard(r"the (\w+) (?:of|instead)")
        if tool in ("exchange_item", "change_item"):
            if arguments["item"] not in self.desk.products:
                return "find_variants", {"item": arguments["item"]}
            arguments["variant"] = self._heard(r"the (\w+) one")
            if not self.hurried and not self._available(arguments["item"], arguments["variant"]):
                return "decline", {}
        if tool in ("return_item", "exchange_item", "change_item", "change_payment"):
            if not (payment := self._heard("|".join(SOURCES))):
                return "ask", {"about": "payment"}
            arguments["payment"] = payment
        return tool, arguments

    def _available(self, item: str, variant: str) -> bool:
        variants = self.desk.products[item]["variants"].values()
        return any(v["available"] for v in variants if variant in v["options"].values())
