"""The rule-based agent of the airline."""

from __future__ import annotations

from customer_service.airline import NOW
from customer_service.policy import bags_to_pay, compensation, may_cancel
from customer_service.rule_agent import ConversationEnded, RuleAgent


class AirlineAgent(RuleAgent):
    """Serves the customers of the airline with the tools of `airline`."""

    user: dict

    def serve(self) -> None:
        self.user_id = self.ask_until_found(r"\b[a-z]+_[a-z]+_\d+\b", "What is your user id?")
        self.user = self.look_up("get_user_details", user_id=self.user_id)
        wish = self.wish()
        if "fly from" in wish:
            self._book()
        reservation_id = self.ask_until_found(r"\b[A-G]\d{5}\b", "Which reservation is it?")
        reservation = self.look_up("get_reservation_details", reservation_id=reservation_id)
        if "cancel reservation" in wish:
            self._cancel(reservation)
        elif "move reservation" in wish:
            self._move(reservation)
        elif "add" in wish:
            self._add_bags(reservation)
        elif "must be" in wish:
            self._correct_name(reservation)
        elif "compensation" in wish:
            self._compensate(reservation)
        raise ConversationEnded

    def _cancel(self, reservation: dict) -> None:
        reason, key = self.say("What is the reason?"), reservation["reservation_id"]
        # The agent cannot look up a flight's status. It infers from the date whether the flight has departed.
        leg = reservation["flights"][0]
        status = "landed" if leg["date"] < NOW[:10] else "available"
        flights = {leg["flight_number"]: {"dates": {leg["date"]: {"status": status}}}}
        if not may_cancel(reservation, flights, reason) and self.chooses_correctly():
            self.decline("this journey cannot be cancelled")
        self.write(f"I will cancel reservation {key}.", "cancel_reservation", reservation_id=key)

    def _move(self, reservation: dict) -> None:
        key, day = reservation["reservation_id"], self.ask_until_found(r"\d{4}-\d\d-\d\d", "To which day?")
        if reservation["cabin"] == "basic_economy" and self.chooses_correctly():
            self.decline("basic economy cannot be changed")
        ends = {end: reservation[end] for end in ("origin", "destination")}
        found = self.call("search_direct_flight", **ends, date=day)
        if not found:
            self.decline("there is no flight")
        method = self.payment_method("How do you want to pay?")
        legs = [{"flight_number": found[0]["flight_number"], "date": day}]
        self.write(
            f"I will move reservation {key} to {day}, with {method['id']}.", "update_reservation_flights",
            reservation_id=key, cabin=reservation["cabin"], flights=legs, payment_id=method["id"],
        )  # fmt: skip

    def _add_bags(self, reservation: dict) -> None:
        key, more = reservation["reservation_id"], int(self.ask_until_found(r"add (\d)", "How many? For example, add 2."))
        total = reservation["total_baggages"] + more
        to_pay = bags_to_pay(self.user, reservation["cabin"], len(reservation["passengers"]), total)
        paid_bags = self.choose(max(to_pay, reservation["nonfree_baggages"]), [0, total])
        method = self.payment_method("How do you want to pay?")
        self.write(
            f"Reservation {key} will have {total} bags, of which {paid_bags} cost 50 dollars each, with {method['id']}.",
            "update_reservation_baggages", reservation_id=key, total_baggages=total, nonfree_baggages=paid_bags,
            payment_id=method["id"],
        )  # fmt: skip

    def _correct_name(self, reservation: dict) -> None:
        key, passengers = reservation["reservation_id"], [dict(person) for person in reservation["passengers"]]
        pattern = r"the name (\w+) (\w+) must be (\w+) (\w+)"
        names = self.ask_until_found(pattern, "Which name? For example, the name Ann Lee must be Ann Ray.")
        for person in passengers:
            if (person["first_name"], person["last_name"]) == names[:2]:
                person |= {"first_name": names[2], "last_name": names[3]}
        self.write(
            f"I will change the name in reservation {key} to {names[2]} {names[3]}.", "update_reservation_passengers",
            reservation_id=key, passengers=passengers,
        )  # fmt: skip

    def _book(self) -> None:
        pattern = r"from (\w+) to (\w+) on (\S+) in (basic economy|economy|business),"
        question = "Which flight? For example, from SFO to JFK on 2024-05-20 in economy, alone."
        origin, destination, day, cabin_name = self.ask_until_found(pattern, question)
        cabin = cabin_name.replace(" ", "_")
        found = self.call("search_direct_flight", origin=origin, destination=destination, date=day)
        if not found:
            self.decline("there is no flight")
        flight, method = found[0], self.payment_method("How do you want to pay?")
        self.write(
            f"I will book flight {flight['flight_number']} on {day} for {flight['prices'][cabin]} dollars.",
            "book_reservation", user_id=self.user_id, origin=origin, destination=destination, flight_type="one_way",
            cabin=cabin, flights=[{"flight_number": flight["flight_number"], "date": day}],
            passengers=[self.user["name"] | {"dob": self.user["dob"]}],
            payment_methods=[{"payment_id": method["id"], "amount": flight["prices"][cabin]}],
            total_baggages=0, nonfree_baggages=0, insurance="no",
        )  # fmt: skip
        raise ConversationEnded

    def _compensate(self, reservation: dict) -> None:
        leg = reservation["flights"][0]
        flights = {leg["flight_number"]: {"dates": {leg["date"]: {"status": "cancelled"}}}}  # as the customer claims
        due = compensation(self.user, reservation, flights)
        if not due and self.chooses_correctly():
            self.decline("no compensation is due for this journey")
        amount = due or 100
        proposal = f"I will send you a certificate of {amount} dollars."
        self.write(proposal, "send_certificate", user_id=self.user_id, amount=amount)
