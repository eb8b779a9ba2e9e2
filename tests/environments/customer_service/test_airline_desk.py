"""The airline's desk: its answers and effects, and that it enforces no rule of the policy."""

from collections import Counter
from dataclasses import replace

import pytest

from customer_service import STOP, course_tasks, course_world
from customer_service.airline_clerk import AirlineClerk
from customer_service.airline_desk import AirlineDesk, AirlineDeskEnvironment
from customer_service.policy import bags_to_pay

TASKS = {task.id: task for task in course_tasks("airline", "train")}
BAGS = next(task for task in TASKS.values() if task.wants["kind"] == "bags" and "user id" in task.wants["opening"])
LOOKED_UP = [("find_customer", {}), ("find_reservation", {})]


def a_desk(kind, *calls, accept=lambda task: True):
    """Return a desk with a task of this kind, after these calls."""
    tasks = [task for task in TASKS.values() if task.wants["kind"] == kind and "user id" in task.wants["opening"]]
    task = next(filter(accept, tasks))
    desk = AirlineDesk(course_world("airline"), task)
    for call in calls:
        assert not desk.call(*call).startswith(("Refused", "Malformed"))
    return desk


def test_a_conversation_by_hand():
    desk = AirlineDesk(course_world("airline"), BAGS)
    user = desk.conversation.world.records("users")[BAGS.user_id]
    (due,) = BAGS.actions
    reservation = desk.conversation.world.records("reservations")[due.arguments["reservation_id"]]
    paid = due.arguments["nonfree_baggages"] - reservation["nonfree_baggages"]
    assert f"{user['membership']} member" in desk.call("find_customer", {})
    seen = desk.call("find_reservation", {})
    assert seen.startswith(f"Their {reservation['cabin'].replace('_', ' ')} reservation: ahead, ")
    assert desk.call("ask", {"about": "payment"}) == "Use my credit card."
    bags = {"paid": str(paid), "payment": "credit card"}
    assert desk.call("add_bags", bags) == "Written down." and not desk.conversation.world.differences()
    assert desk.call("confirm", {}).startswith("Yes") and desk.call("carry_out", {}) == f"Thank you. {STOP}"
    assert desk.reward() == 1 and desk.ended_by == "customer" and desk.conversation.world.digest() == BAGS.digest
    assert sum(desk.progress_rewards) == desk.conversation.progress() == 1 and sum(desk.violations) == desk.metrics()["violations"] == 0
    sent = [message["content"] for message in desk.conversation.log if message["role"] == "assistant" and message["content"]]
    assert reservation["reservation_id"] in sent[1] and f" for {50 * paid} dollars" in sent[1]


def test_a_hurried_clerk_violates_the_policy():
    tasks = course_tasks("airline", "train", 120) + course_tasks("airline", "val")
    desks = [AirlineClerk(hurried=True)(AirlineDesk(course_world("airline"), task)) for task in tasks]
    assert 0.7 < sum(desk.reward() for desk in desks) / len(desks) < 0.95
    assert all(desk.conversation.monitor.violations["unconfirmed"] for desk in desks)
    forbidden = Counter(
        task.wants["kind"] for task, desk in zip(tasks, desks, strict=True) if desk.conversation.monitor.violations["against_policy"]
    )
    assert set(forbidden) == {"bags", "other_day_in_basic_economy", "cancel_against_the_rules", "complain"}
    for desk in desks:
        assert sum(desk.violations) == desk.metrics()["violations"]
        assert len(desk.violations) == desk.turns == len(desk.progress_rewards)
        assert sum(desk.progress_rewards) == pytest.approx(desk.conversation.progress())


def test_the_number_of_free_bags_follows_the_policy():
    """Adding this number of bags costs nothing by the policy, and one more costs one bag."""
    desk = AirlineDesk(course_world("airline"), BAGS)
    for user_id, user in course_world("airline").records("users").items():
        desk.user = user | {"user_id": user_id}
        for key in user["reservations"]:
            desk.reservation = desk.conversation.world.records("reservations")[key]
            cabin, people = desk.reservation["cabin"], len(desk.reservation["passengers"])
            bags, paid = desk.reservation["total_baggages"], desk.reservation["nonfree_baggages"]
            due = [bags_to_pay(user, cabin, people, bags + more) for more in (desk.free_bags, desk.free_bags + 1)]
            assert due == [paid, paid + 1]


