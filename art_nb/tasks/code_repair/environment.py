"""Repairing code with tools, as a task: its tools, its reward, and an environment for TRL.

The tools answer every call with words, also one that can't be carried out. What is repaired is text that is edited here and
run in a sandbox; examples and hidden tests are no part of it, so that no edit reaches them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from art_nb.tasks.code_repair.problems import Check, Problem, load_problems
from art_nb.tasks.code_repair.sandbox import MontySandbox, Sandbox
from art_nb.tasks.code_repair.source import common_ends, definitions, fault, references
from art_nb.tasks.code_repair.trials import Verdict, judge
from art_nb.tasks.tool_calls import ByToolCalls, malformed, quoted

MAX_TURNS = 12
LONGEST_CODE = 4000  # characters of one edit
LONGEST_FILE = 20_000
MOST_LINES = 60  # shown at once
OVER = "The repair is over."
PLACE = 0.2  # paid for finding the place

_INTEGERS = ("first", "last", "line", "example", "change")


def tool_schema(name: str, description: str, required: Iterable[str] = (), /, **parameters: str) -> dict:
    """OpenAI's schema of a tool. parameters: name -> what it is; those named in `_INTEGERS` are integers, others strings."""
    properties = {
        parameter: {"type": "integer" if parameter in _INTEGERS else "string", "description": text}
        for parameter, text in parameters.items()
    }
    schema = {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})
    function = {"name": name, "description": description, "parameters": schema, "return": {"type": "string"}}
    return {"type": "function", "function": function}


_FILE = "its file; may be left out where there is one."
TOOLS = [
    tool_schema("find_definition", "Show the lines that define a name.", ["name"], name="of a function or class."),
    tool_schema("find_references", "List the lines that mention a name.", ["name"], name="as it is written."),
    tool_schema("outline", "List the functions of all files, with their lines."),
    tool_schema(
        "replace_definition", "Write a function anew, from def to its last line.", ["name", "code"],
        name="of the function.", code="all its new lines.", file=_FILE,
    ),
    tool_schema(
        "replace_lines", "Write lines anew.", ["first", "last", "code"],
        first="number of the first line.", last="number of the last line.", code="the new lines, with their indentation.",
        file=_FILE,
    ),
    tool_schema("run_tests", "Run the examples."),
    tool_schema(
        "show_lines", "Show lines.", ["first", "last"],
        first="number of the first line.", last="number of the last line.", file=_FILE,
    ),
    tool_schema("submit", "Hand in the code as it is. This ends the repair."),
    tool_schema("undo", "Take back the last edit."),
]  # fmt: skip
"""The schemas that TRL derives from `CodeRepairEnvironment`'s tools, to pass to a model as `tools=TOOLS`; by name, as TRL
lists them."""



@cache
def course_sandbox() -> Sandbox:
    """The sandbox that all repairs of this process share unless they are given another."""
    return MontySandbox()


def first_message(problem: Problem) -> str:
    """What the agent is asked: the code with its lines numbered, or for several files what they hold, and the examples."""
    if len(problem.files) == 1:
        shown = "\n".join(_numbered(next(iter(problem.files.values())).splitlines(), 1))
    else:
        shown = _outline(problem.files)
    examples = "\n".join(_example(test) for test in problem.visible)
    task = f"{problem.task}\n" if problem.task else ""
    return f"Repair {problem.entry}.\n{task}{shown}\n{examples}"


