"""The desk of the shop."""

from __future__ import annotations

import re
from typing import Any

from art_nb.environments import RefusedCall, quoted, tool
from customer_service.customer import Customer
from customer_service.desk import DESK_TURNS, Desk, DeskEnvironment
from customer_service.tasks import Task
from customer_service.world import World

SOURCES = {"gift card": "gift_card", "credit card": "credit_card", "PayPal": "paypal"}
QUESTIONS = {
    "who": "What is your email, or your name and zip?",
    "order": "Which order is it?",
    "reason": "What is the reason?",
    "payment": "How do you want to pay, or get the refund?",
}
WHO = re.compile(r"\S+@[\w.]+\w|I am \w+ \w+, zip \d+")
NUMBER = re.compile(r"#W\d+")


class FrontDesk(Desk):
    """A conversation with a customer of the shop.

    Attributes: those of `Desk`; order (the last that was looked up, or None), products (of this order that were looked up,
    by name).
    """

    domain, questions, payment_sources = "retail", QUESTIONS, SOURCES

    def __init__(self, world: World, task: Task, customer: Customer | None = None, max_turns: int = DESK_TURNS):
        super().__init__(world, task, customer, max_turns)
        self.order: dict | None = None
        self.products: dict[str, dict] = {}

    @tool
    def ask(self, about: str) -> str:
        """Ask the customer.

        Args:
            about: who, order, reason or payment.
        """
        return self._ask(about)

    @tool
    def tell_price(self, item: str) -> str:
        """Tell the customer what an item of the order cost.

        Args:
            item: its name.
        """
        return self._say(f"The {item} cost {self._item(item)['price']}.")

    @tool
    def find_customer(self) -> str:
        """Look up who the customer says they are."""
        if not (who := self.last_match(WHO)):
            raise RefusedCall("the customer has not said who they are")
        if "@" in who:
            user_id = self._use("find_user_id_by_email", email=who)
        else:
            first, last, number = re.findall(r"I am (\w+) (\w+), zip (\d+)", who)[0]
            user_id = self._use("find_user_id_by_name_zip", first_name=first, last_name=last, zip=number)
        self.user = self._use("get_user_details", user_id=user_id) | {"user_id": user_id}
        return f"They can pay by {', '.join(self._payment_methods())}."

    @tool
    def find_order(self) -> str:
        """Look up the order that the customer named last."""
        if not (number := self.last_match(NUMBER)):
            raise RefusedCall("the customer has not named an order")
        self.order = self.form = None
        self.products = {}
        self.order = self._use("get_order_details", order_id=number)
        items = ", ".join(f"{item['name']} {' '.join(item['options'].values())}" for item in self.order["items"])
        return f"{self.owner.capitalize()} {self.order['status']} order: {items}."

    @property
    def owner(self) -> str:
        """Owner of the found order: "their", "another's", or "somebody's" until the customer has been looked up."""
        return self._owner_of(self._found_order())

    @tool
    def find_variants(self, item: str) -> str:
        """Look up what an item of the order can be exchanged for.

        Args:
            item: its name.
        """
        product = self._use("get_product_details", product_id=self._item(item)["product_id"])
        self.products[item] = product
        return f"{item}: {', '.join(f'{value}{_stock(variant)}' for value, variant in _variants(product).items())}."

    def _found_order(self) -> dict:
        if self.order is None:
            raise RefusedCall("no order was looked up")
        return self.order

    def _number(self) -> str:
        return self._found_order()["order_id"]

    def _item(self, name: str) -> dict:
        for item in self._found_order()["items"]:
            if item["name"] == name:
                return item
        raise RefusedCall(f"there is no {quoted(name)} in the order")

    def _fill_form(self, words: str, name: str, **arguments: Any) -> str:
        return super()._fill_form(words, name, order_id=self._number(), **arguments)

    @tool
    def cancel(self, reason: str) -> str:
        """Put on the form: cancel a pending order.

        Args:
            reason: no longer needed or ordered by mistake.
        """
        return self._fill_form(f"cancel order {self._number()}, {reason}", "cancel_pending_order", reason=reason)

    @tool
    def return_item(self, item: str, payment: str) -> str:
        """Put on the form: take back an item of a delivered order.

        Args:
            item: its name.
            payment: gift card, credit card or PayPal.
        """
        record, method = self._item(item), self._payment_method(payment)
        words = f"take back the {item} of order {self._number()}, with the refund to {method}"
        return self._fill_form(words, "return_delivered_order_items", item_ids=[record["item_id"]], payment_method_id=method)

    @tool
    def change_item(self, item: str, variant: str, payment: str) -> str:
        """Put on the form: another variant of an item of a pending order.

        Args:
            item: its name.
            variant: what the new one is.
            payment: gift card, credit card or PayPal.
        """
        return self._other_variant("modify_pending_order_items", item, variant, payment)

    @tool
    def exchange_item(self, item: str, variant: str, payment: str) -> str:
        """Put on the form: another variant of an item of a delivered order.

        Args:
            item: its name.
            variant: what the new one is.
            payment: gift card, credit card or PayPal.
        """
        return self._other_variant("exchange_delivered_order_items", item, variant, payment)

    def _other_variant(self, name: str, item: str, variant: str, payment: str) -> str:
        record, method = self._item(item), self._payment_method(payment)
        if item not in self.products:
            raise RefusedCall(f"the variants of the {item} were not looked up")
        variants = _variants(self.products[item])
        if variant not in variants:
            raise RefusedCall(f"there is no {quoted(variant)} {item}")
        words = f"give the {variant} {item} for that of order {self._number()}, with {method}"
        new = variants[variant]["item_id"]
        return self._fill_form(words, name, item_ids=[record["item_id"]], new_item_ids=[new], payment_method_id=method)

    @tool
    def change_payment(self, payment: str) -> str:
        """Put on the form: another way to pay a pending order.

        Args:
            payment: gift card, credit card or PayPal.
        """
        method = self._payment_method(payment)
        words = f"have order {self._number()} paid by {method}"
        return self._fill_form(words, "modify_pending_order_payment", payment_method_id=method)


def _variants(product: dict) -> dict[str, dict]:
    """Return a product's variants by their options, such as `red`."""
    return {" ".join(variant["options"].values()): variant for variant in product["variants"].values()}


def _stock(variant: dict) -> str:
    return "" if variant["available"] else " (gone)"


class FrontDeskEnvironment(DeskEnvironment, episode=FrontDesk):
    """`FrontDesk` for TRL's `environment_factory`. `RetailEnvironment` has the underlying tools instead."""
