"""What a call at the front desk earns: to serve rightly earns most, to do nothing costs, and nothing is earned twice."""

import random

import pytest

from art_nb.tasks.customer_service import course_tasks, course_world
from art_nb.tasks.customer_service.clerks import Clerk
from art_nb.tasks.customer_service.front_desk import FrontDesk
from art_nb.tasks.customer_service.milestones import HARM, IDLE, SOLVED, STEP
from data.nano_service.demonstrations import MediocreClerk

TASKS = {split: course_tasks("retail", split) for split in ("train", "val")}
RETURN = next(task for task in TASKS["train"] if task.id == "train-1")  # of a Wallet; first a wrong order number
FRIEND = next(task for task in TASKS["train"] if task.wants["kind"] == "for_a_friend" and "zip" in task.wants["opening"])


def desk(task):
    return FrontDesk(course_world("retail"), task)


def mediocre(task, seed=0):
    served = desk(task)
    clerk = MediocreClerk(random.Random(f"{seed} {task.id}"), served)
    while not served.over:
        name, arguments, _ = clerk.next_call()
        clerk.make(name, arguments)
    return served


def repeated(task, *call):
    served = desk(task)
    while not served.over:
        served.call(*call)
    return served


def earned(*calls, task=RETURN):
    served = desk(task)
    for call in calls:
        served.call(*call)
    return served.gains


CUSTOMER, ORDER, DECLINE, CONFIRM, CARRY_OUT = (
    (name, {}) for name in ("find_customer", "find_order", "decline", "confirm", "carry_out")
)
ASK = ("ask", {"about": "payment"})
FORM, OTHER = (("return_item", {"item": "Wallet", "payment": way}) for way in ("gift card", "PayPal"))
FOUND = (CUSTOMER, ORDER, DECLINE, ORDER)


def test_every_call_of_a_careful_clerk_reaches_a_milestone():
    for task in TASKS["val"]:
        gains = Clerk()(desk(task)).gains
        assert gains == [*[STEP] * (len(gains) - 1), gains[-1]] and gains[-1] >= SOLVED


def test_nobody_earns_more_than_the_careful_clerk():
    for task in TASKS["val"]:
        most = sum(Clerk()(desk(task)).gains)
        others = [mediocre(task, seed) for seed in range(5)] + [Clerk(hurried=True)(desk(task))]
        assert all(sum(other.gains) <= most + 1e-9 for other in others)
        assert all(len(other.gains) == other.calls for other in others)


@pytest.mark.parametrize("call", [DECLINE, ORDER, ASK])
def test_idleness_earns_less_than_mediocre_service_though_it_solves_as_often_as_nothing_is_due(call):
    idle, others = [repeated(task, *call) for task in TASKS["val"]], [mediocre(task) for task in TASKS["val"]]
    assert sum(talk.reward() for talk in idle) == sum(not task.actions and not task.outputs for task in TASKS["val"]) > 0
    assert sum(sum(talk.gains) for talk in idle) < sum(sum(talk.gains) for talk in others)
    assert all(sum(talk.gains) < 0 for talk in idle)


def test_haste_is_dearer_than_it_is_worth():
    totals = {haste: sum(sum(Clerk(haste)(desk(task)).gains) for task in TASKS["val"]) for haste in (False, True)}
    assert totals[True] < 0.25 * totals[False]


def test_what_each_call_earns():
    assert earned(*FOUND, ASK, FORM, CONFIRM, CARRY_OUT) == [*[STEP] * 7, SOLVED]
    assert earned(CUSTOMER, CUSTOMER) == [STEP, IDLE]
    assert earned(ORDER, DECLINE, ORDER) == [STEP, STEP, HARM]  # an order, before it is known who asks
    assert earned(*FOUND, ASK, ASK)[4:] == [STEP, IDLE]  # what is known already
    assert earned(*FOUND, OTHER, FORM, OTHER, FORM)[4:] == [IDLE, STEP, IDLE, IDLE]  # a form pays once
    assert earned(*FOUND, OTHER, CONFIRM)[5:] == [IDLE]  # the customer's yes to the wrong refund
    assert earned(*FOUND, OTHER, CONFIRM, CARRY_OUT)[6:] == [IDLE]  # the shop's tool refuses it
    watch = ("return_item", {"item": "Watch", "payment": "gift card"})
    assert earned(*FOUND, watch, CARRY_OUT)[5:] == [2 * HARM]  # unasked, and not what is due
    assert earned(*FOUND, FORM, CARRY_OUT)[5:] == [HARM]  # unasked
    assert earned(*FOUND, DECLINE)[4:] == [IDLE + HARM]  # the customer leaves, and something was due
    assert earned((None, None)) == [IDLE + HARM]


def test_where_nothing_is_due_a_refusal_is_paid_once_it_is_seen_why():
    gains = earned(CUSTOMER, ORDER, *[DECLINE] * 3, task=FRIEND)
    assert gains == [STEP] * 4 + [SOLVED]
    assert earned(*[DECLINE] * 3, task=FRIEND) == [IDLE, IDLE, IDLE + HARM]
    form = ("cancel", {"reason": "no longer needed"})
    assert earned(CUSTOMER, ORDER, form, CONFIRM, CARRY_OUT, task=FRIEND)[2:] == pytest.approx([IDLE, IDLE, 3 * HARM])  # a rule, a record, and the customer leaves
