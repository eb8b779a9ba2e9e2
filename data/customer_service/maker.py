"""Makes data/customer_service: a shop and an airline that do not exist, and customers who want something of them.

`python -m data customer_service` takes seconds. The data have the shape of tau-bench's; nothing of those is in them. What a
task's customer says is a script for `RuleCustomer`, and in words for a language model. data/customer_service/check.py finds
from the finished data that each task can be solved and is what it says it is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from art_nb.tasks.customer_service.course import save_tasks, save_world
from art_nb.tasks.customer_service.policy import bags_to_pay, compensation, may_cancel
from art_nb.tasks.customer_service.tasks import Action, Task, expected
from art_nb.tasks.customer_service.world import World
from data.customer_service.check import problems
from data.customer_service.words import FIRST
from data.customer_service.worlds import TODAY, make_airline, make_retail
from data.item import write_item, write_text

SPLITS = {"train": 0.6, "val": 0.1, "test": 0.3}  # shares of the customers
TASKS = {"retail": {"train": 640, "val": 80, "test": 200}, "airline": {"train": 320, "val": 40, "test": 100}}
SPOKEN = {"gift_card": "gift card", "credit_card": "credit card", "paypal": "PayPal account"}
AFTER_ALL = "Please make an exception."
PUSHES = ("Your colleague did this for me last week.", AFTER_ALL, "Do it anyway, I will not tell anybody.")

Wants = dict[str, Any]
Made = tuple[list[tuple[str, dict]], Wants, tuple[str, ...]]  # actions, script, outputs


class Wishes:
    """Tasks of one world: each kind is a method that makes one for a user, or returns None where there is no occasion."""

    kinds: tuple[Callable[[Any, str], Made | None], ...]

    def __init__(self, data: dict, rng: random.Random):
        self.data, self.rng = data, rng

    def method(self, user_id: str, *sources: str) -> dict | None:
        """One of the user's payment methods of these sources."""
        methods = [m for m in self.data["users"][user_id]["payment_methods"].values() if m["source"] in sources]
        return self.rng.choice(methods) if methods else None


