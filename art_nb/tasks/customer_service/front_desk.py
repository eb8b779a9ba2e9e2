"""The shop's front desk: its tools in few words, as `desk` says."""

from __future__ import annotations

import re
from typing import Any

from art_nb.tasks.customer_service.customer import Customer
from art_nb.tasks.customer_service.desk import DESK_TURNS, Desk, DeskEnvironment, NotYet, choice, desk_tool
from art_nb.tasks.customer_service.retail import REASONS
from art_nb.tasks.customer_service.tasks import Task
from art_nb.tasks.customer_service.world import World
from art_nb.tasks.tool_calls import quoted

SOURCES = {"gift card": "gift_card", "credit card": "credit_card", "PayPal": "paypal"}
QUESTIONS = {
    "who": "What is your email, or your name and zip?",
    "order": "Which order is it?",
    "reason": "What is the reason?",
    "payment": "How do you want to pay, or get the refund?",
}
WHO = re.compile(r"\S+@[\w.]+\w|I am \w+ \w+, zip \d+")
NUMBER = re.compile(r"#W\d+")

_ITEM, _VARIANT, _PAYMENT = "its name.", "what the new one is.", choice(SOURCES)
DESK_TOOLS = [
    desk_tool("ask", "Ask the customer.", about=choice(QUESTIONS)),
    desk_tool("cancel", "Put on the form: cancel a pending order.", reason=f"{' or '.join(REASONS)}."),
    desk_tool("carry_out", "Make the change that is on the form and tell the customer."),
    desk_tool(
        "change_item", "Put on the form: another variant of an item of a pending order.", item=_ITEM, variant=_VARIANT,
        payment=_PAYMENT,
    ),
    desk_tool("change_payment", "Put on the form: another way to pay a pending order.", payment=_PAYMENT),
    desk_tool("confirm", "Read the form to the customer and ask for a yes."),
    desk_tool("decline", "Tell the customer that it can't be done."),
    desk_tool(
        "exchange_item", "Put on the form: another variant of an item of a delivered order.", item=_ITEM, variant=_VARIANT,
        payment=_PAYMENT,
    ),
    desk_tool("find_customer", "Look up who the customer says they are."),
    desk_tool("find_order", "Look up the order that the customer named last."),
    desk_tool("find_variants", "Look up what an item of the order can be exchanged for.", item=_ITEM),
    desk_tool("return_item", "Put on the form: take back an item of a delivered order.", item=_ITEM, payment=_PAYMENT),
    desk_tool("tell_price", "Tell the customer what an item of the order cost.", item=_ITEM),
]  # fmt: skip
"""The schemas that TRL derives from `FrontDeskEnvironment`'s tools."""


class FrontDesk(Desk):
    """One conversation by `DESK_TOOLS`.

    Fields: those of `Desk`; order (what was looked up last, or None), products (those looked up, by name).
    """

    domain, tools, questions, sources = "retail", DESK_TOOLS, QUESTIONS, SOURCES

    def __init__(self, world: World, task: Task, customer: Customer | None = None, max_turns: int = DESK_TURNS):
        super().__init__(world, task, customer, max_turns)
        self.order: dict | None = None
        self.products: dict[str, dict] = {}

    def _tell_price(self, item: str) -> str:
        return self._say(f"The {item} cost {self._item(item)['price']}.")

    def _find_customer(self) -> str:
        if not (who := self.given(WHO)):
            raise NotYet("the customer has not said who they are")
        if "@" in who:
            user_id = self._look("find_user_id_by_email", email=who)
        else:
            first, last, number = re.findall(r"I am (\w+) (\w+), zip (\d+)", who)[0]
            user_id = self._look("find_user_id_by_name_zip", first_name=first, last_name=last, zip=number)
        self.user = self._look("get_user_details", user_id=user_id) | {"user_id": user_id}
        return f"They can pay by {', '.join(self._methods())}."

    def _find_order(self) -> str:
        if not (number := self.given(NUMBER)):
            raise NotYet("the customer has not named an order")
        self.order = self.form = None
        self.products = {}
        self.order = self._look("get_order_details", order_id=number)
        items = ", ".join(f"{item['name']} {' '.join(item['options'].values())}" for item in self.order["items"])
        return f"{self.owner.capitalize()} {self.order['status']} order: {items}."

    @property
    def owner(self) -> str:
        """Whose order was found: theirs, another's, or somebody's while it is not known who the customer is."""
        return self._owner_of(self._found_order())

    def _find_variants(self, item: str) -> str:
        product = self._look("get_product_details", product_id=self._item(item)["product_id"])
        self.products[item] = product
        return f"{item}: {', '.join(f'{value}{_stock(variant)}' for value, variant in _variants(product).items())}."

    def _found_order(self) -> dict:
        if self.order is None:
            raise NotYet("no order was looked up")
        return self.order

    def _number(self) -> str:
        return self._found_order()["order_id"]

    def _item(self, name: str) -> dict:
        for item in self._found_order()["items"]:
            if item["name"] == name:
                return item
        raise NotYet(f"there is no {quoted(name)} in the order")

    def _fill(self, words: str, name: str, **arguments: Any) -> str:
        return super()._fill(words, name, order_id=self._number(), **arguments)

    def _cancel(self, reason: str) -> str:
        return self._fill(f"cancel order {self._number()}, {reason}", "cancel_pending_order", reason=reason)

    def _return_item(self, item: str, payment: str) -> str:
        thing, method = self._item(item), self._method(payment)
        words = f"take back the {item} of order {self._number()}, with the refund to {method}"
        return self._fill(words, "return_delivered_order_items", item_ids=[thing["item_id"]], payment_method_id=method)

    def _change_item(self, item: str, variant: str, payment: str) -> str:
        return self._other_variant("modify_pending_order_items", item, variant, payment)

    def _exchange_item(self, item: str, variant: str, payment: str) -> str:
        return self._other_variant("exchange_delivered_order_items", item, variant, payment)

    def _other_variant(self, name: str, item: str, variant: str, payment: str) -> str:
        thing, method = self._item(item), self._method(payment)
        if item not in self.products:
            raise NotYet(f"the variants of the {item} were not looked up")
        variants = _variants(self.products[item])
        if variant not in variants:
            raise NotYet(f"there is no {quoted(variant)} {item}")
        words = f"give the {variant} {item} for that of order {self._number()}, with {method}"
        new = variants[variant]["item_id"]
        return self._fill(words, name, item_ids=[thing["item_id"]], new_item_ids=[new], payment_method_id=method)

    def _change_payment(self, payment: str) -> str:
        method = self._method(payment)
        words = f"have order {self._number()} paid by {method}"
        return self._fill(words, "modify_pending_order_payment", payment_method_id=method)


def _variants(product: dict) -> dict[str, dict]:
    """A product's variants by what they are: `red`, say."""
    return {" ".join(variant["options"].values()): variant for variant in product["variants"].values()}


def _stock(variant: dict) -> str:
    return "" if variant["available"] else " (gone)"


class FrontDeskEnvironment(DeskEnvironment, at=FrontDesk):
    """The task as a tool-calling episode for TRL's `environment_factory`, as `RetailEnvironment` is the larger one."""
