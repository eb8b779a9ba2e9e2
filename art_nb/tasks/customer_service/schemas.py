"""The tools of both worlds as a model is told of them: names, arguments and types are tau-bench's."""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {"type": "string"}
_IDS = {"type": "array", "items": {"type": "string"}}
_KINDS: dict[str, dict[str, Any]] = {
    "reason": {"enum": ["no longer needed", "ordered by mistake"]},
    "cabin": {"enum": ["basic_economy", "economy", "business"]},
    "flight_type": {"enum": ["one_way", "round_trip"]},
    "insurance": {"enum": ["yes", "no"]},
    "item_ids": _IDS,
    "new_item_ids": _IDS,
    "total_baggages": {"type": "integer"},
    "nonfree_baggages": {"type": "integer"},
    "amount": {"type": "number"},
}


def _object(described: dict[str, str]) -> dict:
    properties = {name: _TEXT | _KINDS.get(name, {}) | {"description": text} for name, text in described.items()}
    return {"type": "object", "properties": properties, "required": list(described)}


def _list_of(**described: str) -> dict:
    return {"type": "array", "items": _object(described)}


_KINDS["flights"] = _list_of(flight_number="Such as HAT001.", date="YYYY-MM-DD.")
_KINDS["passengers"] = _list_of(first_name="First name.", last_name="Last name.", dob="Day of birth, YYYY-MM-DD.")
_KINDS["payment_methods"] = _list_of(payment_id="Its id, as the customer's record has it.", amount="Dollars.")


def _tool(name: str, description: str, **described: str) -> dict:
    function = {"name": name, "description": description, "parameters": _object(described)}
    return {"type": "function", "function": function}


_ORDER = "Id of the order; it starts with #."
_OLD = "Ids of the items to give up; one that is wanted twice is listed twice."
_NEW = "Ids of the variants to get instead, in the same order, each of the same product."
_METHOD = "Id of one of the customer's payment methods."
_ADDRESS = {
    "address1": "Street and number.", "address2": "Flat or suite, may be empty.", "city": "City.",
    "state": "State, two letters.", "country": "Country.", "zip": "Postal code.",
}  # fmt: skip
_CALCULATE = _tool("calculate", "Work out a sum.", expression="Numbers, + - * / and parentheses.")
_THINK = _tool("think", "Note a thought. It changes nothing and nobody reads it.", thought="The thought.")
_TRANSFER = _tool(
    "transfer_to_human_agents", "Hand the customer over to a person. Only for what these tools can't do.",
    summary="What the customer wants, for the person who takes over.",
)  # fmt: skip

RETAIL = [
    _CALCULATE,
    _tool("cancel_pending_order", "Cancel an order that is pending; it is paid back.", order_id=_ORDER, reason="Why."),
    _tool(
        "exchange_delivered_order_items", "Exchange items of a delivered order, once for each order.", order_id=_ORDER,
        item_ids=_OLD, new_item_ids=_NEW, payment_method_id=_METHOD,
    ),
    _tool("find_user_id_by_email", "Look up who a customer is.", email="Their address."),
    _tool(
        "find_user_id_by_name_zip", "Look up who a customer is, where the email is unknown.", first_name="First name.",
        last_name="Last name.", zip="Postal code.",
    ),
    _tool("get_order_details", "Show an order: status, items, payments.", order_id=_ORDER),
    _tool("get_product_details", "Show a product: variants, prices, what is in stock.", product_id="Not an item's id."),
    _tool("get_user_details", "Show a customer: address, payment methods, orders.", user_id="As a look-up returns it."),
    _tool("list_all_product_types", "List all products with their ids."),
    _tool("modify_pending_order_address", "Send a pending order elsewhere.", order_id=_ORDER, **_ADDRESS),
    _tool(
        "modify_pending_order_items", "Change items of a pending order for other variants, once for each order.",
        order_id=_ORDER, item_ids=_OLD, new_item_ids=_NEW, payment_method_id=_METHOD,
    ),
    _tool("modify_pending_order_payment", "Let an order be paid otherwise.", order_id=_ORDER, payment_method_id=_METHOD),
    _tool("modify_user_address", "Change a customer's own address.", user_id="As a look-up returns it.", **_ADDRESS),
    _tool(
        "return_delivered_order_items", "Take back items of a delivered order, once for each order.", order_id=_ORDER,
        item_ids="Ids of the items; one that is returned twice is listed twice.",
        payment_method_id="Where the money goes: how it was paid, or a gift card.",
    ),
    _THINK,
    _TRANSFER,
]  # fmt: skip

_USER = "Id of the customer."
_RESERVATION = "Id of the reservation, six characters."
_FROM, _TO = "Airport of departure, three letters.", "Airport of arrival, three letters."
_FLIGHTS = "All flights of the reservation, those that stay as well."
_BAGS = {"total_baggages": "Checked bags in all.", "nonfree_baggages": "How many of them are paid for."}

AIRLINE = [
    _tool(
        "book_reservation", "Book a journey.", user_id=_USER, origin=_FROM, destination=_TO,
        flight_type="There, or there and back.", cabin="The same on all flights.", flights="All flights.",
        passengers="Who flies.", payment_methods="What is paid how; the amounts must add up to the price.", **_BAGS,
        insurance="Whether it is insured.",
    ),
    _CALCULATE,
    _tool("cancel_reservation", "Cancel a whole reservation.", reservation_id=_RESERVATION),
    _tool("get_reservation_details", "Show a reservation.", reservation_id=_RESERVATION),
    _tool("get_user_details", "Show a customer: membership, payment methods, reservations.", user_id=_USER),
    _tool("list_all_airports", "List all airports and their cities."),
    _tool("search_direct_flight", "List flights without a stop.", origin=_FROM, destination=_TO, date="YYYY-MM-DD."),
    _tool("search_onestop_flight", "List pairs of flights with a stop.", origin=_FROM, destination=_TO, date="YYYY-MM-DD."),
    _tool("send_certificate", "Give a customer a travel certificate.", user_id=_USER, amount="Dollars."),
    _THINK,
    _TRANSFER,
    _tool(
        "update_reservation_baggages", "Change the bags of a reservation.", reservation_id=_RESERVATION, **_BAGS,
        payment_id=_METHOD,
    ),
    _tool(
        "update_reservation_flights", "Change the flights of a reservation.", reservation_id=_RESERVATION,
        cabin="The same on all flights.", flights=_FLIGHTS, payment_id=_METHOD,
    ),
    _tool(
        "update_reservation_passengers", "Change who flies, not how many.", reservation_id=_RESERVATION,
        passengers="All of them.",
    ),
]  # fmt: skip

SCHEMAS = {"retail": RETAIL, "airline": AIRLINE}
