"""The executable calls at the airline's desk: the desk refuses none of them, and they include every call of a clerk."""

import random

import pytest

from customer_service import course_world
from customer_service.airline_clerk import AirlineClerk
from customer_service.airline_desk import AirlineDesk
from customer_service.course import course_tasks
from data.nano_service.airline_demonstrations import airline_calls


@pytest.fixture(scope="module")
def drawn():
    """Return (form filled in?, call, answer, a careful and a hurried clerk's calls, executable calls) of random calls."""
    rng, tasks, calls = random.Random(0), course_tasks("airline", "train"), []
    for _ in range(300):
        desk = AirlineDesk(course_world("airline"), rng.choice(tasks))
        clerks = AirlineClerk(), AirlineClerk(hurried=True)
        for clerk in clerks:
            clerk.desk, clerk.written = desk, None
        while not desk.over:
            sensible = airline_calls(desk)
            wanted = [clerk.next_call() for clerk in clerks]
            words = {name: {key: of({}) for key, of in about.items()} for name, about in sensible.items()}
            name = rng.choice(list(words))
            call = rng.choice([(name, {key: rng.choice(some) for key, some in words[name].items()}), *wanted])
            filled, answer = desk.form is not None, desk.call(*call)
            calls.append((filled, call, answer, wanted, words))
            if answer == "Written down.":
                for clerk in clerks:
                    clerk.written = call
    return calls


def test_an_executable_call_is_refused_by_the_airlines_own_tools_only(drawn):
    """It also has all the arguments of its tool, in order."""
    for _, call, answer, _, words in drawn:
        assert not answer.startswith("Malformed")
        assert not answer.startswith("Refused") or call[0] in ("carry_out", "find_flight") or call[0] not in words
    needed = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in AirlineDesk.tools}
    for _, _, _, _, words in drawn:
        assert all(list(about) == list(needed[name]) and all(about.values()) for name, about in words.items())


def test_every_call_of_a_clerk_is_executable(drawn):
    for filled, _, _, wanted, words in drawn:
        for name, arguments in wanted:
            if filled or name not in ("confirm", "carry_out"):  # they do not know which entries of the form were removed
                assert all(word in words[name][key] for key, word in arguments.items())


def test_every_tool_is_executable_at_some_time(drawn):
    assert {name for *_, words in drawn for name in words} == {tool["function"]["name"] for tool in AirlineDesk.tools}
