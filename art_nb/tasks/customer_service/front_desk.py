"""Customer service in few words: the shop's tools behind a front desk, for a model that can't copy ids or write sentences.

It is the task of `environment`, made smaller: the same customers, database, tools of tau-bench underneath, rules and reward.
What is made smaller: the desk writes the sentences, reads numbers and names out of what the customer has said, and turns
the words of a call (`Boots`, `gift card`) into ids. What to ask, look up, change, have confirmed or decline is left to the
agent; so are all rules that the shop's own tools do not enforce.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from art_nb.tasks.customer_service.conversation import OVER, Conversation
from art_nb.tasks.customer_service.customer import STOP, Customer, RuleCustomer
from art_nb.tasks.customer_service.environment import ServiceEnvironment, method_of
from art_nb.tasks.customer_service.policy import refused
from art_nb.tasks.customer_service.retail import REASONS
from art_nb.tasks.customer_service.tasks import Task
from art_nb.tasks.customer_service.world import World
from art_nb.tasks.tool_calls import ByToolCalls, malformed, quoted

DESK_TURNS = 14
SOURCES = {"gift card": "gift_card", "credit card": "credit_card", "PayPal": "paypal"}
QUESTIONS = {
    "who": "What is your email, or your name and zip?",
    "order": "Which order is it?",
    "reason": "What is the reason?",
    "payment": "How do you want to pay, or get the refund?",
}
WHO = re.compile(r"\S+@[\w.]+\w|I am \w+ \w+, zip \d+")
NUMBER = re.compile(r"#W\d+")


def _tool(name: str, description: str, **parameters: str) -> dict:
    """The schema of a tool whose arguments are all text and needed."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties} | ({"required": list(parameters)} if parameters else {})
    function = {"name": name, "description": description, "parameters": schema, "return": {"type": "string"}}
    return {"type": "function", "function": function}


_ITEM, _VARIANT, _PAYMENT = "its name.", "what the new one is.", f"{', '.join(list(SOURCES)[:-1])} or {list(SOURCES)[-1]}."
DESK_TOOLS = [
    _tool("ask", "Ask the customer.", about=f"{', '.join(list(QUESTIONS)[:-1])} or {list(QUESTIONS)[-1]}."),
    _tool("cancel", "Put on the form: cancel a pending order.", reason=f"{' or '.join(REASONS)}."),
    _tool("carry_out", "Make the change that is on the form and tell the customer."),
    _tool(
        "change_item", "Put on the form: another variant of an item of a pending order.", item=_ITEM, variant=_VARIANT,
        payment=_PAYMENT,
    ),
    _tool("change_payment", "Put on the form: another way to pay a pending order.", payment=_PAYMENT),
    _tool("confirm", "Read the form to the customer and ask for a yes."),
    _tool("decline", "Tell the customer that it can't be done."),
    _tool(
        "exchange_item", "Put on the form: another variant of an item of a delivered order.", item=_ITEM, variant=_VARIANT,
        payment=_PAYMENT,
    ),
    _tool("find_customer", "Look up who the customer says they are."),
    _tool("find_order", "Look up the order that the customer named last."),
    _tool("find_variants", "Look up what an item of the order can be exchanged for.", item=_ITEM),
    _tool("return_item", "Put on the form: take back an item of a delivered order.", item=_ITEM, payment=_PAYMENT),
    _tool("tell_price", "Tell the customer what an item of the order cost.", item=_ITEM),
]  # fmt: skip
"""The schemas that TRL derives from `FrontDeskEnvironment`'s tools."""


class _Refused(Exception):
    """What the desk can't do yet; its text tells the agent why."""


