"""Invariants of money, stock and order status under any sequence of tool calls, checked with hypothesis."""

import json
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from service_worlds import airline, retail

from customer_service import World
from customer_service.world import is_error

ORDERS, METHODS = ["#W1", "#W2", "#W3", "#W4", "#W5"], ["gift_card_1", "credit_card_1", "paypal_2", "x"]
ITEMS = st.lists(st.sampled_from(["101", "102", "103", "104", "201", "202", "9"]), max_size=3)
NEXT = {
    "pending": {"pending", "pending (item modified)", "cancelled"}, "delivered": {"delivered", "return requested", "exchange requested"},
}  # fmt: skip


class Shop(RuleBasedStateMachine):
    """A call changes a gift card by the new payments of the orders, and an order's status only moves forward."""

    @initialize()
    def start(self):
        self.world = World("retail", retail())
        self.before, self.digest, self.earlier = self.world.data(), self.world.digest(), self.world.fork()

    def call(self, name, **arguments):
        answer = self.world.call(name, json.dumps(arguments))
        if is_error(answer):
            assert self.world.digest() == self.digest and len(answer) > len("Error: ")
        self.check()

    def check(self):
        after = self.world.data()
        assert after["products"] == retail()["products"]  # stock changes only when an order is shipped, which no tool does
        moved: Counter[str] = Counter()
        for key, order in after["orders"].items():
            old = self.before["orders"][key]
            assert order["status"] in NEXT.get(old["status"], {old["status"]})
            assert [item["product_id"] for item in order["items"]] == [item["product_id"] for item in old["items"]]
            assert order["payment_history"][: len(old["payment_history"])] == old["payment_history"]
            for payment in order["payment_history"][len(old["payment_history"]) :]:
                moved[payment["payment_method_id"]] += payment["amount"] * (1 if payment["transaction_type"] == "refund" else -1)
            if order["items"] != old["items"]:
                paid = sum(p["amount"] * (1 if p["transaction_type"] == "payment" else -1) for p in order["payment_history"])
                assert abs(paid - sum(item["price"] for item in order["items"])) < 0.005
        for user_id, user in after["users"].items():
            for method_id, method in user["payment_methods"].items():
                old = self.before["users"][user_id]["payment_methods"][method_id]
                change = method.get("balance", 0) - old.get("balance", 0)
                assert abs(change - moved[method_id] * (method["source"] == "gift_card")) < 0.011 and method.get("balance", 0) >= 0
        digest = self.world.digest()
        assert self.world.equals(self.earlier) == self.earlier.equals(self.world) == (digest == self.digest)
        self.before, self.digest, self.earlier = after, digest, self.world.fork()

    @rule(order=st.sampled_from(ORDERS), reason=st.sampled_from(["no longer needed", "ordered by mistake", "why not"]))
    def cancel(self, order, reason):
        self.call("cancel_pending_order", order_id=order, reason=reason)

    @rule(order=st.sampled_from(ORDERS), method=st.sampled_from(METHODS))
    def pay(self, order, method):
        self.call("modify_pending_order_payment", order_id=order, payment_method_id=method)

    @rule(data=st.data(), method=st.sampled_from(METHODS[:2]), exchange=st.booleans())
    def swap(self, data, method, exchange):
        fitting = [key for key, order in self.before["orders"].items() if order["status"] == ("delivered" if exchange else "pending")]
        order = data.draw(st.sampled_from(fitting or ORDERS))
        held = [item["item_id"] for item in self.before["orders"][order]["items"]] if fitting else ["101"]
        items = data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=2))
        new = [data.draw(st.sampled_from(["101", "102", "103", "104"] if item < "2" else ["201", "202"])) for item in items]
        name = "exchange_delivered_order_items" if exchange else "modify_pending_order_items"
        self.call(name, order_id=order, item_ids=items, new_item_ids=new, payment_method_id=method)

    @rule(order=st.sampled_from(ORDERS), items=ITEMS, method=st.sampled_from(METHODS))
    def give_back(self, order, items, method):
        self.call("return_delivered_order_items", order_id=order, item_ids=items, payment_method_id=method)


RESERVATIONS = st.sampled_from(["AAAAAA", "AAAAAA", "HATHAT", "ZZZZZZ"])
PAYMENTS = st.sampled_from(["credit_card_3", "gift_card_3", "gift_card_3", "certificate_3", "certificate_3221322"])
CABINS = st.sampled_from(["basic_economy", "economy", "business"])
LEGS = st.lists(st.builds(lambda number, day: {"flight_number": number, "date": f"2024-05-{day}"}, st.sampled_from(["HAT001", "HAT002", "HAT003"]), st.sampled_from([19, 20, 21])), min_size=1, max_size=2)
ME = {"first_name": "Cleo", "last_name": "Hill", "dob": "1990-02-03"}


