"""The front desk: what it says and does, against the shop's tools called by hand; nothing gives the solution away."""

from dataclasses import replace

import pytest

from art_nb.tasks.customer_service import STOP, course_tasks, course_world
from art_nb.tasks.customer_service.clerks import Clerk
from art_nb.tasks.customer_service.front_desk import FrontDesk, FrontDeskEnvironment

TASKS = {task.id: task for task in course_tasks("retail", "train")}
RETURN = TASKS["train-1"]  # of a Wallet, money to the gift card; first a wrong order number
CALLS = [
    ("find_customer", {}), ("find_order", {}), ("decline", {}), ("find_order", {}), ("ask", {"about": "payment"}),
    ("return_item", {"item": "Wallet", "payment": "gift card"}), ("confirm", {}), ("carry_out", {}),
]  # fmt: skip


@pytest.fixture
def desk():
    return FrontDesk(course_world("retail"), RETURN)


def test_a_conversation_by_hand(desk):
    assert desk.talk.opening == "I am Bea Crane, zip 02148. I want to return the Wallet of order #W7197."
    assert [desk.call(*call) for call in CALLS] == [
        "They can pay by PayPal, credit card, gift card.", "Refused: order not found.", "I am sorry, it is order #W22504.",
        "Their delivered order: Wallet leather, Watch blue.", "To my gift card.", "Written down.", "Yes, please.",
        f"Thank you. {STOP}",
    ]  # fmt: skip
    assert desk.reward() == 1 and desk.ended_by == "customer" and desk.talk.world.digest() == RETURN.digest
    assert sum(desk.turn_rewards) == desk.talk.progress() == 1 and sum(desk.breaches) == desk.metrics()["violations"] == 0
    said = [message["content"] for message in desk.talk.log if message["role"] == "assistant" and message["content"]]
    assert said[2] == (
        "I will take back the Wallet of order #W22504, with the refund to gift_card_6168617. Do you confirm? (yes/no)"
    )


def test_haste_breaks_rules_that_no_tool_enforces():
    desks = [Clerk(hurried=True)(FrontDesk(course_world("retail"), task)) for task in course_tasks("retail", "val")]
    broken = {rule: sum(desk.talk.watch.broken[rule] for desk in desks) for rule in ("unconfirmed", "other_customer")}
    assert min(broken.values()) > 3 and 0.7 < sum(desk.reward() for desk in desks) / len(desks) < 0.95
    for desk in desks:
        assert sum(desk.breaches) == desk.metrics()["violations"] and len(desk.breaches) == desk.calls == len(desk.turn_rewards)
        assert sum(desk.turn_rewards) == pytest.approx(desk.talk.progress())


def test_nothing_that_the_desk_says_depends_on_the_solution():
    """The same customer with other right calls is answered the same, and paid differently."""
    elsewhere = replace(RETURN, actions=(), digest=course_world("retail").digest())
    one, other = (FrontDesk(course_world("retail"), task) for task in (RETURN, elsewhere))
    assert [one.call(*call) for call in CALLS] == [other.call(*call) for call in CALLS]
    assert (one.reward(), other.reward()) == (1, 0)


def test_what_makes_no_sense_yet_is_refused_in_words():
    desk = FrontDesk(course_world("retail"), RETURN, max_turns=16)
    refusals = {
        ("carry_out", ""): "the form is empty",
        ("confirm", "{}"): "the form is empty",
        ("return_item", '{"item": "Wallet", "payment": "gift card"}'): "no order was looked up",
        ("change_payment", '{"payment": "gift card"}'): "it is not known who the customer is",
        ("ask", '{"about": "love"}'): 'there is no question about "love"',
    }
    for call, why in refusals.items():
        assert desk.call(*call) == f"Refused: {why}."
    for call in CALLS[:4]:
        desk.call(*call)
    refusals = {
        ("tell_price", '{"item": "Hat"}'): 'there is no "Hat" in the order',
        ("return_item", '{"item": "Wallet", "payment": "gold"}'): 'they have no "gold"',
        ("exchange_item", '{"item": "Watch", "variant": "red", "payment": "PayPal"}'): "the variants of the Watch were not looked up",
    }
    for call, why in refusals.items():
        assert desk.call(*call) == f"Refused: {why}."
    assert desk.call("find_variants", {"item": "Watch"}).startswith("Watch: ")
    again = desk.call("exchange_item", {"item": "Watch", "variant": "round", "payment": "PayPal"})
    assert again == 'Refused: there is no "round" Watch.'
    assert desk.call("cancel", {"reason": "no longer needed"}) == "Written down."
    assert desk.call("carry_out", {}) == "Refused: non-pending order cannot be cancelled."  # the shop's tool says so
    assert desk.ended_by == "turns" and desk.call("find_order", {}) == "The conversation is over."
    assert not desk.talk.world.differences() and desk.metrics()["out_of_turns"] == 1


def test_a_malformed_call_ends_it(desk):
    assert desk.call("find_order", '{"number": 1}').startswith('Malformed: find_order has no argument "number"')
    assert desk.ended_by == "malformed" and desk.metrics()["malformed"] == 1 and desk.breaches == [0]
    for call in ((None, None), ("get_order_details", '{"order_id": "#W22504"}'), ("ask", '{"about": 3}'), ("ask", "{")):
        other = FrontDesk(course_world("retail"), RETURN)
        assert other.call(*call).startswith("Malformed: ") and other.over


def test_the_environment_serves_as_the_desk_does():
    environment = FrontDeskEnvironment()
    assert environment.reset(task="train-1", prompt="ignored").startswith("I am Bea Crane")
    for name, arguments in CALLS:
        said = getattr(environment, name)(**arguments)
    assert STOP in said and environment.get_reward() == 1
