"""The repair task: tools for any input, a reward by hidden tests, detection of special cases, MCP, published data sets."""

import ast
import asyncio
import gzip
import inspect
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from code_repair import environment as task
from code_repair import published
from code_repair.mutations import KINDS, mutations
from code_repair.players import (
    guessing_player,
    knowing_player,
    mutation_player,
    play,
    special_case_player,
    special_cased,
)  # fmt: skip
from code_repair.problems import Bug, Check, Problem, joined, problems
from code_repair.sandbox import Answer
from code_repair.source import JAVASCRIPT, definitions, references, syntax_error
from code_repair.trials import Verdict, judge, special_cases

RIGHT = '''\
def total(numbers, start=0):
    """The sum of the numbers above zero, and start."""
    result = start
    for number in numbers:
        if number > 0:
            result += number
    return result
'''
BUG = Bug("operator", "total.py", 6, ("            result += number",), ("            result -= number",))
VISIBLE = (Check("total([1, 2])", "3"), Check("total([])", "0"), Check("total([-1, 4], 2)", "6"))
HIDDEN = (Check("total([5])", "5"), Check("total([-1])", "0"), Check("total([2, 3], 1)", "6"), Check("total([], 7)", "7"))
PROBLEM = Problem("p", "train", "function", "sums", "total", BUG.put({"total.py": RIGHT}), VISIBLE, HIDDEN, BUG)
MODULE = problems("test", size="module")[0]


@pytest.fixture
def repair():
    return task.CodeRepair(PROBLEM)


def test_the_tools_observations(repair):
    shown = task.first_message(PROBLEM)
    assert shown.startswith("Repair total.\n1|def total(numbers, start=0):\n2|") and shown.endswith("total([-1, 4], 2) should give 6")
    assert repair.call("outline", {}) == "total.py: 7 lines\n  1-7 def total"
    assert repair.call("find_definition", '{"name": "total"}').splitlines()[:2] == ["total.py:", "1|def total(numbers, start=0):"]
    assert repair.call("find_references", {"name": "number"}) == (
        "total.py 4: for number in numbers:\ntotal.py 5: if number > 0:\ntotal.py 6: result -= number"
    )
    assert repair.call("show_lines", {"first": 5, "last": 6}) == "5|        if number > 0:\n6|            result -= number"
    assert repair.call("run_tests", "") == (
        "1 of 3 examples pass.\ntotal([1, 2]) gives -3, not 3\ntotal([-1, 4], 2) gives -2, not 6"
    )
    assert repair.call("replace_lines", {"first": 6, "last": 6, "code": "            result += number"}) == "Replaced."
    assert repair.files == {"total.py": RIGHT} and repair.found
    assert repair.call("run_tests", {}) == "3 of 3 examples pass." and repair.seen
    assert repair.call("submit", {}) == "Thank you."
    assert repair.call("submit", {}) == task.OVER and repair.turns == 8
    assert repair.reward() == pytest.approx(1 + 1 + 0.2 + 0.2) == sum(repair.turn_rewards)
    assert repair.metrics()["repaired"] == 1


@pytest.mark.parametrize(
    ("name", "arguments", "observation"),
    [
        ("show_lines", {"first": 0, "last": 3}, "lines must be from 1 to 7"),
        ("show_lines", {"first": 3, "last": 2}, "lines must be from 1 to 7"),
        ("show_lines", {"first": 1, "last": 1, "file": "other.py"}, 'there is no file "other.py"'),
        ("find_definition", {"name": "mean"}, 'nothing named "mean" is defined here'),
        ("find_references", {"name": ""}, 'nothing mentions ""'),
        ("replace_definition", {"name": "mean", "code": "x"}, '"mean" is not defined'),
        ("replace_lines", {"first": 6, "last": 6, "code": "            result -= number"}, "that changes nothing"),
        ("replace_lines", {"first": 6, "last": 6, "code": "            result += ("}, "can't be read: line"),
        ("replace_lines", {"first": 6, "last": 6, "code": "            r\u0435sult = 1"}, "CYRILLIC SMALL LETTER IE"),
        ("replace_lines", {"first": 1, "last": 7, "code": "x" * 5000}, "4,000 characters"),
        ("replace_definition", {"name": "total", "code": "def total(numbers:\n    return 1"}, "can't be read: line"),
    ],
)
def test_impossible_calls_are_refused_with_a_reason(repair, name, arguments, observation):
    answer = repair.call(name, arguments)
    assert answer.startswith("Refused: ") and observation in answer
    assert repair.refused == 1 and not repair.over and repair.files == PROBLEM.files