class FrontDesk(ByToolCalls):
    """One conversation by `DESK_TOOLS`.

    Fields: talk (the conversation underneath, with its world and watch), heard (what the customer has said), user and order
    (what was looked up last, or None), products (those looked up, by name), form (None or the change that is on it: a tool's
    name, its arguments, and the change in words), agreed (whether the last thing said was a yes to the form), calls,
    turn_rewards and breaches (for each call what it added to the conversation's `progress`, and how many rules it broke),
    ended_by (None while it runs, then "customer", "malformed" or "turns").
    """

    tools = DESK_TOOLS

    def __init__(self, world: World, task: Task, customer: Customer | None = None, max_turns: int = DESK_TURNS):
        """world: as the task finds it; it is left alone. max_turns: of calls at the desk.

        Raises: ValueError for another world than retail.
        """
        if world.domain != "retail":
            raise ValueError(f"the front desk is the shop's; the world is {world.domain}")
        # A call at the desk takes at most two turns of the conversation.
        self.talk = Conversation(world, task, customer or RuleCustomer(task), max_turns=2 * max_turns + 1)
        self.max_turns, self.calls = max_turns, 0
        self.heard = [self.talk.opening]
        self.user: dict | None = None
        self.order: dict | None = None
        self.products: dict[str, dict] = {}
        self.form: tuple[str, dict[str, Any], str] | None = None
        self.agreed = False
        self.turn_rewards: list[float] = []
        self.breaches: list[int] = []

    def call(self, name: str | None, arguments: str | dict | None) -> str:
        """As `ByToolCalls.call`; the agent reads the customer's reply, or what was found."""
        if self.over:
            return OVER
        progress, broken = self.talk.progress(), self._broken()
        said = self._make(name, arguments)
        self.turn_rewards.append(self.talk.progress() - progress)
        self.breaches.append(self._broken() - broken)
        return said

    def _make(self, name: str | None, arguments: str | dict | None) -> str:
        self.calls += 1
        wrong, given = malformed(self.tools, name, arguments)
        if wrong:
            self.ended_by = "malformed"
            return f"Malformed: {wrong[1]}. {OVER}"
        agreed, self.agreed = self.agreed, False
        try:
            said = getattr(self, f"_{name}")(**given)
        except _Refused as refusal:
            said, self.agreed = f"Refused: {refusal}.", agreed
        if self.talk.over:
            self.ended_by = "customer"
        elif self.calls >= self.max_turns:
            self.ended_by = "turns"
        return said

    def _broken(self) -> int:
        return sum(self.talk.watch.broken.values())

    def given(self, pattern: re.Pattern) -> str | None:
        """What the customer has said last that fits."""
        found = pattern.findall("\n".join(self.heard))
        return found[-1] if found else None

    def reward(self) -> float:
        """1 for a solved task, else 0; a conversation that was broken off is judged as it stands. Source: tau-bench."""
        return self.talk.reward()

    def metrics(self) -> dict[str, float]:
        """Those of the conversation underneath; `calls` at the desk, and how they ended."""
        ended = {"malformed": "malformed", "out_of_turns": "turns"}
        mine = {name: float(self.ended_by == by) for name, by in ended.items()}
        return self.talk.metrics() | mine | {"calls": float(self.calls)}

    # What the desk says to the customer

    def _say(self, message: str) -> str:
        reply = self.talk.say(message)
        self.heard.append(reply)
        return reply

    def _ask(self, about: str) -> str:
        if about not in QUESTIONS:
            raise _Refused(f"there is no question about {quoted(about)}")
        return self._say(QUESTIONS[about])

    def _decline(self) -> str:
        return self._say("I am sorry, this can't be done.")

    def _tell_price(self, item: str) -> str:
        return self._say(f"The {item} cost {self._item(item)['price']}.")

    def _confirm(self) -> str:
        _, _, words = self._filled()
        reply = self._say(f"I will {words}. Do you confirm? (yes/no)")
        self.agreed = "Yes" in reply and STOP not in reply
        return reply

    # What it looks up

    def _look(self, name: str, **arguments: Any) -> Any:
        answer = self.talk.call(name, arguments)
        if refused(answer):
            raise _Refused(answer.removeprefix("Error: "))
        return json.loads(answer) if answer.startswith("{") else answer

    def _find_customer(self) -> str:
        if not (who := self.given(WHO)):
            raise _Refused("the customer has not said who they are")
        if "@" in who:
            user_id = self._look("find_user_id_by_email", email=who)
        else:
            first, last, number = re.findall(r"I am (\w+) (\w+), zip (\d+)", who)[0]
            user_id = self._look("find_user_id_by_name_zip", first_name=first, last_name=last, zip=number)
        self.user = self._look("get_user_details", user_id=user_id) | {"user_id": user_id}
        return f"They can pay by {', '.join(self._methods())}."

    def _find_order(self) -> str:
        if not (number := self.given(NUMBER)):
            raise _Refused("the customer has not named an order")
        self.order = self.form = None
        self.products = {}
        self.order = self._look("get_order_details", order_id=number)
        items = ", ".join(f"{item['name']} {' '.join(item['options'].values())}" for item in self.order["items"])
        return f"{self.owner.capitalize()} {self.order['status']} order: {items}."

    @property
    def owner(self) -> str:
        """Whose order was found: theirs, another's, or somebody's while it is not known who the customer is."""
        assert self.order is not None
        if self.user is None:
            return "somebody's"
        return "their" if self.order["user_id"] == self.user["user_id"] else "another's"

    def _find_variants(self, item: str) -> str:
        product = self._look("get_product_details", product_id=self._item(item)["product_id"])
        self.products[item] = product
        return f"{item}: {', '.join(f'{value}{_stock(variant)}' for value, variant in _variants(product).items())}."

    def _found_order(self) -> dict:
        if self.order is None:
            raise _Refused("no order was looked up")
        return self.order

    def _number(self) -> str:
        return self._found_order()["order_id"]

    def _item(self, name: str) -> dict:
        for item in self._found_order()["items"]:
            if item["name"] == name:
                return item
        raise _Refused(f"there is no {quoted(name)} in the order")

    def _methods(self) -> dict[str, str]:
        """The customer's ways to pay, in words, and the id of each."""
        if self.user is None:
            raise _Refused("it is not known who the customer is")
        words = {source: word for word, source in SOURCES.items()}
        return {words[method["source"]]: key for key, method in self.user["payment_methods"].items()}

    def _method(self, payment: str) -> str:
        methods = self._methods()
        if payment not in methods:
            raise _Refused(f"they have no {quoted(payment)}")
        return methods[payment]

    # What goes on the form

    def _filled(self) -> tuple[str, dict[str, Any], str]:
        if self.form is None:
            raise _Refused("the form is empty")
        return self.form

    def _fill(self, words: str, name: str, **arguments: Any) -> str:
        self.form = name, {"order_id": self._number()} | arguments, words
        return "Written down."

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
            raise _Refused(f"the variants of the {item} were not looked up")
        variants = _variants(self.products[item])
        if variant not in variants:
            raise _Refused(f"there is no {quoted(variant)} {item}")
        words = f"give the {variant} {item} for that of order {self._number()}, with {method}"
        new = variants[variant]["item_id"]
        return self._fill(words, name, item_ids=[thing["item_id"]], new_item_ids=[new], payment_method_id=method)

    def _change_payment(self, payment: str) -> str:
        method = self._method(payment)
        words = f"have order {self._number()} paid by {method}"
        return self._fill(words, "modify_pending_order_payment", payment_method_id=method)

    def _carry_out(self) -> str:
        name, arguments, _ = self._filled()
        self.form = None
        self._look(name, **arguments)
        return self._say("It has been done.")


