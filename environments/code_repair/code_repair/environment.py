"""The code repair task: its tools, its reward and its environment for TRL.

The tools answer every call with text, even a call that fails. The code under repair is text: it is edited here and run in a
sandbox. The examples and hidden tests are not part of the code, so no edit can change them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from art_nb.environments import RefusedCall, ToolEnvironment, ToolEpisode, clean, quoted, tool
from art_nb.trajectories import Trajectory
from code_repair.problems import Check, Problem, load_problems
from code_repair.sandbox import MontySandbox, Sandbox
from code_repair.source import common_ends, definitions, references, syntax_error
from code_repair.trials import Verdict, judge

MAX_TURNS = 12
MAX_CODE_LENGTH = 4000  # characters of one edit
MAX_FILE_LENGTH = 20_000  # characters
MAX_LINES = 60  # shown in one observation
OVER = "The repair is over."
FOUND_REWARD = 0.2  # if the first edit changes a line with the bug; less if a later one does


@cache
def course_sandbox() -> Sandbox:
    """Return the sandbox that the repairs of this process share by default."""
    return MontySandbox()


def first_message(problem: Problem) -> str:
    """Return the agent's prompt: the task if given, the numbered code (an outline if it has several files), the examples."""
    if len(problem.files) == 1:
        shown = "\n".join(_numbered(next(iter(problem.files.values())).splitlines(), 1))
    else:
        shown = _outline(problem.files)
    examples = "\n".join(_example(test) for test in problem.visible)
    task = f"{problem.task}\n" if problem.task else ""
    return f"Repair {problem.entry}.\n{task}{shown}\n{examples}"


class Repair(ToolEpisode):
    """The state and reward of one repair, independent of its editing tools.

    paid_by: "hidden" rewards passing the hidden tests; "visible" rewards passing the examples that the agent sees, to show
    what an agent learns from that.

    Attributes: those of `ToolEpisode`, whose `ended_by` may also be "submitted"; files (name to current text), edits (edits
    made, also those undone), runs (runs of the examples), found (number of the first edit that changed a line with the bug;
    0 while none did), seen (whether all examples passed when a tool last ran them; None before, and after another edit).
    """

    over_message = OVER

    def __init__(self, problem: Problem, sandbox: Sandbox, max_turns: int, paid_by: str = "hidden"):
        if paid_by not in ("hidden", "visible"):
            raise ValueError(f"paid_by must be 'hidden' or 'visible', not {paid_by!r}")
        super().__init__(max_turns)
        self.problem, self.sandbox, self.paid_by = problem, sandbox, paid_by
        self.files = dict(problem.files)
        self.edits = self.runs = self.found = 0
        self.seen: bool | None = None
        self.bug_line = problem.bug.line if problem.bug else 0  # in the current code, until it is found

    @tool
    def submit(self) -> str:
        """
        Hand in the code as it is. This ends the repair.
        """
        self.ended_by = "submitted"
        return "Thank you."

    def run_out(self, observation: str) -> str:
        return f"{super().run_out(observation)}\n{OVER}"

    def trajectory(self, **metadata: Any) -> Trajectory:
        """As `ToolEpisode.trajectory`, with the problem, its family and the kind of its bug in the metadata."""
        bug, problem = self.problem.bug, self.problem
        return super().trajectory(problem=problem.id, family=problem.family, bug=bug.kind if bug else "", **metadata)

    def touches_bug(self, file: str, first: int, last: int, old: list[str], new: list[str]) -> bool:
        """Return whether replacing the lines `first` to `last`, which are `old`, with `new` changes a line with the bug."""
        bug = self.problem.bug
        if bug is None or file != bug.file:
            return False
        start, end = common_ends(old, new)
        first, last = first + start, last - end  # the lines that differ
        return first <= self.bug_line + max(len(bug.now), 1) - 1 and last >= self.bug_line - (0 if bug.now else 1)

    def verdict(self, files: dict[str, str], tests: tuple[Check, ...]) -> Verdict:
        """Run tests on files in the sandbox."""
        return judge(self.sandbox, files, tests)

    def visible(self, files: dict[str, str] | None = None) -> Verdict:
        """Run the examples on the current code, or on `files` instead, and count the run."""
        self.runs += 1
        return self.verdict(files or self.files, self.problem.visible)

    def hidden(self) -> Verdict:
        """Run the hidden tests on the current code."""
        return self.verdict(self.files, self.problem.hidden)

    def changed_lines(self) -> int:
        """Return the number of lines that differ from the given code: removed or added, whichever are more."""
        changed = 0
        for file, text in self.files.items():
            old, new = self.problem.files[file].splitlines(), text.splitlines()
            changed += max(len(old), len(new)) - sum(common_ends(old, new))
        return changed

    def found_reward(self) -> float:
        """Return the reward for finding the bug: less with each edit elsewhere, so that trying all lines does not pay."""
        return FOUND_REWARD / self.found if self.found else 0.0

    def reward_parts(self) -> dict[str, float]:
        """Return the components whose sum is the reward.

        tests: the share of the rewarded tests that the submitted code passes, or the given code if none was submitted.
        all: 1 if all pass. small: 0.2 for a full repair that changes one line, 0.1 for two lines, and so on. place: 0.2 if
        the first edit changes the lines with the bug, 0.1 if the second is the first to do so, and so on. refused: -0.02
        for each refused call. malformed: -1.
        """
        counted = self.files if self.ended_by == "submitted" else self.problem.files
        tests = self.problem.visible if self.paid_by == "visible" else self.problem.hidden
        verdict = self.verdict(counted, tests)
        whole = float(verdict.passed)
        return {
            "tests": verdict.share,
            "all": whole,
            "small": 0.2 * whole / max(1, self.changed_lines()),
            "place": self.found_reward(),
            "refused": -0.02 * self.refused,
            "malformed": -float(self.ended_by == "malformed"),
        }

    def reward(self) -> float:
        """Return the sum of `reward_parts`; the tests of an unfinished repair run on the given code."""
        return sum(self.reward_parts().values())

    def progress(self) -> float:
        return self.reward() if self.over else self.found_reward()

    def metrics(self) -> dict[str, float]:
        """Return the numbers to chart: counts, yes-or-no values as 0 or 1, the share of the hidden tests that pass, and each
        component of the reward as `reward_` and its name.
        """
        submitted = self.ended_by == "submitted"
        visible, hidden = self.verdict(self.files, self.problem.visible), self.hidden()
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


