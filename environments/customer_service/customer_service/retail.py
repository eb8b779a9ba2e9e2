"""The tools of a shop: find a customer, look at orders and products, cancel, change, return and exchange.

They enforce the same rules as tau-bench's tools. For example, the agent must check that an order is the customer's.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from customer_service.tool_registry import ToolError, ToolRegistry
from customer_service.transaction import Transaction

TOOLS = ToolRegistry("retail")

Reason = Literal["no longer needed", "ordered by mistake"]
REASONS: tuple[str, ...] = get_args(Reason)

# Argument types with the descriptions that a model reads. A model may send anything, so tools cannot rely on the types.
UserId = Annotated[str, "Id of the customer, as returned by a look-up."]
OrderId = Annotated[str, "Id of the order; it starts with #."]
OldItems = Annotated[list[str], "Ids of the items to give up; one that is wanted twice is listed twice."]
NewItems = Annotated[list[str], "Ids of the variants to get instead, in the same order, each of the same product."]
PaymentMethod = Annotated[str, "Id of one of the customer's payment methods."]
FirstName = Annotated[str, "First name."]
LastName = Annotated[str, "Last name."]
Street = Annotated[str, "Street and number."]
Flat = Annotated[str, "Flat or suite, may be empty."]
City = Annotated[str, "City."]
State = Annotated[str, "State, two letters."]
Country = Annotated[str, "Country."]
Zip = Annotated[str, "Postal code."]


@TOOLS.register
def find_user_id_by_email(data: Transaction, email: Annotated[str, "The customer's email address."]) -> str:
    """Look up a customer's id by email."""
    for user_id, user in data["users"].items():
        if user["email"].lower() == email.lower():
            return user_id
    raise ToolError("user not found")


@TOOLS.register
def find_user_id_by_name_zip(data: Transaction, first_name: FirstName, last_name: LastName, zip: Zip) -> str:
    """Look up a customer's id by name and postal code, if the email is unknown."""
    for user_id, user in data["users"].items():
        name = user["name"]
        same = name["first_name"].lower() == first_name.lower() and name["last_name"].lower() == last_name.lower()
        if same and user["address"]["zip"] == zip:
            return user_id
    raise ToolError("user not found")


@TOOLS.register
def get_user_details(data: Transaction, user_id: UserId) -> dict:
    """Show a customer: address, payment methods, orders."""
    return _record(data, "users", user_id, "user")


@TOOLS.register
def get_order_details(data: Transaction, order_id: OrderId) -> dict:
    """Show an order: status, items, payments."""
    return _record(data, "orders", order_id, "order")


@TOOLS.register
def get_product_details(data: Transaction, product_id: Annotated[str, "Not an item's id."]) -> dict:
    """Show a product: variants, prices, what is in stock."""
    return _record(data, "products", product_id, "product")


@TOOLS.register
def list_all_product_types(data: Transaction) -> dict:
    """List all products with their ids."""
    return dict(sorted({product["name"]: product["product_id"] for product in data["products"].values()}.items()))


@TOOLS.register
def cancel_pending_order(data: Transaction, order_id: OrderId, reason: Annotated[Reason, "Why."]) -> dict:
    """Cancel a pending order and refund it."""
    _order_with_status(data, order_id, "pending", "non-pending order cannot be cancelled")
    if reason not in REASONS:
        raise ToolError("invalid reason")
    order = data.edit("orders", order_id)
    refunds = []
    for payment in order["payment_history"]:
        refunds.append(_payment("refund", payment["amount"], payment["payment_method_id"]))
        if "gift_card" in payment["payment_method_id"]:
            _add_to_card(data, order, payment["payment_method_id"], payment["amount"])
    order["status"] = "cancelled"
    order["cancel_reason"] = reason
    order["payment_history"] += refunds
    return order


@TOOLS.register
def modify_pending_order_address(
    data: Transaction, order_id: OrderId, address1: Street, address2: Flat, city: City, state: State, country: Country,
    zip: Zip,
) -> dict:  # fmt: skip
    """Change the shipping address of a pending order."""
    _order_with_status(data, order_id, "pending", "non-pending order cannot be modified")
    order = data.edit("orders", order_id)
    order["address"] = _address(address1, address2, city, state, country, zip)
    return order


@TOOLS.register
def modify_user_address(
    data: Transaction, user_id: UserId, address1: Street, address2: Flat, city: City, state: State, country: Country,
    zip: Zip,
) -> dict:  # fmt: skip
    """Change a customer's own address."""
    _record(data, "users", user_id, "user")
    user = data.edit("users", user_id)
    user["address"] = _address(address1, address2, city, state, country, zip)
    return user


@TOOLS.register
def modify_pending_order_payment(data: Transaction, order_id: OrderId, payment_method_id: PaymentMethod) -> dict:
    """Change the payment method of a pending order."""
    order = _order_with_status(data, order_id, "pending", "non-pending order cannot be modified")
    method = _method(data, order, payment_method_id)
    history = order["payment_history"]
    if len(history) > 1 or history[0]["transaction_type"] != "payment":
        raise ToolError("there should be exactly one payment for a pending order")
    amount, old_method_id = history[0]["amount"], history[0]["payment_method_id"]
    if old_method_id == payment_method_id:
        raise ToolError("the new payment method should be different from the current one")
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise ToolError("insufficient gift card balance to pay for the order")
    order = data.edit("orders", order_id)
    order["payment_history"] += [_payment("payment", amount, payment_method_id), _payment("refund", amount, old_method_id)]
    if method["source"] == "gift_card":
        _add_to_card(data, order, payment_method_id, -amount)
    if "gift_card" in old_method_id:
        _add_to_card(data, order, old_method_id, amount)
    return order


