"""The airline's desk: what it shows, says and does, against the airline's tools called by hand; no rule is kept for the agent."""

from collections import Counter
from dataclasses import replace

import pytest

from art_nb.tasks.customer_service import STOP, course_tasks, course_world
from art_nb.tasks.customer_service.airline_clerk import AirlineClerk
from art_nb.tasks.customer_service.airline_desk import AirlineDesk, AirlineDeskEnvironment
from art_nb.tasks.customer_service.policy import bags_to_pay

TASKS = {task.id: task for task in course_tasks("airline", "train")}
BAGS = next(task for task in TASKS.values() if task.wants["kind"] == "bags" and "user id" in task.wants["opening"])
LOOKED_UP = [("find_customer", {}), ("find_reservation", {})]


def a_desk(kind, *calls, accept=lambda task: True):
    """A desk at which a customer of this kind has been heard and these calls were made."""
    tasks = [task for task in TASKS.values() if task.wants["kind"] == kind and "user id" in task.wants["opening"]]
    task = next(filter(accept, tasks))
    desk = AirlineDesk(course_world("airline"), task)
    for call in calls:
        assert not desk.call(*call).startswith(("Refused", "Malformed"))
    return desk


def test_a_conversation_by_hand():
    desk = AirlineDesk(course_world("airline"), BAGS)
    user = desk.talk.world.records("users")[BAGS.user_id]
    (due,) = BAGS.actions
    reservation = desk.talk.world.records("reservations")[due.arguments["reservation_id"]]
    paid = due.arguments["nonfree_baggages"] - reservation["nonfree_baggages"]
    assert f"{user['membership']} member" in desk.call("find_customer", {})
    seen = desk.call("find_reservation", {})
    assert seen.startswith(f"Their {reservation['cabin'].replace('_', ' ')} reservation: ahead, ")
    assert desk.call("ask", {"about": "payment"}) == "Use my credit card."
    bags = {"paid": str(paid), "payment": "credit card"}
    assert desk.call("add_bags", bags) == "Written down." and not desk.talk.world.differences()
    assert desk.call("confirm", {}).startswith("Yes") and desk.call("carry_out", {}) == f"Thank you. {STOP}"
    assert desk.reward() == 1 and desk.ended_by == "customer" and desk.talk.world.digest() == BAGS.digest
    assert sum(desk.turn_rewards) == desk.talk.progress() == 1 and sum(desk.breaches) == desk.metrics()["violations"] == 0
    said = [message["content"] for message in desk.talk.log if message["role"] == "assistant" and message["content"]]
    assert reservation["reservation_id"] in said[1] and f" for {50 * paid} dollars" in said[1]


def test_haste_breaks_rules_that_no_tool_enforces():
    tasks = course_tasks("airline", "train", 120) + course_tasks("airline", "val")
    desks = [AirlineClerk(hurried=True)(AirlineDesk(course_world("airline"), task)) for task in tasks]
    assert 0.7 < sum(desk.reward() for desk in desks) / len(desks) < 0.95
    assert all(desk.talk.watch.broken["unconfirmed"] for desk in desks)
    forbidden = Counter(
        task.wants["kind"] for task, desk in zip(tasks, desks, strict=True) if desk.talk.watch.broken["against_policy"]
    )
    assert set(forbidden) == {"bags", "other_day_in_basic_economy", "cancel_against_the_rules", "complain"}
    for desk in desks:
        assert sum(desk.breaches) == desk.metrics()["violations"]
        assert len(desk.breaches) == desk.calls == len(desk.turn_rewards)
        assert sum(desk.turn_rewards) == pytest.approx(desk.talk.progress())


def test_what_is_shown_of_free_bags_is_what_the_policy_lets_go_unpaid():
    """So many more bags and no other raise what the policy wants paid by nothing."""
    desk = AirlineDesk(course_world("airline"), BAGS)
    for user_id, user in course_world("airline").records("users").items():
        desk.user = user | {"user_id": user_id}
        for key in user["reservations"]:
            desk.reservation = desk.talk.world.records("reservations")[key]
            cabin, people = desk.reservation["cabin"], len(desk.reservation["passengers"])
            bags, paid = desk.reservation["total_baggages"], desk.reservation["nonfree_baggages"]
            due = [bags_to_pay(user, cabin, people, bags + more) for more in (desk.free_bags, desk.free_bags + 1)]
            assert due == [paid, paid + 1]


