"""The tools of an airline: look at customers and flights, book, change and cancel, baggage, certificates.

They enforce the same rules as tau-bench's tools: the agent decides whether a ticket may be changed or refunded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict, cast

from customer_service.tool_registry import ToolError, ToolRegistry
from customer_service.transaction import Transaction

TOOLS = ToolRegistry("airline")
NOW = "2024-05-15T15:00:00"
NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas", "DEN": "Denver",
    "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix", "IAH": "Houston",
    "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte", "MSP": "Minneapolis", "DTW": "Detroit",
    "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip
INSURANCE, BAG = 30, 50  # dollars per passenger, per bag


# Argument types with the descriptions that a model reads. A model may send anything, so tools cannot rely on the types.
UserId = Annotated[str, "Id of the customer."]
ReservationId = Annotated[str, "Id of the reservation, six characters."]
Origin = Annotated[str, "Airport of departure, three letters."]
Destination = Annotated[str, "Airport of arrival, three letters."]
Date = Annotated[str, "YYYY-MM-DD."]
Cabin = Annotated[Literal["basic_economy", "economy", "business"], "The same on all flights."]
TotalBags = Annotated[int, "Checked bags in all."]
PaidBags = Annotated[int, "How many of them are paid for."]
PaymentMethod = Annotated[str, "Id of one of the customer's payment methods."]


class Flight(TypedDict):
    """A flight as an argument of a call."""

    flight_number: Annotated[str, "Such as HAT001."]
    date: Date


class Passenger(TypedDict):
    """A passenger as an argument of a call and in a reservation."""

    first_name: Annotated[str, "First name."]
    last_name: Annotated[str, "Last name."]
    dob: Annotated[str, "Date of birth, YYYY-MM-DD."]


class Payment(TypedDict):
    """A payment as an argument of a call and in a reservation."""

    payment_id: Annotated[str, "Id of the payment method, from the customer's record."]
    amount: Annotated[float, "Dollars."]


@TOOLS.register
def get_user_details(data: Transaction, user_id: UserId) -> dict:
    """Show a customer: membership, payment methods, reservations."""
    if user_id not in data["users"]:
        raise ToolError("user not found")
    return data["users"][user_id]


@TOOLS.register
def get_reservation_details(data: Transaction, reservation_id: ReservationId) -> dict:
    """Show a reservation."""
    if reservation_id not in data["reservations"]:
        raise ToolError("user not found")  # sic: tau-bench's message
    return data["reservations"][reservation_id]


@TOOLS.register
def list_all_airports(data: Transaction) -> dict:
    """List all airports and their cities."""
    return AIRPORTS


@TOOLS.register
def search_direct_flight(data: Transaction, origin: Origin, destination: Destination, date: Date) -> list:
    """List flights without a stop."""
    return [
        _offer(flight, date)
        for flight in data["flights"].values()
        if flight["origin"] == origin and flight["destination"] == destination and _bookable(flight, date)
    ]


@TOOLS.register
def search_onestop_flight(data: Transaction, origin: Origin, destination: Destination, date: Date) -> list:
    """List pairs of flights with a stop."""
    flights = list(data["flights"].values())
    found = []
    for first in flights:
        if first["origin"] != origin:
            continue
        for second in flights:
            if second["destination"] != destination or first["destination"] != second["origin"]:
                continue
            arrival = first["scheduled_arrival_time_est"]
            next_date = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrival else date
            if arrival > second["scheduled_departure_time_est"]:
                continue
            if date in first["dates"] and next_date in second["dates"]:
                if _bookable(first, date) and _bookable(second, next_date):
                    # The second flight's seats and prices are looked up for the first date, as in tau-bench.
                    found.append([_offer(first, date) | {"date": date}, _offer(second, date) | {"date": next_date}])
    return found


@TOOLS.register
def book_reservation(
    data: Transaction, user_id: UserId, origin: Origin, destination: Destination,
    flight_type: Annotated[Literal["one_way", "round_trip"], "There, or there and back."], cabin: Cabin,
    flights: Annotated[list[Flight], "All flights."], passengers: Annotated[list[Passenger], "All passengers."],
    payment_methods: Annotated[list[Payment], "The payments; their amounts must add up to the price."],
    total_baggages: TotalBags, nonfree_baggages: PaidBags,
    insurance: Annotated[Literal["yes", "no"], "Whether to add travel insurance."],
) -> dict:  # fmt: skip
    """Book a journey."""
    if user_id not in data["users"]:
        raise ToolError("user not found")
    taken = data["reservations"]
    reservation = {
        "reservation_id": next((key for key in NEW_RESERVATIONS[:-1] if key not in taken), NEW_RESERVATIONS[-1]),
        "user_id": user_id, "origin": origin, "destination": destination, "flight_type": flight_type, "cabin": cabin,
        "flights": flights, "passengers": passengers, "payment_history": payment_methods, "created_at": NOW,
        "total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages, "insurance": insurance,
    }  # fmt: skip
    price = 0
    for flight in cast(list[Any], flights):  # completed in place
        _complete_leg(data, flight, cabin, passengers)
        price += flight["price"] * len(passengers)
    if insurance == "yes":
        price += INSURANCE * len(passengers)
    price += BAG * nonfree_baggages
    _check_payments(data["users"][user_id]["payment_methods"], payment_methods, price)
    user = data.edit("users", user_id)
    for payment in payment_methods:
        method = user["payment_methods"][payment["payment_id"]]
        if method["source"] == "gift_card":
            method["amount"] -= payment["amount"]
        elif method["source"] == "certificate":
            del user["payment_methods"][payment["payment_id"]]
    data["reservations"][reservation["reservation_id"]] = reservation
    user["reservations"].append(reservation["reservation_id"])
    return reservation


@TOOLS.register
def cancel_reservation(data: Transaction, reservation_id: ReservationId) -> dict:
    """Cancel a whole reservation."""
    reservation = _reservation(data, reservation_id)
    paid = reservation["payment_history"]
    reservation["payment_history"].extend([{"payment_id": p["payment_id"], "amount": -p["amount"]} for p in paid])
    reservation["status"] = "cancelled"
    return reservation


@TOOLS.register
def update_reservation_baggages(
    data: Transaction, reservation_id: ReservationId, total_baggages: TotalBags, nonfree_baggages: PaidBags,
    payment_id: PaymentMethod,
) -> dict:  # fmt: skip
    """Change the bags of a reservation."""
    reservation = _reservation(data, reservation_id)
    price = BAG * max(0, nonfree_baggages - reservation["nonfree_baggages"])
    _pay_difference(data, reservation, payment_id, price)
    reservation["total_baggages"] = total_baggages
    reservation["nonfree_baggages"] = nonfree_baggages
    return reservation


@TOOLS.register
def update_reservation_flights(
    data: Transaction, reservation_id: ReservationId, cabin: Cabin,
    flights: Annotated[list[Flight], "All flights of the reservation, including unchanged ones."],
    payment_id: PaymentMethod,
) -> dict:  # fmt: skip
    """Change the flights of a reservation."""
    reservation = _reservation(data, reservation_id)
    passengers, before = reservation["passengers"], reservation["flights"]
    price = 0
    for flight in cast(list[Any], flights):  # completed in place
        kept = [old for old in before if _same_flight(old, flight) and cabin == reservation["cabin"]]
        if kept:
            flight |= {key: kept[0][key] for key in ("price", "origin", "destination")}
        else:
            _complete_leg(data, flight, cabin, passengers)
        price += flight["price"] * len(passengers)
    price -= sum(flight["price"] for flight in before) * len(passengers)
    _pay_difference(data, reservation, payment_id, price)
    reservation["flights"] = flights
    return reservation


@TOOLS.register
def update_reservation_passengers(
    data: Transaction, reservation_id: ReservationId, passengers: Annotated[list[Passenger], "All of them."]
) -> dict:  # fmt: skip
    """Replace the passengers of a reservation; their number cannot change."""
    reservation = _reservation(data, reservation_id)
    if len(passengers) != len(reservation["passengers"]):
        raise ToolError("number of passengers does not match")
    reservation["passengers"] = passengers
    return reservation


@TOOLS.register
def send_certificate(data: Transaction, user_id: UserId, amount: Annotated[float, "Dollars."]) -> str:
    """Give a customer a travel certificate."""
    if user_id not in data["users"]:
        raise ToolError("user not found")
    methods = data.edit("users", user_id)["payment_methods"]
    new = next((key for key in NEW_CERTIFICATES if key not in methods), None)
    if new is None:
        raise ToolError(f"user {user_id} has {len(NEW_CERTIFICATES)} new certificates already")
    methods[new] = {"source": "certificate", "amount": amount, "id": new}
    return f"Certificate {new} added to user {user_id} with amount {amount}."


def _bookable(flight: dict, date: str) -> bool:
    return date in flight["dates"] and flight["dates"][date]["status"] == "available"


def _offer(flight: dict, date: str) -> dict:
    """Return a flight as a search result: with one date's prices and seats in place of all dates."""
    return {key: value for key, value in flight.items() if key != "dates"} | flight["dates"][date]


