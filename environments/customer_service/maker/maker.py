"""Generates the data of customer_service: a fictional shop and airline, and the tasks of their customers.

`python -m data customer_service` takes seconds. The format is tau-bench's; none of its data are included. Each task has a
script for `RuleCustomer`, and the same in words for a language model. maker/check.py checks the finished data.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from customer_service.course import save_tasks, save_world
from customer_service.policy import bags_to_pay, compensation, may_cancel
from customer_service.tasks import Action, Task, goal_state
from customer_service.world import World
from data.item import write_item, write_text
from environments.customer_service.maker.check import problems
from environments.customer_service.maker.words import FIRST
from environments.customer_service.maker.worlds import TODAY, make_airline, make_retail

SPLIT_SHARES = {"train": 0.6, "val": 0.1, "test": 0.3}  # of the customers
TASKS = {"retail": {"train": 640, "val": 80, "test": 200}, "airline": {"train": 320, "val": 40, "test": 100}}
IN_WORDS = {"gift_card": "gift card", "credit_card": "credit card", "paypal": "PayPal account"}
AFTER_ALL = "Please make an exception."
PUSHES = ("Your colleague did this for me last week.", AFTER_ALL, "Do it anyway, I will not tell anybody.")

Script = dict[str, Any]  # see `RuleCustomer`
Draft = tuple[list[tuple[str, dict]], Script, tuple[str, ...]]  # actions, script, outputs


class TaskGenerator:
    """Generates tasks for one world. Each kind is a method that drafts a user's task, or returns None if impossible."""

    kinds: tuple[Callable[[Any, str], Draft | None], ...]

    def __init__(self, data: dict, rng: random.Random):
        self.data, self.rng = data, rng

    def method(self, user_id: str, *sources: str) -> dict | None:
        """Return a random payment method of the user with one of these sources, or None."""
        methods = [m for m in self.data["users"][user_id]["payment_methods"].values() if m["source"] in sources]
        return self.rng.choice(methods) if methods else None