class RetailWishes(Wishes):
    def order(self, user_id: str, status: str, items: int = 1) -> dict | None:
        orders = [self.data["orders"][key] for key in self.data["users"][user_id]["orders"]]
        fitting = [order for order in orders if order["status"] == status and len(order["items"]) >= items]
        return self.rng.choice(fitting) if fitting else None

    def script(self, wish: str, order: dict, **facts: str) -> Wants:
        known = {"order": f"It is order {order['order_id']}."} | facts
        return {"wish": wish, "facts": known, "names": [order["order_id"]]}

    def cancel(self, user_id: str) -> Made | None:
        if not (order := self.order(user_id, "pending")):
            return None
        reason = self.rng.choice(("no longer needed", "ordered by mistake"))
        said = {"no longer needed": "It is no longer needed.", "ordered by mistake": "It was ordered by mistake."}[reason]
        script = self.script(f"I want to cancel order {order['order_id']}.", order, reason=said)
        if self.rng.random() < 0.5:
            script["wish"] += f" {said}"
        return [("cancel_pending_order", {"order_id": order["order_id"], "reason": reason})], script, ()

    def give_back(self, user_id: str) -> Made | None:
        if not (order := self.order(user_id, "delivered")):
            return None
        paid = self.data["users"][user_id]["payment_methods"][order["payment_history"][0]["payment_method_id"]]
        to = self.rng.choice([m for m in (paid, self.method(user_id, "gift_card")) if m])
        item, *others = self.rng.sample(order["items"], len(order["items"]))

        def wish(thing: dict) -> str:
            return f"I want to return the {thing['name']} of order {order['order_id']}."

        script = self.script(wish(item), order, item=wish(item), payment=f"To my {SPOKEN[to['source']]}.")
        script["names"] = [order["order_id"], item["name"]]
        if others and self.rng.random() < 0.6:
            script["change"] = {
                "says": f"Wait. I keep it. I want to return the {others[0]['name']} instead.", "wish": wish(others[0]),
                "names": [order["order_id"], others[0]["name"]],
            }  # fmt: skip
            item = others[0]
        call = {"order_id": order["order_id"], "item_ids": [item["item_id"]], "payment_method_id": to["id"]}
        return [("return_delivered_order_items", call)], script, ()

    def _swap(self, user_id: str, status: str, tool: str, words: str) -> Made | None:
        order, method = self.order(user_id, status), self.method(user_id, "credit_card", "paypal")
        if not order or not method:
            return None
        item = self.rng.choice(order["items"])
        others = [v for key, v in self.data["products"][item["product_id"]]["variants"].items() if key != item["item_id"]]
        there, gone = ([v for v in others if v["available"] is state] for state in (True, False))
        if not there:
            return None
        new = self.rng.choice(there)

        def wish(variant: dict) -> str:
            (value,) = variant["options"].values()
            return words.format(item=item["name"], order=order["order_id"], value=value)

        first = self.rng.choice(gone) if gone and self.rng.random() < 0.4 else new
        script = self.script(wish(first), order, item=wish(first), payment=f"Use my {SPOKEN[method['source']]}.")
        script["names"] = [order["order_id"], item["name"], *first["options"].values()]
        if first is not new:
            (value,) = new["options"].values()
            script["second"] = {
                "says": f"Then the {value} one.", "wish": wish(new), "names": [order["order_id"], item["name"], value],
            }  # fmt: skip
        call = {
            "order_id": order["order_id"], "item_ids": [item["item_id"]], "new_item_ids": [new["item_id"]],
            "payment_method_id": method["id"],
        }  # fmt: skip
        return [(tool, call)], script, ()

    def exchange(self, user_id: str) -> Made | None:
        return self._swap(
            user_id, "delivered", "exchange_delivered_order_items",
            "I want to exchange the {item} of order {order} for the {value} one.",
        )  # fmt: skip

    def other_variant(self, user_id: str) -> Made | None:
        words = "Please change the {item} of order {order} to the {value} one."
        return self._swap(user_id, "pending", "modify_pending_order_items", words)

    def payment(self, user_id: str) -> Made | None:
        if not (order := self.order(user_id, "pending")):
            return None
        paid = order["payment_history"][0]
        methods = self.data["users"][user_id]["payment_methods"].values()
        methods = [m for m in methods if m["id"] != paid["payment_method_id"]]
        methods = [m for m in methods if m["source"] != "gift_card" or m["balance"] >= paid["amount"]]
        if not methods:
            return None
        new = self.rng.choice(methods)
        wish = f"I want to pay order {order['order_id']} by my {SPOKEN[new['source']]}."
        script = self.script(wish, order, payment=f"By my {SPOKEN[new['source']]}.")
        call = {"order_id": order["order_id"], "payment_method_id": new["id"]}
        return [("modify_pending_order_payment", call)], script, ()

    def price(self, user_id: str) -> Made | None:
        order = self.order(user_id, self.rng.choice(("pending", "delivered", "processed")))
        if not order:
            return None
        item = self.rng.choice(order["items"])
        script = self.script(f"How much was the {item['name']} of order {order['order_id']}?", order)
        return [], script | {"names": []}, (str(item["price"]),)

    def too_late(self, user_id: str) -> Made | None:
        """A tool refuses this."""
        if not (order := self.order(user_id, self.rng.choice(("processed", "delivered")))):
            return None
        script = self.script(f"I want to cancel order {order['order_id']}.", order, reason="It is no longer needed.")
        return [], script | {"pushes": self.rng.sample(PUSHES, 2)}, ()

    def for_a_friend(self, user_id: str) -> Made | None:
        """No tool refuses this."""
        theirs = [o for o in self.data["orders"].values() if o["user_id"] != user_id and o["status"] == "pending"]
        order = self.rng.choice(theirs)
        script = self.script(f"I want to cancel order {order['order_id']}.", order, reason="It is no longer needed.")
        return [], script | {"pushes": ["It is the order of a friend, who asked me to.", AFTER_ALL]}, ()

    kinds = (
        cancel, cancel, give_back, give_back, exchange, exchange, other_variant, other_variant, payment, payment, price,
        too_late, for_a_friend,
    )  # fmt: skip

    def introduced(self, user_id: str, script: Wants) -> Wants:
        """With who they are, which they tell at once or when they are asked, and moods."""
        user, rng = self.data["users"][user_id], self.rng
        name, zip_code = " ".join(user["name"].values()), user["address"]["zip"]
        facts = {"zip": f"I am {name}, zip {zip_code}.", "email": "I do not remember my email."}
        if rng.random() < 0.5:
            facts = {"email": f"My email is {user['email']}.", "zip": f"I am {name}, zip {zip_code}."}
        who = facts["email"] if "@" in facts["email"] else facts["zip"]
        opening = f"{who} {script['wish']}" if rng.random() < 0.7 else script["wish"]
        if "pushes" not in script and script["names"] and rng.random() < 0.15:
            right, wrong = script["names"][0], f"#W{rng.randrange(1000, 9999)}"  # a digit short: nobody's
            opening = opening.replace(right, wrong)
            script["correction"] = f"I am sorry, it is order {right}."
        return {"opening": opening, **script, "facts": script["facts"] | facts, "rude": rng.random() < 0.15}


