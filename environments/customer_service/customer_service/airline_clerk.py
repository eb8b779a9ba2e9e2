"""The rule-based agents at the airline's desk. They apply the policy to the desk's records and the customer's words."""

from __future__ import annotations

from customer_service.airline_desk import (
    AIRLINE_SOURCES,
    BAGS,
    CABINS,
    DAY,
    RESERVATION,
    USER_ID,
    AirlineDesk,
)
from customer_service.clerks import Call, RuleClerk

TOOL_FOR_AIRLINE_WISH = {
    "cancel reservation": "cancel", "move reservation": "move", "to reservation": "add_bags", "must be": "correct_name",
    "I want to fly": "book", "compensation": "compensate",
}  # fmt: skip
"""Phrases of the course's customers, and the tool for each."""
CAUSES = {"I am ill": "health", "There is a storm": "weather", "My plans have changed": "change of plans"}


class AirlineClerk(RuleClerk[AirlineDesk]):
    """The clerk of the airline. A hurried one never charges for bags and compensates everybody."""

    def next_call(self) -> Call:
        desk = self.desk
        if desk.user is None:
            return ("find_customer", {}) if desk.last_match(USER_ID) and not self.refused else ("ask", {"about": "who"})
        messages = reversed(desk.customer_messages)
        tool = next((tool for text in messages for words, tool in TOOL_FOR_AIRLINE_WISH.items() if words in text), None)
        if tool is None or self._failed():
            return "decline", {}
        found = desk.reservation and desk.reservation["reservation_id"]
        if tool != "book" and (found is None or found != desk.last_match(RESERVATION)):
            return "find_reservation", {}
        if tool == "cancel" and not self._cause():
            return "ask", {"about": "reason"}
        if not self.hurried and self._forbidden(tool):
            return "decline", {}
        wanted = self._complete_call(tool)
        if wanted[0] != tool or self.written != wanted:
            return wanted
        return ("carry_out", {}) if desk.confirmed or self.hurried else ("confirm", {})

    def _failed(self) -> bool:
        return super()._failed() or self.desk.conversation.log[-1]["content"] == "[]"  # a search without results

    def _cause(self) -> str | None:
        cause = self._last_match("|".join(CAUSES))
        return CAUSES[cause] if cause else None

    def _forbidden(self, tool: str) -> bool:
        """Return whether the policy forbids a change that the tools allow."""
        if tool == "book":
            return False
        found, user = self.desk.reservation, self.desk.user
        assert found is not None and user is not None
        insured, cabin = found["insurance"] == "yes", found["cabin"]
        if tool == "cancel":
            allowed = self.desk.age < 24 or cabin == "business" or (insured and self._cause() in ("health", "weather"))
            return self.desk.owner != "their" or self.desk.when == "past" or not allowed
        if tool == "compensate":
            return user["membership"] == "regular" and cabin != "business" and not insured
        return self.desk.owner != "their" or (tool == "move" and cabin == "basic_economy")

    def _complete_call(self, tool: str) -> Call:
        """Return the call with the customer's arguments, or the question or look-up that is needed first, or a refusal."""
        desk = self.desk
        if tool in ("move", "book") and (desk.flight is None or desk.flight["date"] != desk.last_match(DAY)):
            return "find_flight", {}
        arguments: dict[str, str] = {}
        if tool == "cancel":
            arguments["reason"] = str(self._cause())
        if tool == "compensate":
            arguments["dollars"] = "100"
        if tool == "add_bags":
            if not (wish := self._last_match(BAGS.pattern)):
                return "decline", {}
            arguments["paid"] = "0" if self.hurried else str(max(0, int(wish.split()[1]) - desk.free_bags))
        if tool == "book":
            if not (cabin := self._last_match(rf"in ({'|'.join(CABINS)})\b")):
                return "decline", {}
            arguments["cabin"] = cabin
        if tool in ("move", "add_bags", "book"):
            if not (payment := self._last_match("|".join(AIRLINE_SOURCES))):
                return "ask", {"about": "payment"}
            arguments["payment"] = payment
        return tool, arguments
