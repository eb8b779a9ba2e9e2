"""Milestone rewards at the front desk: correct service earns most, idleness costs, and no milestone pays twice."""

import random

import pytest

from customer_service import course_tasks, course_world
from customer_service.clerks import Clerk
from customer_service.front_desk import FrontDesk
from customer_service.milestones import HARM, IDLE, SOLVED, STEP
from data.nano_service.demonstrations import MediocreClerk

TASKS = {split: course_tasks("retail", split) for split in ("train", "val")}
RETURN = next(task for task in TASKS["train"] if task.id == "train-1")  # a Wallet; the opening has a wrong order number
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
    return served.turn_rewards


CUSTOMER, ORDER, DECLINE, CONFIRM, CARRY_OUT = (
    (name, {}) for name in ("find_customer", "find_order", "decline", "confirm", "carry_out")
)
ASK = ("ask", {"about": "payment"})
FORM, WRONG_FORM = (("return_item", {"item": "Wallet", "payment": method}) for method in ("gift card", "PayPal"))
FOUND = (CUSTOMER, ORDER, DECLINE, ORDER)


def test_every_call_of_a_careful_clerk_reaches_a_milestone():
    for task in TASKS["val"]:
        rewards = Clerk()(desk(task)).turn_rewards
        assert rewards == [*[STEP] * (len(rewards) - 1), rewards[-1]] and rewards[-1] >= SOLVED


def test_nobody_earns_more_than_the_careful_clerk():
    for task in TASKS["val"]:
        most = sum(Clerk()(desk(task)).turn_rewards)
        others = [mediocre(task, seed) for seed in range(5)] + [Clerk(hurried=True)(desk(task))]
        assert all(sum(other.turn_rewards) <= most + 1e-9 for other in others)
        assert all(len(other.turn_rewards) == other.turns for other in others)


@pytest.mark.parametrize("call", [DECLINE, ORDER, ASK])
def test_idleness_earns_less_than_mediocre_service(call):
    idle, others = [repeated(task, *call) for task in TASKS["val"]], [mediocre(task) for task in TASKS["val"]]
    assert sum(desk.reward() for desk in idle) == sum(not task.actions and not task.outputs for task in TASKS["val"]) > 0
    assert sum(sum(desk.turn_rewards) for desk in idle) < sum(sum(desk.turn_rewards) for desk in others)
    assert all(sum(desk.turn_rewards) < 0 for desk in idle)


def test_a_hurried_clerk_earns_much_less():
    totals = {hurried: sum(sum(Clerk(hurried)(desk(task)).turn_rewards) for task in TASKS["val"]) for hurried in (False, True)}
    assert totals[True] < 0.25 * totals[False]


def test_the_reward_of_each_call():
    assert earned(*FOUND, ASK, FORM, CONFIRM, CARRY_OUT) == [*[STEP] * 7, SOLVED]
    assert earned(CUSTOMER, CUSTOMER) == [STEP, IDLE]
    assert earned(ORDER, DECLINE, ORDER) == [STEP, STEP, HARM]  # an order, before the customer is identified
    assert earned(*FOUND, ASK, ASK)[4:] == [STEP, IDLE]  # the answer is known already
    assert earned(*FOUND, WRONG_FORM, FORM, WRONG_FORM, FORM)[4:] == [IDLE, STEP, IDLE, IDLE]  # a form is rewarded once
    assert earned(*FOUND, WRONG_FORM, CONFIRM)[5:] == [IDLE]  # the customer's yes to the wrong refund
    assert earned(*FOUND, WRONG_FORM, CONFIRM, CARRY_OUT)[6:] == [IDLE]  # the underlying tool rejects it
    watch = ("return_item", {"item": "Watch", "payment": "gift card"})
    assert earned(*FOUND, watch, CARRY_OUT)[5:] == [2 * HARM]  # unconfirmed, and a wrong change
    assert earned(*FOUND, FORM, CARRY_OUT)[5:] == [HARM]  # unconfirmed
    assert earned(*FOUND, DECLINE)[4:] == [IDLE + HARM]  # the customer leaves with the task unsolved
    assert earned((None, None)) == [IDLE + HARM]


def test_where_nothing_is_due_declining_is_rewarded_after_the_look_ups():
    rewards = earned(CUSTOMER, ORDER, *[DECLINE] * 3, task=FRIEND)
    assert rewards == [STEP] * 4 + [SOLVED]
    assert earned(*[DECLINE] * 3, task=FRIEND) == [IDLE, IDLE, IDLE + HARM]
    form = ("cancel", {"reason": "no longer needed"})
    assert earned(CUSTOMER, ORDER, form, CONFIRM, CARRY_OUT, task=FRIEND)[2:] == pytest.approx([IDLE, IDLE, 3 * HARM])  # a violation, a wrong record, and an unsolved end