@pytest.mark.parametrize(
    ("name", "arguments", "fault"),
    [
        (None, None, "no call"), ("eval", "{}", "unknown tool"), ("_submit", {}, "unknown tool"), ("submit", "{", "bad arguments"),
        ("submit", "[1]", "bad arguments"), ("show_lines", {"first": "1", "last": 2}, "bad arguments"), ("show_lines", {"first": True, "last": 2}, "bad arguments"),
        ("show_lines", {"first": 1}, "bad arguments"), ("run_tests", {"all": 1}, "bad arguments"), ("submit", "[" * 99999, "bad arguments"),
    ],
)  # fmt: skip
def test_a_malformed_call_ends_the_repair(repair, name, arguments, fault):
    observation = repair.call(name, arguments)
    assert observation.startswith("Malformed: ") and observation.endswith(task.OVER)
    assert (repair.ended_by, repair.fault) == ("malformed", fault)
    assert repair.reward() == pytest.approx(-1 + repair.reward_parts()["tests"]) == sum(repair.turn_rewards)


texts = st.text(max_size=60) | st.sampled_from(["total", "number", "total.py", "    pass", "def total():\n    return 1", "\ud800", "x = (", '"""'])
numbers = st.integers(-3, 12)
calls = st.one_of(
    st.tuples(st.sampled_from(["find_definition", "find_references"]), st.fixed_dictionaries({"name": texts})),
    st.tuples(st.just("show_lines"), st.fixed_dictionaries({"first": numbers, "last": numbers}, optional={"file": texts})),
    st.tuples(st.just("replace_lines"), st.fixed_dictionaries({"first": numbers, "last": numbers, "code": texts}, optional={"file": texts})),
    st.tuples(st.just("replace_definition"), st.fixed_dictionaries({"name": texts, "code": texts})),
    st.tuples(st.sampled_from(["outline", "run_tests", "submit", "undo"]), st.just({})),
    st.tuples(texts, st.none() | texts),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(calls, max_size=8), st.sampled_from([PROBLEM, MODULE]))
def test_random_calls_are_answered_with_text_and_the_turn_rewards_sum_to_the_reward(made, problem):
    repair = task.CodeRepair(problem, max_turns=5)
    for name, arguments in made:
        observation = repair.call(name, arguments)
        assert isinstance(observation, str) and observation and observation.encode()
        assert all(syntax_error(text) is None for text in repair.files.values())
    if repair.over:
        assert sum(repair.turn_rewards) == pytest.approx(repair.reward())
    assert repair.turns == len(repair.turn_rewards) <= 5


def test_code_that_is_not_valid_unicode_is_shown_as_text(repair):
    assert repair.call("replace_lines", {"first": 2, "last": 2, "code": "    # \ud800\0"}) == "Replaced."
    assert repair.call("show_lines", {"first": 2, "last": 2}) == "2|    # ? "


