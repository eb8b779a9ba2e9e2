"""The executable calls at the shop's desk, from which the mediocre clerk in `demonstrations` chooses.

A call is executable when the desk has what it needs: an order, one of its items, a payment method of the customer. It may
still be forbidden, or not what the customer wants.
"""

from __future__ import annotations

from customer_service.front_desk import NUMBER, SOURCES, WHO, FrontDesk
from customer_service.retail import REASONS
from data.nano_service.airline_demonstrations import Calls, Words
from environments.customer_service.maker.words import PRODUCTS, VALUES

ITEMS = [name for names in PRODUCTS.values() for name in names]
VARIANTS = [value for values in VALUES.values() for value in values]
SHOP_WORDS = (*ITEMS, *VARIANTS, *REASONS)
"""Words of arguments other than topics of questions and payment methods; each must be one token."""


def shop_calls(desk: FrontDesk) -> Calls:
    """Return the tools that can be called now, and for each parameter the possible words."""
    calls: Calls = {"ask": {"about": lambda _: list(desk.questions)}, "decline": {}}
    if desk.user is None and desk.last_match(WHO):
        calls["find_customer"] = {}
    if desk.last_match(NUMBER) and (desk.order is None or desk.order["order_id"] != desk.last_match(NUMBER)):
        calls["find_order"] = {}
    if desk.order is not None:
        calls |= order_calls(desk)
    if desk.form is not None:
        calls |= {"carry_out": {}} | ({} if desk.confirmed else {"confirm": {}})
    return calls


def order_calls(desk: FrontDesk) -> Calls:
    """Return the calls about the order; those with a payment need the customer's record."""
    assert desk.order is not None
    names = [item["name"] for item in desk.order["items"]]
    item: dict[str, Words] = {"item": lambda _: names}
    calls: Calls = {"cancel": {"reason": lambda _: list(REASONS)}, "tell_price": item}
    if not_shown := [name for name in names if name not in desk.products]:
        calls["find_variants"] = {"item": lambda _: not_shown}
    if desk.user is None:
        return calls
    sources = [method["source"] for method in desk.user["payment_methods"].values()]
    payment: dict[str, Words] = {"payment": lambda _: [word for word, source in SOURCES.items() if source in sources]}
    calls |= {"return_item": item | payment, "change_payment": payment}
    if desk.products:
        known: dict[str, Words] = {
            "item": lambda _: list(desk.products),
            "variant": lambda given: variants(desk, given["item"]),
        }
        calls |= dict.fromkeys(("change_item", "exchange_item"), known | payment)
    return calls


def variants(desk: FrontDesk, item: str) -> list[str]:
    """Return the variants of an item that was looked up."""
    return [" ".join(variant["options"].values()) for variant in desk.products[item]["variants"].values()]
