"""The airline's desk: its tools in few words, as `desk` says. It shows what the policy's rules turn on, and keeps none."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from art_nb.tasks.customer_service.airline import BAG, NOW
from art_nb.tasks.customer_service.customer import Customer
from art_nb.tasks.customer_service.desk import DESK_TURNS, Desk, DeskEnvironment, NotYet, choice, desk_tool
from art_nb.tasks.customer_service.policy import FREE_BAGS
from art_nb.tasks.customer_service.tasks import Task
from art_nb.tasks.customer_service.world import World
from art_nb.tasks.tool_calls import quoted

AIRLINE_SOURCES = {"gift card": "gift_card", "credit card": "credit_card", "certificate": "certificate"}
AIRLINE_QUESTIONS = {
    "who": "What is your user id?",
    "reservation": "Which reservation is it?",
    "reason": "What is the reason?",
    "payment": "How do you want to pay, or get the refund?",
}
AIRLINE_REASONS = ("health", "weather", "change of plans")
CABINS = {"basic economy": "basic_economy", "economy": "economy", "business": "business"}

USER_ID = re.compile(r"\b[a-z]+_[a-z]+_\d+\b")
RESERVATION = re.compile(r"\b(?=[A-Z]*\d)[A-Z\d]{6}\b")
DAY = re.compile(r"\b\d{4}-\d\d-\d\d\b")
PLACES = re.compile(r"from [A-Z]{3} to [A-Z]{3}\b")
BAGS = re.compile(r"add \d+ bag")
RENAMING = re.compile(r"the name \w+ \w+ must be \w+ \w+")

_PAYMENT = choice(AIRLINE_SOURCES)
AIRLINE_DESK_TOOLS = [
    desk_tool(
        "add_bags", "Put on the form: more bags, as many as the customer wants.", paid=f"how many cost {BAG} dollars.",
        payment=_PAYMENT,
    ),
    desk_tool("ask", "Ask the customer.", about=choice(AIRLINE_QUESTIONS)),
    desk_tool(
        "book", "Put on the form: the flight, for the customer alone, without bags and insurance.", cabin=choice(CABINS),
        payment=_PAYMENT,
    ),
    desk_tool("cancel", "Put on the form: cancel the reservation.", reason=choice(AIRLINE_REASONS)),
    desk_tool("carry_out", "Make the change that is on the form and tell the customer."),
    desk_tool("compensate", "Put on the form: a certificate.", dollars="how many for each passenger."),
    desk_tool("confirm", "Read the form to the customer and ask for a yes."),
    desk_tool("correct_name", "Put on the form: a passenger's name as the customer says it must be."),
    desk_tool("decline", "Tell the customer that it can't be done."),
    desk_tool("find_customer", "Look up who the customer says they are."),
    desk_tool("find_flight", "Look up the flight on the day that the customer named last."),
    desk_tool("find_reservation", "Look up the reservation that the customer named last."),
    desk_tool("move", "Put on the form: the flight instead of the reservation's, same cabin.", payment=_PAYMENT),
]  # fmt: skip
"""The schemas that TRL derives from `AirlineDeskEnvironment`'s tools."""