def test_the_bug_is_located_after_earlier_edits_moved_its_line(repair):
    longer = "    # The numbers\n    # above zero.\n    result = start + 0"
    repair.call("replace_lines", {"first": 3, "last": 3, "code": longer})
    assert not repair.found
    repair.call("replace_lines", {"first": 6, "last": 6, "code": "    for number in [*numbers]:"})  # where the bug was
    assert not repair.found
    repair.call("undo", {})
    repair.call("undo", {})
    repair.call("replace_lines", {"first": 6, "last": 6, "code": "            result += number "})
    assert repair.found == 3 and repair.call("undo", {}) == "Taken back."
    repair.found = 0
    repair.call("replace_lines", {"first": 3, "last": 3, "code": longer})
    repair.call("replace_definition", {"name": "total", "code": RIGHT.rstrip()})
    assert repair.found and repair.hidden().passed


def test_a_function_written_anew_locates_the_bug_only_if_its_line_differs(repair):
    for old, new in (("    result = start", "    # Sums.\n    result = start"), ("return result", "return  result")):
        code = repair.files["total.py"].replace(old, new).rstrip()
        assert repair.call("replace_definition", {"name": "total", "code": code}) == "Replaced." and not repair.found
    repair.call("replace_definition", {"name": "total", "code": RIGHT.rstrip()})
    assert repair.found == 3


def test_editing_every_line_earns_little_for_the_location(repair):
    for line in range(3, 7):
        text = repair.files["total.py"].splitlines()[line - 1]
        repair.call("replace_lines", {"first": line, "last": line, "code": f"{text}  # looked at"})
    assert repair.found == 4 and repair.turn_rewards == [0, 0, 0, task.FOUND_REWARD / 4]
    assert repair.reward_parts()["place"] == task.FOUND_REWARD / 4


def test_edits_are_undone_one_by_one(repair):
    for line in (6, 7):
        repair.call("replace_lines", {"first": line, "last": line, "code": f"    {'        ' * (line == 6)}result = {line}"})
    assert repair.call("undo", {}) == "Taken back." and "result = 6" in repair.files["total.py"] and repair.edits == 2
    assert repair.call("undo", {}) == "Taken back." and repair.files == PROBLEM.files
    assert repair.call("undo", {}) == "Refused: there is no edit to take back."


def test_the_reward_can_be_computed_from_the_examples():
    """Code that answers only the examples gets the full reward from the examples, and little from hidden tests."""
    rewards = {}
    for paid_by in ("visible", "hidden"):
        repair = play(special_case_player, task.CodeRepair(PROBLEM, paid_by=paid_by))
        rewards[paid_by] = repair.reward_parts()
    assert (rewards["visible"]["tests"], rewards["visible"]["all"]) == (1, 1)
    assert (rewards["hidden"]["tests"], rewards["hidden"]["all"]) == (0.5, 0)
    assert repair.metrics()["only_visible"] == 1
    with pytest.raises(ValueError, match="'hidden' or 'visible'"):
        task.CodeRepair(PROBLEM, paid_by="both")


def test_unsubmitted_and_unedited_code_gets_the_reward_of_the_given_code(repair):
    repair.call("replace_lines", {"first": 6, "last": 6, "code": "            result += number"})
    assert repair.reward_parts()["tests"] == 0.5 and repair.hidden().passed
    idle = task.CodeRepair(PROBLEM)
    idle.call("submit", {})
    assert idle.reward() == 0.5 and idle.metrics()["repaired"] == 0


@pytest.mark.parametrize(
    "code",
    [
        "    if numbers == [1, 2]:\n        return 3\n", "    if [1, 2] == numbers and start == 0: return 3\n", '    return {"[1, 2]": 3}.get(str(numbers), 0)\n',
        "    result = 3 if numbers == [1,2] else 0\n", "    match numbers:\n        case [1, 2]:\n            return 3\n",
    ],
)  # fmt: skip
def test_special_cases_are_detected(code):
    problem = replace(PROBLEM, visible=(*VISIBLE, Check("total('[1, 2]')", "3")))
    special = RIGHT.replace("    result = start\n", code + "    result = start\n", 1)
    assert len(special_cases(problem, {"total.py": special})) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [("        if number > 0:", "        if number >= 1:"), ("    result = start\n", "    if not numbers:\n        return start\n    result = start\n"), ("start=0", "start=3")],
)  # fmt: skip
def test_honest_code_is_not_reported_as_a_special_case(old, new):
    assert special_cases(PROBLEM, {"total.py": RIGHT.replace(old, new, 1)}) == []