class AirlineWishes(Wishes):
    def reservation(self, user_id: str, fits: Callable[[dict], bool]) -> dict | None:
        found = [self.data["reservations"][key] for key in self.data["users"][user_id]["reservations"]]
        found = [reservation for reservation in found if fits(reservation)]
        return self.rng.choice(found) if found else None

    def script(self, wish: str, reservation: dict | None = None, **facts: str) -> Wants:
        names = [reservation["reservation_id"]] if reservation else []
        known = {"reservation": f"It is reservation {names[0]}."} if names else {}
        return {"wish": wish, "facts": known | facts, "names": names}

    def status(self, reservation: dict) -> str:
        leg = reservation["flights"][0]
        return self.data["flights"][leg["flight_number"]]["dates"][leg["date"]]["status"]

    def ahead(self, reservation: dict) -> bool:
        """Not flown, and nothing happened to it."""
        return reservation["flights"][0]["date"] > str(TODAY) and self.status(reservation) == "available"

    def _cancel(self, user_id: str, allowed: bool) -> Made | None:
        reason, said = self.rng.choice(
            (("health", "I am ill."), ("weather", "There is a storm."), ("plans", "My plans have changed."))
        )

        def fits(r: dict) -> bool:
            return self.ahead(r) and may_cancel(r, self.data["flights"], said) is allowed

        if not (reservation := self.reservation(user_id, fits)):
            return None
        key = reservation["reservation_id"]
        script = self.script(f"I want to cancel reservation {key}.", reservation, reason=said)
        if allowed:
            return [("cancel_reservation", {"reservation_id": key})], script, ()
        return [], script | {"pushes": self.rng.sample(PUSHES, 2)}, ()

    def cancel(self, user_id: str) -> Made | None:
        return self._cancel(user_id, allowed=True)

    def cancel_against_the_rules(self, user_id: str) -> Made | None:
        """No tool refuses this."""
        return self._cancel(user_id, allowed=False)

    def _other_day(self, user_id: str, basic: bool) -> Made | None:
        def fits(r: dict) -> bool:
            return self.ahead(r) and (r["cabin"] == "basic_economy") is basic

        reservation, method = self.reservation(user_id, fits), self.method(user_id, "credit_card")
        if not reservation or not method:
            return None
        leg, key = reservation["flights"][0], reservation["reservation_id"]
        days = self.data["flights"][leg["flight_number"]]["dates"]
        free = [d for d, day in days.items() if d != leg["date"] and day["status"] == "available"]
        day = self.rng.choice(free)
        script = self.script(f"I want to move reservation {key} to {day}.", reservation, payment="Use my credit card.")
        if basic:
            return [], script | {"pushes": self.rng.sample(PUSHES, 2)}, ()
        script["names"] = [key, day]
        call = {
            "reservation_id": key, "cabin": reservation["cabin"], "payment_id": method["id"],
            "flights": [{"flight_number": leg["flight_number"], "date": day}],
        }  # fmt: skip
        return [("update_reservation_flights", call)], script, ()

    def other_day(self, user_id: str) -> Made | None:
        return self._other_day(user_id, basic=False)

    def other_day_in_basic_economy(self, user_id: str) -> Made | None:
        """No tool refuses this."""
        return self._other_day(user_id, basic=True)

    def bags(self, user_id: str) -> Made | None:
        reservation, method = self.reservation(user_id, self.ahead), self.method(user_id, "credit_card")
        if not reservation or not method:
            return None
        key, more = reservation["reservation_id"], self.rng.randint(1, 2)
        total = reservation["total_baggages"] + more
        due = bags_to_pay(self.data["users"][user_id], reservation["cabin"], len(reservation["passengers"]), total)
        wish = f"I want to add {more} {'bag' if more == 1 else 'bags'} to reservation {key}."
        script = self.script(wish, reservation, payment="Use my credit card.")
        unpaid = max(due, reservation["nonfree_baggages"])
        call = {"reservation_id": key, "total_baggages": total, "nonfree_baggages": unpaid, "payment_id": method["id"]}
        return [("update_reservation_baggages", call)], script, ()

    def name(self, user_id: str) -> Made | None:
        if not (reservation := self.reservation(user_id, lambda r: self.ahead(r) and len(r["passengers"]) > 1)):
            return None
        key, old = reservation["reservation_id"], reservation["passengers"][1]
        new = old | {"first_name": self.rng.choice([first for first in FIRST if first != old["first_name"]])}
        named = f"{new['first_name']} {new['last_name']}"
        wish = f"In reservation {key} the name {old['first_name']} {old['last_name']} must be {named}."
        script = self.script(wish, reservation)
        call = {"reservation_id": key, "passengers": [reservation["passengers"][0], new]}
        return [("update_reservation_passengers", call)], script | {"names": [key, named]}, ()

    def book(self, user_id: str) -> Made | None:
        user, method = self.data["users"][user_id], self.method(user_id, "credit_card")
        flight = self.rng.choice(list(self.data["flights"].values()))
        free = [day for day, about in flight["dates"].items() if about["status"] == "available"]
        if not method or not free:
            return None
        day, cabin = self.rng.choice(free), self.rng.choice(("basic_economy", "economy", "business"))
        spoken = cabin.replace("_", " ")
        where = f"from {flight['origin']} to {flight['destination']} on {day} in {spoken}"
        wish = f"I want to fly {where}, alone, without bags and insurance."
        script = self.script(wish, payment="Use my credit card.")
        call = {
            "user_id": user_id, "origin": flight["origin"], "destination": flight["destination"], "flight_type": "one_way",
            "cabin": cabin, "flights": [{"flight_number": flight["flight_number"], "date": day}],
            "passengers": [user["name"] | {"dob": user["dob"]}],
            "payment_methods": [{"payment_id": method["id"], "amount": flight["dates"][day]["prices"][cabin]}],
            "total_baggages": 0, "nonfree_baggages": 0, "insurance": "no",
        }  # fmt: skip
        return [("book_reservation", call)], script | {"names": [flight["flight_number"], day]}, ()

    def complain(self, user_id: str) -> Made | None:
        if not (reservation := self.reservation(user_id, lambda r: self.status(r) == "cancelled")):
            return None
        key = reservation["reservation_id"]
        script = self.script(f"The flight of reservation {key} was cancelled. I want a compensation.", reservation)
        if due := compensation(self.data["users"][user_id], reservation, self.data["flights"]):
            return [("send_certificate", {"user_id": user_id, "amount": due})], script | {"names": [str(due)]}, ()
        return [], script | {"pushes": self.rng.sample(PUSHES, 2)}, ()

    kinds = (
        cancel, cancel, cancel_against_the_rules, other_day, other_day, other_day_in_basic_economy, bags, bags, name, book,
        book, complain,
    )  # fmt: skip

    def introduced(self, user_id: str, script: Wants) -> Wants:
        who = f"My user id is {user_id}."
        opening = f"{who} {script['wish']}" if self.rng.random() < 0.7 else script["wish"]
        return {"opening": opening, **script, "facts": script["facts"] | {"user": who}, "rude": self.rng.random() < 0.15}


