"""Finds from the finished worlds and tasks alone that every task is sound. It knows nothing of how they are made.

What the customer wants is read from the words of the script, not from how a task calls itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from art_nb.tasks.customer_service.policy import READS, Watch, compensation, may_cancel, refused
from art_nb.tasks.customer_service.tasks import Task
from art_nb.tasks.customer_service.world import World


def problems(world: World, tasks: Sequence[Task]) -> list[str]:
    """What is wrong with each task, and with the splits; empty when all is sound."""
    found = [f"{task.id}: {problem}" for task in tasks for problem in problems_of(world, task)]
    splits: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        splits[task.user_id].add(task.split)
    found += [f"{user} is in the splits {sorted(in_)}" for user, in_ in splits.items() if len(in_) > 1]
    return found + [f"two tasks are {key}" for key in {t.id for t in tasks} if sum(t.id == key for t in tasks) > 1]


def problems_of(world: World, task: Task) -> Iterator[str]:
    """What is wrong with one task."""
    yield from _identity(world, task)
    yield from _actions(world, task)
    for output in task.outputs:
        orders = [world.call("get_order_details", {"order_id": key}) for key in re.findall(r"#W\d+", task.wants["wish"])]
        if not any(output in order for order in orders):
            yield f"{output} is in no order that the customer speaks of"
    wish = _last_wish(task)
    if not task.actions and not task.outputs and not _forbidden(world, task, wish):
        yield f"nothing forbids {wish!r}"
    if task.actions and not (told := _determined(world, task, wish)):
        yield f"{wish!r} does not determine {task.actions}: {told}"


def _identity(world: World, task: Task) -> Iterator[str]:
    facts, user = task.wants["facts"], world.records("users")[task.user_id]
    if world.domain == "airline":
        if task.user_id not in facts["user"]:
            yield "the customer does not know their user id"
        return
    said = facts["zip"]
    if not all(part in said for part in (*user["name"].values(), user["address"]["zip"])):
        yield f"{said!r} is not who {task.user_id} is"
    if "@" in facts["email"] and user["email"] not in facts["email"]:
        yield f"{facts['email']!r} is not the email of {task.user_id}"


def _actions(world: World, task: Task) -> Iterator[str]:
    """All are carried out, break no rule, and each is needed."""
    now, watch = world.fork(), Watch(world.domain)
    watch.customer, watch.heard = task.user_id, " ".join(task.wants["facts"].values())
    for name, arguments in task.actions:
        before = now.fork()
        if refused(answer := now.call(name, arguments)):
            yield f"{name} is refused: {answer}"
            return
        watch.agreed, watch.proposal = True, str(arguments)
        watch.called(name, arguments, before, now, answer)
    if broken := {rule: count for rule, count in watch.broken.items() if count}:
        yield f"its actions break {broken}"
    if task.digest != now.digest():
        yield "its digest is not that of the database that its actions leave"
    for left_out in range(len(task.actions)):
        other = world.fork()
        for number, action in enumerate(task.actions):
            if number != left_out:
                other.call(*action)
        if other.changes() == now.changes() and task.actions[left_out].name not in READS:
            yield f"{task.actions[left_out].name} is not needed"


def _last_wish(task: Task) -> str:
    """What the customer wants in the end."""
    last = task.wants.get("second") or task.wants.get("change") or task.wants
    return last["wish"]


def _forbidden(world: World, task: Task, wish: str) -> bool:
    """Whether a rule or a tool forbids what the customer asks for."""
    if key := re.search(r"cancel order (#W\d+)", wish):
        order = world.records("orders")[key[1]]
        return order["user_id"] != task.user_id or order["status"] != "pending"
    if world.domain == "retail" or not (key := re.search(r"\b[A-G]\d{5}\b", wish)):
        return False
    reservation = world.records("reservations")[key[0]]
    if "cancel reservation" in wish:
        return not may_cancel(reservation, world.records("flights"), task.wants["facts"]["reason"])
    if "compensation" in wish:
        return not compensation(world.records("users")[task.user_id], reservation, world.records("flights"))
    return "move reservation" in wish and reservation["cabin"] == "basic_economy"


def _determined(world: World, task: Task, wish: str) -> bool:
    """Whether the wish and the facts say all that the last call needs, and only this call fits them."""
    name, arguments = task.actions[-1]
    said = f"{wish} {' '.join(task.wants['facts'].values())}"
    named = str(arguments.get("order_id") or arguments.get("reservation_id") or "")
    if named not in wish:
        return False
    if "item_ids" in arguments:
        order = world.records("orders")[named]
        (item,) = [item for item in order["items"] if item["item_id"] in arguments["item_ids"]]
        if item["name"] not in wish or sum(other["name"] == item["name"] for other in order["items"]) > 1:
            return False
        variants = world.records("products")[item["product_id"]]["variants"]
        new = [variants[key] for key in arguments.get("new_item_ids", ())]
        fit = [v for v in variants.values() for n in new if v["options"] == n["options"]]
        if len(fit) != len(new) or not all(value in wish for n in new for value in n["options"].values()):
            return False
    if "reason" in arguments:
        return str(arguments["reason"]) in said
    if key := arguments.get("payment_method_id") or arguments.get("payment_id"):
        methods = world.records("users")[task.user_id]["payment_methods"]
        source = methods[key]["source"]
        return source.replace("_", " ").lower() in said.lower() and sum(m["source"] == source for m in methods.values()) == 1
    return True