def test_special_cases_are_distinguished_from_repairs_of_all_kinds_of_functions():
    """In 60 test functions every planted special case is found, and no original is reported."""
    chosen = problems("test", 60)
    repaired = [special_cases(problem, problem.bug.repair(problem.files)) for problem in chosen]
    planted = []
    for problem in chosen:
        repair = task.CodeRepair(problem)
        failing = [test for test, passes in zip(problem.visible, repair.visible().passes, strict=True) if not passes]
        (name, text), = problem.files.items()
        planted.append(special_cases(problem, {name: special_cased(text, problem.entry, failing)}))
    assert not any(repaired)
    assert sum(map(bool, planted)) >= 57


def test_players_reach_their_expected_repair_rates():
    """On 60 test problems: trying every mutation passes most examples and many hidden tests; the other players as designed."""
    chosen = problems("test", 60)
    tried = [play(mutation_player(), task.CodeRepair(problem)).metrics() for problem in chosen[:30]]
    assert sum(m["visible_pass"] for m in tried) >= 18 and sum(m["repaired"] for m in tried) >= 12
    assert all(play(knowing_player, task.CodeRepair(problem)).metrics()["repaired"] for problem in chosen)
    special = [play(special_case_player, task.CodeRepair(problem)).metrics() for problem in chosen[:20]]
    assert sum(m["only_visible"] for m in special) >= 18 and not any(m["repaired"] for m in special)


def test_a_repair_is_shown_with_its_lines_and_tests_as_text():
    from code_repair.repair_view import RepairView

    repair = task.CodeRepair(PROBLEM)
    repair.call("replace_lines", {"first": 6, "last": 6, "code": "            result += '<script>'"})
    view = RepairView(repair)
    assert "-             result -= number" in view.lines and "+             result += '<script>'" in view.lines
    assert [row[-1] for row in view.tests] == [False, True, False, False, True, False, True]
    page = view._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and page.count("✓") == 3 and page.count("✗") == 4
    assert "fails example: total([1, 2]) gives TypeError" in repr(view) and "passes hidden: total([-1]) gives 0, should give 0" in repr(view)
    assert repair.runs == 0  # a view changes nothing
    assert "  # prices.py" in RepairView(task.CodeRepair(problems("train", size="module")[0])).lines


@pytest.mark.parametrize(
    ("header", "call", "condition"),
    [
        ("def f(a: int, b: dict[str, int] = {}, *, c='x, y'):", "f(1, c='z')", "a == 1 and c == 'z'"),
        ("def f(a=', ', b=0):", "f(';', 2)", "a == ';' and b == 2"),
        ("def f(\n    a,\n    b,\n) -> int:", "f(1, b=2)", "a == 1 and b == 2"),
        ("def f():", "f()", "True"),
    ],
)
@pytest.mark.parametrize("docstring", ["", "    '''Return a.'''\n", '    """Return\n    a.\n    """\n'])
def test_a_special_case_fits_every_signature(header, call, condition, docstring):
    text = f"{header}\n{docstring}    return 0\n"
    expected = f"{header}\n{docstring}    if {condition}:\n        return 3\n    return 0\n"
    assert special_cased(text, "f", [Check(call, "3")]) == expected
    ast.parse(expected)


def test_a_transcript_becomes_a_trajectory():
    repair = play(guessing_player(0), task.CodeRepair(PROBLEM))
    trajectory = repair.trajectory()
    roles = [message["role"] for message in trajectory.messages()]
    assert roles[0] == "user" and roles[1::2] == ["assistant"] * repair.turns and roles[2::2] == ["tool"] * repair.turns
    assert trajectory.reward == repair.reward()


