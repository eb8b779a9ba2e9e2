"""Random tool calls for a world: valid, nearly valid and nonsensical ones, with arguments as JSON objects."""

from __future__ import annotations

import random
from typing import Any

from customer_service.airline import AIRPORTS

ODD: list[Any] = [None, True, False, 0, 1, -3, 2.5, 1e400, "", "x", "1 + 1", "pending", [], ["x"], [1, None], [[]], {}, {"a": 1}, [{}], 10**30, "\ud800é"]
EXPRESSION_CHARACTERS = "0123456789+-*/(). "


class Calls:
    """Draws calls. tools: a world's schemas. oddness: the share of arguments that are made invalid."""

    def __init__(self, rng: random.Random, tools: list[dict], oddness: float = 0.15):
        self.rng, self.oddness = rng, oddness
        self.tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}

    def draw(self, data: dict) -> tuple[str, dict]:
        """Return a tool's name and arguments for the records in `data`, tables in tau-bench's format."""
        rng = self.rng
        if rng.random() < 0.02:
            return rng.choice(["", "cancel_order", "respond", "get_user_detail", "__init__"]), {}
        name = rng.choice(list(self.tools))
        near = self._near_airline(data) if "flights" in data else self._near_retail(data)
        arguments = {key: self._value(key, schema, near) for key, schema in self.tools[name]["properties"].items()}
        if name == "book_reservation":
            self._price(arguments, data, near)
        for key in list(arguments):
            if rng.random() < self.oddness / 3:
                arguments[key] = self._corrupted(arguments[key])
        if rng.random() < self.oddness / 3 and arguments:
            del arguments[rng.choice(list(arguments))]
        if rng.random() < self.oddness / 3:
            arguments[rng.choice(["x", "order", "data", "self", "user_id", "reason", "", "zip"])] = rng.choice(ODD)
        return name, arguments

    def _corrupted(self, value: Any) -> Any:
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0 and isinstance(value, str) and value:
            return rng.choice([value[:-1], value.lower(), value.upper(), value + " ", value[1:]])
        if kind == 1 and isinstance(value, list) and value:
            return rng.choice([value + value[:1], value[1:], value[0], [self._corrupted(value[0]), *value[1:]]])
        if kind == 2 and isinstance(value, dict) and value:
            changed = dict(value)
            key = rng.choice(list(changed))
            changed[key] = rng.choice(ODD)
            if rng.random() < 0.5:
                del changed[key]
            return changed
        return rng.choice(ODD)

    def _near_retail(self, data: dict) -> dict:
        """Return arguments that fit together: a customer, an order, an item of it and a variant."""
        rng = self.rng
        order = data["orders"][rng.choice(list(data["orders"]))]
        user = data["users"][order["user_id"]]
        count = rng.randint(1, min(3, len(order["items"])))
        items = rng.sample(order["items"], count)
        variants = [rng.choice(list(data["products"][item["product_id"]]["variants"])) for item in items]
        return {
            "order_id": order["order_id"], "user_id": order["user_id"], "email": user["email"], **user["name"], **user["address"],
            "item_ids": [item["item_id"] for item in items], "new_item_ids": variants, "product_id": items[0]["product_id"],
            "payment_method_id": rng.choice([*user["payment_methods"], order["payment_history"][0]["payment_method_id"]]),
        }  # fmt: skip

    def _near_airline(self, data: dict) -> dict:
        rng = self.rng
        booked = data["reservations"][rng.choice(list(data["reservations"]))]
        user_id = booked["user_id"]
        user = data["users"][user_id]
        flight = data["flights"][rng.choice(list(data["flights"]))]
        flights = [{"flight_number": flight["flight_number"], "date": rng.choice(list(flight["dates"]))}]
        if isinstance(booked["flights"], list) and rng.random() < 0.6:
            flights += [{key: old[key] for key in ("date", "flight_number")} for old in booked["flights"]]
        people = booked["passengers"] if isinstance(booked["passengers"], list) else []
        return {
            "reservation_id": booked["reservation_id"], "user_id": user_id, "origin": rng.choice([flight["origin"], rng.choice(list(AIRPORTS))]),
            "destination": rng.choice([flight["destination"], rng.choice(list(AIRPORTS))]), "date": flights[0]["date"],
            "flights": rng.sample(flights, rng.randint(1, len(flights))), "passengers": people, "payment_id": rng.choice(list(user["payment_methods"]) or ["x"]),
            "payment_methods": [], "total_baggages": rng.randint(0, 5), "nonfree_baggages": rng.choice([0, 0, 1, 2, 4]), "amount": rng.choice([50, 100, 150.5]),
            "cabin": rng.choice([booked["cabin"], "economy", "business", "basic_economy"]),
        }  # fmt: skip

    def _price(self, arguments: dict, data: dict, near: dict) -> None:
        """Pay for a booking with one or two methods, usually the right amount."""
        rng, people = self.rng, len(arguments["passengers"])
        days = [(flight["flight_number"], flight["date"]) for flight in arguments["flights"]]
        bookable = [data["flights"][number]["dates"].get(day, {}) for number, day in days]
        price = sum(day.get("prices", {}).get(arguments["cabin"], 0) for day in bookable) * people
        price += 30 * people * (arguments["insurance"] == "yes") + 50 * arguments["nonfree_baggages"] + rng.choice([0, 0, 0, 0, 1])
        methods = list(data["users"][near["user_id"]]["payment_methods"]) or ["x"]
        part = rng.choice([0, 0, price // 2, 20])
        parts = [price - part, part] if part else [price]
        arguments["payment_methods"] = [{"payment_id": rng.choice(methods), "amount": amount} for amount in parts]

    def _value(self, key: str, schema: dict, near: dict) -> Any:
        rng = self.rng
        if "enum" in schema and (key not in near or rng.random() < 0.2):
            return rng.choice(schema["enum"])
        if key in near:
            return near[key]
        if key == "expression":
            if rng.random() < 0.5:
                return " ".join(f"{rng.choice([rng.randint(0, 999), round(rng.uniform(0, 99), 2)])} {rng.choice('+-*/')}" for _ in range(rng.randint(0, 4))) + " 7"
            return "".join(rng.choice(EXPRESSION_CHARACTERS) for _ in range(rng.randint(0, 9)))
        return rng.choice(["a thought", "", "something else"])