def _same_flight(old: dict, new: Flight) -> bool:
    return old["flight_number"] == new["flight_number"] and old["date"] == new["date"]


def _complete_leg(data: Transaction, flight: Any, cabin: str, passengers: list) -> None:
    """Add price, origin and destination to a flight. Raises: ToolError if it cannot be booked for these passengers."""
    number = flight["flight_number"]
    if number not in data["flights"]:
        raise ToolError(f"flight {number} not found")
    known = data["flights"][number]
    if flight["date"] not in known["dates"]:
        raise ToolError(f"flight {number} not found on date {flight['date']}")
    day = known["dates"][flight["date"]]
    if day["status"] != "available":
        raise ToolError(f"flight {number} not available on date {flight['date']}")
    if day["available_seats"][cabin] < len(passengers):
        raise ToolError(f"not enough seats on flight {number}")
    flight |= {"price": day["prices"][cabin], "origin": known["origin"], "destination": known["destination"]}


def _check_payments(methods: dict, payments: list[Payment], price: float) -> None:
    for payment in payments:
        payment_id, amount = payment["payment_id"], payment["amount"]
        if payment_id not in methods:
            raise ToolError(f"payment method {payment_id} not found")
        if methods[payment_id]["source"] in ("gift_card", "certificate") and methods[payment_id]["amount"] < amount:
            raise ToolError(f"not enough balance in payment method {payment_id}")
    paid = sum(payment["amount"] for payment in payments)
    if paid != price:
        raise ToolError(f"payment amount does not add up, total price is {price}, but paid {paid}")


def _reservation(data: Transaction, reservation_id: str) -> dict:
    """Return the transaction's own copy of a reservation."""
    if reservation_id not in data["reservations"]:
        raise ToolError("reservation not found")
    return data.edit("reservations", reservation_id)


def _pay_difference(data: Transaction, reservation: dict, payment_id: str, price: float) -> None:
    """Charge the price of a change to a payment method, or refund it if negative."""
    methods = data["users"][reservation["user_id"]]["payment_methods"]
    if payment_id not in methods:
        raise ToolError("payment method not found")
    source = methods[payment_id]["source"]
    if source == "certificate":
        raise ToolError("certificate cannot be used to update reservation")
    if source == "gift_card":
        if methods[payment_id]["amount"] < price:
            raise ToolError("gift card balance is not enough")
        data.edit("users", reservation["user_id"])["payment_methods"][payment_id]["amount"] -= price
    if price != 0:
        reservation["payment_history"].append({"payment_id": payment_id, "amount": price})