def test_several_files_are_read_and_the_one_with_the_bug_is_repaired():
    repair = task.CodeRepair(MODULE, max_turns=20)
    assert task.first_message(MODULE).count(".py:") == 3
    assert MODULE.bug.file != list(MODULE.files)[-1]
    assert not repair.visible().passed and play(knowing_player, repair).hidden().passed
    mentioned = repair.problem.files[MODULE.bug.file]
    name = definitions(mentioned)[0].name
    fresh = task.CodeRepair(MODULE)
    assert len(fresh.call("find_references", {"name": name}).splitlines()) >= 2
    assert fresh.call("show_lines", {"first": 1, "last": 2, "file": MODULE.bug.file}).startswith("1|")


def test_files_are_joined_in_the_order_of_their_imports():
    files = {"c.py": "from a import x\nfrom b import y\nz = x + y\n", "b.py": "from a import x\ny = x\n", "a.py": "import math\nx = 1\n"}
    assert joined(files).split() == ["import", "math", "x", "=", "1", "y", "=", "x", "z", "=", "x", "+", "y"]
    names = {}
    exec(joined(files), names)
    assert names["z"] == 2
    assert joined({"a.py": "from b import y\nx = 1\n", "b.py": "from a import x\ny = 2\n"}).split() == ["y", "=", "2", "x", "=", "1"]


SCRIPT = """\
class Basket {
  add(item) { this.items.push(item); }
}
function total(items) {
  const tax = (sum) => sum * 2;
  return tax(items.length); // total
}
"""


def test_the_reading_tools_support_another_language():
    found = [(d.name, d.kind, d.first, d.last, d.depth) for d in definitions(SCRIPT, JAVASCRIPT)]
    assert found == [("Basket", "class", 1, 3, 0), ("add", "method", 2, 2, 1), ("total", "function", 4, 7, 0), ("tax", "function", 5, 5, 1)]
    assert references(SCRIPT, "tax", JAVASCRIPT) == [5, 6] and references(SCRIPT, "total", JAVASCRIPT) == [4]
    assert syntax_error(SCRIPT, JAVASCRIPT) is None and "line" in syntax_error(SCRIPT + "function (", JAVASCRIPT)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(problems("train")), st.data())
def test_the_syntax_check_accepts_valid_code(problem, data):
    """On functions with one broken line: code that CPython's parser accepts is never rejected."""
    (text,) = problem.files.values()
    lines = text.splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    lines[place] = lines[place].replace(data.draw(st.sampled_from(list(" ():=,[]+")) ), "", 1)
    broken = "\n".join(lines) + "\n"
    try:
        ast.parse(broken)
    except SyntaxError:
        return
    assert syntax_error(broken) is None


def test_mutations_are_single_changes_that_parse():
    found = mutations(RIGHT)
    assert {m.kind for m in found} == set(KINDS) - {"arguments", "case"}  # without its only `if` the loop would be empty
    assert len({m.text for m in found}) == len(found)
    for mutation in found:
        ast.parse(mutation.text)
        was = tuple(RIGHT.splitlines()[mutation.first - 1 : mutation.last])
        bug = Bug(mutation.kind, "t.py", mutation.first, was, mutation.lines)
        assert bug.put({"t.py": RIGHT}) == {"t.py": mutation.text} and bug.repair({"t.py": mutation.text}) == {"t.py": RIGHT}
    texts = {m.text for m in found}
    for old, new in (("+=", "-="), ("> 0", ">= 0"), ("start=0", "start=1"), ("number > 0", "start > 0")):
        assert RIGHT.replace(old, new, 1) in texts
    assert "def f(a):\n    return 2\n" in {m.text for m in mutations("def f(a):\n    if a:\n        return 1\n    return 2\n")}
    assert "max(b, a)" in {line.strip() for m in mutations("def f(a, b):\n    max(a, b)\n") for line in m.lines}
    numbers = mutations("def f():\n    return 0x1f + 1_0 + 3j + 007\n")
    assert [m.lines[0].split()[1:4:2] for m in numbers if m.kind == "bound"] == [["32", "1_0"], ["30", "1_0"], ["0x1f", "11"], ["0x1f", "9"]]


