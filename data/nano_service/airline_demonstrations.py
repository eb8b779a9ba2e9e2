"""Which calls make sense in form at the airline's desk: what a mediocre clerk there draws from, as `demonstrations` says it.

A call makes sense when the desk has what it needs: a reservation that was found, a flight, a number of bags that the
customer has said. Whether it is what the customer wants, or allowed, is another matter.
"""

from __future__ import annotations

from collections.abc import Callable

from art_nb.tasks.customer_service.airline_desk import (
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

Words = Callable[[dict[str, str]], list[str]]  # from the arguments before
Calls = dict[str, dict[str, Words]]

AMOUNTS = ("50", "100")
AIRLINE_WORDS = (*AIRLINE_REASONS, *CABINS, *AMOUNTS)
"""Words of arguments that are neither a question nor a way to pay; each must be one token."""


def airline_calls(desk: AirlineDesk) -> Calls:
    """Each tool whose call makes sense in form as things stand, and for each parameter the words that do."""
    calls: Calls = {"ask": {"about": lambda _: list(desk.questions)}, "decline": {}}
    if desk.user is None and desk.given(USER_ID):
        calls["find_customer"] = {}
    named, day = desk.given(RESERVATION), desk.given(DAY)
    if named and (desk.reservation is None or desk.reservation["reservation_id"] != named):
        calls["find_reservation"] = {}
    known = desk.reservation is not None or desk.given(PLACES)
    if day and known and (desk.flight is None or desk.flight["date"] != day):
        calls["find_flight"] = {}
    calls |= changes(desk)
    if desk.form is not None:
        calls |= {"carry_out": {}} | ({} if desk.agreed else {"confirm": {}})
    return calls


def changes(desk: AirlineDesk) -> Calls:
    """What can go on the form, which needs to be known for: who pays, and the reservation or flight that it is about."""
    calls: Calls = {}
    if desk.reservation is not None:
        calls["cancel"] = {"reason": lambda _: list(AIRLINE_REASONS)}
        if desk.given(RENAMING):
            calls["correct_name"] = {}
    if desk.user is None:
        return calls
    sources = {method["source"] for method in desk.user["payment_methods"].values()}
    payment: dict[str, Words] = {"payment": lambda _: [word for word, source in desk.sources.items() if source in sources]}
    if desk.flight is not None:
        calls["book"] = {"cabin": lambda _: list(CABINS), **payment}
    if desk.reservation is not None:
        calls["compensate"] = {"dollars": lambda _: list(AMOUNTS)}
        if desk.flight is not None:
            calls["move"] = payment
        if bags := desk.given(BAGS):
            paid = [str(number) for number in range(int(bags.split()[1]) + 1)]
            calls["add_bags"] = {"paid": lambda _: paid, **payment}
    return calls
