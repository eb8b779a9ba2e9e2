"""What each call at a desk earns: process supervision, by the milestones that lie on the way to a solved task.

The task's reward comes at the end, if it comes, and doing nothing solves the tasks in which nothing is due. So a call is
paid for what it did: `STEP` for each milestone that is reached for the first time, `SOLVED` for the solution, `IDLE` for
reaching none; nothing of that if it breaks a rule. `HARM` is for each broken rule, for a change that is not due and for an
end that leaves something undone. Which milestones there are follows from the task: its actions, and the script of its
customer. No clerk is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from art_nb.tasks.customer_service.tasks import told

STEP, SOLVED, IDLE, HARM = 0.25, 1.0, -0.1, -0.5
RECORDS = {"get_order_details": "order_id", "get_reservation_details": "reservation_id"}


class Milestones:
    """Those of one conversation. reached: their names so far."""

    def __init__(self, desk: Any):
        """desk: a `desk.Desk`, which makes these."""
        self.desk, self.task, self.wants = desk, desk.talk.task, desk.talk.task.wants
        self.goal = desk.talk.goal.changes()
        self.changes = desk.talk.world.changes()
        self.reached: set[str] = set()
        self.reached = set(self._standing())  # what the customer says at once is nobody's merit

    def gain(self) -> float:
        """What the call that was just made earns; to be asked once after each."""
        before, self.changes = self.changes, self.desk.talk.world.changes()
        new = set(self._standing()) - self.reached
        self.reached |= new
        broken = self.desk.breaches[-1]
        earned = 0.0 if broken else sum(SOLVED if name == "solved" else STEP for name in new) or IDLE
        wrong = self.changes not in (before, self.goal)
        undone = self.desk.over and "solved" not in self.reached
        return earned + HARM * (broken + wrong + undone)

    def _standing(self) -> Iterator[str]:
        """The milestones that are reached as things stand."""
        if self.desk.user is not None:
            yield "customer"
        yield from self._looked_up()
        yield from self._heard()
        if self._form_is_right():
            yield f"form {self.desk.form}"
            if self.desk.agreed:
                yield f"yes to {self.desk.form}"
        if self._solved():
            yield "solved"

    def _looked_up(self) -> Iterator[str]:
        """Each record that the customer named, whether there is one or not; the variants and flights that are needed."""
        for message in self.desk.talk.log:
            for call in message.get("tool_calls", ()):
                name, given = call["function"].values()
                if name in RECORDS:
                    yield f"record {given[RECORDS[name]]}"
                elif name == "get_product_details" and given["product_id"] in self._products():
                    yield "variants"
                elif name == "search_direct_flight" and any("flights" in action.arguments for action in self.task.actions):
                    yield f"flights {given}"

    def _products(self) -> list[str]:
        """Of which a variant is exchanged."""
        changed = [action.arguments for action in self.task.actions if "new_item_ids" in action.arguments]
        orders = self.desk.talk.world.records("orders") if changed else {}
        items = [(item, given["item_ids"]) for given in changed for item in orders[given["order_id"]]["items"]]
        return [item["product_id"] for item, wanted in items if item["item_id"] in wanted]

    def _heard(self) -> Iterator[str]:
        """What the customer had to be asked for, and what they have to say only when they are told how things are."""
        facts, said = self.wants.get("facts", {}), "\n".join(self.desk.heard)
        arguments = {key for action in self.task.actions for key in action.arguments}
        who = [facts[key] for key in ("email", "zip", "user") if re.search(r"\d", facts.get(key, ""))]
        if any(text in said for text in who):
            yield "who"
        if ("reason" in arguments or self.desk.domain == "airline") and facts.get("reason", "\0") in said:
            yield "reason"
        ways = [word for word in self.desk.sources if word in facts.get("payment", "")]
        if any(key.startswith("payment") for key in arguments) and any(word in said for word in ways):
            yield "payment"
        yield from self._answered(said)

    def _answered(self, said: str) -> Iterator[str]:
        """Answers to a call that was right: a number that is wrong, a variant that is gone, a request that can't be met."""
        looked = any(name.startswith("record") for name in self.reached)
        if looked and self.wants.get("correction", "\0") in said:
            yield "correction"
        if "variants" in self.reached and self._said("second", said):
            yield "second"
        if any(name.startswith("form") for name in self.reached) and self._said("change", said):
            yield "change"
        if looked and "customer" in self.reached and not self._due():
            yield from (push for push in self.wants.get("pushes", ()) if push in said)

    def _said(self, turn: str, said: str) -> bool:
        return self.wants.get(turn, {}).get("says", "\0") in said

    def _due(self) -> bool:
        return bool(self.task.actions or self.task.outputs)

    def _form_is_right(self) -> bool:
        """Whether it holds what is due, or what the customer still wants who is about to change their mind."""
        if self.desk.form is None:
            return False
        name, arguments, words = self.desk.form
        fitting = [action.arguments for action in self.task.actions if action.name == name]
        if "change" not in self.wants or self._said("change", "\n".join(self.desk.heard)):
            return arguments in fitting
        named = all(part in words for part in self.wants["names"])
        return named and any(_without_items(arguments) == _without_items(given) for given in fitting)

    def _solved(self) -> bool:
        """The task is solved; where nothing is due, the customer has left after it was seen why."""
        if self.changes != self.goal or not all(told(self.task.outputs, self.desk.talk.said).values()):
            return False
        seen = "customer" in self.reached and any(name.startswith("record") for name in self.reached)
        return self._due() or (seen and self.desk.ended_by == "customer")


def _without_items(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "item_ids"}
