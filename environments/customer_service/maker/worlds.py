"""Generates the records of the fictional shop and airline: customers, products, orders, flights and reservations."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta
from typing import Any

from customer_service.policy import bags_to_pay
from environments.customer_service.maker.words import CITIES, FIRST, LAST, PRODUCTS, ROUTES, STREETS, VALUES

USERS = {"retail": 240, "airline": 200}
TODAY = date(2024, 5, 15)
DAYS = [str(TODAY + timedelta(days=n)) for n in range(-5, 11)]
SOURCES = ("gift_card", "credit_card", "paypal")


class RecordGenerator:
    """Generates the records that both worlds have."""

    def __init__(self, seed: str):
        self.rng = random.Random(seed)
        self.taken: set[str] = set()

    def number(self, prefix: str, digits: int) -> str:
        """Return `prefix` and a random number with this many digits, never the same twice."""
        while (drawn := f"{prefix}{self.rng.randrange(10 ** (digits - 1), 10**digits)}") in self.taken:
            pass
        self.taken.add(drawn)
        return drawn

    def address(self) -> dict:
        city, state, zip_code = self.rng.choice(CITIES)
        street = f"{self.rng.randrange(1, 999)} {self.rng.choice(STREETS)} Street"
        return {
            "address1": street, "address2": "", "city": city, "country": "USA", "state": state,
            "zip": f"{zip_code}{self.rng.randrange(100):02}",
        }  # fmt: skip

    def people(self, count: int) -> dict[str, dict]:
        """Return users by id, each with a unique name."""
        names = self.rng.sample([(first, last) for first in FIRST for last in LAST], count)
        users = {}
        for first, last in names:
            user_id = self.number(f"{first}_{last}_".lower(), 4)
            email = self.number(f"{first}.{last}".lower(), 4) + "@example.com"
            users[user_id] = {"name": {"first_name": first, "last_name": last}, "address": self.address(), "email": email}
        return users

    def card(self, source: str, **more: Any) -> dict:
        card_id = self.number(f"{source}_", 7)
        brand = {"brand": self.rng.choice(("visa", "mastercard")), "last_four": f"{self.rng.randrange(10_000):04}"}
        return {"source": source, **(brand if source == "credit_card" else {}), **more, "id": card_id}


def make_retail(seed: int) -> dict:
    """Generate the users, products and orders of a shop."""
    m = RecordGenerator(f"retail {seed}")
    rng = m.rng
    products = {}
    for option, names in PRODUCTS.items():
        for name in names:
            product_id, base = m.number("", 6), rng.uniform(10, 200)
            variants = {}
            for value in rng.sample(VALUES[option], rng.randint(4, 5)):
                item_id, price = m.number("", 6), round(base * rng.uniform(0.8, 1.2), 2)
                variants[item_id] = {
                    "item_id": item_id, "options": {option: value}, "available": rng.random() < 0.7, "price": price,
                }  # fmt: skip
            products[product_id] = {"name": name, "product_id": product_id, "variants": variants}
    users, orders = m.people(USERS["retail"]), {}
    for user_id, user in users.items():
        sources = rng.sample(SOURCES, rng.randint(2, 3))
        cards = [m.card(s, **({"balance": float(rng.randrange(20, 300))} if s == "gift_card" else {})) for s in sources]
        user["payment_methods"] = {card["id"]: card for card in cards}
        user["orders"] = []
        for status in rng.sample(["pending", "pending", "delivered", "delivered", "processed"], 3):
            order = _order(m, user_id, user, products, status)
            orders[order["order_id"]] = order
            user["orders"].append(order["order_id"])
    return {"orders": orders, "products": products, "users": users}


def _order(m: RecordGenerator, user_id: str, user: dict, products: dict, status: str) -> dict:
    items = []
    for product_id in m.rng.sample(list(products), m.rng.randint(1, 3)):
        variant = m.rng.choice(list(products[product_id]["variants"].values()))
        named = {"name": products[product_id]["name"], "product_id": product_id}
        items.append(named | {key: variant[key] for key in ("item_id", "price", "options")})
    sent = [{"tracking_id": [m.number("", 9)], "item_ids": [item["item_id"] for item in items]}]
    paid = {
        "transaction_type": "payment", "amount": round(sum(item["price"] for item in items), 2),
        "payment_method_id": m.rng.choice(list(user["payment_methods"])),
    }  # fmt: skip
    return {
        "order_id": m.number("#W", 5), "user_id": user_id, "address": dict(user["address"]), "items": items,
        "fulfillments": sent if status in ("delivered", "processed") else [], "status": status, "payment_history": [paid],
    }  # fmt: skip


def make_airline(seed: int) -> dict:
    """Generate the users, flights and reservations of an airline with one flight per route, direction and day."""
    m = RecordGenerator(f"airline {seed}")
    rng = m.rng
    flights = {}
    for number, (origin, destination) in enumerate((*(r.split("-") for r in ROUTES), *(r.split("-")[::-1] for r in ROUTES))):
        leaves, base = rng.randrange(6, 18), rng.randrange(50, 150)
        key = f"HAT{number + 101}"
        days = {day: _day(rng, day, leaves, base) for day in DAYS}
        flights[key] = {
            "flight_number": key, "origin": origin, "destination": destination,
            "scheduled_departure_time_est": f"{leaves:02}:00:00", "scheduled_arrival_time_est": f"{leaves + 4:02}:00:00",
            "dates": days,
        }  # fmt: skip
    users, reservations = m.people(USERS["airline"]), {}
    for user_id, user in users.items():
        user["dob"] = _birthday(rng)
        cards = [m.card("credit_card"), m.card("gift_card", amount=rng.randrange(50, 400))]
        cards.append(m.card("certificate", amount=100))
        user["payment_methods"] = {card["id"]: card for card in cards[: rng.randint(1, 3)]}
        membership = rng.choice(("regular", "regular", "silver", "gold"))
        user |= {"saved_passengers": [], "membership": membership, "reservations": []}
        for _ in range(3):
            reservation = _reservation(m, user_id, user, flights)
            reservations[reservation["reservation_id"]] = reservation
            user["reservations"].append(reservation["reservation_id"])
    return {"flights": flights, "reservations": reservations, "users": users}


def _day(rng: random.Random, day: str, leaves: int, base: int) -> dict:
    if day < str(TODAY):
        return {"status": rng.choice(("landed", "landed", "landed", "cancelled"))}
    if day == str(TODAY):
        return {"status": "landed" if leaves < 10 else "flying" if leaves < 15 else "on time"}
    if rng.random() < 0.15:
        return {"status": rng.choice(("cancelled", "delayed"))}
    cabins = ("basic_economy", "economy", "business")
    prices = {cabin: (base + rng.randrange(30)) * (n + 1) for n, cabin in enumerate(cabins)}
    return {"status": "available", "available_seats": {cabin: rng.randrange(3, 20) for cabin in cabins}, "prices": prices}


def _birthday(rng: random.Random) -> str:
    return str(date(1950, 1, 1) + timedelta(days=rng.randrange(18_000)))


def _reservation(m: RecordGenerator, user_id: str, user: dict, flights: dict) -> dict:
    rng = m.rng
    flight, day = rng.choice(list(flights.values())), rng.choice(DAYS)
    cabin = rng.choice(("basic_economy", "economy", "business"))
    price = flight["dates"][day].get("prices", {}).get(cabin, rng.randrange(60, 300))
    people = [user["name"] | {"dob": user["dob"]}]
    if rng.random() < 0.4:
        people.append({"first_name": rng.choice(FIRST), "last_name": rng.choice(LAST), "dob": _birthday(rng)})
    bags = rng.randrange(0, 3)
    unpaid = bags_to_pay(user, cabin, len(people), bags)
    insured = rng.random() < 0.4
    total = (price + 30 * insured) * len(people) + 50 * unpaid
    booked = datetime(2024, 5, 15, 15) - timedelta(hours=rng.choice((3, 12, 20, 60, 100, 200)))
    leg = {key: flight[key] for key in ("origin", "destination", "flight_number")} | {"date": day, "price": price}
    return {
        "reservation_id": m.number(rng.choice("ABCDEFG"), 5), "user_id": user_id, "origin": flight["origin"],
        "destination": flight["destination"], "flight_type": "one_way", "cabin": cabin, "flights": [leg],
        "passengers": people,
        "payment_history": [{"payment_id": next(iter(user["payment_methods"])), "amount": total}],
        "created_at": booked.isoformat(), "total_baggages": bags, "nonfree_baggages": unpaid,
        "insurance": "yes" if insured else "no",
    }  # fmt: skip