class RetailTaskGenerator(TaskGenerator):
    """Tasks of the shop."""

    def order(self, user_id: str, status: str, items: int = 1) -> dict | None:
        orders = [self.data["orders"][key] for key in self.data["users"][user_id]["orders"]]
        fitting = [order for order in orders if order["status"] == status and len(order["items"]) >= items]
        return self.rng.choice(fitting) if fitting else None

    def script(self, wish: str, order: dict, **facts: str) -> Script:
        known = {"order": f"It is order {order['order_id']}."} | facts
        return {"wish": wish, "facts": known, "names": [order["order_id"]]}

    def cancel(self, user_id: str) -> Draft | None:
        if not (order := self.order(user_id, "pending")):
            return None
        reason = self.rng.choice(("no longer needed", "ordered by mistake"))
        said = {"no longer needed": "It is no longer needed.", "ordered by mistake": "It was ordered by mistake."}[reason]
        script = self.script(f"I want to cancel order {order['order_id']}.", order, reason=said)
        if self.rng.random() < 0.5:
            script["wish"] += f" {said}"
        return [("cancel_pending_order", {"order_id": order["order_id"], "reason": reason})], script, ()

    def give_back(self, user_id: str) -> Draft | None:
        if not (order := self.order(user_id, "delivered")):
            return None
        paid = self.data["users"][user_id]["payment_methods"][order["payment_history"][0]["payment_method_id"]]
        to = self.rng.choice([m for m in (paid, self.method(user_id, "gift_card")) if m])
        item, *others = self.rng.sample(order["items"], len(order["items"]))

        def wish(thing: dict) -> str:
            return f"I want to return the {thing['name']} of order {order['order_id']}."

        script = self.script(wish(item), order, item=wish(item), payment=f"To my {IN_WORDS[to['source']]}.")
        script["names"] = [order["order_id"], item["name"]]
        if others and self.rng.random() < 0.6:
            script["change"] = {
                "says": f"Wait. I keep it. I want to return the {others[0]['name']} instead.", "wish": wish(others[0]),
                "names": [order["order_id"], others[0]["name"]],
            }  # fmt: skip
            item = others[0]
        call = {"order_id": order["order_id"], "item_ids": [item["item_id"]], "payment_method_id": to["id"]}
        return [("return_delivered_order_items", call)], script, ()

    def _swap(self, user_id: str, status: str, tool: str, words: str) -> Draft | None:
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
        script = self.script(wish(first), order, item=wish(first), payment=f"Use my {IN_WORDS[method['source']]}.")
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

    def exchange(self, user_id: str) -> Draft | None:
        return self._swap(
            user_id, "delivered", "exchange_delivered_order_items",
            "I want to exchange the {item} of order {order} for the {value} one.",
        )  # fmt: skip

    def other_variant(self, user_id: str) -> Draft | None:
        words = "Please change the {item} of order {order} to the {value} one."
        return self._swap(user_id, "pending", "modify_pending_order_items", words)

    def payment(self, user_id: str) -> Draft | None:
        if not (order := self.order(user_id, "pending")):
            return None
        paid = order["payment_history"][0]
        methods = self.data["users"][user_id]["payment_methods"].values()
        methods = [m for m in methods if m["id"] != paid["payment_method_id"]]
        methods = [m for m in methods if m["source"] != "gift_card" or m["balance"] >= paid["amount"]]
        if not methods:
            return None
        new = self.rng.choice(methods)
        wish = f"I want to pay order {order['order_id']} by my {IN_WORDS[new['source']]}."
        script = self.script(wish, order, payment=f"By my {IN_WORDS[new['source']]}.")
        call = {"order_id": order["order_id"], "payment_method_id": new["id"]}
        return [("modify_pending_order_payment", call)], script, ()

    def price(self, user_id: str) -> Draft | None:
        order = self.order(user_id, self.rng.choice(("pending", "delivered", "processed")))
        if not order:
            return None
        item = self.rng.choice(order["items"])
        script = self.script(f"How much was the {item['name']} of order {order['order_id']}?", order)
        return [], script | {"names": []}, (str(item["price"]),)

    def too_late(self, user_id: str) -> Draft | None:
        """Cancel an order that is not pending, which the tool rejects."""
        if not (order := self.order(user_id, self.rng.choice(("processed", "delivered")))):
            return None
        script = self.script(f"I want to cancel order {order['order_id']}.", order, reason="It is no longer needed.")
        return [], script | {"pushes": self.rng.sample(PUSHES, 2)}, ()

    def for_a_friend(self, user_id: str) -> Draft | None:
        """Cancel another customer's order, which only the policy forbids."""
        theirs = [o for o in self.data["orders"].values() if o["user_id"] != user_id and o["status"] == "pending"]
        order = self.rng.choice(theirs)
        script = self.script(f"I want to cancel order {order['order_id']}.", order, reason="It is no longer needed.")
        return [], script | {"pushes": ["It is the order of a friend, who asked me to.", AFTER_ALL]}, ()

    kinds = (
        cancel, cancel, give_back, give_back, exchange, exchange, other_variant, other_variant, payment, payment, price,
        too_late, for_a_friend,
    )  # fmt: skip

    def introduce(self, user_id: str, script: Script) -> Script:
        """Return the script with an opening, the customer's identity and mood; some openings name a wrong order."""
        user, rng = self.data["users"][user_id], self.rng
        name, zip_code = " ".join(user["name"].values()), user["address"]["zip"]
        facts = {"zip": f"I am {name}, zip {zip_code}.", "email": "I do not remember my email."}
        if rng.random() < 0.5:
            facts = {"email": f"My email is {user['email']}.", "zip": f"I am {name}, zip {zip_code}."}
        who = facts["email"] if "@" in facts["email"] else facts["zip"]
        opening = f"{who} {script['wish']}" if rng.random() < 0.7 else script["wish"]
        if "pushes" not in script and script["names"] and rng.random() < 0.15:
            right, wrong = script["names"][0], f"#W{rng.randrange(1000, 9999)}"  # a digit short, so it does not exist
            opening = opening.replace(right, wrong)
            script["correction"] = f"I am sorry, it is order {right}."
        return {"opening": opening, **script, "facts": script["facts"] | facts, "rude": rng.random() < 0.15}


class AirlineTaskGenerator(TaskGenerator):
    """Tasks of the airline."""

    def reservation(self, user_id: str, fits: Callable[[dict], bool]) -> dict | None:
        found = [self.data["reservations"][key] for key in self.data["users"][user_id]["reservations"]]
        found = [reservation for reservation in found if fits(reservation)]
        return self.rng.choice(found) if found else None

    def script(self, wish: str, reservation: dict | None = None, **facts: str) -> Script:
        names = [reservation["reservation_id"]] if reservation else []
        known = {"reservation": f"It is reservation {names[0]}."} if names else {}
        return {"wish": wish, "facts": known | facts, "names": names}

    def status(self, reservation: dict) -> str:
        leg = reservation["flights"][0]
        return self.data["flights"][leg["flight_number"]]["dates"][leg["date"]]["status"]

    def ahead(self, reservation: dict) -> bool:
        """Return whether the flight is in the future and as planned."""
        return reservation["flights"][0]["date"] > str(TODAY) and self.status(reservation) == "available"

    def _cancel(self, user_id: str, allowed: bool) -> Draft | None:
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

    def cancel(self, user_id: str) -> Draft | None:
        return self._cancel(user_id, allowed=True)

    def cancel_against_the_rules(self, user_id: str) -> Draft | None:
        """Cancel a reservation that only the policy protects."""
        return self._cancel(user_id, allowed=False)

    def _other_day(self, user_id: str, basic: bool) -> Draft | None:
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

    def other_day(self, user_id: str) -> Draft | None:
        return self._other_day(user_id, basic=False)

    def other_day_in_basic_economy(self, user_id: str) -> Draft | None:
        """Move a basic economy reservation, which only the policy forbids."""
        return self._other_day(user_id, basic=True)

    def bags(self, user_id: str) -> Draft | None:
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

    def name(self, user_id: str) -> Draft | None:
        if not (reservation := self.reservation(user_id, lambda r: self.ahead(r) and len(r["passengers"]) > 1)):
            return None
        key, old = reservation["reservation_id"], reservation["passengers"][1]
        new = old | {"first_name": self.rng.choice([first for first in FIRST if first != old["first_name"]])}
        named = f"{new['first_name']} {new['last_name']}"
        wish = f"In reservation {key} the name {old['first_name']} {old['last_name']} must be {named}."
        script = self.script(wish, reservation)
        call = {"reservation_id": key, "passengers": [reservation["passengers"][0], new]}
        return [("update_reservation_passengers", call)], script | {"names": [key, named]}, ()

    def book(self, user_id: str) -> Draft | None:
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

    def complain(self, user_id: str) -> Draft | None:
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

    def introduce(self, user_id: str, script: Script) -> Script:
        who = f"My user id is {user_id}."
        opening = f"{who} {script['wish']}" if self.rng.random() < 0.7 else script["wish"]
        return {"opening": opening, **script, "facts": script["facts"] | {"user": who}, "rude": self.rng.random() < 0.15}


