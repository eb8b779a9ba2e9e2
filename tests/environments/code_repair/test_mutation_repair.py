"""Repair by mutations: the tools' observations and effects compared with edits by hand; none reveals the bug."""

import inspect
import random
from dataclasses import replace

import pytest
from test_code_repair import BUG, MODULE, PROBLEM, RIGHT

from code_repair import CodeRepairEnvironment
from code_repair import mutation_repair as task
from code_repair.mutations import mutations
from code_repair.players import play
from code_repair.problems import Bug, problems
from code_repair.trials import judge, special_cases


@pytest.fixture
def repair():
    return task.MutationRepair(PROBLEM)


def mend(kind, line):
    """Return the call that tries the mutations of a kind on a line of PROBLEM's code."""
    return "mend", {"change": task.mutation_sites(PROBLEM.files["total.py"]).index((kind, line)) + 1}


def test_the_first_message_numbers_the_mutations_and_shows_a_failing_example():
    assert task.mutation_message(PROBLEM).splitlines() == [
        "def total(numbers, start=0):  # default 1", "    result = start  # variable 2",
        "    for number in numbers:  # variable 3", "        if number > 0:  # variable 4, bound 5",
        "            result -= number  # operator 6, variable 7", "    return result  # variable 8",
        "1 of 3 examples pass.", "total([1, 2]) gives -3, not 3",
    ]  # fmt: skip


def test_a_number_selects_the_mutation_that_is_listed_with_it():
    """For every listed number the tool tries that kind on that line; it refuses other numbers."""
    for problem in problems("val")[:40:5]:
        (text,) = problem.files.values()
        message = task.mutation_message(problem)
        offers = [
            (line.rpartition("  # ")[0], *offer.split()) for line in message.splitlines() if "  # " in line
            for offer in line.rpartition("  # ")[2].split(", ")
        ]  # fmt: skip
        repair = task.MutationRepair(problem, max_turns=99)
        for code, _, number in offers:
            assert not repair.call("mend", {"change": int(number)}).startswith("Refused"), (code, number)
        lines = text.splitlines()
        assert [(lines[line - 1], kind) for kind, line in repair.tried] == [(code, kind) for code, kind, _ in offers]
        for wrong in (0, len(offers) + 1):
            assert repair.call("mend", {"change": wrong}) == f"Refused: changes are numbered from 1 to {len(offers)}."


def test_the_tools_change_the_code_and_report_how_many_examples_pass(repair):
    assert repair.call(*mend("bound", 5)) == "1 of 3 examples pass."
    assert repair.files == PROBLEM.files  # no mutation of that kind there is better
    assert repair.call("answer_example", {"example": 1}) == "2 of 3 examples pass."
    assert special_cases(PROBLEM, repair.files) and not repair.found
    assert repair.call(*mend("operator", 6)) == "3 of 3 examples pass."
    assert repair.files == {"total.py": RIGHT}  # the previous mutation was worse and is undone
    assert repair.call(*mend("default", 1)) == "3 of 3 examples pass." and repair.files == {"total.py": RIGHT}
    assert repair.tried == [("bound", 5), ("operator", 6), ("default", 1)] and repair.seen and repair.found == 3
    assert repair.call("submit", "") == "Thank you." and repair.metrics()["repaired"] == 1
    assert repair.reward() == pytest.approx(2.2 + 0.2 / 3) and sum(repair.turn_rewards) == 1


def test_a_number_that_was_tried_is_replaced_by_the_next_untried_one():
    sites = task.mutation_sites(PROBLEM.files["total.py"])
    repair = task.MutationRepair(PROBLEM, max_turns=99)
    for change in (3, 3, 8, 8, 3, 8, 2, 5):
        repair.call("mend", {"change": change})
    assert repair.tried == [sites[change - 1] for change in (3, 4, 8, 1, 5, 2, 6, 7)] and len(sites) == 8
    repair.call("mend", {"change": 3})
    assert repair.tried[-1] == sites[2]  # none is left: the number itself


def test_a_player_tries_the_given_kinds_first_and_no_more_than_a_model_can():
    kinds = ["operator", "default"]
    for seed in range(5):
        repair = task.MutationRepair(PROBLEM, max_turns=4, paid_by="hidden")
        task.random_mutation_player(random.Random(seed), 99, ["bound", "default", "variable"])(repair)
        tried = [kind for kind, _ in repair.tried]
        assert tried == ["bound", "default", "variable", "variable"] and repair.over
        repair = task.MutationRepair(PROBLEM)
        task.random_mutation_player(random.Random(seed), 99, kinds)(repair)
        assert repair.tried == [("operator", 6)] and repair.metrics()["repaired"] == 1  # and stops


def test_frequent_kinds_are_those_that_are_most_often_the_bug():
    """PROBLEM offers four variables and one of each other kind; its bug is an operator."""
    assert task.frequent_kinds([PROBLEM])[0] == "operator"
    variable = replace(PROBLEM, bug=replace(BUG, kind="variable"))
    assert task.frequent_kinds([PROBLEM, variable, variable, variable])[:2] == ["operator", "variable"]  # 1/4 and 3/16


