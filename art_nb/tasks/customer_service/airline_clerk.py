"""The airline's clerks by rule: what is shown at the desk and said by the customer, held against the policy's words."""

from __future__ import annotations

from art_nb.tasks.customer_service.airline_desk import (
    AIRLINE_SOURCES,
    BAGS,
    CABINS,
    DAY,
    RESERVATION,
    USER_ID,
    AirlineDesk,
)
from art_nb.tasks.customer_service.clerks import Call, RuleClerk

WISHES = {
    "cancel reservation": "cancel", "move reservation": "move", "to reservation": "add_bags", "must be": "correct_name",
    "I want to fly": "book", "compensation": "compensate",
}  # fmt: skip
"""What the course's customers say, and the tool that is for it."""
CAUSES = {"I am ill": "health", "There is a storm": "weather", "My plans have changed": "change of plans"}


class AirlineClerk(RuleClerk[AirlineDesk]):
    """The airline's; a hurried one lets bags go free and compensates everybody."""

    def next_call(self) -> Call:
        desk = self.desk
        if desk.user is None:
            return ("find_customer", {}) if desk.given(USER_ID) else ("ask", {"about": "who"})
        tool = next(tool for text in reversed(desk.heard) for words, tool in WISHES.items() if words in text)
        if self._failed():
            return "decline", {}
        if tool != "book" and (desk.reservation is None or desk.reservation["reservation_id"] != desk.given(RESERVATION)):
            return "find_reservation", {}
        if tool == "cancel" and not self._cause():
            return "ask", {"about": "reason"}
        if not self.hurried and self._forbidden(tool):
            return "decline", {}
        wanted = self._filled_in(tool)
        if wanted[0] != tool or self.written != wanted:
            return wanted
        return ("carry_out", {}) if desk.agreed or self.hurried else ("confirm", {})

    def _failed(self) -> bool:
        return super()._failed() or self.desk.talk.log[-1]["content"] == "[]"  # no flight

    def _cause(self) -> str | None:
        said = self._heard("|".join(CAUSES))
        return CAUSES[said] if said else None

    def _forbidden(self, tool: str) -> bool:
        """Whether the policy forbids what no tool refuses."""
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

    def _filled_in(self, tool: str) -> Call:
        """The call with what the customer has said; before it a question, or a look at flights, where that is lacking."""
        desk = self.desk
        if tool in ("move", "book") and (desk.flight is None or desk.flight["date"] != desk.given(DAY)):
            return "find_flight", {}
        arguments: dict[str, str] = {}
        if tool == "cancel":
            arguments["reason"] = str(self._cause())
        if tool == "compensate":
            arguments["dollars"] = "100"
        if tool == "add_bags":
            more = int(self._heard(BAGS.pattern).split()[1])
            arguments["paid"] = "0" if self.hurried else str(max(0, more - desk.free_bags))
        if tool == "book":
            arguments["cabin"] = self._heard(rf"in (?:{'|'.join(CABINS)})\b").removeprefix("in ")
        if tool in ("move", "add_bags", "book"):
            if not (payment := self._heard("|".join(AIRLINE_SOURCES))):
                return "ask", {"about": "payment"}
            arguments["payment"] = payment
        return tool, arguments