GENERATORS: dict[str, type[TaskGenerator]] = {"retail": RetailTaskGenerator, "airline": AirlineTaskGenerator}


def make(domain: str, seed: int = 0) -> tuple[dict, list[Task]]:
    """Return a world's data, and its tasks in three splits that share no customer."""
    data = {"retail": make_retail, "airline": make_airline}[domain](seed)
    rng = random.Random(f"{domain} wishes {seed}")
    generator = GENERATORS[domain](data, rng)
    users = rng.sample(list(data["users"]), len(data["users"]))
    tasks: list[Task] = []
    for split, share in SPLIT_SHARES.items():
        count = round(share * len(data["users"]))
        tasks += _tasks(generator, split, users[:count], TASKS[domain][split])
        users = users[count:]
    world = World(domain, data)
    return data, [replace(task, digest=goal_state(world, task).digest()) for task in tasks]


def _tasks(generator: Any, split: str, users: list[str], count: int) -> list[Task]:
    made: dict[str, Task] = {}
    while len(made) < count:
        kind, user_id = generator.rng.choice(generator.kinds), generator.rng.choice(users)
        draft = kind(generator, user_id)
        if draft is None:
            continue
        calls, script, outputs = draft
        wants = {"kind": kind.__name__} | generator.introduce(user_id, script)
        actions = tuple(Action(name, arguments) for name, arguments in calls)
        task = Task(f"{split}-{len(made)}", user_id, instruction(wants), actions, outputs, split, wants=wants)
        made.setdefault(f"{user_id} {wants['kind']} {script['wish']}", task)
    return list(made.values())


def instruction(wants: Script) -> str:
    """Return the script in words, for a language model that plays the customer."""
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
    """Generate both worlds and their tasks, check them, and write them to `folder` atomically. Returns the card's facts.

    Raises: ValueError if a task is not sound.
    """
    made = {domain: make(domain, seed) for domain in GENERATORS}
    facts: dict[str, Any] = {"seed": seed}
    for domain, (data, tasks) in made.items():
        if found := problems(World(domain, data), tasks):
            raise ValueError(f"the tasks of {domain} have {len(found)} faults; fix the generator. The first: {found[0]}")
        facts |= describe(domain, data, tasks)

    def fill(new: Path) -> None:
        for domain, (data, tasks) in made.items():
            save_world(new / f"{domain}.json", data)
            save_tasks(new / f"{domain}_tasks.jsonl.gz", tasks)
        write_text(new / "README.md", CARD.format(**facts))

    write_item(folder, fill)
    return facts


def describe(domain: str, data: dict, tasks: list[Task]) -> dict:
    """Return the domain's numbers for the card."""
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

A fictional shop and a fictional airline, and tasks of their customers. All records are generated. Their format is that of
tau-bench's data, so each side's tools work with the other side's data; no data of tau-bench is included.

Made by `python -m data customer_service` (maker/maker.py; maker/worlds.py generates the records, from the words in
maker/words.py) with seed {seed}.

| | retail | airline |
| --- | --- | --- |
| records | {retail} | {airline} |
| tasks | {retail_tasks} | {airline_tasks} |
| kinds of tasks | {retail_kinds} | {airline_kinds} |
| tasks in which declining is correct | {retail_nothing} | {airline_nothing} |

- `retail.json`, `airline.json`: tables of records by id; `customer_service.course_world("retail")` loads them.
- `retail_tasks.jsonl.gz`, `airline_tasks.jsonl.gz`: one task per line, with the customer's script, the tool calls that solve it and the
  texts that the agent's messages must contain; `course_tasks("retail", "train")` loads them.

The splits train, val and test share no customer. maker/check.py checks the finished files, independently of the generator: each
task's calls succeed, follow the policy and are all needed; required answers can be looked up; the customer's statements determine
the solution; where nothing is due, a rule forbids the wish. tests/environments/customer_service/test_service_tasks.py checks
that a rule-based agent, which reads only the conversation, solves every task of the test split.

SHA256SUMS lists the files' hashes. Licence: Apache-2.0, like the project.
"""  # noqa: E501 - a table's row is one line
