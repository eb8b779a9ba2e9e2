"""What holds at every desk: everybody can be served, by the task's own tools; a form changes nothing until it is carried out."""

import random
from collections import Counter

import pytest

from art_nb.tasks.customer_service import course_tasks, course_world
from art_nb.tasks.customer_service.airline_clerk import AirlineClerk
from art_nb.tasks.customer_service.airline_desk import AirlineDesk, AirlineDeskEnvironment
from art_nb.tasks.customer_service.clerks import Clerk
from art_nb.tasks.customer_service.desk import DESK_TURNS
from art_nb.tasks.customer_service.front_desk import FrontDesk, FrontDeskEnvironment

AT_EITHER = pytest.mark.parametrize(("desk_of", "clerk_of"), [(FrontDesk, Clerk), (AirlineDesk, AirlineClerk)])


def served(desk_of, clerk, task):
    return clerk(desk_of(course_world(desk_of.domain), task))


@pytest.mark.parametrize("split", ["val", "test"])
@AT_EITHER
def test_every_customer_can_be_served_without_breaking_a_rule(desk_of, clerk_of, split):
    tasks = course_tasks(desk_of.domain, split)
    desks = [served(desk_of, clerk_of(), task) for task in tasks]
    assert [desk.reward() for desk in desks] == [1] * len(tasks)
    assert [desk.talk.world.digest() for desk in desks] == [task.digest for task in tasks]
    assert {desk.ended_by for desk in desks} == {"customer"} and not any(sum(desk.breaches) for desk in desks)
    assert max(desk.calls for desk in desks) < DESK_TURNS


@AT_EITHER
def test_underneath_are_the_tasks_own_tools(desk_of, clerk_of):
    """What the desk has called, called by hand on another copy, answers the same and leaves the same database."""
    for task in course_tasks(desk_of.domain, "val"):
        for hurried in (False, True):
            desk, world = served(desk_of, clerk_of(hurried), task), course_world(desk_of.domain)
            log = desk.talk.log
            for message, answer in zip(log, log[1:], strict=False):
                for call in message.get("tool_calls", ()):
                    assert world.call(**call["function"]) == answer["content"]
            assert world.digest() == desk.talk.world.digest()


@AT_EITHER
def test_whatever_is_called_only_a_form_that_is_carried_out_changes_anything(desk_of, clerk_of):
    """Half of the calls are drawn, with words that fit here and there, the others a hurried clerk's."""
    rng, tasks = random.Random(0), course_tasks(desk_of.domain, "train")
    words = ["gift card", "no longer needed", "health", "economy", "reason", "0", "²", "", "\udcff", "x" * 99, '"}', "Mug"]
    said, changed = Counter(), 0
    for _ in range(300):
        clerk, desk = clerk_of(hurried=True), desk_of(course_world(desk_of.domain), rng.choice(tasks))
        clerk.desk, clerk.written = desk, None
        while not desk.over:
            function = rng.choice(desk.tools)["function"]
            call = function["name"], {key: rng.choice(words) for key in function["parameters"]["properties"]}
            call = clerk.next_call() if rng.random() < 0.5 else call
            before, form, length = desk.talk.world.differences(), desk.form, len(desk.talk.log)
            answer = desk.call(*call)
            assert answer.isprintable() and answer not in ("", "Refused: .")
            clerk.written = call if answer == "Written down." else clerk.written
            said[answer.split()[0]] += 1
            if desk.talk.world.differences() != before:
                changed += 1
                calls = [made["function"] for message in desk.talk.log[length:] for made in message.get("tool_calls", ())]
                assert call[0] == "carry_out" and [(made["name"], made["arguments"]) for made in calls] == [form[:2]]
    assert changed > 50 and said["Refused:"] > 500 and not said["Malformed:"]


@pytest.mark.parametrize(("desk_of", "elsewhere"), [(FrontDesk, "airline"), (AirlineDesk, "retail")])
def test_a_desk_stands_in_one_world(desk_of, elsewhere):
    with pytest.raises(ValueError, match=f"this desk is for {desk_of.domain}; the world is {elsewhere}"):
        desk_of(course_world(elsewhere), course_tasks(elsewhere, "train", 1)[0])


@pytest.mark.parametrize(
    ("desk_of", "environment_of"), [(FrontDesk, FrontDeskEnvironment), (AirlineDesk, AirlineDeskEnvironment)]
)
def test_trl_derives_the_same_schemas(desk_of, environment_of):
    utils = pytest.importorskip("transformers.utils")
    environment, names = environment_of(), [tool["function"]["name"] for tool in desk_of.tools]
    assert [utils.get_json_schema(getattr(environment, name)) for name in names] == desk_of.tools
    public = {name for name in dir(environment) if not name.startswith("_")} - {"reset", "get_reward", "desk", "domain"}
    assert public == set(names) and names == sorted(names)


def test_what_means_the_same_has_the_same_name_and_arguments_at_both_desks():
    functions = [[tool["function"] for tool in desk.tools] for desk in (FrontDesk, AirlineDesk)]
    shop, airline = ({function["name"]: function["parameters"] for function in desk} for desk in functions)
    both = set(shop) & set(airline)
    assert both == {"ask", "cancel", "carry_out", "confirm", "decline", "find_customer"}
    assert all(shop[name].get("required") == airline[name].get("required") for name in both)