class CodeRepair(Repair):
    """One repair by tools that read, edit and run code."""

    def __init__(
        self, problem: Problem, sandbox: Sandbox | None = None, max_turns: int = MAX_TURNS, paid_by: str = "hidden"
    ):
        super().__init__(problem, sandbox or course_sandbox(), max_turns, paid_by)
        self._earlier: list[tuple[dict[str, str], int]] = []  # files and `bug_line` before each edit

    def first_message(self) -> str:
        return first_message(self.problem)

    # Most chat templates put the tools' schemas into every prompt, so the descriptions are short, for small models.
    @tool
    def outline(self) -> str:
        """
        List the functions of all files, with their lines.
        """
        return _outline(self.files)

    @tool
    def find_definition(self, name: str) -> str:
        """
        Show the lines that define a name.

        Args:
            name: of a function or class.
        """
        pages = []
        for file, text in self.files.items():
            for found in definitions(text):
                if found.name == name.strip():
                    pages += [f"{file}:", *_numbered(text.splitlines()[found.first - 1 : found.last], found.first)]
        if not pages:
            raise RefusedCall(f"nothing named {quoted(name)} is defined here")
        return "\n".join(pages[:MAX_LINES])

    @tool
    def find_references(self, name: str) -> str:
        """
        List the lines that mention a name.

        Args:
            name: as it is written.
        """
        found = []
        for file, text in self.files.items():
            lines = text.splitlines()
            found += [f"{file} {line}: {lines[line - 1].strip()[:80]}" for line in references(text, name.strip())]
        if not found:
            raise RefusedCall(f"nothing mentions {quoted(name)}")
        return "\n".join(found[:MAX_LINES])

    @tool
    def show_lines(self, first: int, last: int, file: str = "") -> str:
        """
        Show lines.

        Args:
            first: number of the first line.
            last: number of the last line.
            file: their file; may be omitted if there is only one.
        """
        return "\n".join(_numbered(self._lines(first, last, file)[first - 1 : last][:MAX_LINES], first))

    @tool
    def replace_lines(self, first: int, last: int, code: str, file: str = "") -> str:
        """
        Replace lines.

        Args:
            first: number of the first line.
            last: number of the last line.
            code: the new lines, with their indentation.
            file: their file; may be omitted if there is only one.
        """
        return self._edit(self.file_named(file), self._lines(first, last, file), first, last, code)

    @tool
    def replace_definition(self, name: str, code: str, file: str = "") -> str:
        """
        Replace a function, from def to its last line.

        Args:
            name: of the function.
            code: all its new lines.
            file: its file; needed only if several files define the name.
        """
        places = [
            (other, found) for other, text in self.files.items() for found in definitions(text)
            if found.name == name.strip() and file.strip() in ("", other)
        ]  # fmt: skip
        if len(places) != 1:
            how_many = "defined more than once; replace lines" if places else "not defined"
            raise RefusedCall(f"{quoted(name)} is {how_many}")
        ((other, found),) = places
        return self._edit(other, self.files[other].splitlines(), found.first, found.last, code)

    @tool
    def run_tests(self) -> str:
        """
        Run the examples.
        """
        verdict = self.visible()
        self.seen = verdict.passed
        return verdict.summary()

    @tool
    def undo(self) -> str:
        """
        Take back the last edit.
        """
        if not self._earlier:
            raise RefusedCall("there is no edit to take back")
        (self.files, self.bug_line), self.seen = self._earlier.pop(), None
        return "Taken back."

    def _edit(self, file: str, lines: list[str], first: int, last: int, code: str) -> str:
        if len(code) > MAX_CODE_LENGTH:
            raise RefusedCall(f"code may have {MAX_CODE_LENGTH:,} characters, not {len(code):,}")
        new = clean(code).rstrip("\n").splitlines() if code.strip() else []
        text = "\n".join([*lines[: first - 1], *new, *lines[last:]]) + "\n"
        if text == self.files[file]:
            raise RefusedCall("that changes nothing")
        if wrong := syntax_error(text):
            raise RefusedCall(f"with it the file can't be read: {wrong}")
        if len(text) > MAX_FILE_LENGTH:
            raise RefusedCall(f"a file may have {MAX_FILE_LENGTH:,} characters")
        self._earlier.append((dict(self.files), self.bug_line))
        self.files[file] = text
        self.edits += 1
        old = lines[first - 1 : last]
        if not self.found and self.touches_bug(file, first, last, old, new):
            self.found = self.edits
        if self.problem.bug and file == self.problem.bug.file and last - common_ends(old, new)[1] < self.bug_line:
            self.bug_line += len(new) - len(old)
        self.seen = None
        return "Replaced."

    def file_named(self, file: str) -> str:
        """Return the file of this name; without a name the only file, or the one that defines the function to repair."""
        if file.strip() or len(self.files) == 1:
            return file.strip() or next(iter(self.files))
        entry = self.problem.entry
        return next((f for f, text in self.files.items() if any(d.name == entry for d in definitions(text))), "")

    def _lines(self, first: int, last: int, file: str) -> list[str]:
        """Return all lines of the file. Raises: RefusedCall unless it exists and has the lines from `first` to `last`."""
        name = self.file_named(file)
        if name not in self.files:
            raise RefusedCall(f"there is no file {quoted(file)}; there are {', '.join(self.files)}")
        lines = self.files[name].splitlines()
        if not 1 <= first <= last <= len(lines):
            raise RefusedCall(f"lines must be from 1 to {len(lines)}, the first not after the last")
        return lines