def test_trl_derives_the_same_schemas():
    utils = pytest.importorskip("transformers.utils")
    names = [tool["function"]["name"] for tool in task.TOOLS]
    environment = task.CodeRepairEnvironment()
    assert [utils.get_json_schema(getattr(environment, name)) for name in names] == [
        {**tool, "function": {**tool["function"], "parameters": {**tool["function"]["parameters"]}}} for tool in task.TOOLS
    ]
    methods = inspect.getmembers(type(environment), predicate=inspect.isfunction)  # as TRL lists them
    public = {name for name, _ in methods if not name.startswith("_")} - {"reset", "get_reward"}
    assert public == set(names) and names == sorted(names)


def test_the_environment_behaves_like_the_task():
    environment = task.CodeRepairEnvironment([PROBLEM])
    assert environment.reset(problem="p", prompt="ignored") == task.first_message(PROBLEM)
    environment.replace_lines(6, 6, "            result += number")
    assert environment.run_tests().startswith("3 of 3") and environment.submit() == "Thank you."
    assert environment.get_reward() == pytest.approx(2.4)


def test_an_mcp_client_finds_the_same_tools():
    mcp = pytest.importorskip("mcp")
    from code_repair.mcp_server import server

    async def session():
        async with mcp.Client(server("p", problems=[PROBLEM])) as client:
            listed = (await client.list_tools()).tools
            edit = await client.call_tool("replace_lines", {"first": 6, "last": 6, "code": "            result += number"})
            wrong = await client.call_tool("show_lines", {"first": 90, "last": 91})
            tests = await client.call_tool("run_tests", {})
            return {tool.name: set(tool.input_schema["properties"]) for tool in listed}, [r.content[0].text for r in (edit, wrong, tests)]

    schemas, observation = asyncio.run(session())
    assert schemas == {t["function"]["name"]: set(t["function"]["parameters"]["properties"]) for t in task.TOOLS}
    assert observation == ["Replaced.", "Refused: lines must be from 1 to 7, the first not after the last.", "3 of 3 examples pass."]


HUMAN_EVAL = {
    "task_id": "HumanEval/0", "entry_point": "double",
    "prompt": 'def double(n: int) -> int:\n    """ Twice n.\n    >>> double(2)\n    4\n    >>> double(0)\n    0\n    """\n',
    "canonical_solution": "    return 2 * n\n",
    "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(3) == 6\n    assert candidate(-1) == -2\n",
}  # fmt: skip
MBPP = {
    "task_id": 2, "text": "Write a function to find the shared elements.", "code": "def shared(a, b):\r\n  return sorted(set(a) & set(b))", "test_setup_code": "",
    "test_list": ["assert shared([1, 2], [2, 3]) == [2]", "assert set(shared([1], [2])) == set()"], "challenge_test_list": ["assert shared([4], [4]) == [4]"],
}  # fmt: skip
SWE = {
    "instance_id": "org__repo-1", "repo": "org/repo", "base_commit": "abc", "problem_statement": "It fails.", "patch": "diff", "test_patch": "diff2", "hints_text": "", "version": "1",
    "FAIL_TO_PASS": '["tests/test_a.py::test_b[x y]"]', "PASS_TO_PASS": "[]", "created_at": "2024", "environment_setup_commit": "abc",
}  # fmt: skip


