"""RepairView: a line-by-line diff of a repair, and the results of its tests."""

from __future__ import annotations

import difflib
from html import escape

from code_repair.environment import Repair
from code_repair.trials import Verdict

# With text colours, because those of a dark theme are illegible on these backgrounds.
_GONE, _NEW, _SAME = "background:#fbe3e1;color:#1f2328", "background:#e0f2e3;color:#1f2328", ""
_CELL = "font-family:monospace;white-space:pre;text-align:left;padding:0 .6em"
_COLOURS = {"-": _GONE, "+": _NEW, " ": _SAME}


class RepairView:
    """A table of removed, added and unchanged lines of a repair, and of the examples and hidden tests with their results.

    It is HTML without script, so it is also shown on GitHub; its repr is plain text. Code is escaped. The tests are run in
    the repair's sandbox when the view is made.

    most: maximum number of tests shown of each kind.
    """

    def __init__(self, repair: Repair, most: int = 6):
        self.lines = [line for file in repair.files for line in _difference(file, repair)]
        problem = repair.problem
        self.tests = [
            row
            for kind, tests in (("example", problem.visible), ("hidden", problem.hidden))
            for row in _rows(kind, repair.verdict(repair.files, tests))[:most]
        ]

    def _repr_html_(self) -> str:
        code = "".join(
            f'<tr style="{_COLOURS[line[0]]}"><td style="{_CELL}">{escape(line)}</td></tr>' for line in self.lines
        )
        tests = "".join(
            f'<tr style="{_NEW if passes else _GONE}"><td style="{_CELL}">{"✓" if passes else "✗"} {kind}</td>'
            f'<td style="{_CELL}">{escape(call)}</td><td style="{_CELL}">{escape(gives)}</td>'
            f'<td style="{_CELL}">{escape(wanted)}</td></tr>'
            for kind, call, gives, wanted, passes in self.tests
        )
        head = "".join(
            f'<th style="text-align:left;padding:0 .6em">{name}</th>' for name in ("", "call", "gives", "should give")
        )
        return f"<table>{code}</table><table><tr>{head}</tr>{tests}</table>"

    def __repr__(self) -> str:
        results = [
            f"{'passes' if passes else 'fails'} {kind}: {call} gives {gives}, should give {wanted}"
            for kind, call, gives, wanted, passes in self.tests
        ]
        return "\n".join([*self.lines, *results])


def _difference(file: str, repair: Repair) -> list[str]:
    """Return the file's lines, each prefixed with -, + or a space; if there are several files, its name comes first."""
    old, new = repair.problem.files[file].splitlines(), repair.files[file].splitlines()
    lines = [line for line in difflib.ndiff(old, new) if line[0] in _COLOURS]
    return lines if len(repair.files) == 1 else [f"  # {file}", *lines]


def _rows(kind: str, verdict: Verdict) -> list[tuple[str, str, str, str, bool]]:
    """Return (kind, call, result, expected value, whether it passes) of each test."""
    rows = []
    for test, answer, passes in zip(verdict.tests, verdict.answers, verdict.passes, strict=True):
        gives = answer.error or answer.text or "no value"
        rows.append((kind, test.call[:120], gives[:120], (test.gives or "no error")[:120], passes))
    return rows