def test_nothing_that_the_desk_says_depends_on_the_solution():
    calls = [*LOOKED_UP, ("cancel", {"reason": "health"}), ("confirm", {}), ("carry_out", {})]
    desk, world = a_desk("cancel"), course_world("airline")
    elsewhere = AirlineDesk(world, replace(desk.talk.task, actions=(), digest=world.digest()))
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
def test_what_the_policy_forbids_the_desk_does_and_counts(kind, call):
    desk = a_desk(kind, *LOOKED_UP, *([("find_flight", {})] if kind.startswith("other") else []), call)
    desk.call("carry_out", {})
    assert desk.talk.world.differences() and desk.talk.watch.broken["against_policy"] == 1
    assert desk.breaches[-1] == desk.talk.watch.broken["unconfirmed"] + 1 == 2 and desk.turn_rewards[-1] < 0


def test_what_makes_no_sense_yet_is_refused_in_words():
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
    for name, (arguments, why) in refusals.items():
        assert desk.call(name, arguments) == f"Refused: {why}."
    desk = a_desk("cancel", *LOOKED_UP)
    refusals = {
        "move": (pay, "no flight was looked up"),
        "book": ({"cabin": "economy"} | pay, "no flight was looked up"),
        "add_bags": ({"paid": "1"} | pay, "the customer has not said how many bags"),
        "compensate": ({"dollars": "-1"}, '"-1" is no number'),
        "cancel": ({"reason": "love"}, 'there is no reason "love"'),
        "correct_name": ({}, "the customer has not said which name must be another"),
    }
    for name, (arguments, why) in refusals.items():
        assert desk.call(name, arguments) == f"Refused: {why}."
    desk = a_desk("bags", *LOOKED_UP)
    assert desk.call("add_bags", {"paid": "1", "payment": "PayPal"}) == 'Refused: they have no "PayPal".'
    assert desk.call("add_bags", {"paid": "all"} | pay) == 'Refused: "all" is no number.'
    assert desk.call("add_bags", {"paid": "9"} | pay).startswith("Refused: the customer wants ")
    desk = a_desk("book", ("find_customer", {}), ("find_flight", {}))
    assert desk.call("book", {"cabin": "first"} | pay) == 'Refused: there is no cabin "first".'
    assert not desk.talk.world.differences()


def test_a_certificate_does_not_pay_for_a_change():
    """The airline's own tool says so, and the form is empty again."""

    def has_one(task):
        methods = course_world("airline").records("users")[task.user_id]["payment_methods"].values()
        return "certificate" in [method["source"] for method in methods]

    desk = a_desk("bags", *LOOKED_UP, ("add_bags", {"paid": "1", "payment": "certificate"}), accept=has_one)
    assert desk.call("carry_out", {}) == "Refused: certificate cannot be used to update reservation."
    assert desk.call("carry_out", {}) == "Refused: the form is empty." and not desk.talk.world.differences()


def test_another_customers_reservation_and_one_that_is_not_there():
    theirs = next(r for r in course_world("airline").records("reservations").values() if r["user_id"] != BAGS.user_id)
    for key, answer in ((theirs["reservation_id"], "Another's "), ("A00000", "Refused: user not found.")):
        desk = AirlineDesk(course_world("airline"), BAGS)
        desk.heard.append(f"It is reservation {key}.")
        assert desk.call("find_reservation", {}).startswith(answer.replace("Another", "Somebody"))
        desk.call("find_customer", {})
        assert desk.call("find_reservation", {}).startswith(answer)


def test_a_malformed_call_ends_it():
    for call in ((None, None), ("cancel_reservation", "{}"), ("move", "{}"), ("add_bags", '{"paid": 1}'), ("ask", "{")):
        desk = a_desk("cancel")
        assert desk.call(*call).startswith("Malformed: ") and desk.ended_by == "malformed"


def test_the_environment_serves_as_the_desk_does():
    environment = AirlineDeskEnvironment()
    desk = a_desk("cancel")
    assert environment.reset(task=desk.talk.task.id, prompt="ignored") == desk.talk.opening
    for name, arguments in [*LOOKED_UP, ("cancel", {"reason": "weather"}), ("confirm", {}), ("carry_out", {})]:
        said = getattr(environment, name)(**arguments)
    assert STOP in said and environment.get_reward() == 1