TOOLS = CodeRepair.tools
"""The tools' OpenAI schemas, sorted by name as TRL lists them, to pass to a model as `tools=TOOLS`."""


class CodeRepairEnvironment(ToolEnvironment, episode=CodeRepair):
    """The code repair task for TRL's `environment_factory`; the reward is `Repair.reward`.

    Pass the class itself, or `functools.partial(CodeRepairEnvironment, problems=...)` for other problems. Each row of the
    dataset has the id of a `problem` and a prompt whose last user message is empty: see `ToolEnvironment`.
    """

    episode: CodeRepair

    def __init__(self, problems: Iterable[Problem] | None = None, **options: Any):
        """problems: by default all. options: of `CodeRepair`. Raises: ValueError if there are none."""
        self._problems = {problem.id: problem for problem in (load_problems() if problems is None else problems)}
        if not self._problems:
            raise ValueError("problems is empty: expected at least one; leave it out for all problems")
        self._options = options
        self.reset()

    def reset(self, problem: str = "", **row: Any) -> str:
        """Start the repair of this problem, by default the first. Returns its first message.

        Other columns are ignored. Raises: ValueError for an unknown problem.
        """
        problem = problem or next(iter(self._problems))
        if problem not in self._problems:
            raise ValueError(f"problem is {problem!r}: expected the id of one of this environment's problems")
        self.episode = CodeRepair(self._problems[problem], **self._options)
        return self.episode.first_message()


def _example(test: Check) -> str:
    return test.call if test.gives is None else f"{test.call} should give {test.gives}"


def _numbered(lines: list[str], first: int) -> list[str]:
    return [f"{number}|{line}" for number, line in enumerate(lines, start=first)]


def _outline(files: dict[str, str]) -> str:
    pages = []
    for file, text in files.items():
        pages.append(f"{file}: {len(text.splitlines())} lines")
        pages += [f"{'  ' * (d.depth + 1)}{d.first}-{d.last} {d.kind} {d.name}" for d in definitions(text)]
    return "\n".join(pages[:MAX_LINES])