class CodeRepair(ByToolCalls):
    """One repair, by whoever makes the calls.

    paid_by: "hidden" for the hidden tests, or "visible" to see what an agent learns that is paid by the examples it is
    shown.

    Fields: files (as they stand now), turns (calls made), edits (those that were carried out), refused, runs (how often the
    examples were run), ended_by (None while it runs, then "submitted", "turns" or "malformed"), fault (why a call was
    malformed: "no call", "unknown tool" or "bad arguments"), found (the number of the first edit that touched the lines
    with the bug, 0 while none did), turn_rewards (one a call; their sum is `reward()`), seen (whether all examples passed
    when they were last run; None before).
    """

    tools = TOOLS
    out_of_turns = "turns"  # what ended_by says of a repair whose turns ran out

    def __init__(
        self, problem: Problem, sandbox: Sandbox | None = None, max_turns: int = MAX_TURNS, paid_by: str = "hidden"
    ):
        if paid_by not in ("hidden", "visible"):
            raise ValueError(f"paid_by must be 'hidden' or 'visible', not {paid_by!r}")
        self.problem, self.sandbox, self.max_turns, self.paid_by = problem, sandbox or course_sandbox(), max_turns, paid_by
        self.files = dict(problem.files)
        self._earlier: list[dict[str, str]] = []
        self.turns = self.edits = self.refused = self.runs = 0
        self.fault: str | None = None
        self.found = 0
        self.seen: bool | None = None
        self.turn_rewards: list[float] = []

    def call(self, name: str | None, arguments: str | dict | None) -> str:
        """As `ByToolCalls.call`."""
        if self.over:
            return OVER
        self.turns += 1
        place = self._place()
        wrong, given = malformed(self.tools, name, arguments)
        if wrong:
            self.fault, said = wrong
            self.ended_by = "malformed"
            result = f"Malformed: {said}. {OVER}"
        else:
            result = getattr(self, f"_{name}")(**given)
            if self.turns >= self.max_turns and not self.over:
                self.ended_by = self.out_of_turns
                result += f"\n{OVER}"
        self.turn_rewards.append(self.reward() - sum(self.turn_rewards) if self.over else self._place() - place)
        return result

    def _place(self) -> float:
        """What finding the place is worth: less for every edit elsewhere, so that trying all lines does not pay."""
        return PLACE / self.found if self.found else 0.0

    def _outline(self) -> str:
        return _outline(self.files)

    def _find_definition(self, name: str) -> str:
        pages = []
        for file, text in self.files.items():
            for found in definitions(text):
                if found.name == name.strip():
                    pages += [f"{file}:", *_numbered(text.splitlines()[found.first - 1 : found.last], found.first)]
        return "\n".join(pages[:MOST_LINES]) or self._refuse(f"nothing named {quoted(name)} is defined here")

    def _find_references(self, name: str) -> str:
        found = []
        for file, text in self.files.items():
            lines = text.splitlines()
            found += [f"{file} {line}: {lines[line - 1].strip()[:80]}" for line in references(text, name.strip())]
        return "\n".join(found[:MOST_LINES]) or self._refuse(f"nothing mentions {quoted(name)}")

    def _show_lines(self, first: int, last: int, file: str = "") -> str:
        lines, wrong = self._range(first, last, file)
        if wrong:
            return self._refuse(wrong)
        return "\n".join(_numbered(lines[first - 1 : last][:MOST_LINES], first))

    def _replace_lines(self, first: int, last: int, code: str, file: str = "") -> str:
        lines, wrong = self._range(first, last, file)
        return self._refuse(wrong) if wrong else self._edit(self.file_named(file), lines, first, last, code)

    def _replace_definition(self, name: str, code: str, file: str = "") -> str:
        places = [
            (other, found) for other, text in self.files.items() for found in definitions(text)
            if found.name == name.strip() and file.strip() in ("", other)
        ]  # fmt: skip
        if len(places) != 1:
            how_many = "defined more than once; replace lines" if places else "not defined"
            return self._refuse(f"{quoted(name)} is {how_many}")
        ((other, found),) = places
        return self._edit(other, self.files[other].splitlines(), found.first, found.last, code)

    def _edit(self, file: str, lines: list[str], first: int, last: int, code: str) -> str:
        if len(code) > LONGEST_CODE:
            return self._refuse(f"code may have {LONGEST_CODE:,} characters, not {len(code):,}")
        new = code.rstrip("\n").splitlines() if code.strip() else []
        text = "\n".join([*lines[: first - 1], *new, *lines[last:]]) + "\n"
        if text == self.files[file]:
            return self._refuse("that changes nothing")
        if wrong := fault(text):
            return self._refuse(f"with it the file can't be read: {wrong}")
        if len(text) > LONGEST_FILE:
            return self._refuse(f"a file may have {LONGEST_FILE:,} characters")
        self._earlier.append(dict(self.files))
        self.files[file] = text
        self.edits += 1
        if not self.found and self._touches_bug(file, first, last, lines[first - 1 : last], new):
            self.found = self.edits
        self.seen = None
        return "Replaced."

    def _touches_bug(self, file: str, first: int, last: int, old: list[str], new: list[str]) -> bool:
        """Whether `new` in place of the lines from first to last changes one with the bug, while lines before it keep their
        place.
        """
        bug = self.problem.bug
        if bug is None or file != bug.file:
            return False
        same = common_ends(old, new)[0]
        return first + same <= bug.line + max(len(bug.now), 1) - 1 and last >= bug.line - (0 if bug.now else 1)

    def _run_tests(self) -> str:
        verdict = self.visible()
        self.seen = verdict.passed
        return verdict.said()

    def _undo(self) -> str:
        if not self._earlier:
            return self._refuse("there is no edit to take back")
        self.files, self.seen = self._earlier.pop(), None
        return "Taken back."

    def _submit(self) -> str:
        self.ended_by = "submitted"
        return "Thank you."

    def file_named(self, file: str) -> str:
        """The file of this name; without a name the one that defines what is to be repaired."""
        if file.strip() or len(self.files) == 1:
            return file.strip() or next(iter(self.files))
        entry = self.problem.entry
        return next((f for f, text in self.files.items() if any(d.name == entry for d in definitions(text))), "")

    def _range(self, first: int, last: int, file: str) -> tuple[list[str], str]:
        """(the file's lines, what is wrong with asking for these of them)."""
        name = self.file_named(file)
        if name not in self.files:
            return [], f"there is no file {quoted(file)}; there are {', '.join(self.files)}"
        lines = self.files[name].splitlines()
        if not 1 <= first <= last <= len(lines):
            return lines, f"lines must be from 1 to {len(lines)}, the first not after the last"
        return lines, ""

    def _refuse(self, wrong: str) -> str:
        self.refused += 1
        return f"Refused: {wrong}."

    def visible(self, files: dict[str, str] | None = None) -> Verdict:
        """How the code as it stands, or `files` in its place, does on the examples. Counts as a run."""
        self.runs += 1
        return self.judged(files or self.files, self.problem.visible)

    def hidden(self) -> Verdict:
        """How the code as it stands does on the hidden tests."""
        return self.judged(self.files, self.problem.hidden)

    def judged(self, files: dict[str, str], tests: tuple[Check, ...]) -> Verdict:
        """How files do on tests."""
        return judge(self.sandbox, files, tests)

    def changed_lines(self) -> int:
        """How many lines differ from the code as it was given: the larger of those gone and those new."""
        changed = 0
        for file, text in self.files.items():
            old, new = self.problem.files[file].splitlines(), text.splitlines()
            changed += max(len(old), len(new)) - sum(common_ends(old, new))
        return changed

    def reward_parts(self) -> dict[str, float]:
        """What the reward is the sum of.

        tests: the share of the tests that pay which pass, if the code was submitted; code that was not counts as the one
        given. all: 1 if all pass. small: 0.2 for a repair of all that changes one line, 0.1 for two, and so on. place: 0.2
        if the first edit is of the lines with the bug, 0.1 if the second is the first to be, and so on. refused: -0.02 for
        each refused call. malformed: -1.
        """
        counted = self.files if self.ended_by == "submitted" else self.problem.files
        tests = self.problem.visible if self.paid_by == "visible" else self.problem.hidden
        verdict = self.judged(counted, tests)
        whole = float(verdict.passed)
        return {
            "tests": verdict.share,
            "all": whole,
            "small": 0.2 * whole / max(1, self.changed_lines()),
            "place": self._place(),
            "refused": -0.02 * self.refused,
            "malformed": -float(self.ended_by == "malformed"),
        }

    def reward(self) -> float:
        """The sum of `reward_parts`."""
        return sum(self.reward_parts().values())

    def metrics(self) -> dict[str, float]:
        """What to chart: shares are 0 or 1 here; each part of the reward is `reward_` and its name."""
        submitted = self.ended_by == "submitted"
        visible, hidden = self.judged(self.files, self.problem.visible), self.hidden()
        return {
            "repaired": float(submitted and hidden.passed),
            "visible_pass": float(submitted and visible.passed),
            "hidden_share": hidden.share,
            "only_visible": float(submitted and visible.passed and not hidden.passed),
            "found_place": float(self.found > 0),
            "out_of_turns": float(self.ended_by == "turns"),
            "malformed": float(self.ended_by == "malformed"),
            "turns": float(self.turns),
            "edits": float(self.edits),
            "refused_calls": float(self.refused),
            "changed_lines": float(self.changed_lines()),
            **{f"reward_{name}": part for name, part in self.reward_parts().items()},
        }