@TOOLS.register
def modify_pending_order_items(
    data: Transaction, order_id: OrderId, item_ids: OldItems, new_item_ids: NewItems, payment_method_id: PaymentMethod
) -> dict:  # fmt: skip
    """Change items of a pending order for other variants, once for each order."""
    order = _order_with_status(data, order_id, "pending", "non-pending order cannot be modified")
    difference = _price_difference(data, order, item_ids, new_item_ids)
    method = _method(data, order, payment_method_id)
    if method["source"] == "gift_card" and method["balance"] < difference:
        raise ToolError("insufficient gift card balance to pay for the new item")
    order = data.edit("orders", order_id)
    order["payment_history"].append(_payment("payment" if difference > 0 else "refund", abs(difference), payment_method_id))
    if method["source"] == "gift_card":
        _add_to_card(data, order, payment_method_id, -difference)
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        item = _item(order, item_id)
        variant = data["products"][item["product_id"]]["variants"][new_item_id]
        item |= {"item_id": new_item_id, "price": variant["price"], "options": variant["options"]}
    order["status"] = "pending (item modified)"
    return order


@TOOLS.register
def exchange_delivered_order_items(
    data: Transaction, order_id: OrderId, item_ids: OldItems, new_item_ids: NewItems, payment_method_id: PaymentMethod
) -> dict:  # fmt: skip
    """Exchange items of a delivered order, once for each order."""
    order = _order_with_status(data, order_id, "delivered", "non-delivered order cannot be exchanged")
    difference = round(_price_difference(data, order, item_ids, new_item_ids), 2)
    method = _method(data, order, payment_method_id)
    if method["source"] == "gift_card" and method["balance"] < difference:
        raise ToolError("insufficient gift card balance to pay for the price difference")
    order = data.edit("orders", order_id)
    order["status"] = "exchange requested"
    order["exchange_items"] = sorted(item_ids)
    order["exchange_new_items"] = sorted(new_item_ids)
    order["exchange_payment_method_id"] = payment_method_id
    order["exchange_price_difference"] = difference
    return order


@TOOLS.register
def return_delivered_order_items(
    data: Transaction, order_id: OrderId,
    item_ids: Annotated[list[str], "Ids of the items; one that is returned twice is listed twice."],
    payment_method_id: Annotated[str, "Where the money goes: how it was paid, or a gift card."],
) -> dict:  # fmt: skip
    """Take back items of a delivered order, once for each order."""
    order = _order_with_status(data, order_id, "delivered", "non-delivered order cannot be returned")
    _method(data, order, payment_method_id)
    if "gift_card" not in payment_method_id and payment_method_id != order["payment_history"][0]["payment_method_id"]:
        raise ToolError("payment method should be either the original payment method or a gift card")
    if _missing_items(order, item_ids):
        raise ToolError("some item not found")
    order = data.edit("orders", order_id)
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    return order


def _record(data: Transaction, table: str, key: str, kind: str) -> dict:
    if key not in data[table]:
        raise ToolError(f"{kind} not found")
    return data[table][key]


def _order_with_status(data: Transaction, order_id: str, status: str, error: str) -> dict:
    """Return the order. Raises: ToolError with the message `error` if it has another status."""
    order = _record(data, "orders", order_id, "order")
    if order["status"] != status:
        raise ToolError(error)
    return order


def _method(data: Transaction, order: dict, payment_method_id: str) -> dict:
    """Return the payment method of the order's customer."""
    methods = data["users"][order["user_id"]]["payment_methods"]
    if payment_method_id not in methods:
        raise ToolError("payment method not found")
    return methods[payment_method_id]


def _missing_items(order: dict, item_ids: list[str]) -> list[str]:
    """Return the ids that are listed more often than the order contains them."""
    held = [item["item_id"] for item in order["items"]]
    return [item_id for item_id in item_ids if item_ids.count(item_id) > held.count(item_id)]


def _item(order: dict, item_id: str) -> dict:
    return next(item for item in order["items"] if item["item_id"] == item_id)


def _price_difference(data: Transaction, order: dict, item_ids: list[str], new_item_ids: list[str]) -> float:
    """Return the price of the new items minus that of the old ones. Each new item is a variant of the old one's product."""
    if missing := _missing_items(order, item_ids):
        raise ToolError(f"{missing[0]} not found")
    if len(item_ids) != len(new_item_ids):
        raise ToolError("the number of items to be exchanged should match")
    difference = 0
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        item = _item(order, item_id)
        variants = data["products"][item["product_id"]]["variants"]
        if new_item_id not in variants or not variants[new_item_id]["available"]:
            raise ToolError(f"new item {new_item_id} not found or available")
        difference += variants[new_item_id]["price"] - item["price"]
    return difference


def _payment(kind: str, amount: float, payment_method_id: str) -> dict:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": payment_method_id}


def _add_to_card(data: Transaction, order: dict, payment_method_id: str, amount: float) -> None:
    card = data.edit("users", order["user_id"])["payment_methods"][payment_method_id]
    card["balance"] = round(card["balance"] + amount, 2)


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> dict:
    return {"address1": address1, "address2": address2, "city": city, "state": state, "country": country, "zip": zip}
