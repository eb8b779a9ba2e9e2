"""Checks that every task of a finished world is sound. Independent of the code that generates them.

What the customer wants is read from the text of the script, not from the task's kind.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from customer_service.policy import READ_ONLY_TOOLS, compensation, may_cancel
from customer_service.policy_monitor import PolicyMonitor
from customer_service.tasks import Task
from customer_service.world import World, is_error

ASKED_BY = {  # for each call, a word of the wish that asks for it
    "return_delivered_order_items": "return", "exchange_delivered_order_items": "exchange", "cancel_pending_order": "cancel",
    "modify_pending_order_items": "change", "modify_pending_order_payment": "pay", "cancel_reservation": "cancel",
    "update_reservation_flights": "move", "book_reservation": "fly", "send_certificate": "compensation",
}  # fmt: skip


def problems(world: World, tasks: Sequence[Task]) -> list[str]:
    """Return the faults of the tasks and the splits; empty if all are sound."""
    found = [f"{task.id}: {problem}" for task in tasks for problem in problems_of(world, task)]
    splits: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        splits[task.user_id].add(task.split)
    found += [f"{user} is in the splits {sorted(of_user)}" for user, of_user in splits.items() if len(of_user) > 1]
    return found + [f"{count} tasks have the id {key}" for key, count in Counter(t.id for t in tasks).items() if count > 1]


def problems_of(world: World, task: Task) -> Iterator[str]:
    """Yield the faults of one task."""
    yield from _identity_problems(world, task)
    faults = list(_action_problems(world, task))
    yield from faults
    for output in task.outputs:
        orders = [world.call("get_order_details", {"order_id": key}) for key in re.findall(r"#W\d+", task.wants["wish"])]
        if not any(output in order for order in orders):
            yield f"{output} is in none of the orders that the customer names"
    wish = _final_wish(task)
    if not task.actions and not task.outputs and not _forbidden(world, task, wish):
        yield f"nothing is due, but no rule forbids {wish!r}"
    if task.actions and not faults and not _determined(world, task, wish):
        yield f"{wish!r} does not determine {task.actions}"


def _identity_problems(world: World, task: Task) -> Iterator[str]:
    facts, user = task.wants["facts"], world.records("users")[task.user_id]
    if world.domain == "airline":
        if task.user_id not in facts["user"]:
            yield "the customer does not know their user id"
        return
    identity = facts["zip"]
    if not all(part in identity for part in (*user["name"].values(), user["address"]["zip"])):
        yield f"{identity!r} does not identify {task.user_id}"
    if "@" in facts["email"] and user["email"] not in facts["email"]:
        yield f"{facts['email']!r} is not the email of {task.user_id}"


def _action_problems(world: World, task: Task) -> Iterator[str]:
    """Yield the faults of the actions: they fail, violate the policy, are not needed, or the digest is wrong."""
    now, monitor = world.fork(), PolicyMonitor(world.domain)
    monitor.user_id, monitor.customer_text = task.user_id, " ".join(task.wants["facts"].values())
    for name, arguments in task.actions:
        before = now.fork()
        if is_error(answer := now.call(name, arguments)):
            yield f"{name} fails: {answer}"
            return
        monitor.confirmed, monitor.proposal = True, str(arguments)
        monitor.observe_call(name, arguments, before, now, answer)
    if violations := {rule: count for rule, count in monitor.violations.items() if count}:
        yield f"its actions violate the policy: {violations}"
    if task.digest != now.digest():
        yield "its digest is not that of the database after its actions"
    for left_out in range(len(task.actions)):
        other = world.fork()
        for number, action in enumerate(task.actions):
            if number != left_out:
                other.call(*action)
        if other.changes() == now.changes() and task.actions[left_out].name not in READ_ONLY_TOOLS:
            yield f"{task.actions[left_out].name} is not needed"


def _final_wish(task: Task) -> str:
    """Return the customer's wish after any change of mind."""
    last = task.wants.get("second") or task.wants.get("change") or task.wants
    return last["wish"]


def _forbidden(world: World, task: Task, wish: str) -> bool:
    """Return whether a rule or a tool forbids the wish."""
    if key := re.search(r"cancel order (#W\d+)", wish):
        order = world.records("orders").get(key[1])
        return order is not None and (order["user_id"] != task.user_id or order["status"] != "pending")
    if world.domain == "retail" or not (key := re.search(r"\b[A-G]\d{5}\b", wish)):
        return False
    if not (reservation := world.records("reservations").get(key[0])):
        return False
    if "cancel reservation" in wish:
        return not may_cancel(reservation, world.records("flights"), task.wants["facts"]["reason"])
    if "compensation" in wish:
        return not compensation(world.records("users")[task.user_id], reservation, world.records("flights"))
    return "move reservation" in wish and reservation["cabin"] == "basic_economy"


def _determined(world: World, task: Task, wish: str) -> bool:
    """Return whether the wish and the facts determine the last call uniquely."""
    name, arguments = task.actions[-1]
    text = f"{wish} {' '.join(task.wants['facts'].values())}"
    record = str(arguments.get("order_id") or arguments.get("reservation_id") or "")
    if record not in wish:
        return False
    if "item_ids" in arguments:
        order = world.records("orders")[record]
        (item,) = [item for item in order["items"] if item["item_id"] in arguments["item_ids"]]
        if item["name"] not in wish or sum(other["name"] == item["name"] for other in order["items"]) > 1:
            return False
        variants = world.records("products")[item["product_id"]]["variants"]
        new = [variants[key] for key in arguments.get("new_item_ids", ())]
        matching = [v for v in variants.values() for n in new if v["options"] == n["options"]]
        if len(matching) != len(new) or not all(value in wish for n in new for value in n["options"].values()):
            return False
    stated = [ASKED_BY.get(name, ""), *(leg["date"] for leg in arguments.get("flights", ()))]
    if name == "book_reservation":
        stated += [arguments["origin"], arguments["destination"], f"in {arguments['cabin'].replace('_', ' ')}"]
    elif name == "update_reservation_baggages":
        stated.append(f"add {arguments['total_baggages'] - world.records('reservations')[record]['total_baggages']} bag")
    elif name == "update_reservation_passengers":
        old = world.records("reservations")[record]["passengers"]
        stated += [f"{p['first_name']} {p['last_name']}" for p in arguments["passengers"] if p not in old]
    if not all(re.search(rf"\b{re.escape(part)}", wish) for part in stated):
        return False
    if "reason" in arguments:
        return str(arguments["reason"]) in text
    booking = (payment["payment_id"] for payment in arguments.get("payment_methods", ()))
    if key := arguments.get("payment_method_id") or arguments.get("payment_id") or next(booking, None):
        methods = world.records("users")[task.user_id]["payment_methods"]
        source = methods[key]["source"]
        return source.replace("_", " ").lower() in text.lower() and sum(m["source"] == source for m in methods.values()) == 1
    return True
