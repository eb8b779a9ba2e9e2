"""RepairView: what a repair changed in the code, line by line, and what each test says of it."""

from __future__ import annotations

import difflib
from html import escape

from art_nb.tasks.code_repair import CodeRepair
from art_nb.tasks.code_repair.trials import Verdict

# Their own letters as well: on these grounds a dark theme's can't be read.
_GONE, _NEW, _SAME = "background:#fbe3e1;color:#1f2328", "background:#e0f2e3;color:#1f2328", ""
_CELL = "font-family:monospace;white-space:pre;text-align:left;padding:0 .6em"
_COLOURS = {"-": _GONE, "+": _NEW, " ": _SAME}


class RepairView:
    """A table of a repair's lines, gone, new and the same, beside the examples and hidden tests with what each gives.

    It is HTML without script, so it shows on GitHub as well; elsewhere it is the same in plain text. What a model wrote is
    shown as text. Tests are run in the repair's own sandbox when it is made.

    repair: over or not. most: tests of either kind that are shown.
    """

    def __init__(self, repair: CodeRepair, most: int = 6):
        self.lines = [line for file in repair.files for line in _difference(file, repair)]
        self.tests = [
            row
            for kind, verdict in (("example", repair.visible()), ("hidden", repair.hidden()))
            for row in _rows(kind, verdict)[:most]
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
        said = [
            f"{'passes' if passes else 'fails'} {kind}: {call} gives {gives}, should give {wanted}"
            for kind, call, gives, wanted, passes in self.tests
        ]
        return "\n".join([*self.lines, *said])


def _difference(file: str, repair: CodeRepair) -> list[str]:
    """The file's lines, each after -, + or a space; where there are several files a line before names it."""
    old, new = repair.problem.files[file].splitlines(), repair.files[file].splitlines()
    lines = [line.rstrip("\n") for line in difflib.ndiff(old, new) if line[0] in _COLOURS]
    return lines if len(repair.files) == 1 else [f"  # {file}", *lines]


def _rows(kind: str, verdict: Verdict) -> list[tuple[str, str, str, str, bool]]:
    """(kind, call, what it gives, what it should give, whether it passes) of each test."""
    rows = []
    for test, answer, passes in zip(verdict.tests, verdict.answers, verdict.passes, strict=True):
        gives = answer.error or answer.text or ""
        rows.append((kind, test.call[:120], gives[:120], (test.gives or "no error")[:120], passes))
    return rows
