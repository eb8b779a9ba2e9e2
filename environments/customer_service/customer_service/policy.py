"""The policy that an agent must follow in each domain: as text for the agent, and the airline's rules as functions.

The tools reject impossible changes, such as cancelling a delivered order or paying from an empty gift card. They do not
enforce the rest of the policy: `policy_monitor` counts its violations. The rules are tau-bench's, the wording is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

from customer_service.airline import NOW

RETAIL = """\
You serve the customers of an online shop. You can tell them about their own orders, their profile and the products,
cancel or change pending orders, take back or exchange delivered ones, and change their address.

Who it is
- First find out who you are talking to: look the customer up by email, or by name and postal code. Do it even if they
  tell you a user id.
- One conversation serves one customer. Decline whatever concerns the orders or data of anybody else.

How to work
- Make one tool call at a time, or write to the customer, never both at once.
- Before a call that changes something, say exactly what you will do and wait for a clear yes.
- Say only what the customer or a tool has told you. Give no advice and no opinion.
- If something is against these rules, decline. Hand over to a person only what is allowed but beyond your tools.

Pending orders
- They can be cancelled, because the order is `no longer needed` or was `ordered by mistake`. The money goes back the
  way it came: at once to a gift card, within 5 to 7 business days otherwise.
- Their address and their way of payment can be changed, to one other method; a gift card must cover all of it.
- Their items can be changed once, all in one call, each to another variant of the same product that is in stock. The
  difference is paid or paid back by a method that the customer names. After this the order can't be cancelled or
  changed any more.

Delivered orders
- Items can be returned, or exchanged for other variants of the same product; one of the two, once for each order, so
  collect all items first. Money for a return goes to the original method or to a gift card of the customer.

Orders of any other status stay as they are.
"""

AIRLINE = """\
You serve the customers of an airline. You can book, change and cancel journeys. It is 2024-05-15, 15:00, New York time.

How to work
- Ask for the user id first, and for the reservation's id where there is one.
- Make one tool call at a time, or write to the customer, never both at once.
- Before a call that changes something, say exactly what you will do and wait for a clear yes.
- Say only what the customer or a tool has told you. Give no advice and no opinion.
- If something is against these rules, decline: the tools do not check them. Hand over to a person only what is beyond
  your tools.

Booking
- At most five passengers, all on the same flights in the same cabin; for each, ask for the name and the date of birth.
- Payment is by at most one certificate, one credit card and three gift cards, all from the customer's profile. The
  rest of a certificate is lost.
- A checked bag costs 50 dollars beyond those that are free for each passenger: in basic economy, economy and business
  0, 1 and 2 for a regular member, 1, 2 and 3 for silver, 2, 3 and 3 for gold.
- Ask whether insurance is wanted: 30 dollars for each passenger.

Changing
- Flights of basic economy can't be changed. Others can, between the same two places and with the same cabin on all of
  them.
- Bags can be added, not taken away. Insurance can't be added later.
- Passengers' data can be corrected, their number can't be changed.
- A gift card or a credit card of the profile pays, or is paid back.

Cancelling
- Ask why. It is allowed within 24 hours of the booking, if the airline has cancelled a flight, in business class, and
  with insurance for reasons of health or weather. Otherwise it is not, whatever the customer's membership.
- A journey can't be cancelled once one of its flights has departed.

Compensation
- Only when the customer complains and asks for it, only for silver and gold members, insured journeys and business
  class: a certificate of 100 dollars for each passenger when a flight was cancelled, and of 50 when one is late and the
  journey has been changed or cancelled.
"""

POLICIES = {"retail": RETAIL, "airline": AIRLINE}

READ_ONLY_TOOLS = frozenset(
    "calculate find_user_id_by_email find_user_id_by_name_zip get_order_details get_product_details get_reservation_details "
    "get_user_details list_all_airports list_all_product_types search_direct_flight search_onestop_flight think "
    "transfer_to_human_agents".split()
)
"""The tools that only read; all others write."""

FREE_BAGS = {
    "regular": {"basic_economy": 0, "economy": 1, "business": 2},
    "silver": {"basic_economy": 1, "economy": 2, "business": 3},
    "gold": {"basic_economy": 2, "economy": 3, "business": 3},
}
"""Free checked bags per passenger, by membership and cabin."""

INSURED = re.compile(r"\b(ill|sick|unwell|health|weather|storm)\b", re.IGNORECASE)  # reasons that insurance covers
DEPARTED = ("landed", "flying")


def may_cancel(reservation: dict, flights: Mapping[str, dict], reason: str) -> bool:
    """Return whether a reservation may be cancelled. flights: the table; reason: the customer's words."""
    statuses = _statuses(reservation, flights)
    if any(status in DEPARTED for status in statuses):
        return False
    age = datetime.fromisoformat(NOW) - datetime.fromisoformat(reservation["created_at"])
    insured = reservation["insurance"] == "yes" and INSURED.search(reason)
    return age < timedelta(hours=24) or "cancelled" in statuses or reservation["cabin"] == "business" or bool(insured)


def compensation(user: dict, reservation: dict, flights: Mapping[str, dict]) -> int:
    """Return the compensation in dollars for this reservation, 0 for none, as if a delayed journey had been changed."""
    statuses = _statuses(reservation, flights)
    if user["membership"] == "regular" and reservation["insurance"] == "no" and reservation["cabin"] != "business":
        return 0
    people = len(reservation["passengers"])
    return 100 * people if "cancelled" in statuses else 50 * people if "delayed" in statuses else 0


def bags_to_pay(user: dict, cabin: str, passengers: int, bags: int) -> int:
    """Return the number of bags that are not free."""
    return max(0, bags - passengers * FREE_BAGS[user["membership"]][cabin])


def _statuses(reservation: dict, flights: Mapping[str, dict]) -> list[str]:
    """Return the status of each flight of a reservation, "" for an unknown flight or date."""
    known = [(flights.get(leg["flight_number"], {}), leg["date"]) for leg in reservation["flights"]]
    return [flight.get("dates", {}).get(day, {}).get("status", "") for flight, day in known]