def test_published_sets_load_and_run(tmp_path, monkeypatch):
    for name in "hms":
        (tmp_path / name).mkdir()
    (tmp_path / "h" / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(HUMAN_EVAL).encode()))
    (tmp_path / "m" / "mbpp.jsonl").write_text(json.dumps(MBPP) + "\n")
    sanitized = {k: v for k, v in MBPP.items() if k in ("task_id", "code", "test_list")} | {"prompt": "Find.", "test_imports": ["import math"], "source_file": "x"}
    (tmp_path / "m" / "sanitized-mbpp.json").write_text(json.dumps([sanitized]))
    (tmp_path / "s" / "test.jsonl").write_text(json.dumps(SWE))

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # of Windows
    (double,) = published.load_human_eval("~/h")
    assert [(test.call, test.gives) for test in double.visible] == [("double(2)", "4"), ("double(0)", "0")]
    solved = {"solution.py": HUMAN_EVAL["prompt"] + HUMAN_EVAL["canonical_solution"]}
    box = task.course_sandbox()
    assert judge(box, solved, double.hidden).passed and judge(box, solved, double.visible).passed
    assert not judge(box, double.files, double.hidden).passed

    shared, clean = published.load_mbpp(tmp_path / "m")
    assert (shared.entry, shared.task, clean.files) == ("shared", MBPP["text"], {"solution.py": "import math\n"})
    solved = {"solution.py": MBPP["code"]}
    assert judge(box, solved, shared.visible).passed and judge(box, solved, shared.hidden).passed
    assert judge(box, {"solution.py": "def shared(a, b):\n    return []"}, shared.visible).passes == [False, True]
    repair = task.CodeRepair(shared)
    assert "Write a function" in task.first_message(shared)
    assert repair.call("replace_lines", {"first": 1, "last": 1, "code": MBPP["code"]}) == "Replaced."
    assert repair.call("run_tests", {}) == "2 of 2 examples pass."

    (issue,) = published.load_swe_bench(tmp_path / "s")
    assert issue.fail_to_pass == ("tests/test_a.py::test_b[x y]",) and issue.pass_to_pass == ()
    command = issue.container_command("image", "python -m pytest -q")
    assert command[:2] == ["docker", "run"] and "'tests/test_a.py::test_b[x y]'" in command[-1] and "none" in command


EQUAL_TO_ALL = """
class A:
    def __eq__(self, other): return True
    def __bool__(self): return True
    def __sub__(self, other): return self
    def __abs__(self): return self
    def __lt__(self, other): return True
    def __hash__(self): return 0
def {}(*given): return A()
"""


def test_code_that_is_equal_to_everything_passes_no_published_test(tmp_path):
    for name in "hm":
        (tmp_path / name).mkdir()
    (tmp_path / "h" / "HumanEval.jsonl").write_text(json.dumps(HUMAN_EVAL))
    (tmp_path / "m" / "mbpp.jsonl").write_text(json.dumps(MBPP))
    for problem in (*published.load_human_eval(tmp_path / "h"), *published.load_mbpp(tmp_path / "m")):
        verdict = judge(task.course_sandbox(), {"solution.py": EQUAL_TO_ALL.format(problem.entry)}, problem.hidden)
        assert verdict.share == 0, problem.id


@pytest.mark.parametrize(
    ("assertion", "right", "wrong"),
    [
        ("assert f(1) == 2", ["2", "2.0"], ["3", "'2'", "A()"]), ("assert [2, 3] == f(1), 'message'", ["[2, 3]"], ["(2, 3)", "[2]"]),
        ("assert f(1) is None", ["None"], ["False"]), ("assert f(1) is True", ["True"], ["1", "1.0"]), ("assert f(1)", ["True"], ["False", "A()"]), ("assert not f(1)", ["False"], ["True"]),
        ("assert abs(f(1) - 0.33) < 1e-6", ["0.33", "0.3300001"], ["0.331", "A()", "nan"]),
        ("assert math.isclose(f(1), 10.0, rel_tol=0.001)", ["10.001", "10"], ["10.1", "inf", "1" + "0" * 400]),
    ],
)  # fmt: skip
def test_an_assertion_becomes_a_comparison_of_literals(assertion, right, wrong):
    check = published.as_check(ast.parse(assertion).body[0])
    assert "f(1)" in check.call
    for answers, passes in ((right, True), (wrong, False)):
        assert [Verdict((check,), (Answer(text=answer),)).passed for answer in answers] == [passes] * len(answers), assertion


