"""The rule-based agent of the shop."""

from __future__ import annotations

import re

from customer_service.rule_agent import RuleAgent


class RetailAgent(RuleAgent):
    """Serves the customers of the shop with the tools of `retail`."""

    def serve(self) -> None:
        self._identify_customer()
        while True:
            wish = self.wish()
            order = self._order()
            if "How much" in wish:
                item = self._item(order, wish)
                self.say(f"It was {item['price']}.")
                self.decline("this is all that I know")
            elif "cancel order" in wish:
                self._cancel(order)
            elif "pay order" in wish:
                self._change_payment(order)
            elif "return" in wish:
                self._return_item(order, wish)
            else:
                self._change_item(order, wish)

    def _identify_customer(self) -> None:
        identity = self.ask_until_found(r"\S+@[\w.]+\w|I am \w+ \w+, zip \d+", "What is your email, or your name and zip?")
        if "@" in identity:
            self.user_id = self.look_up("find_user_id_by_email", email=identity)
        else:
            first, last, zip_code = re.findall(r"(\w+) (\w+), zip (\d+)", identity)[0]
            self.user_id = self.look_up("find_user_id_by_name_zip", first_name=first, last_name=last, zip=zip_code)

    def _order(self) -> dict:
        while True:
            order_id = self.ask_until_found(r"#W\d+", "Which order is it?")
            if order := self.call("get_order_details", order_id=order_id):
                if order["user_id"] != self.user_id and self.chooses_correctly():
                    self.decline("that is not an order of yours")
                return order
            self.say(f"I am sorry, there is no order {order_id}.")

    def _item(self, order: dict, wish: str) -> dict:
        named = [item for item in order["items"] if f"the {item['name']}" in wish]
        return self.choose(named[-1] if named else order["items"][0], order["items"])

    def _cancel(self, order: dict) -> None:
        if order["status"] != "pending" and self.chooses_correctly():
            self.decline("an order that is not pending cannot be cancelled")
        stated = self.ask_until_found("no longer needed|ordered by mistake", "What is the reason?")
        reason = self.choose(stated, ["no longer needed", "ordered by mistake"])
        order_id = order["order_id"]
        self.write(f"I will cancel order {order_id}: {reason}.", "cancel_pending_order", order_id=order_id, reason=reason)

    def _change_payment(self, order: dict) -> None:
        method, order_id = self.payment_method("How do you want to pay?"), order["order_id"]
        self.write(
            f"I will let order {order_id} be paid by {method['id']}.", "modify_pending_order_payment", order_id=order_id,
            payment_method_id=method["id"],
        )  # fmt: skip

    def _return_item(self, order: dict, wish: str) -> None:
        item, order_id = self._item(order, wish), order["order_id"]
        method = self.payment_method("Where do you want the refund?")
        self.write(
            f"I will take back the {item['name']} of order {order_id}, with a refund to {method['id']}.",
            "return_delivered_order_items", order_id=order_id, item_ids=[item["item_id"]], payment_method_id=method["id"],
        )  # fmt: skip

    def _change_item(self, order: dict, wish: str) -> None:
        item, order_id = self._item(order, wish), order["order_id"]
        variants = list(self.call("get_product_details", product_id=item["product_id"])["variants"].values())
        wanted = self.ask_until_found(r"the (\w+) one", "Which one do you want? For example, the red one.")
        fitting = [variant for variant in variants if wanted in variant["options"].values()]
        variant = self.choose(fitting[0] if fitting else variants[0], variants)
        if not variant["available"] and self.chooses_correctly():
            self.say(f"I am sorry, the {wanted} one is not available.")
            return
        method, (value,) = self.payment_method("How do you want to pay the difference?"), variant["options"].values()
        pending = order["status"] == "pending"
        tool = "modify_pending_order_items" if pending else "exchange_delivered_order_items"
        self.write(
            f"I will change the {item['name']} of order {order_id} to the {value} one, with {method['id']}.", tool,
            order_id=order_id, item_ids=[item["item_id"]], new_item_ids=[variant["item_id"]], payment_method_id=method["id"],
        )  # fmt: skip
