"""Rule-based agents at a desk: careful ones that make no mistakes, and hurried ones.

They use only the conversation and the records looked up at the desk. `Clerk` serves the shop, `AirlineClerk` the airline.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

from customer_service.desk import Desk
from customer_service.front_desk import NUMBER, SOURCES, WHO, FrontDesk
from customer_service.retail import REASONS
from customer_service.world import is_error

Call = tuple[str, dict[str, str]]
DeskType = TypeVar("DeskType", bound=Desk)

TOOL_FOR_WISH = {
    "cancel order": "cancel", "return the": "return_item", "exchange the": "exchange_item", "change the": "change_item",
    "pay order": "change_payment", "How much": "tell_price",
}  # fmt: skip
"""Phrases of the course's customers, and the tool for each."""
REQUIRED_STATUS = {
    "cancel": "pending", "change_item": "pending", "change_payment": "pending", "return_item": "delivered",
    "exchange_item": "delivered",
}  # fmt: skip
"""The status that an order needs for the tool."""


class RuleClerk(Generic[DeskType]):
    """Works at a desk until the conversation is over.

    hurried: does not ask for confirmation, and declines nothing that the tools allow.
    """

    desk: DeskType

    def __init__(self, hurried: bool = False):
        self.hurried = hurried
        self.refused = False  # whether the desk refused the last call

    def __call__(self, desk: DeskType) -> DeskType:
        self.desk, self.refused = desk, False
        self.written: Call | None = None  # the call that filled in the form
        while not desk.over:
            call = self.next_call()
            answer = desk.call(*call)
            self.refused = answer.startswith("Refused")
            if answer.startswith("Written down"):
                self.written = call
        return desk

    def next_call(self) -> Call:
        """Return the next tool call."""
        raise NotImplementedError

    def _failed(self) -> bool:
        """Return whether the desk refused the last call or its tool call failed."""
        last = self.desk.conversation.log[-1]
        return self.refused or last["role"] == "tool" and is_error(last["content"])

    def _last_match(self, pattern: str) -> Any:
        return self.desk.last_match(re.compile(pattern))


class Clerk(RuleClerk[FrontDesk]):
    """The clerk of the shop."""

    def next_call(self) -> Call:
        desk = self.desk
        if desk.user is None:
            return ("find_customer", {}) if desk.last_match(WHO) and not self.refused else ("ask", {"about": "who"})
        if not desk.last_match(NUMBER):
            return "ask", {"about": "order"}
        if desk.order is None or desk.order["order_id"] != desk.last_match(NUMBER):
            return ("decline", {}) if self._failed() else ("find_order", {})
        tool = self._tool_for_wish()
        if tool is None or self._failed() or not (self.hurried or desk.owner == "their"):
            return "decline", {}
        if tool in REQUIRED_STATUS and desk.order["status"] != REQUIRED_STATUS[tool]:
            return "decline", {}
        wanted = self._complete_call(tool)
        if None in wanted[1].values():
            return "decline", {}
        if wanted[0] != tool or tool == "tell_price" or self.written != wanted:
            return wanted
        return ("carry_out", {}) if desk.confirmed or self.hurried else ("confirm", {})

    def _tool_for_wish(self) -> str | None:
        """Return the tool for the customer's last wish, or None if the clerk does not understand it."""
        messages = reversed(self.desk.customer_messages)
        return next((tool for text in messages for words, tool in TOOL_FOR_WISH.items() if words in text), None)

    def _complete_call(self, tool: str) -> Call:
        """Return the call with the customer's arguments, or the question or look-up that is needed first, or a refusal."""
        arguments = {}
        if tool == "cancel":
            if not (reason := self._last_match("|".join(REASONS))):
                return "ask", {"about": "reason"}
            arguments["reason"] = reason
        if tool.endswith("_item") or tool == "tell_price":
            arguments["item"] = self._last_match(r"the (\w+) (?:of|instead)")
        if tool in ("exchange_item", "change_item"):
            if arguments["item"] not in self.desk.products:
                return "find_variants", {"item": arguments["item"]}
            arguments["variant"] = self._last_match(r"the (\w+) one")
            if not self.hurried and not self._available(arguments["item"], arguments["variant"]):
                return "decline", {}
        if tool in ("return_item", "exchange_item", "change_item", "change_payment"):
            if not (payment := self._last_match("|".join(SOURCES))):
                return "ask", {"about": "payment"}
            arguments["payment"] = payment
        return tool, arguments

    def _available(self, item: str, variant: str) -> bool:
        variants = self.desk.products[item]["variants"].values()
        return any(v["available"] for v in variants if variant in v["options"].values())