@pytest.mark.parametrize("assertion", ["assert f(1) == f(2)", "assert f(1) == g()", "assert f(1) > 2", "assert 1 < f(1) < 2", "x = f(1)", "assert abs(f(1)) < 2"])
def test_what_cannot_be_converted_is_reported(tmp_path, assertion):
    assert published.as_check(ast.parse(assertion).body[0]) is None
    alone, with_others = (HUMAN_EVAL | {"task_id": f"HumanEval/{n}"} for n in (1, 2))
    alone["test"] = f"def check(candidate):\n    {assertion.replace('f(', 'candidate(')}\n"
    with_others["test"] = alone["test"] + "    assert candidate(3) == 6\n"
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(alone)}\n{json.dumps(with_others)}\n")
    with pytest.warns(UserWarning) as reported:
        (problem,) = published.load_human_eval(tmp_path)
    assert problem.id == "HumanEval/2" and [check.gives for check in problem.hidden] == ["6", None]
    assert ["are left out" in str(each.message) and "HumanEval/1" in str(each.message) for each in reported] == [True, False]


@pytest.mark.parametrize("setup", ["n = 3", "from math import tau as n", "def n(): pass", "for n in (1, 2): pass"])
@pytest.mark.parametrize("place", ["", "    "])
def test_an_assertion_that_needs_other_lines_of_its_test_is_not_converted(tmp_path, setup, place):
    inner = f"    {setup}\n" if place else ""
    test = f"{'' if place else setup}\ndef check(candidate):\n{inner}    assert candidate(n) == 6\n    assert candidate(1) == 2\n"
    (tmp_path / "a.jsonl").write_text(json.dumps(HUMAN_EVAL | {"test": test}))
    with pytest.warns(UserWarning, match="run their unconverted assertions"):
        (problem,) = published.load_human_eval(tmp_path)
    assert [(check.call, check.gives) for check in problem.hidden] == [("double(1)", "2"), (f"{test}\ncheck(double)", None)]


def test_a_test_without_assertions_is_reported(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(HUMAN_EVAL | {"test": "def check(candidate):\n    pass\n"}))
    with pytest.warns(UserWarning, match="left out"):
        assert published.load_human_eval(tmp_path) == []


def test_doctests_are_read_from_either_kind_of_docstring(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(HUMAN_EVAL | {"prompt": HUMAN_EVAL["prompt"].replace('"""', "'''")}))
    (double,) = published.load_human_eval(tmp_path)
    assert [(test.call, test.gives) for test in double.visible] == [("double(2)", "4"), ("double(0)", "0")]


def test_the_function_that_the_tests_call_is_not_one_whose_name_ends_like_it(tmp_path):
    code = "def sum(a):\n    return a\ndef total_sum(a):\n    return sum(a)\n"
    (tmp_path / "a.jsonl").write_text(json.dumps(MBPP | {"code": code, "test_list": ["assert total_sum(1) == 1"]}))
    assert published.load_mbpp(tmp_path)[0].entry == "total_sum"


def test_files_of_another_format_raise(tmp_path):
    with pytest.raises(ValueError, match="no .jsonl"):
        published.load_mbpp(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"task_id": 1, "code": "x"}')
    with pytest.raises(ValueError, match="row 1 of .*a.jsonl has no test_list"):
        published.load_mbpp(tmp_path)
    (tmp_path / "a.jsonl").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        published.load_swe_bench(tmp_path)
