"""The desk of the airline. It shows the facts that the policy depends on, and enforces none of its rules."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from art_nb.environments import RefusedCall, quoted, tool
from customer_service.airline import BAG, NOW
from customer_service.customer import Customer
from customer_service.desk import DESK_TURNS, Desk, DeskEnvironment
from customer_service.policy import FREE_BAGS
from customer_service.tasks import Task
from customer_service.world import World

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


class AirlineDesk(Desk):
    """A conversation with a customer of the airline.

    Attributes: those of `Desk`; reservation and flight (the last that were looked up, or None; a flight with its `date`).
    """

    domain, questions, payment_sources = "airline", AIRLINE_QUESTIONS, AIRLINE_SOURCES

    def __init__(self, world: World, task: Task, customer: Customer | None = None, max_turns: int = DESK_TURNS):
        super().__init__(world, task, customer, max_turns)
        self.reservation: dict | None = None
        self.flight: dict | None = None

    @tool
    def ask(self, about: str) -> str:
        """Ask the customer.

        Args:
            about: who, reservation, reason or payment.
        """
        return self._ask(about)

    @tool
    def find_customer(self) -> str:
        """Look up who the customer says they are."""
        if not (user_id := self.last_match(USER_ID)):
            raise RefusedCall("the customer has not said who they are")
        self.user = self._use("get_user_details", user_id=user_id) | {"user_id": user_id}
        return f"They can pay by {', '.join(self._payment_methods())}. They are a {self.user['membership']} member."

    @tool
    def find_reservation(self) -> str:
        """Look up the reservation that the customer named last."""
        if not (key := self.last_match(RESERVATION)):
            raise RefusedCall("the customer has not named a reservation")
        self.reservation = self.flight = self.form = None
        self.reservation = found = self._use("get_reservation_details", reservation_id=key)
        facts = [
            self.when, "insured" if found["insurance"] == "yes" else "not insured", f"booked {_count(self.age, 'hour')} ago",
            _count(len(found["passengers"]), "passenger"), _count(found["total_baggages"], "bag"),
        ]  # fmt: skip
        if self.owner == "their":
            facts.append(f"{self.free_bags} more free")
        return f"{self.owner.capitalize()} {found['cabin'].replace('_', ' ')} reservation: {', '.join(facts)}."

    def _found_reservation(self) -> dict:
        if self.reservation is None:
            raise RefusedCall("no reservation was looked up")
        return self.reservation

    @property
    def owner(self) -> str:
        """Owner of the found reservation: "their", "another's", or "somebody's" until the customer has been looked up."""
        return self._owner_of(self._found_reservation())

    @property
    def when(self) -> str:
        """Departure day of the reservation's first flight: "past", "today" or "ahead"."""
        day, today = self._found_reservation()["flights"][0]["date"], NOW[:10]
        return "past" if day < today else "today" if day == today else "ahead"

    @property
    def age(self) -> int:
        """Whole hours since the reservation was booked."""
        booked = datetime.fromisoformat(self._found_reservation()["created_at"])
        return (datetime.fromisoformat(NOW) - booked) // timedelta(hours=1)

    @property
    def free_bags(self) -> int:
        """The number of bags that can be added to the reservation free of charge."""
        found, membership = self._found_reservation(), self._customer()["membership"]
        free = len(found["passengers"]) * FREE_BAGS[membership][found["cabin"]]
        return max(0, free - (found["total_baggages"] - found["nonfree_baggages"]))

    @tool
    def find_flight(self) -> str:
        """Look up the flight on the day that the customer named last."""
        if not (day := self.last_match(DAY)):
            raise RefusedCall("the customer has not named a day")
        if route := self.last_match(PLACES):
            origin, destination = route.split()[1::2]
        else:
            origin, destination = self._found_reservation()["origin"], self._found_reservation()["destination"]
        self.flight = self.form = None
        found = self._use("search_direct_flight", origin=origin, destination=destination, date=day)
        if not found:
            raise RefusedCall(f"there is no flight on {day}")
        self.flight = found[0] | {"date": day}
        seats, prices = self.flight["available_seats"], self.flight["prices"]
        offers = [f"{word} {prices[cabin]}{'' if seats[cabin] else ' (gone)'}" for word, cabin in CABINS.items()]
        return f"On {day}: {', '.join(offers)}."

    def _found_flight(self) -> dict:
        if self.flight is None:
            raise RefusedCall("no flight was looked up")
        return self.flight

    def _reservation_id(self) -> str:
        return self._found_reservation()["reservation_id"]

    @tool
    def cancel(self, reason: str) -> str:
        """Put on the form: cancel the reservation.

        Args:
            reason: health, weather or change of plans.
        """
        if reason not in AIRLINE_REASONS:
            raise RefusedCall(f"there is no reason {quoted(reason)}")
        key = self._reservation_id()
        return self._fill_form(f"cancel reservation {key}, {reason}", "cancel_reservation", reservation_id=key)

    @tool
    def move(self, payment: str) -> str:
        """Put on the form: the flight instead of the reservation's, same cabin.

        Args:
            payment: gift card, credit card or certificate.
        """
        old, flight, method = self._found_reservation(), self._found_flight(), self._payment_method(payment)
        return self._fill_form(
            f"move reservation {self._reservation_id()} to {flight['date']}, with {method}", "update_reservation_flights",
            reservation_id=self._reservation_id(), cabin=old["cabin"], flights=[_leg(flight)], payment_id=method,
        )  # fmt: skip

    @tool
    def add_bags(self, paid: str, payment: str) -> str:
        """Put on the form: more bags, as many as the customer wants.

        Args:
            paid: how many cost 50 dollars.
            payment: gift card, credit card or certificate.
        """
        old, method, due = self._found_reservation(), self._payment_method(payment), _number(paid)
        if not (wish := self.last_match(BAGS)):
            raise RefusedCall("the customer has not said how many bags")
        if due > (more := int(wish.split()[1])):
            raise RefusedCall(f"the customer wants {_count(more, 'more bag')}")
        return self._fill_form(
            f"add {_count(more, 'bag')} to reservation {self._reservation_id()}, for {BAG * due} dollars, with {method}",
            "update_reservation_baggages", reservation_id=self._reservation_id(),
            total_baggages=old["total_baggages"] + more, nonfree_baggages=old["nonfree_baggages"] + due, payment_id=method,
        )  # fmt: skip

    @tool
    def correct_name(self) -> str:
        """Put on the form: a passenger's name as the customer says it must be."""
        people = [dict(person) for person in self._found_reservation()["passengers"]]
        if not (wish := self.last_match(RENAMING)):
            raise RefusedCall("the customer has not said which name must be another")
        _, _, *old, _, _, first, last = wish.split()
        matching = [person for person in people if [person["first_name"], person["last_name"]] == old]
        if not matching:
            raise RefusedCall(f"there is no {quoted(' '.join(old))} in the reservation")
        matching[0] |= {"first_name": first, "last_name": last}
        key = self._reservation_id()
        words = f"write {first} {last} for {' '.join(old)} in reservation {key}"
        return self._fill_form(words, "update_reservation_passengers", reservation_id=key, passengers=people)

    @tool
    def book(self, cabin: str, payment: str) -> str:
        """Put on the form: the flight, for the customer alone, without bags and insurance.

        Args:
            cabin: basic economy, economy or business.
            payment: gift card, credit card or certificate.
        """
        user, flight, method = self._customer(), self._found_flight(), self._payment_method(payment)
        if cabin not in CABINS:
            raise RefusedCall(f"there is no cabin {quoted(cabin)}")
        price = flight["prices"][CABINS[cabin]]
        return self._fill_form(
            f"book flight {flight['flight_number']} on {flight['date']} in {cabin} for {price} dollars, with {method}",
            "book_reservation", user_id=user["user_id"], origin=flight["origin"], destination=flight["destination"],
            flight_type="one_way", cabin=CABINS[cabin], flights=[_leg(flight)],
            passengers=[user["name"] | {"dob": user["dob"]}], payment_methods=[{"payment_id": method, "amount": price}],
            total_baggages=0, nonfree_baggages=0, insurance="no",
        )  # fmt: skip

    @tool
    def compensate(self, dollars: str) -> str:
        """Put on the form: a certificate.

        Args:
            dollars: how many for each passenger.
        """
        amount, user_id = _number(dollars) * len(self._found_reservation()["passengers"]), self._customer()["user_id"]
        return self._fill_form(f"send a certificate of {amount} dollars", "send_certificate", user_id=user_id, amount=amount)


def _leg(flight: dict) -> dict:
    """Return a flight as an argument of an underlying tool."""
    return {"flight_number": flight["flight_number"], "date": flight["date"]}


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,3}", text):
        raise RefusedCall(f"{quoted(text)} is no number")
    return int(text)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


class AirlineDeskEnvironment(DeskEnvironment, episode=AirlineDesk):
    """`AirlineDesk` for TRL's `environment_factory`. `AirlineEnvironment` has the underlying tools instead."""
