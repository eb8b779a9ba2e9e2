"""Agents without a model: one that does everything right, and workers of any skill who draw their mistakes.

They know the tools and the words in which the course's customers speak (data/customer_service), and read nothing but the
conversation.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from art_nb.tasks.customer_service.airline import NOW
from art_nb.tasks.customer_service.conversation import Conversation
from art_nb.tasks.customer_service.policy import bags_to_pay, compensation, may_cancel, refused

Player = Callable[[Conversation], None]
SOURCES = {"gift card": "gift_card", "credit card": "credit_card", "PayPal": "paypal"}


class _Leave(Exception):
    """The conversation is over, or the player sees no way to go on."""


class Worker:
    """An agent that makes each choice well with probability `skill`, and badly otherwise.

    Its choices: whether to ask for a yes, to look at the rules, to decline what they forbid, to take the item, the variant
    and the way of payment that were meant.
    """

    def __init__(self, skill: float = 1.0, seed: int = 0):
        self.skill, self.rng = skill, random.Random(seed)

    def __call__(self, conversation: Conversation) -> None:
        self.talk, self.heard = conversation, [conversation.opening]
        try:
            if conversation.world.domain == "retail":
                self._retail()
            else:
                self._airline()
        except _Leave:
            pass

    def _well(self) -> bool:
        return self.rng.random() < self.skill

    def _pick(self, right: Any, others: list) -> Any:
        return right if self._well() or not others else self.rng.choice(others)

    def _say(self, message: str) -> str:
        reply = self.talk.say(message)
        if self.talk.over:
            raise _Leave
        self.heard.append(reply)
        return reply

    def _call(self, name: str, **arguments: Any) -> Any:
        answer = self.talk.call(name, arguments)
        if self.talk.over:
            raise _Leave
        if refused(answer):
            return None
        return json.loads(answer) if answer.startswith(("{", "[")) else answer

    def _find(self, pattern: str, question: str) -> str:
        """The last thing said that fits, asked for until something does."""
        while not (found := re.findall(pattern, "\n".join(self.heard))):
            self._say(question)
        return found[-1]

    def _decline(self, why: str) -> None:
        """Says no until the customer leaves."""
        while True:
            self._say(f"I am sorry, {why}.")

    def _agree(self, proposal: str) -> bool:
        """Whether the customer says yes; a bad worker does not ask."""
        return not self._well() or self._say(f"{proposal} Do you confirm? (yes/no)").find("Yes") >= 0

    def _finish(self) -> None:
        while True:
            self._say("It has been done.")

    # The shop

    def _retail(self) -> None:
        self._identify()
        while True:
            wish = self._wish()
            order = self._order()
            if "How much" in wish:
                item = self._item(order, wish)
                self._say(f"It was {item['price']}.")
                self._decline("this is all that I know")
            elif "cancel order" in wish:
                self._cancel(order)
            elif "pay order" in wish:
                self._payment(order)
            else:
                self._items(order, wish)

    def _identify(self) -> None:
        who = self._find(r"\S+@[\w.]+\w|I am \w+ \w+, zip \d+", "What is your email, or your name and zip?")
        if "@" in who:
            self.user_id = self._call("find_user_id_by_email", email=who)
        else:
            first, last, zip_code = re.findall(r"(\w+) (\w+), zip (\d+)", who)[0]
            self.user_id = self._call("find_user_id_by_name_zip", first_name=first, last_name=last, zip=zip_code)

    def _wish(self) -> str:
        """The last thing said that is a wish."""
        return next(text for text in reversed(self.heard) if re.search(r"I want|Please change|How much|must be", text))

    def _order(self) -> dict:
        while True:
            order_id = re.findall(r"#W\d+", "\n".join(self.heard))[-1]
            if order := self._call("get_order_details", order_id=order_id):
                if order["user_id"] != self.user_id and self._well():
                    self._decline("that is not an order of yours")
                return order
            self._say(f"I am sorry, there is no order {order_id}.")

    def _item(self, order: dict, wish: str) -> dict:
        right = [item for item in order["items"] if f"the {item['name']}" in wish]
        return self._pick(right[-1] if right else order["items"][0], order["items"])

    def _method(self, question: str) -> dict:
        user = self._call("get_user_details", user_id=self.user_id)
        source, methods = SOURCES[self._find("|".join(SOURCES), question)], list(user["payment_methods"].values())
        right = [method for method in methods if method["source"] == source]
        return self._pick(right[0] if right else methods[0], methods)

    def _write(self, proposal: str, name: str, **arguments: Any) -> None:
        """Makes a change that the customer agrees to; returns when they want something else."""
        if self._agree(proposal):
            if self._call(name, **arguments) is None:
                self._decline("this is not possible")
            self._finish()

    def _cancel(self, order: dict) -> None:
        if order["status"] != "pending" and self._well():
            self._decline("an order that is not pending cannot be cancelled")
        said = self._find("no longer needed|ordered by mistake", "What is the reason?")
        reason = self._pick(said, ["no longer needed", "ordered by mistake"])
        order_id = order["order_id"]
        self._write(f"I will cancel order {order_id}: {reason}.", "cancel_pending_order", order_id=order_id, reason=reason)

    def _payment(self, order: dict) -> None:
        method, order_id = self._method("How do you want to pay?"), order["order_id"]
        self._write(
            f"I will let order {order_id} be paid by {method['id']}.", "modify_pending_order_payment", order_id=order_id,
            payment_method_id=method["id"],
        )  # fmt: skip

    def _items(self, order: dict, wish: str) -> None:
        item, order_id = self._item(order, wish), order["order_id"]
        if "return" in wish:
            method = self._method("Where do you want the refund?")
            self._write(
                f"I will take back the {item['name']} of order {order_id}, with a refund to {method['id']}.",
                "return_delivered_order_items", order_id=order_id, item_ids=[item["item_id"]],
                payment_method_id=method["id"],
            )  # fmt: skip
            return
        variants = list(self._call("get_product_details", product_id=item["product_id"])["variants"].values())
        wanted = re.findall(r"the (\w+) one", "\n".join(self.heard))[-1]
        fitting = [variant for variant in variants if wanted in variant["options"].values()]
        variant = self._pick(fitting[0] if fitting else variants[0], variants)
        if not variant["available"] and self._well():
            self._say(f"I am sorry, the {wanted} one is not available.")
            return
        method, (value,) = self._method("How do you want to pay the difference?"), variant["options"].values()
        pending = order["status"] == "pending"
        name = "modify_pending_order_items" if pending else "exchange_delivered_order_items"
        self._write(
            f"I will change the {item['name']} of order {order_id} to the {value} one, with {method['id']}.", name,
            order_id=order_id, item_ids=[item["item_id"]], new_item_ids=[variant["item_id"]], payment_method_id=method["id"],
        )  # fmt: skip

    # The airline

    def _airline(self) -> None:
        self.user_id = self._find(r"\b[a-z]+_[a-z]+_\d+\b", "What is your user id?")
        self.user = self._call("get_user_details", user_id=self.user_id)
        wish = self._wish()
        if "fly from" in wish:
            self._book(wish)
        reservation_id = self._find(r"\b[A-G]\d{5}\b", "What is the reservation?")
        reservation = self._call("get_reservation_details", reservation_id=reservation_id)
        if "cancel reservation" in wish:
            self._cancel_reservation(reservation)
        elif "move reservation" in wish:
            self._move(reservation, wish)
        elif "add" in wish:
            self._bags(reservation, wish)
        elif "must be" in wish:
            self._rename(reservation, wish)
        elif "compensation" in wish:
            self._compensate(reservation)
        raise _Leave

    def _cancel_reservation(self, reservation: dict) -> None:
        text, key = self._say("What is the reason?"), reservation["reservation_id"]
        # Only the day tells the agent whether a flight has left, and the customer whether it was cancelled.
        leg = reservation["flights"][0]
        status = "landed" if leg["date"] < NOW[:10] else "available"
        known = {leg["flight_number"]: {"dates": {leg["date"]: {"status": status}}}}
        if not may_cancel(reservation, known, text) and self._well():
            self._decline("this journey cannot be cancelled")
        self._write(f"I will cancel reservation {key}.", "cancel_reservation", reservation_id=key)

    def _move(self, reservation: dict, wish: str) -> None:
        key, day = reservation["reservation_id"], re.findall(r"\d{4}-\d\d-\d\d", wish)[-1]
        if reservation["cabin"] == "basic_economy" and self._well():
            self._decline("basic economy cannot be changed")
        ends = {end: reservation[end] for end in ("origin", "destination")}
        found = self._call("search_direct_flight", **ends, date=day)
        if not found:
            self._decline("there is no flight")
        method = self._method("How do you want to pay?")
        legs = [{"flight_number": found[0]["flight_number"], "date": day}]
        self._write(
            f"I will move reservation {key} to {day}, with {method['id']}.", "update_reservation_flights",
            reservation_id=key, cabin=reservation["cabin"], flights=legs, payment_id=method["id"],
        )  # fmt: skip

    def _bags(self, reservation: dict, wish: str) -> None:
        key, more = reservation["reservation_id"], int(re.findall(r"add (\d)", wish)[-1])
        total = reservation["total_baggages"] + more
        due = bags_to_pay(self.user, reservation["cabin"], len(reservation["passengers"]), total)
        unpaid = self._pick(max(due, reservation["nonfree_baggages"]), [0, total])
        method = self._method("How do you want to pay?")
        self._write(
            f"Reservation {key} will have {total} bags, of which {unpaid} cost 50 dollars each, with {method['id']}.",
            "update_reservation_baggages", reservation_id=key, total_baggages=total, nonfree_baggages=unpaid,
            payment_id=method["id"],
        )  # fmt: skip

    def _rename(self, reservation: dict, wish: str) -> None:
        key, passengers = reservation["reservation_id"], [dict(person) for person in reservation["passengers"]]
        names = re.findall(r"the name (\w+) (\w+) must be (\w+) (\w+)", wish)[-1]
        for person in passengers:
            if (person["first_name"], person["last_name"]) == names[:2]:
                person |= {"first_name": names[2], "last_name": names[3]}
        self._write(
            f"In reservation {key} I will write {names[2]} {names[3]}.", "update_reservation_passengers", reservation_id=key,
            passengers=passengers,
        )  # fmt: skip

    def _book(self, wish: str) -> None:
        origin, destination, day, spoken = re.findall(r"from (\w+) to (\w+) on (\S+) in ([\w ]+),", wish)[-1]
        cabin = spoken.replace(" ", "_")
        found = self._call("search_direct_flight", origin=origin, destination=destination, date=day)
        if not found:
            self._decline("there is no flight")
        flight, method = found[0], self._method("How do you want to pay?")
        self._write(
            f"I will book flight {flight['flight_number']} on {day} for {flight['prices'][cabin]} dollars.",
            "book_reservation", user_id=self.user_id, origin=origin, destination=destination, flight_type="one_way",
            cabin=cabin,
            flights=[{"flight_number": flight["flight_number"], "date": day}],
            passengers=[self.user["name"] | {"dob": self.user["dob"]}],
            payment_methods=[{"payment_id": method["id"], "amount": flight["prices"][cabin]}],
            total_baggages=0, nonfree_baggages=0, insurance="no",
        )  # fmt: skip
        raise _Leave

    def _compensate(self, reservation: dict) -> None:
        leg = reservation["flights"][0]
        known = {leg["flight_number"]: {"dates": {leg["date"]: {"status": "cancelled"}}}}  # as the customer says
        due = compensation(self.user, reservation, known)
        if not due and self._well():
            self._decline("there is none for this journey")
        amount = due or 100
        proposal = f"I will send you a certificate of {amount} dollars."
        self._write(proposal, "send_certificate", user_id=self.user_id, amount=amount)


def expert(conversation: Conversation) -> None:
    """Does everything right."""
    Worker()(conversation)


def hasty(conversation: Conversation) -> None:
    """Knows the tools, asks for no yes, looks at no rule and declines nothing that a tool does not refuse."""
    Worker(skill=0.0, seed=len(conversation.opening))(conversation)