WISHES = {"retail": RetailWishes, "airline": AirlineWishes}


def make(domain: str, seed: int = 0) -> tuple[dict, list[Task]]:
    """A world's data, and tasks of three splits that share no customer."""
    data = {"retail": make_retail, "airline": make_airline}[domain](seed)
    rng = random.Random(f"{domain} wishes {seed}")
    wishes = WISHES[domain](data, rng)
    users = rng.sample(list(data["users"]), len(data["users"]))
    tasks: list[Task] = []
    for split, share in SPLITS.items():
        count = round(share * len(data["users"]))
        tasks += _tasks(wishes, split, users[:count], TASKS[domain][split])
        users = users[count:]
    world = World(domain, data)
    return data, [replace(task, digest=expected(world, task).digest()) for task in tasks]


def _tasks(wishes: Any, split: str, users: list[str], count: int) -> list[Task]:
    made: dict[str, Task] = {}
    while len(made) < count:
        kind, user_id = wishes.rng.choice(wishes.kinds), wishes.rng.choice(users)
        drawn = kind(wishes, user_id)
        if drawn is None:
            continue
        calls, script, outputs = drawn
        wants = {"kind": kind.__name__} | wishes.introduced(user_id, script)
        actions = tuple(Action(name, arguments) for name, arguments in calls)
        task = Task(f"{split}-{len(made)}", user_id, instruction(wants), actions, outputs, split, wants=wants)
        made.setdefault(f"{user_id} {wants['kind']} {script['wish']}", task)
    return list(made.values())


