"""The tools of a shop: find a customer, look at orders and products, cancel, change, return and exchange.

They enforce what tau-bench's do and no more: that an order is the customer's, say, is left to the agent.
"""

from __future__ import annotations

from art_nb.tasks.customer_service.tool import Draft, Refused, Tools

TOOLS = Tools("retail")
REASONS = ("no longer needed", "ordered by mistake")


@TOOLS.add
def find_user_id_by_email(data, email):
    for user_id, user in data["users"].items():
        if user["email"].lower() == email.lower():
            return user_id
    raise Refused("user not found")


@TOOLS.add
def find_user_id_by_name_zip(data, first_name, last_name, zip):
    for user_id, user in data["users"].items():
        name = user["name"]
        same = name["first_name"].lower() == first_name.lower() and name["last_name"].lower() == last_name.lower()
        if same and user["address"]["zip"] == zip:
            return user_id
    raise Refused("user not found")


@TOOLS.add
def get_user_details(data, user_id):
    return _found(data, "users", user_id, "user")


@TOOLS.add
def get_order_details(data, order_id):
    return _found(data, "orders", order_id, "order")


@TOOLS.add
def get_product_details(data, product_id):
    return _found(data, "products", product_id, "product")


@TOOLS.add
def list_all_product_types(data):
    return dict(sorted({product["name"]: product["product_id"] for product in data["products"].values()}.items()))


@TOOLS.add
def cancel_pending_order(data, order_id, reason):
    _order_in(data, order_id, "pending", "non-pending order cannot be cancelled")
    if reason not in REASONS:
        raise Refused("invalid reason")
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


@TOOLS.add
def modify_pending_order_address(data, order_id, address1, address2, city, state, country, zip):
    _order_in(data, order_id, "pending", "non-pending order cannot be modified")
    order = data.edit("orders", order_id)
    order["address"] = _address(address1, address2, city, state, country, zip)
    return order


@TOOLS.add
def modify_user_address(data, user_id, address1, address2, city, state, country, zip):
    _found(data, "users", user_id, "user")
    user = data.edit("users", user_id)
    user["address"] = _address(address1, address2, city, state, country, zip)
    return user


@TOOLS.add
def modify_pending_order_payment(data, order_id, payment_method_id):
    order = _order_in(data, order_id, "pending", "non-pending order cannot be modified")
    method = _method(data, order, payment_method_id)
    history = order["payment_history"]
    if len(history) > 1 or history[0]["transaction_type"] != "payment":
        raise Refused("there should be exactly one payment for a pending order")
    amount, old_method_id = history[0]["amount"], history[0]["payment_method_id"]
    if old_method_id == payment_method_id:
        raise Refused("the new payment method should be different from the current one")
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise Refused("insufficient gift card balance to pay for the order")
    order = data.edit("orders", order_id)
    order["payment_history"] += [_payment("payment", amount, payment_method_id), _payment("refund", amount, old_method_id)]
    if method["source"] == "gift_card":
        _add_to_card(data, order, payment_method_id, -amount)
    if "gift_card" in old_method_id:
        _add_to_card(data, order, old_method_id, amount)
    return order


@TOOLS.add
def modify_pending_order_items(data, order_id, item_ids, new_item_ids, payment_method_id):
    order = _order_in(data, order_id, "pending", "non-pending order cannot be modified")
    difference = _price_difference(data, order, item_ids, new_item_ids)
    method = _method(data, order, payment_method_id)
    if method["source"] == "gift_card" and method["balance"] < difference:
        raise Refused("insufficient gift card balance to pay for the new item")
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


@TOOLS.add
def exchange_delivered_order_items(data, order_id, item_ids, new_item_ids, payment_method_id):
    order = _order_in(data, order_id, "delivered", "non-delivered order cannot be exchanged")
    difference = round(_price_difference(data, order, item_ids, new_item_ids), 2)
    method = _method(data, order, payment_method_id)
    if method["source"] == "gift_card" and method["balance"] < difference:
        raise Refused("insufficient gift card balance to pay for the price difference")
    order = data.edit("orders", order_id)
    order["status"] = "exchange requested"
    order["exchange_items"] = sorted(item_ids)
    order["exchange_new_items"] = sorted(new_item_ids)
    order["exchange_payment_method_id"] = payment_method_id
    order["exchange_price_difference"] = difference
    return order


@TOOLS.add
def return_delivered_order_items(data, order_id, item_ids, payment_method_id):
    order = _order_in(data, order_id, "delivered", "non-delivered order cannot be returned")
    _method(data, order, payment_method_id)
    if "gift_card" not in payment_method_id and payment_method_id != order["payment_history"][0]["payment_method_id"]:
        raise Refused("payment method should be either the original payment method or a gift card")
    if _lacking(order, item_ids):
        raise Refused("some item not found")
    order = data.edit("orders", order_id)
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    return order


def _found(data: Draft, table: str, key, what: str) -> dict:
    if key not in data[table]:
        raise Refused(f"{what} not found")
    return data[table][key]


def _order_in(data: Draft, order_id, status: str, otherwise: str) -> dict:
    order = _found(data, "orders", order_id, "order")
    if order["status"] != status:
        raise Refused(otherwise)
    return order


def _method(data: Draft, order: dict, payment_method_id) -> dict:
    """The customer's payment method of this id."""
    methods = data["users"][order["user_id"]]["payment_methods"]
    if payment_method_id not in methods:
        raise Refused("payment method not found")
    return methods[payment_method_id]


def _lacking(order: dict, item_ids) -> list:
    """What is listed more often than the order has it."""
    held = [item["item_id"] for item in order["items"]]
    return [item_id for item_id in item_ids if item_ids.count(item_id) > held.count(item_id)]


def _item(order: dict, item_id) -> dict:
    return next(item for item in order["items"] if item["item_id"] == item_id)


def _price_difference(data: Draft, order: dict, item_ids, new_item_ids) -> float:
    """What the new items cost more than the old, each a variant of the same product."""
    if lacking := _lacking(order, item_ids):
        raise Refused(f"{lacking[0]} not found")
    if len(item_ids) != len(new_item_ids):
        raise Refused("the number of items to be exchanged should match")
    difference = 0
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        item = _item(order, item_id)
        variants = data["products"][item["product_id"]]["variants"]
        if new_item_id not in variants or not variants[new_item_id]["available"]:
            raise Refused(f"new item {new_item_id} not found or available")
        difference += variants[new_item_id]["price"] - item["price"]
    return difference


def _payment(kind: str, amount: float, payment_method_id: str) -> dict:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": payment_method_id}


def _add_to_card(data: Draft, order: dict, payment_method_id: str, amount: float) -> None:
    card = data.edit("users", order["user_id"])["payment_methods"][payment_method_id]
    card["balance"] = round(card["balance"] + amount, 2)


def _address(address1, address2, city, state, country, zip) -> dict:
    return {"address1": address1, "address2": address2, "city": city, "state": state, "country": country, "zip": zip}