def _example(test: Check) -> str:
    return test.call if test.gives is None else f"{test.call} should give {test.gives}"


def _numbered(lines: list[str], first: int) -> list[str]:
    return [f"{number}|{line}" for number, line in enumerate(lines, start=first)]


def _outline(files: dict[str, str]) -> str:
    pages = []
    for file, text in files.items():
        pages.append(f"{file}: {len(text.splitlines())} lines")
        pages += [f"{'  ' * (d.depth + 1)}{d.first}-{d.last} {d.kind} {d.name}" for d in definitions(text)]
    return "\n".join(pages[:MOST_LINES])


class CodeRepairEnvironment:
    """The task as a tool-calling episode for TRL's `environment_factory`; its reward is `CodeRepair.reward`.

    Pass the class itself, or `functools.partial(CodeRepairEnvironment, problems=...)` for other problems. The dataset's
    rows carry the id of a `problem` and a prompt whose last user message the code is appended to: leave its content empty.
    TRL's loop ends when the model answers without a call, or at its own limits; every call after the end is told that the
    repair is over. A call that TRL itself can't make (another tool, an unknown argument) never gets here and is not counted
    as malformed.
    """

    def __init__(
        self,
        problems: Iterable[Problem] | None = None,
        sandbox: Sandbox | None = None,
        max_turns: int = MAX_TURNS,
        paid_by: str = "hidden",
    ):
        self._problems = {problem.id: problem for problem in (problems or load_problems())}
        self._options: dict[str, Any] = {"sandbox": sandbox, "max_turns": max_turns, "paid_by": paid_by}
        self.reset(next(iter(self._problems)))

    def reset(self, problem: str = "", **kwargs: Any) -> str:
        """Starts the repair of this problem and returns its first message; the row's other columns are ignored."""
        self.repair = CodeRepair(self._problems[problem or next(iter(self._problems))], **self._options)
        return first_message(self.repair.problem)

    # The tools' schemas, made from these docstrings, are in every prompt: short, for a small model's sake.

    def outline(self) -> str:
        """
        List the functions of all files, with their lines.
        """
        return self.repair.call("outline", {})

    def find_definition(self, name: str) -> str:
        """
        Show the lines that define a name.

        Args:
            name: of a function or class.
        """
        return self.repair.call("find_definition", {"name": name})

    def find_references(self, name: str) -> str:
        """
        List the lines that mention a name.

        Args:
            name: as it is written.
        """
        return self.repair.call("find_references", {"name": name})

    def show_lines(self, first: int, last: int, file: str = "") -> str:
        """
        Show lines.

        Args:
            first: number of the first line.
            last: number of the last line.
            file: its file; may be left out where there is one.
        """
        return self.repair.call("show_lines", {"first": first, "last": last, "file": file})

    def replace_lines(self, first: int, last: int, code: str, file: str = "") -> str:
        """
        Write lines anew.

        Args:
            first: number of the first line.
            last: number of the last line.
            code: the new lines, with their indentation.
            file: its file; may be left out where there is one.
        """
        return self.repair.call("replace_lines", {"first": first, "last": last, "code": code, "file": file})

    def replace_definition(self, name: str, code: str, file: str = "") -> str:
        """
        Write a function anew, from def to its last line.

        Args:
            name: of the function.
            code: all its new lines.
            file: its file; may be left out where there is one.
        """
        return self.repair.call("replace_definition", {"name": name, "code": code, "file": file})

    def run_tests(self) -> str:
        """
        Run the examples.
        """
        return self.repair.call("run_tests", {})

    def submit(self) -> str:
        """
        Hand in the code as it is. This ends the repair.
        """
        return self.repair.call("submit", {})

    def undo(self) -> str:
        """
        Take back the last edit.
        """
        return self.repair.call("undo", {})

    def get_reward(self) -> float:
        """The repair's reward; one that was broken off counts as one that changed nothing."""
        return self.repair.reward()
