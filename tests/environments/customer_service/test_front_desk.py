"""The front desk: its answers and effects, and that they do not depend on the solution."""

from dataclasses import replace

import pytest

from customer_service import STOP, course_tasks, course_world
from customer_service.clerks import Clerk
from customer_service.front_desk import FrontDesk, FrontDeskEnvironment

TASKS = {task.id: task for task in course_tasks("retail", "train")}
RETURN = TASKS["train-1"]  # a Wallet, refund to the gift card; the opening has a wrong order number
CALLS = [
    ("find_customer", {}), ("find_order", {}), ("decline", {}), ("find_order", {}), ("ask", {"about": "payment"}),
    ("return_item", {"item": "Wallet", "payment": "gift card"}), ("confirm", {}), ("carry_out", {}),
]  # fmt: skip


@pytest.fixture
def desk():
    return FrontDesk(course_world("retail"), RETURN)


def test_a_conversation_by_hand(desk):
    assert desk.conversation.opening == "I am Bea Crane, zip 02148. I want to return the Wallet of order #W7197."
    assert [desk.call(*call) for call in CALLS] == [
        "They can pay by PayPal, credit card, gift card.", "Refused: order not found.", "I am sorry, it is order #W22504.",
        "Their delivered order: Wallet leather, Watch blue.", "To my gift card.", "Written down.", "Yes, please.",
        f"Thank you. {STOP}",
    ]  # fmt: skip
    assert desk.reward() == 1 and desk.ended_by == "customer" and desk.conversation.world.digest() == RETURN.digest
    assert sum(desk.progress_rewards) == desk.conversation.progress() == 1 and sum(desk.violations) == desk.metrics()["violations"] == 0
    sent = [message["content"] for message in desk.conversation.log if message["role"] == "assistant" and message["content"]]
    assert sent[2] == (
        "I will take back the Wallet of order #W22504, with the refund to gift_card_6168617. Do you confirm? (yes/no)"
    )


def test_a_hurried_clerk_violates_the_policy():
    desks = [Clerk(hurried=True)(FrontDesk(course_world("retail"), task)) for task in course_tasks("retail", "val")]
    broken = {rule: sum(desk.conversation.monitor.violations[rule] for desk in desks) for rule in ("unconfirmed", "other_customer")}
    assert min(broken.values()) > 3 and 0.7 < sum(desk.reward() for desk in desks) / len(desks) < 0.95
    for desk in desks:
        assert sum(desk.violations) == desk.metrics()["violations"] and len(desk.violations) == desk.turns == len(desk.progress_rewards)
        assert sum(desk.progress_rewards) == pytest.approx(desk.conversation.progress())


def test_answers_do_not_depend_on_the_solution():
    """A task with the same customer but other actions gets the same answers and another reward."""
    elsewhere = replace(RETURN, actions=(), digest=course_world("retail").digest())
    one, other = (FrontDesk(course_world("retail"), task) for task in (RETURN, elsewhere))
    assert [one.call(*call) for call in CALLS] == [other.call(*call) for call in CALLS]
    assert (one.reward(), other.reward()) == (1, 0)


def test_impossible_calls_are_refused_with_a_reason():
    desk = FrontDesk(course_world("retail"), RETURN, max_turns=16)
    refusals = {
        ("carry_out", ""): "the form is empty",
        ("confirm", "{}"): "the form is empty",
        ("return_item", '{"item": "Wallet", "payment": "gift card"}'): "no order was looked up",
        ("change_payment", '{"payment": "gift card"}'): "it is not known who the customer is",
        ("ask", '{"about": "love"}'): 'there is no question about "love"',
    }
    for call, reason in refusals.items():
        assert desk.call(*call) == f"Refused: {reason}."
    for call in CALLS[:4]:
        desk.call(*call)
    refusals = {
        ("tell_price", '{"item": "Hat"}'): 'there is no "Hat" in the order',
        ("return_item", '{"item": "Wallet", "payment": "gold"}'): 'they have no "gold"',
        ("exchange_item", '{"item": "Watch", "variant": "red", "payment": "PayPal"}'): "the variants of the Watch were not looked up",
    }
    for call, reason in refusals.items():
        assert desk.call(*call) == f"Refused: {reason}."
    assert desk.call("find_variants", {"item": "Watch"}).startswith("Watch: ")
    again = desk.call("exchange_item", {"item": "Watch", "variant": "round", "payment": "PayPal"})
    assert again == 'Refused: there is no "round" Watch.'
    assert desk.call("cancel", {"reason": "no longer needed"}) == "Written down."
    assert desk.call("carry_out", {}) == "Refused: non-pending order cannot be cancelled."  # the underlying tool's error
    assert desk.ended_by == "turns" and desk.call("find_order", {}) == "The conversation is over."
    assert not desk.conversation.world.differences() and desk.metrics()["out_of_turns"] == 1


def test_a_malformed_call_ends_the_episode(desk):
    assert desk.call("find_order", '{"number": 1}').startswith('Malformed: find_order has no argument "number"')
    assert desk.ended_by == "malformed" and desk.metrics()["malformed"] == 1 and desk.violations == [0]
    for call in ((None, None), ("get_order_details", '{"order_id": "#W22504"}'), ("ask", '{"about": 3}'), ("ask", "{")):
        other = FrontDesk(course_world("retail"), RETURN)
        assert other.call(*call).startswith("Malformed: ") and other.over


def test_the_environment_behaves_like_the_desk():
    environment = FrontDeskEnvironment()
    assert environment.reset(task="train-1", prompt="ignored").startswith("I am Bea Crane")
    for name, arguments in CALLS:
        answer = getattr(environment, name)(**arguments)
    assert STOP in answer and environment.get_reward() == 1