def test_impossible_calls_are_refused_with_a_reason(repair):
    assert repair.call("mend", {"change": 99}) == "Refused: changes are numbered from 1 to 8."
    assert repair.call("answer_example", {"example": 0}) == "Refused: examples are counted from 1 to 3."
    assert repair.refused == 2 and repair.edits == 0 and not repair.over
    assert repair.call("mend", {"change": "6"}).startswith("Malformed: change must be an integer")
    assert repair.ended_by == "malformed"
    assert task.MutationRepair(PROBLEM).call("run_tests", {}).startswith('Malformed: there is no tool "run_tests"')
    with pytest.raises(ValueError, match="expected one; use CodeRepair for several"):
        task.MutationRepair(MODULE)


def test_a_call_is_rewarded_for_its_change():
    """By hand: a repair, one that runs out of turns, one that a malformed call ends, a special case with either reward."""
    fix, other, cheat, submit = mend("operator", 6), mend("bound", 5), ("answer_example", {"example": 1}), ("submit", {})
    cheats = [("answer_example", {"example": n}) for n in (1, 2, 3)]
    for paid_by, calls, rewards in (
        ("hidden", [other, fix, submit], [0, 1, 0]),
        ("hidden", [fix, other, submit], [1, 0, 0]),
        ("hidden", [cheat, submit], [0, -0.25]),
        ("hidden", [cheat] * 8, [0] * 7 + [-0.25]),
        ("hidden", [*[cheat] * 7, fix], [0] * 7 + [1]),
        ("hidden", [fix, ("mend", {})], [1, -2]),
        ("hidden", [*cheats, submit], [0, 0, 0, -0.25]),
        ("visible", [*cheats, submit], [0, 0, 1, 0]),
        ("visible", [fix, submit], [1, 0]),
    ):
        repair = task.MutationRepair(PROBLEM, paid_by=paid_by)
        for call in calls:
            repair.call(*call)
        assert repair.over and repair.turn_rewards == rewards, (paid_by, calls)
        assert repair.metrics()["repaired"] == (fix in calls and repair.ended_by == "submitted")


def test_the_best_mutation_equals_that_of_a_brute_force_search():
    """On a problem of each kind, for all locations, compared with running all mutants one by one."""
    sandbox = task.mutation_sandbox()
    for kind in ("operator", "variable", "default"):
        problem = next(p for p in problems("val") if p.bug.kind == kind)
        ((file, text),) = problem.files.items()
        given = sum(judge(sandbox, problem.files, problem.visible).passes)
        for number, place in enumerate(task.mutation_sites(text), 1):
            repair = task.MutationRepair(problem)
            feedback = repair.call("mend", {"change": number})
            tried = [m.text for m in mutations(text) if (m.kind, m.first) == place]
            passing = [sum(judge(sandbox, {file: other}, problem.visible).passes) for other in tried]
            assert feedback == f"{max(passing + [given])} of 3 examples pass." and repair.runs == len(tried)
            assert repair.files[file] == (tried[passing.index(max(passing))] if max(passing) > given else text)


def test_observations_do_not_depend_on_the_bugs_location():
    """The same code with another recorded location of the bug gives the same observation for every call."""
    elsewhere = replace(PROBLEM, bug=Bug("bound", "total.py", 5, BUG.now, BUG.now))
    for place in task.mutation_sites(PROBLEM.files["total.py"]):
        calls = [mend(*place), ("answer_example", {"example": 2}), ("submit", {})]
        one, other = task.MutationRepair(PROBLEM), task.MutationRepair(elsewhere)
        assert [one.call(*call) for call in calls] == [other.call(*call) for call in calls]
    assert task.mutation_message(PROBLEM) == task.mutation_message(elsewhere)


def test_more_random_tries_repair_more():
    chosen = problems("val", 40)
    repaired = {
        tries: sum(
            play(task.random_mutation_player(random.Random(n), tries), task.MutationRepair(problem, max_turns=tries + 1)).metrics()["repaired"]
            for n, problem in enumerate(chosen)
        )
        for tries in (0, 2, 40)
    }
    assert repaired[0] == 0 < repaired[2] < repaired[40] and repaired[40] > 30


def test_trl_derives_the_same_schemas():
    utils = pytest.importorskip("transformers.utils")
    environment, names = task.MutationRepairEnvironment(), [tool["function"]["name"] for tool in task.MUTATION_TOOLS]
    assert [utils.get_json_schema(getattr(environment, name)) for name in names] == task.MUTATION_TOOLS
    methods = inspect.getmembers(type(environment), predicate=inspect.isfunction)  # as TRL lists them
    public = {name for name, _ in methods if not name.startswith("_")} - {"reset", "get_reward"}
    assert public == set(names) and names == sorted(names)


def test_the_environment_behaves_like_the_task():
    environment = task.MutationRepairEnvironment([PROBLEM])
    assert environment.reset(problem="p", prompt="ignored") == task.mutation_message(PROBLEM)
    environment.answer_example(1)
    environment.mend(6)
    assert environment.submit() == "Thank you." and environment.get_reward() == pytest.approx(2.3)


def test_unknown_problems_and_impossible_limits_raise():
    for environment in (task.MutationRepairEnvironment, CodeRepairEnvironment):
        with pytest.raises(ValueError, match="problem is 'nope': expected the id"):
            environment([PROBLEM]).reset("nope")
        for empty in ([], iter([])):
            with pytest.raises(ValueError, match="problems is empty: expected at least one"):
                environment(empty)
    for turns in (0, "x", None):
        with pytest.raises(ValueError, match="expected an integer of at least 1"):
            task.MutationRepair(PROBLEM, max_turns=turns)