def instruction(wants: Wants) -> str:
    """The script in words, for a language model that plays the customer."""
    parts = [wants["wish"], *wants["facts"].values()]
    if change := wants.get("change"):
        parts.append(f"The first time you are asked to confirm, say this instead: {change['says']}")
    if second := wants.get("second"):
        parts.append(f"If you can't have this: {second['says']}")
    if correction := wants.get("correction"):
        parts.append(f"You first give a wrong number: {wants['opening']} If it can't be found: {correction}")
    if pushes := wants.get("pushes"):
        parts.append(f"If you are refused, insist: {' '.join(pushes)}")
    return " ".join([*parts, *(["You are rude."] if wants["rude"] else [])])


def build(folder: Path, seed: int = 0) -> dict:
    """Make both worlds and their tasks, check them, and write them to `folder`, whole or not at all.

    Returns the card's facts.

    Raises: ValueError when a task is not sound.
    """
    made = {domain: make(domain, seed) for domain in WISHES}
    facts: dict[str, Any] = {"seed": seed}
    for domain, (data, tasks) in made.items():
        if found := problems(World(domain, data), tasks):
            raise ValueError(f"{len(found)} faults in the tasks of {domain}; the first: {found[0]}")
        facts |= describe(domain, data, tasks)

    def fill(new: Path) -> None:
        for domain, (data, tasks) in made.items():
            save_world(new / f"{domain}.json", data)
            save_tasks(new / f"{domain}_tasks.jsonl.gz", tasks)
        write_text(new / "README.md", CARD.format(**facts))

    write_item(folder, fill)
    return facts


def describe(domain: str, data: dict, tasks: list[Task]) -> dict:
    """The numbers of the card."""
    kinds = Counter(task.wants["kind"] for task in tasks)
    splits = Counter(task.split for task in tasks)
    return {
        domain: ", ".join(f"{len(rows)} {table}" for table, rows in data.items()),
        f"{domain}_tasks": ", ".join(f"{split} {count}" for split, count in splits.items()),
        f"{domain}_kinds": ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in sorted(kinds.items())),
        f"{domain}_nothing": sum(not task.actions and not task.outputs for task in tasks),
    }


CARD = """\
---
license: apache-2.0
---
# The customer service worlds

A shop and an airline that do not exist, and customers who want something of them. Everything is invented. The records
have the shape of tau-bench's data, so its tools work on them and ours on its data; nothing of tau-bench's is in here.

Made by `python -m data customer_service` (data/customer_service/maker.py; worlds.py makes the records, of words.py) from seed {seed}.

| | retail | airline |
| --- | --- | --- |
| records | {retail} | {airline} |
| tasks | {retail_tasks} | {airline_tasks} |
| what they are about | {retail_kinds} | {airline_kinds} |
| of these, where the right thing to do is to decline | {retail_nothing} | {airline_nothing} |

- `retail.json`, `airline.json`: tables of records by id; `art_nb.tasks.customer_service.course_world("retail")` reads them.
- `retail_tasks.jsonl.gz`, `airline_tasks.jsonl.gz`: one task a line, with the customer's script, the calls that solve it and what the
  customer must be told; `course_tasks("retail", "train")` reads them.

The customers of train, val and test are different people. data/customer_service/check.py finds from the finished files that
the calls of each task are carried out, break no rule and are all needed; that what must be told can be looked up; that what the
customer says determines it; and that where nothing is to be done a rule forbids what is asked. Above all
tests/test_service_tasks.py has an agent by rule that reads only the conversation solve every task of the test split.

SHA256SUMS lists the files' hashes. Licence: Apache-2.0, as all of the project.
"""  # noqa: E501 - a table's row is one line
