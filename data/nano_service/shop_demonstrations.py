"""Which calls make sense in form at the shop's desk: what a mediocre clerk there draws from, as `demonstrations` says it.

A call makes sense when the desk has what it needs: an order that was found, an item of it, a way to pay that the customer
has. Whether it is what the customer wants, or allowed, is another matter.
"""

from __future__ import annotations

from art_nb.tasks.customer_service.front_desk import NUMBER, SOURCES, WHO, FrontDesk
from art_nb.tasks.customer_service.retail import REASONS
from data.customer_service.words import PRODUCTS, VALUES
from data.nano_service.airline_demonstrations import Calls, Words

ITEMS = [name for names in PRODUCTS.values() for name in names]
VARIANTS = [value for values in VALUES.values() for value in values]
SHOP_WORDS = (*ITEMS, *VARIANTS, *REASONS)
"""Words of arguments that are neither a question nor a way to pay; each must be one token."""


def shop_calls(desk: FrontDesk) -> Calls:
    """Each tool whose call makes sense in form as things stand, and for each parameter the words that do."""
    calls: Calls = {"ask": {"about": lambda _: list(desk.questions)}, "decline": {}}
    if desk.user is None and desk.given(WHO):
        calls["find_customer"] = {}
    if desk.given(NUMBER) and (desk.order is None or desk.order["order_id"] != desk.given(NUMBER)):
        calls["find_order"] = {}
    if desk.order is not None:
        calls |= about_order(desk)
    if desk.form is not None:
        calls |= {"carry_out": {}} | ({} if desk.agreed else {"confirm": {}})
    return calls


def about_order(desk: FrontDesk) -> Calls:
    """The calls about an order that was found, those with a payment only once it is known who pays."""
    assert desk.order is not None
    names = [item["name"] for item in desk.order["items"]]
    item: dict[str, Words] = {"item": lambda _: names}
    calls: Calls = {"cancel": {"reason": lambda _: list(REASONS)}, "tell_price": item}
    if unseen := [name for name in names if name not in desk.products]:
        calls["find_variants"] = {"item": lambda _: unseen}
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
    """What an item that was looked up can be."""
    return [" ".join(variant["options"].values()) for variant in desk.products[item]["variants"].values()]
