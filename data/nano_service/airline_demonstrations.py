"""The executable calls at the airline's desk, from which the mediocre clerk in `demonstrations` chooses.

A call is executable when the desk has what it needs: a reservation, a flight, a number of bags that the customer stated. It
may still be forbidden, or not what the customer wants.
"""

from __future__ import annotations

from collections.abc import Callable

from customer_service.airline_desk import (
    AIRLINE_REASONS,
    BAGS,
    CABINS,
    DAY,
    PLACES,
    RENAMING,
    RESERVATION,
    USER_ID,
    AirlineDesk,
)

Words = Callable[[dict[str, str]], list[str]]  # the previous arguments -> possible words
Calls = dict[str, dict[str, Words]]

AMOUNTS = ("50", "100")
AIRLINE_WORDS = (*AIRLINE_REASONS, *CABINS, *AMOUNTS)
"""Words of arguments other than topics of questions and payment methods; each must be one token."""


def airline_calls(desk: AirlineDesk) -> Calls:
    """Return the tools that can be called now, and for each parameter the possible words."""
    calls: Calls = {"ask": {"about": lambda _: list(desk.questions)}, "decline": {}}
    if desk.user is None and desk.last_match(USER_ID):
        calls["find_customer"] = {}
    named, day = desk.last_match(RESERVATION), desk.last_match(DAY)
    if named and (desk.reservation is None or desk.reservation["reservation_id"] != named):
        calls["find_reservation"] = {}
    known = desk.reservation is not None or desk.last_match(PLACES)
    if day and known and (desk.flight is None or desk.flight["date"] != day):
        calls["find_flight"] = {}
    calls |= form_calls(desk)
    if desk.form is not None:
        calls |= {"carry_out": {}} | ({} if desk.confirmed else {"confirm": {}})
    return calls


def form_calls(desk: AirlineDesk) -> Calls:
    """Return the calls that fill in the form; those with a payment need the customer's record."""
    calls: Calls = {}
    if desk.reservation is not None:
        calls["cancel"] = {"reason": lambda _: list(AIRLINE_REASONS)}
        if desk.last_match(RENAMING):
            calls["correct_name"] = {}
    if desk.user is None:
        return calls
    sources = {method["source"] for method in desk.user["payment_methods"].values()}
    methods = [word for word, source in desk.payment_sources.items() if source in sources]
    payment: dict[str, Words] = {"payment": lambda _: methods}
    if desk.flight is not None:
        calls["book"] = {"cabin": lambda _: list(CABINS), **payment}
    if desk.reservation is not None:
        calls["compensate"] = {"dollars": lambda _: list(AMOUNTS)}
        if desk.flight is not None:
            calls["move"] = payment
        if bags := desk.last_match(BAGS):
            paid = [str(number) for number in range(int(bags.split()[1]) + 1)]
            calls["add_bags"] = {"paid": lambda _: paid, **payment}
    return calls
