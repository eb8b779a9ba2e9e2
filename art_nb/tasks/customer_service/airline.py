"""The tools of an airline: look at customers and flights, book, change and cancel, baggage, certificates.

They enforce what tau-bench's do and no more: whether a ticket may be changed or refunded is left to the agent.
"""

from __future__ import annotations

from art_nb.tasks.customer_service.tool import Draft, Refused, Tools

TOOLS = Tools("airline")
NOW = "2024-05-15T15:00:00"
NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas", "DEN": "Denver",
    "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix", "IAH": "Houston",
    "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte", "MSP": "Minneapolis", "DTW": "Detroit",
    "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip
INSURANCE, BAG = 30, 50  # dollars a passenger, a bag


@TOOLS.add
def get_user_details(data, user_id):
    if user_id not in data["users"]:
        raise Refused("user not found")
    return data["users"][user_id]


@TOOLS.add
def get_reservation_details(data, reservation_id):
    if reservation_id not in data["reservations"]:
        raise Refused("user not found")  # tau-bench says it so
    return data["reservations"][reservation_id]


@TOOLS.add
def list_all_airports(data):
    return AIRPORTS


@TOOLS.add
def search_direct_flight(data, origin, destination, date):
    return [
        _offer(flight, date)
        for flight in data["flights"].values()
        if flight["origin"] == origin and flight["destination"] == destination and _bookable(flight, date)
    ]


@TOOLS.add
def search_onestop_flight(data, origin, destination, date):
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
                    # Seats and prices of the second flight are those of the first day, as in tau-bench.
                    found.append([_offer(first, date) | {"date": date}, _offer(second, date) | {"date": next_date}])
    return found


@TOOLS.add
def book_reservation(
    data, user_id, origin, destination, flight_type, cabin, flights, passengers, payment_methods, total_baggages,
    nonfree_baggages, insurance,
):  # fmt: skip
    if user_id not in data["users"]:
        raise Refused("user not found")
    taken = data["reservations"]
    reservation = {
        "reservation_id": next((key for key in NEW_RESERVATIONS[:-1] if key not in taken), NEW_RESERVATIONS[-1]),
        "user_id": user_id, "origin": origin, "destination": destination, "flight_type": flight_type, "cabin": cabin,
        "flights": flights, "passengers": passengers, "payment_history": payment_methods, "created_at": NOW,
        "total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages, "insurance": insurance,
    }  # fmt: skip
    price = 0
    for flight in flights:
        _fill_in(data, flight, cabin, passengers)
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


@TOOLS.add
def cancel_reservation(data, reservation_id):
    reservation = _reservation(data, reservation_id)
    paid = reservation["payment_history"]
    reservation["payment_history"].extend([{"payment_id": p["payment_id"], "amount": -p["amount"]} for p in paid])
    reservation["status"] = "cancelled"
    return reservation


@TOOLS.add
def update_reservation_baggages(data, reservation_id, total_baggages, nonfree_baggages, payment_id):
    reservation = _reservation(data, reservation_id)
    price = BAG * max(0, nonfree_baggages - reservation["nonfree_baggages"])
    _pay_difference(data, reservation, payment_id, price)
    reservation["total_baggages"] = total_baggages
    reservation["nonfree_baggages"] = nonfree_baggages
    return reservation


@TOOLS.add
def update_reservation_flights(data, reservation_id, cabin, flights, payment_id):
    reservation = _reservation(data, reservation_id)
    passengers, before = reservation["passengers"], reservation["flights"]
    price = 0
    for flight in flights:
        kept = [old for old in before if _same_flight(old, flight) and cabin == reservation["cabin"]]
        if kept:
            flight |= {key: kept[0][key] for key in ("price", "origin", "destination")}
        else:
            _fill_in(data, flight, cabin, passengers)
        price += flight["price"] * len(passengers)
    price -= sum(flight["price"] for flight in before) * len(passengers)
    _pay_difference(data, reservation, payment_id, price)
    reservation["flights"] = flights
    return reservation


@TOOLS.add
def update_reservation_passengers(data, reservation_id, passengers):
    reservation = _reservation(data, reservation_id)
    if len(passengers) != len(reservation["passengers"]):
        raise Refused("number of passengers does not match")
    reservation["passengers"] = passengers
    return reservation


@TOOLS.add
def send_certificate(data, user_id, amount):
    if user_id not in data["users"]:
        raise Refused("user not found")
    methods = data.edit("users", user_id)["payment_methods"]
    new = next((key for key in NEW_CERTIFICATES if key not in methods), None)
    if new is None:
        raise Refused(f"user {user_id} has {len(NEW_CERTIFICATES)} new certificates already")
    methods[new] = {"source": "certificate", "amount": amount, "id": new}
    return f"Certificate {new} added to user {user_id} with amount {amount}."


def _bookable(flight: dict, date) -> bool:
    return date in flight["dates"] and flight["dates"][date]["status"] == "available"


def _offer(flight: dict, date) -> dict:
    """A flight as a search shows it: without its other days."""
    return {key: value for key, value in flight.items() if key != "dates"} | flight["dates"][date]


def _same_flight(old: dict, new: dict) -> bool:
    return old["flight_number"] == new["flight_number"] and old["date"] == new["date"]


def _fill_in(data: Draft, flight: dict, cabin, passengers) -> None:
    """Adds price, origin and destination to a flight that is to be booked for so many passengers."""
    number = flight["flight_number"]
    if number not in data["flights"]:
        raise Refused(f"flight {number} not found")
    known = data["flights"][number]
    if flight["date"] not in known["dates"]:
        raise Refused(f"flight {number} not found on date {flight['date']}")
    day = known["dates"][flight["date"]]
    if day["status"] != "available":
        raise Refused(f"flight {number} not available on date {flight['date']}")
    if day["available_seats"][cabin] < len(passengers):
        raise Refused(f"not enough seats on flight {number}")
    flight |= {"price": day["prices"][cabin], "origin": known["origin"], "destination": known["destination"]}


def _check_payments(methods: dict, payments, price: float) -> None:
    for payment in payments:
        payment_id, amount = payment["payment_id"], payment["amount"]
        if payment_id not in methods:
            raise Refused(f"payment method {payment_id} not found")
        if methods[payment_id]["source"] in ("gift_card", "certificate") and methods[payment_id]["amount"] < amount:
            raise Refused(f"not enough balance in payment method {payment_id}")
    paid = sum(payment["amount"] for payment in payments)
    if paid != price:
        raise Refused(f"payment amount does not add up, total price is {price}, but paid {paid}")


def _reservation(data: Draft, reservation_id) -> dict:
    """The call's own copy of a reservation."""
    if reservation_id not in data["reservations"]:
        raise Refused("reservation not found")
    return data.edit("reservations", reservation_id)


def _pay_difference(data: Draft, reservation: dict, payment_id, price: float) -> None:
    """Charges what a change costs; below zero it is paid back."""
    methods = data["users"][reservation["user_id"]]["payment_methods"]
    if payment_id not in methods:
        raise Refused("payment method not found")
    source = methods[payment_id]["source"]
    if source == "certificate":
        raise Refused("certificate cannot be used to update reservation")
    if source == "gift_card":
        if methods[payment_id]["amount"] < price:
            raise Refused("gift card balance is not enough")
        data.edit("users", reservation["user_id"])["payment_methods"][payment_id]["amount"] -= price
    if price != 0:
        reservation["payment_history"].append({"payment_id": payment_id, "amount": price})
