"""Both desks: every task can be solved, with the underlying tools, and a form changes nothing until it is carried out."""

import inspect
import random
from collections import Counter

import pytest

from customer_service import course_tasks, course_world
from customer_service.airline_clerk import AirlineClerk
from customer_service.airline_desk import AirlineDesk, AirlineDeskEnvironment
from customer_service.clerks import Clerk
from customer_service.desk import DESK_TURNS
from customer_service.front_desk import FrontDesk, FrontDeskEnvironment

AT_BOTH_DESKS = pytest.mark.parametrize(("desk_type", "clerk_type"), [(FrontDesk, Clerk), (AirlineDesk, AirlineClerk)])


def served(desk_type, clerk, task):
    return clerk(desk_type(course_world(desk_type.domain), task))


@pytest.mark.parametrize("split", ["val", "test"])
@AT_BOTH_DESKS
def test_the_clerk_solves_every_task_without_violations(desk_type, clerk_type, split):
    tasks = course_tasks(desk_type.domain, split)
    desks = [served(desk_type, clerk_type(), task) for task in tasks]
    assert [desk.reward() for desk in desks] == [1] * len(tasks)
    assert [desk.conversation.world.digest() for desk in desks] == [task.digest for task in tasks]
    assert {desk.ended_by for desk in desks} == {"customer"} and not any(sum(desk.violations) for desk in desks)
    assert max(desk.turns for desk in desks) < DESK_TURNS


@AT_BOTH_DESKS
def test_desk_calls_replay_on_the_underlying_tools(desk_type, clerk_type):
    """The logged calls give the same answers and the same database on another copy of the world."""
    for task in course_tasks(desk_type.domain, "val"):
        for hurried in (False, True):
            desk, world = served(desk_type, clerk_type(hurried), task), course_world(desk_type.domain)
            log = desk.conversation.log
            for message, answer in zip(log, log[1:], strict=False):
                for call in message.get("tool_calls", ()):
                    assert world.call(**call["function"]) == answer["content"]
            assert world.digest() == desk.conversation.world.digest()


@AT_BOTH_DESKS
def test_only_carry_out_changes_the_database(desk_type, clerk_type):
    """Half of the calls are random, with some valid words; the others are a hurried clerk's."""
    rng, tasks = random.Random(0), course_tasks(desk_type.domain, "train")
    words = ["gift card", "no longer needed", "health", "economy", "reason", "0", "²", "", "\udcff", "x" * 99, '"}', "Mug"]
    answers, changed = Counter(), 0
    for _ in range(300):
        clerk, desk = clerk_type(hurried=True), desk_type(course_world(desk_type.domain), rng.choice(tasks))
        clerk.desk, clerk.written = desk, None
        while not desk.over:
            function = rng.choice(desk.tools)["function"]
            call = function["name"], {key: rng.choice(words) for key in function["parameters"]["properties"]}
            call = clerk.next_call() if rng.random() < 0.5 else call
            before, form, length = desk.conversation.world.differences(), desk.form, len(desk.conversation.log)
            answer = desk.call(*call)
            assert answer.isprintable() and answer not in ("", "Refused: .")
            clerk.written = call if answer == "Written down." else clerk.written
            answers[answer.split()[0]] += 1
            if desk.conversation.world.differences() != before:
                changed += 1
                calls = [made["function"] for message in desk.conversation.log[length:] for made in message.get("tool_calls", ())]
                assert call[0] == "carry_out" and [(made["name"], made["arguments"]) for made in calls] == [form[:2]]
    assert changed > 50 and answers["Refused:"] > 500 and not answers["Malformed:"]


@pytest.mark.parametrize(("desk_type", "elsewhere"), [(FrontDesk, "airline"), (AirlineDesk, "retail")])
def test_a_desk_rejects_a_world_of_another_domain(desk_type, elsewhere):
    with pytest.raises(ValueError, match=f"this desk is for {desk_type.domain}; the world is {elsewhere}"):
        desk_type(course_world(elsewhere), course_tasks(elsewhere, "train", 1)[0])


@pytest.mark.parametrize(
    ("desk_type", "environment_of"), [(FrontDesk, FrontDeskEnvironment), (AirlineDesk, AirlineDeskEnvironment)]
)
def test_trl_derives_the_same_schemas(desk_type, environment_of):
    utils = pytest.importorskip("transformers.utils")
    environment, names = environment_of(), [tool["function"]["name"] for tool in desk_type.tools]
    assert [utils.get_json_schema(getattr(environment, name)) for name in names] == desk_type.tools
    methods = inspect.getmembers(type(environment), predicate=inspect.isfunction)  # as TRL lists them
    public = {name for name, _ in methods if not name.startswith("_")} - {"reset", "get_reward"}
    assert public == set(names) and names == sorted(names)


def test_shared_tools_have_the_same_name_and_arguments_at_both_desks():
    functions = [[tool["function"] for tool in desk.tools] for desk in (FrontDesk, AirlineDesk)]
    shop, airline = ({function["name"]: function["parameters"] for function in desk} for desk in functions)
    both = set(shop) & set(airline)
    assert both == {"ask", "cancel", "carry_out", "confirm", "decline", "find_customer"}
    assert all(shop[name].get("required") == airline[name].get("required") for name in both)