class Airline(RuleBasedStateMachine):
    """A call changes a gift card by the reservation's new payments; the number of seats and passengers is constant."""

    @initialize()
    def start(self):
        self.world = World("airline", airline())
        self.before, self.digest = self.world.data(), self.world.digest()

    def call(self, name, **arguments):
        answer = self.world.call(name, json.dumps(arguments))
        after = self.world.data()
        if is_error(answer):
            assert self.world.digest() == self.digest and len(answer) > len("Error: ")
        elif name != "send_certificate":
            self.check_reservation(json.loads(answer), after, cancelled=name == "cancel_reservation")
        self.before, self.digest = after, self.world.digest()

    def check_reservation(self, new, after, cancelled):
        old = self.before["reservations"].get(new["reservation_id"], {"payment_history": [], "passengers": new["passengers"]})
        if after["users"]["cleo_hill_3"]["reservations"] != self.before["users"]["cleo_hill_3"]["reservations"]:
            old = {"payment_history": [], "passengers": new["passengers"]}  # a fourth booking overwrites the third
        entries = new["payment_history"][len(old["payment_history"]) :]
        assert len(new["passengers"]) == len(old["passengers"])
        if cancelled:  # the refund is not credited yet
            assert entries == [{"payment_id": p["payment_id"], "amount": -p["amount"]} for p in old["payment_history"]]
            entries = []
        spent = Counter()
        for payment in entries:
            spent[payment["payment_id"]] += payment["amount"]
        methods, had = (data["users"]["cleo_hill_3"]["payment_methods"] for data in (after, self.before))
        assert methods["gift_card_3"]["amount"] == had["gift_card_3"]["amount"] - spent["gift_card_3"] >= 0
        assert {key for key in had if key not in methods} == {key for key in spent if key.startswith("certificate")}

    @invariant()
    def seats_and_prices_stay(self):
        assert self.world.records("flights") == airline()["flights"]

    @rule(cabin=CABINS, legs=LEGS, payment=PAYMENTS, second=PAYMENTS, part=st.sampled_from([0, 20, 60]), people=st.integers(1, 2), bags=st.integers(0, 2), insurance=st.sampled_from(["yes", "no"]))
    def book(self, cabin, legs, payment, second, part, people, bags, insurance):
        known = airline()["flights"]
        days = [known[leg["flight_number"]]["dates"].get(leg["date"], {}) for leg in legs]
        price = sum(day.get("prices", {}).get(cabin, 0) for day in days) * people + 50 * bags + 30 * people * (insurance == "yes")
        paid = [{"payment_id": payment, "amount": price - part}] + ([{"payment_id": second, "amount": part}] if part else [])
        self.call(
            "book_reservation", user_id="cleo_hill_3", origin="SFO", destination="JFK", flight_type="one_way", cabin=cabin, flights=legs,
            passengers=[ME] * people, payment_methods=paid, total_baggages=bags, nonfree_baggages=bags, insurance=insurance,
        )  # fmt: skip

    @rule(reservation=RESERVATIONS, legs=LEGS, cabin=CABINS, payment=PAYMENTS)
    def change(self, reservation, legs, cabin, payment):
        self.call("update_reservation_flights", reservation_id=reservation, cabin=cabin, flights=legs, payment_id=payment)

    @rule(reservation=RESERVATIONS, bags=st.integers(0, 4), paid=st.integers(0, 4), payment=PAYMENTS)
    def pack(self, reservation, bags, paid, payment):
        self.call("update_reservation_baggages", reservation_id=reservation, total_baggages=bags, nonfree_baggages=paid, payment_id=payment)

    @rule(reservation=RESERVATIONS, people=st.integers(0, 2))
    def rename(self, reservation, people):
        self.call("update_reservation_passengers", reservation_id=reservation, passengers=[ME] * people)

    @rule(reservation=RESERVATIONS)
    def cancel(self, reservation):
        self.call("cancel_reservation", reservation_id=reservation)

    @rule(amount=st.integers(0, 200))
    def compensate(self, amount):
        self.call("send_certificate", user_id="cleo_hill_3", amount=amount)


QUICK = settings(max_examples=60, stateful_step_count=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
TestShop, TestAirline = Shop.TestCase, Airline.TestCase
TestShop.settings = TestAirline.settings = QUICK
