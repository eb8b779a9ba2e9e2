"""Two small worlds in the format of tau-bench's data."""

from __future__ import annotations


def _address(number: int, zip_code: str) -> dict:
    return {"address1": f"{number} Elm Street", "address2": "", "city": "Denver", "country": "USA", "state": "CO", "zip": zip_code}


def _item(product: str, product_id: str, item_id: str, price: float, color: str) -> dict:
    return {"name": product, "product_id": product_id, "item_id": item_id, "price": price, "options": {"color": color}}


def _order(order_id: str, status: str, items: list[dict], paid_by: str, total: float, user_id: str = "ada_moss_1") -> dict:
    paid = {"transaction_type": "payment", "amount": total, "payment_method_id": paid_by}
    return {
        "order_id": order_id, "user_id": user_id, "address": _address(1, "80001"), "items": items, "fulfillments": [],
        "status": status, "payment_history": [paid],
    }  # fmt: skip


def _product(name: str, product_id: str, variants: dict[str, tuple[str, bool, float]]) -> dict:
    made = {
        key: {"item_id": key, "options": {"color": color}, "available": available, "price": price}
        for key, (color, available, price) in variants.items()
    }
    return {"name": name, "product_id": product_id, "variants": made}


def retail() -> dict:
    """Ada has a pending order paid by gift card, one paid by card, a delivered one with a lamp twice; Bo has a delivered one."""
    lamp = {"101": ("red", True, 20.5), "102": ("blue", True, 25.1), "103": ("green", False, 19.0), "104": ("white", True, 18.2)}
    cup = {"201": ("red", True, 7.0), "202": ("blue", True, 9.99)}
    red_lamp, blue_lamp = _item("Lamp", "100", "101", 20.5, "red"), _item("Lamp", "100", "102", 25.1, "blue")
    red_cup = _item("Cup", "200", "201", 7.0, "red")
    ada = {
        "name": {"first_name": "Ada", "last_name": "Moss"}, "address": _address(1, "80001"), "email": "ada.moss@example.com",
        "payment_methods": {
            "gift_card_1": {"source": "gift_card", "balance": 10.2, "id": "gift_card_1"},
            "credit_card_1": {"source": "credit_card", "brand": "visa", "last_four": "0001", "id": "credit_card_1"},
        },
        "orders": ["#W1", "#W2", "#W3"],
    }  # fmt: skip
    bo = {
        "name": {"first_name": "Bo", "last_name": "Moss"}, "address": _address(2, "80002"), "email": "bo.moss@example.com",
        "payment_methods": {"paypal_2": {"source": "paypal", "id": "paypal_2"}}, "orders": ["#W4"],
    }  # fmt: skip
    return {
        "orders": {
            "#W1": _order("#W1", "pending", [dict(red_lamp), dict(red_cup)], "gift_card_1", 27.5),
            "#W2": _order("#W2", "pending", [dict(red_lamp), dict(blue_lamp)], "credit_card_1", 45.6),
            "#W3": _order("#W3", "delivered", [dict(red_lamp), dict(red_lamp), dict(red_cup)], "credit_card_1", 48.0),
            "#W4": _order("#W4", "delivered", [dict(red_cup)], "paypal_2", 7.0, "bo_moss_2"),
        },
        "products": {"200": _product("Cup", "200", cup), "100": _product("Lamp", "100", lamp)},
        "users": {"ada_moss_1": ada, "bo_moss_2": bo},
    }  # fmt: skip


def airline() -> dict:
    """Cleo has a card, a gift card and a certificate, and a reservation of one flight; three flights on two days."""

    def day(seats: int, price: int) -> dict:
        cabins = ("basic_economy", "economy", "business")
        return {
            "status": "available", "available_seats": dict.fromkeys(cabins, seats),
            "prices": {cabin: price * (n + 1) for n, cabin in enumerate(cabins)},
        }  # fmt: skip

    def flight(number: str, origin: str, destination: str, leaves: str, lands: str, **dates: dict) -> dict:
        return {
            "flight_number": number, "origin": origin, "destination": destination, "scheduled_departure_time_est": leaves,
            "scheduled_arrival_time_est": lands, "dates": {f"2024-05-{key[1:]}": value for key, value in dates.items()},
        }  # fmt: skip

    cleo = {
        "name": {"first_name": "Cleo", "last_name": "Hill"}, "address": _address(3, "80003"), "email": "cleo.hill@example.com",
        "dob": "1990-02-03",
        "payment_methods": {
            "credit_card_3": {"source": "credit_card", "brand": "visa", "last_four": "0003", "id": "credit_card_3"},
            "gift_card_3": {"source": "gift_card", "amount": 120, "id": "gift_card_3"},
            "certificate_3": {"source": "certificate", "amount": 150, "id": "certificate_3"},
        },
        "saved_passengers": [], "membership": "silver", "reservations": ["AAAAAA"],
    }  # fmt: skip
    kept = {"origin": "SFO", "destination": "JFK", "flight_number": "HAT001", "date": "2024-05-20", "price": 90}
    booked = {
        "reservation_id": "AAAAAA", "user_id": "cleo_hill_3", "origin": "SFO", "destination": "JFK", "flight_type": "one_way",
        "cabin": "economy", "flights": [kept], "passengers": [{"first_name": "Cleo", "last_name": "Hill", "dob": "1990-02-03"}],
        "payment_history": [{"payment_id": "credit_card_3", "amount": 90}], "created_at": "2024-05-14T20:00:00",
        "total_baggages": 1, "nonfree_baggages": 0, "insurance": "no",
    }  # fmt: skip
    return {
        "flights": {
            "HAT001": flight("HAT001", "SFO", "JFK", "08:00:00", "16:00:00", d20=day(3, 50), d21=day(0, 60), d19={"status": "flying"}),
            "HAT002": flight("HAT002", "SFO", "DEN", "20:00:00", "01:00:00+1", d20=day(9, 10)),
            "HAT003": flight("HAT003", "DEN", "JFK", "09:00:00", "13:00:00", d20=day(9, 15), d21=day(9, 25)),
        },
        "reservations": {"AAAAAA": booked},
        "users": {"cleo_hill_3": cleo},
    }