def test_answers_do_not_depend_on_the_solution():
    calls = [*LOOKED_UP, ("cancel", {"reason": "health"}), ("confirm", {}), ("carry_out", {})]
    desk, world = a_desk("cancel"), course_world("airline")
    elsewhere = AirlineDesk(world, replace(desk.conversation.task, actions=(), digest=world.digest()))
    assert [desk.call(*call) for call in calls] == [elsewhere.call(*call) for call in calls]
    assert (desk.reward(), elsewhere.reward()) == (1, 0)


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("other_day_in_basic_economy", ("move", {"payment": "credit card"})),
        ("cancel_against_the_rules", ("cancel", {"reason": "health"})),
        ("bags", ("add_bags", {"paid": "0", "payment": "credit card"})),
        ("complain", ("compensate", {"dollars": "900"})),
    ],
)
def test_forbidden_changes_are_made_and_counted(kind, call):
    desk = a_desk(kind, *LOOKED_UP, *([("find_flight", {})] if kind.startswith("other") else []), call)
    desk.call("carry_out", {})
    assert desk.conversation.world.differences() and desk.conversation.monitor.violations["against_policy"] == 1
    assert desk.violations[-1] == desk.conversation.monitor.violations["unconfirmed"] + 1 == 2 and desk.progress_rewards[-1] < 0


def test_impossible_calls_are_refused_with_a_reason():
    pay = {"payment": "credit card"}
    desk = a_desk("cancel")
    refusals = {
        "carry_out": ({}, "the form is empty"),
        "confirm": ({}, "the form is empty"),
        "cancel": ({"reason": "weather"}, "no reservation was looked up"),
        "correct_name": ({}, "no reservation was looked up"),
        "compensate": ({"dollars": "100"}, "no reservation was looked up"),
        "move": (pay, "no reservation was looked up"),
        "book": ({"cabin": "economy"} | pay, "it is not known who the customer is"),
        "find_flight": ({}, "the customer has not named a day"),
        "ask": ({"about": "order"}, 'there is no question about "order"'),
    }
    for name, (arguments, reason) in refusals.items():
        assert desk.call(name, arguments) == f"Refused: {reason}."
    desk = a_desk("cancel", *LOOKED_UP)
    refusals = {
        "move": (pay, "no flight was looked up"),
        "book": ({"cabin": "economy"} | pay, "no flight was looked up"),
        "add_bags": ({"paid": "1"} | pay, "the customer has not said how many bags"),
        "compensate": ({"dollars": "-1"}, '"-1" is no number'),
        "cancel": ({"reason": "love"}, 'there is no reason "love"'),
        "correct_name": ({}, "the customer has not said which name must be another"),
    }
    for name, (arguments, reason) in refusals.items():
        assert desk.call(name, arguments) == f"Refused: {reason}."
    desk = a_desk("bags", *LOOKED_UP)
    assert desk.call("add_bags", {"paid": "1", "payment": "PayPal"}) == 'Refused: they have no "PayPal".'
    assert desk.call("add_bags", {"paid": "all"} | pay) == 'Refused: "all" is no number.'
    assert desk.call("add_bags", {"paid": "9"} | pay).startswith("Refused: the customer wants ")
    desk = a_desk("book", ("find_customer", {}), ("find_flight", {}))
    assert desk.call("book", {"cabin": "first"} | pay) == 'Refused: there is no cabin "first".'
    assert not desk.conversation.world.differences()


def test_a_certificate_cannot_pay_for_a_change():
    """The underlying tool rejects it, and the form is empty again."""

    def has_one(task):
        methods = course_world("airline").records("users")[task.user_id]["payment_methods"].values()
        return "certificate" in [method["source"] for method in methods]

    desk = a_desk("bags", *LOOKED_UP, ("add_bags", {"paid": "1", "payment": "certificate"}), accept=has_one)
    assert desk.call("carry_out", {}) == "Refused: certificate cannot be used to update reservation."
    assert desk.call("carry_out", {}) == "Refused: the form is empty." and not desk.conversation.world.differences()


def test_another_customers_reservation_and_an_unknown_one():
    theirs = next(r for r in course_world("airline").records("reservations").values() if r["user_id"] != BAGS.user_id)
    for key, answer in ((theirs["reservation_id"], "Another's "), ("A00000", "Refused: user not found.")):
        desk = AirlineDesk(course_world("airline"), BAGS)
        desk.customer_messages.append(f"It is reservation {key}.")
        assert desk.call("find_reservation", {}).startswith(answer.replace("Another", "Somebody"))
        desk.call("find_customer", {})
        assert desk.call("find_reservation", {}).startswith(answer)


def test_a_malformed_call_ends_the_episode():
    for call in ((None, None), ("cancel_reservation", "{}"), ("move", "{}"), ("add_bags", '{"paid": 1}'), ("ask", "{")):
        desk = a_desk("cancel")
        assert desk.call(*call).startswith("Malformed: ") and desk.ended_by == "malformed"


def test_the_environment_behaves_like_the_desk():
    environment = AirlineDeskEnvironment()
    desk = a_desk("cancel")
    assert environment.reset(task=desk.conversation.task.id, prompt="ignored") == desk.conversation.opening
    for name, arguments in [*LOOKED_UP, ("cancel", {"reason": "weather"}), ("confirm", {}), ("carry_out", {})]:
        answer = getattr(environment, name)(**arguments)
    assert STOP in answer and environment.get_reward() == 1
