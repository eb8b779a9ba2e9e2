"""The functions to repair: verdicts of CPython and monty agree, splits are disjoint, and the data are reproducible."""

import ast
import json
import random
import signal
from collections import Counter

import pytest

from code_repair.mutations import KINDS
from code_repair.problems import DATA, Check, joined, load_problems, problems, same_value
from code_repair.sandbox import MontySandbox
from code_repair.source import syntax_error
from code_repair.trials import judge
from environments.code_repair.maker import maker
from environments.code_repair.maker.modules import MODULES

ALL = load_problems()
needs_alarm = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs an alarm clock")


def passes_in_cpython(files: dict[str, str], tests: tuple[Check, ...]) -> list[bool]:
    """Return which tests pass in this Python. The code is the course's own; a call may take a second."""
    found = []
    for test in tests:
        names: dict = {}
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        try:
            exec(joined(files), names)
            found.append(same_value(repr(eval(test.call, names)), test.gives))
        except Exception:
            found.append(False)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return found


@pytest.fixture
def alarm():
    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.signal(signal.SIGALRM, before)


@needs_alarm
def test_every_original_passes_and_every_bug_fails_in_cpython(alarm):
    for problem in ALL:
        right = problem.bug.repair(problem.files)
        if problem.id.endswith("-0"):
            assert all(passes_in_cpython(right, (*problem.visible, *problem.hidden))), problem.id
        for tests in (problem.visible, problem.hidden):
            assert not all(passes_in_cpython(problem.files, tests)), problem.id


@needs_alarm
def test_monty_agrees_with_cpython_on_each_test_of_a_fifth_of_the_bugs(alarm):
    with MontySandbox() as sandbox:
        for problem in random.Random(0).sample(ALL, len(ALL) // 5):
            tests = (*problem.visible, *problem.hidden)
            assert judge(sandbox, problem.files, tests).passes == passes_in_cpython(problem.files, tests), problem.id
            assert judge(sandbox, problem.bug.repair(problem.files), tests).passed, problem.id


def test_splits_share_no_family_no_function_and_no_source():
    families = {split: {p.family for p in ALL if p.split == split} for split in ("train", "val", "test")}
    sources = {split: {t for p in ALL if p.split == split for t in p.bug.repair(p.files).values()} for split in families}
    for kept in (families, sources):
        for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
            assert not kept[one] & kept[other]
    assert len({p.entry for p in ALL if p.size == "function"}) == sum(len(f.variants) for f in maker.FAMILIES)
    assert len(problems("test")) >= 200 and len(problems("train")) >= 500


def test_there_are_bugs_of_all_kinds_and_no_two_problems_are_the_same():
    assert set(Counter(p.bug.kind for p in ALL)) == set(KINDS)
    assert len({joined(p.files) for p in ALL}) == len(ALL)
    assert all(syntax_error(text) is None for p in ALL for text in p.files.values())
    for problem in ALL:
        assert len(problem.visible) == maker.VISIBLE and 5 <= len(problem.hidden) <= maker.HIDDEN
        assert not set(problem.visible) & set(problem.hidden)


def test_a_modules_bug_is_not_in_the_failing_file():
    for problem in ALL:
        if problem.size == "module":
            last = list(problem.files)[-1]
            assert len(problem.files) == 3 and problem.bug.file != last and f"def {problem.entry}(" in problem.files[last]


def test_neighbours_are_of_different_functions():
    chosen = problems("test", 60)
    assert len({p.entry for p in chosen}) == 60
    with pytest.raises(ValueError, match="0 to 268, the test problems"):
        problems("test", 10_000)
    with pytest.raises(ValueError, match="split must be"):
        problems("all")
    with pytest.raises(ValueError, match="size must be"):
        problems("test", size="large")


def test_every_function_has_a_docstring_and_equals_its_familys_output():
    for family in maker.FAMILIES:
        for variant in family.variants:
            (function,) = ast.parse(family.written(variant)).body
            assert function.name == variant["name"] and ast.get_docstring(function)


def test_truth_and_source_agree_on_new_random_arguments():
    """With other arguments than those of the tests, for every family and module."""
    for family in maker.FAMILIES:
        for variant in family.variants:
            names: dict = {}
            exec(family.written(variant), names)
            rng = random.Random(f"anew {variant['name']}")
            for _ in range(25):
                arguments = repr(family.draw(rng, variant))
                assert names[variant["name"]](*eval(arguments)) == family.truth(variant, *eval(arguments)), variant["name"]
    for module in MODULES:
        names = {}
        exec(joined(module.files), names)
        rng = random.Random(f"anew {module.entry}")
        for _ in range(60):
            arguments = repr(module.draw(rng))
            assert names[module.entry](*eval(arguments)) == module.truth(*eval(arguments)), module.entry


def test_rows_are_reproduced(monkeypatch):
    """For one family and one module: generating all takes a minute."""
    committed = {row["id"]: row for row in map(json.loads, DATA.joinpath("functions.jsonl").read_text("utf-8").splitlines())}
    monkeypatch.setattr(maker, "FAMILIES", maker.FAMILIES[:1])
    monkeypatch.setattr(maker, "MODULES", MODULES[:1])
    with MontySandbox(maker.LIMITS) as sandbox:
        made = [*maker.functions(sandbox, 0), *maker.modules(sandbox, 0)]
    assert len(made) == 5
    for row in made:
        assert json.loads(json.dumps(row)) == committed[row["id"]]


def test_an_incorrect_original_raises():
    with MontySandbox() as sandbox, pytest.raises(ValueError, match="f disagrees with its"):
        maker.row(sandbox, random.Random(0), "f", "train", "function", "f", "f", {"f.py": "def f(n):\n    return n\n"}, [Check("f(1)", "2")], 1)