class AirlineDesk(Desk):
    """One conversation by `AIRLINE_DESK_TOOLS`.

    Fields: those of `Desk`; reservation and flight (what was looked up last, or None; a flight with its `date`).
    """

    domain, tools, questions, sources = "airline", AIRLINE_DESK_TOOLS, AIRLINE_QUESTIONS, AIRLINE_SOURCES

    def __init__(self, world: World, task: Task, customer: Customer | None = None, max_turns: int = DESK_TURNS):
        super().__init__(world, task, customer, max_turns)
        self.reservation: dict | None = None
        self.flight: dict | None = None

    # What it looks up

    def _find_customer(self) -> str:
        if not (user_id := self.given(USER_ID)):
            raise NotYet("the customer has not said who they are")
        self.user = self._look("get_user_details", user_id=user_id) | {"user_id": user_id}
        return f"They can pay by {', '.join(self._methods())}. They are a {self.user['membership']} member."

    def _find_reservation(self) -> str:
        if not (key := self.given(RESERVATION)):
            raise NotYet("the customer has not named a reservation")
        self.reservation = self.flight = self.form = None
        self.reservation = found = self._look("get_reservation_details", reservation_id=key)
        facts = [
            self.when, "insured" if found["insurance"] == "yes" else "not insured", f"booked {_count(self.age, 'hour')} ago",
            _count(len(found["passengers"]), "passenger"), _count(found["total_baggages"], "bag"),
        ]  # fmt: skip
        if self.owner == "their":
            facts.append(f"{self.free_bags} more free")
        return f"{self.owner.capitalize()} {found['cabin'].replace('_', ' ')} reservation: {', '.join(facts)}."

    def _found(self) -> dict:
        if self.reservation is None:
            raise NotYet("no reservation was looked up")
        return self.reservation

    @property
    def owner(self) -> str:
        """Whose reservation was found: theirs, another's, or somebody's while it is not known who the customer is."""
        return self._owner_of(self._found())

    @property
    def when(self) -> str:
        """Of the first flight of the reservation that was found: past, today or ahead."""
        day, today = self._found()["flights"][0]["date"], NOW[:10]
        return "past" if day < today else "today" if day == today else "ahead"

    @property
    def age(self) -> int:
        """Whole hours since the reservation that was found was booked."""
        return (datetime.fromisoformat(NOW) - datetime.fromisoformat(self._found()["created_at"])) // timedelta(hours=1)

    @property
    def free_bags(self) -> int:
        """How many more bags the customer may take on the reservation that was found without paying."""
        found, membership = self._found(), self._known()["membership"]
        free = len(found["passengers"]) * FREE_BAGS[membership][found["cabin"]]
        return max(0, free - (found["total_baggages"] - found["nonfree_baggages"]))

    def _find_flight(self) -> str:
        if not (day := self.given(DAY)):
            raise NotYet("the customer has not named a day")
        if said := self.given(PLACES):
            origin, destination = said.split()[1::2]
        else:
            origin, destination = self._found()["origin"], self._found()["destination"]
        self.flight = self.form = None
        found = self._look("search_direct_flight", origin=origin, destination=destination, date=day)
        if not found:
            raise NotYet(f"there is no flight on {day}")
        self.flight = found[0] | {"date": day}
        seats, prices = self.flight["available_seats"], self.flight["prices"]
        offers = [f"{word} {prices[cabin]}{'' if seats[cabin] else ' (gone)'}" for word, cabin in CABINS.items()]
        return f"On {day}: {', '.join(offers)}."

    def _found_flight(self) -> dict:
        if self.flight is None:
            raise NotYet("no flight was looked up")
        return self.flight

    # What goes on the form

    def _key(self) -> str:
        return self._found()["reservation_id"]

    def _cancel(self, reason: str) -> str:
        if reason not in AIRLINE_REASONS:
            raise NotYet(f"there is no reason {quoted(reason)}")
        return self._fill(f"cancel reservation {self._key()}, {reason}", "cancel_reservation", reservation_id=self._key())

    def _move(self, payment: str) -> str:
        old, flight, method = self._found(), self._found_flight(), self._method(payment)
        return self._fill(
            f"move reservation {self._key()} to {flight['date']}, with {method}", "update_reservation_flights",
            reservation_id=self._key(), cabin=old["cabin"], flights=[_leg(flight)], payment_id=method,
        )  # fmt: skip

    def _add_bags(self, paid: str, payment: str) -> str:
        old, method, due = self._found(), self._method(payment), _number(paid)
        if not (said := self.given(BAGS)):
            raise NotYet("the customer has not said how many bags")
        if due > (more := int(said.split()[1])):
            raise NotYet(f"the customer wants {_count(more, 'more bag')}")
        return self._fill(
            f"add {_count(more, 'bag')} to reservation {self._key()}, for {BAG * due} dollars, with {method}",
            "update_reservation_baggages", reservation_id=self._key(), total_baggages=old["total_baggages"] + more,
            nonfree_baggages=old["nonfree_baggages"] + due, payment_id=method,
        )  # fmt: skip

    def _correct_name(self) -> str:
        people = [dict(person) for person in self._found()["passengers"]]
        if not (said := self.given(RENAMING)):
            raise NotYet("the customer has not said which name must be another")
        _, _, *old, _, _, first, last = said.split()
        fitting = [person for person in people if [person["first_name"], person["last_name"]] == old]
        if not fitting:
            raise NotYet(f"there is no {quoted(' '.join(old))} in the reservation")
        fitting[0] |= {"first_name": first, "last_name": last}
        words = f"write {first} {last} for {' '.join(old)} in reservation {self._key()}"
        return self._fill(words, "update_reservation_passengers", reservation_id=self._key(), passengers=people)

    def _book(self, cabin: str, payment: str) -> str:
        user, flight, method = self._known(), self._found_flight(), self._method(payment)
        if cabin not in CABINS:
            raise NotYet(f"there is no cabin {quoted(cabin)}")
        price = flight["prices"][CABINS[cabin]]
        return self._fill(
            f"book flight {flight['flight_number']} on {flight['date']} in {cabin} for {price} dollars, with {method}",
            "book_reservation", user_id=user["user_id"], origin=flight["origin"], destination=flight["destination"],
            flight_type="one_way", cabin=CABINS[cabin], flights=[_leg(flight)],
            passengers=[user["name"] | {"dob": user["dob"]}], payment_methods=[{"payment_id": method, "amount": price}],
            total_baggages=0, nonfree_baggages=0, insurance="no",
        )  # fmt: skip

    def _compensate(self, dollars: str) -> str:
        amount, user_id = _number(dollars) * len(self._found()["passengers"]), self._known()["user_id"]
        return self._fill(f"send a certificate of {amount} dollars", "send_certificate", user_id=user_id, amount=amount)


def _leg(flight: dict) -> dict:
    """A flight as a call names it."""
    return {"flight_number": flight["flight_number"], "date": flight["date"]}


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,3}", text):
        raise NotYet(f"{quoted(text)} is no number")
    return int(text)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


class AirlineDeskEnvironment(DeskEnvironment, at=AirlineDesk):
    """The task as a tool-calling episode for TRL's `environment_factory`, as `AirlineEnvironment` is the larger one."""