def _variants(product: dict) -> dict[str, dict]:
    """A product's variants by what they are: `red`, say."""
    return {" ".join(variant["options"].values()): variant for variant in product["variants"].values()}


def _stock(variant: dict) -> str:
    return "" if variant["available"] else " (gone)"


class FrontDeskEnvironment(ServiceEnvironment):
    """The task as a tool-calling episode for TRL's `environment_factory`, as `RetailEnvironment` is the larger one."""

    domain = "retail"

    def __init__(
        self,
        world: World | None = None,
        tasks: Iterable[Task] | None = None,
        customer: Callable[[Task], Customer] = RuleCustomer,
        max_turns: int = DESK_TURNS,
    ):
        super().__init__(world, tasks, customer, max_turns)

    def _begin(self, task: Task) -> str:
        self.desk = FrontDesk(self._world, task, self._customer(task), self._max_turns)
        return self.desk.talk.opening

    def _answer(self, name: str, arguments: dict) -> str:
        return self.desk.call(name, arguments)

    def get_reward(self) -> float:
        """1 for a solved task, else 0; a conversation that was broken off is judged as it stands."""
        return self.desk.reward()


for _schema in DESK_TOOLS:
    setattr(FrontDeskEnvironment, _schema["function"]["name"], method_of(_schema))
