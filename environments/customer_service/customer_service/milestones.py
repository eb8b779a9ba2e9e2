"""Process rewards for each call at a desk: the milestones on the way to a solved task.

The outcome reward arrives at the end, if at all, and an agent that does nothing solves the tasks in which no change is due.
Here each call is rewarded instead: `STEP` for each newly reached milestone, `SOLVED` for the solution, `IDLE` if it
reaches none. A call that violates the policy gets none of these. `HARM` is added for each violation, for a wrong change, and
for an end with the task unsolved. The milestones follow from the task's actions and its customer's script alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from customer_service.tasks import communicated

STEP, SOLVED, IDLE, HARM = 0.25, 1.0, -0.1, -0.5
RECORDS = {"get_order_details": "order_id", "get_reservation_details": "reservation_id"}


class Milestones:
    """The milestones of one conversation. reached: the names of those reached so far."""

    def __init__(self, desk: Any):
        self.desk, self.conversation, self.task = desk, desk.conversation, desk.conversation.task
        self.script = self.task.wants
        self.goal = self.conversation.goal.changes()
        self.changes = self.conversation.world.changes()
        self.reached: set[str] = set()
        self.reached = set(self._current())  # a milestone that the opening reaches is not rewarded

    def reward_call(self) -> float:
        """Return the reward of the call that was just made, and mark its milestones as reached."""
        before, self.changes = self.changes, self.conversation.world.changes()
        new = set(self._current()) - self.reached
        self.reached |= new
        violations = self.desk.violations[-1]
        earned = 0.0 if violations else sum(SOLVED if name == "solved" else STEP for name in new) or IDLE
        wrong_change = self.changes not in (before, self.goal)
        unsolved_end = self.desk.over and "solved" not in self.reached
        return earned + HARM * (violations + wrong_change + unsolved_end)

    def _current(self) -> Iterator[str]:
        """Yield the milestones that the current state satisfies."""
        if self.desk.user is not None:
            yield "customer"
        yield from self._lookups()
        yield from self._answers_to_questions()
        if self._form_is_right():
            yield f"form {self.desk.form}"
            if self.desk.confirmed:
                yield f"yes to {self.desk.form}"
        if self._solved():
            yield "solved"

    def _lookups(self) -> Iterator[str]:
        """Yield each look-up of a record that the customer named, found or not, and of required variants and flights."""
        for message in self.conversation.log:
            for call in message.get("tool_calls", ()):
                name, arguments = call["function"].values()
                if name in RECORDS:
                    yield f"record {arguments[RECORDS[name]]}"
                elif name == "get_product_details" and arguments["product_id"] in self._exchanged_products():
                    yield "variants"
                elif name == "search_direct_flight" and any("flights" in action.arguments for action in self.task.actions):
                    yield f"flights {arguments}"

    def _exchanged_products(self) -> list[str]:
        """Return the ids of the products of which the task exchanges a variant."""
        exchanges = [action.arguments for action in self.task.actions if "new_item_ids" in action.arguments]
        orders = self.conversation.world.records("orders") if exchanges else {}
        items = [(item, call["item_ids"]) for call in exchanges for item in orders[call["order_id"]]["items"]]
        return [item["product_id"] for item, wanted in items if item["item_id"] in wanted]

    def _answers_to_questions(self) -> Iterator[str]:
        """Yield the required facts that the customer stated when asked."""
        facts, text = self.script.get("facts", {}), "\n".join(self.desk.customer_messages)
        required = {key for action in self.task.actions for key in action.arguments}
        identities = [facts[key] for key in ("email", "zip", "user") if re.search(r"\d", facts.get(key, ""))]
        if any(identity in text for identity in identities):
            yield "who"
        if ("reason" in required or self.desk.domain == "airline") and facts.get("reason", "\0") in text:
            yield "reason"
        methods = [word for word in self.desk.payment_sources if word in facts.get("payment", "")]
        if any(key.startswith("payment") for key in required) and any(word in text for word in methods):
            yield "payment"
        yield from self._answers_to_facts(text)

    def _answers_to_facts(self, text: str) -> Iterator[str]:
        """Yield the customer's reactions: to a wrong number, an unavailable variant, a prepared form or a rejected wish."""
        looked_up = any(name.startswith("record") for name in self.reached)
        if looked_up and self.script.get("correction", "\0") in text:
            yield "correction"
        if "variants" in self.reached and self._has_said("second", text):
            yield "second"
        if any(name.startswith("form") for name in self.reached) and self._has_said("change", text):
            yield "change"
        if looked_up and "customer" in self.reached and not self._anything_due():
            yield from (push for push in self.script.get("pushes", ()) if push in text)

    def _has_said(self, part: str, text: str) -> bool:
        return self.script.get(part, {}).get("says", "\0") in text

    def _anything_due(self) -> bool:
        return bool(self.task.actions or self.task.outputs)

    def _form_is_right(self) -> bool:
        """Return whether the form contains an action of the task, or the first wish of a customer who changes it later."""
        if self.desk.form is None:
            return False
        name, arguments, words = self.desk.form
        candidates = [action.arguments for action in self.task.actions if action.name == name]
        if "change" not in self.script or self._has_said("change", "\n".join(self.desk.customer_messages)):
            return arguments in candidates
        named = all(part in words for part in self.script["names"])
        return named and any(_without_items(arguments) == _without_items(other) for other in candidates)

    def _solved(self) -> bool:
        """Return whether the task is solved; if nothing is due, also whether the agent found out why before the end."""
        outputs = communicated(self.task.outputs, self.conversation.agent_messages)
        if self.changes != self.goal or not all(outputs.values()):
            return False
        informed = "customer" in self.reached and any(name.startswith("record") for name in self.reached)
        return self._anything_due() or (informed and self.desk.ended_by == "customer")


def _without_items(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "item_ids"}
