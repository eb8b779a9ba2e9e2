"""The course's commands: `python -m art_nb lab | demo | test | doctor | setup-cell`. The Makefile's targets call them."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKS = (
    ["ruff", "check", "."],
    ["mypy", "art_nb"],
    # Two processes of one thread each (conftest.py): small models gain little from a second thread. The longest come first.
    ["pytest", "--nbmake", "-n", "2", "--dist", "worksteal", "notebooks", "tests"],
)


def lab(*options: str) -> int:
    """open the notebooks in JupyterLab; JupyterLab's own options may follow"""
    from jupyterlab.labapp import main as jupyterlab

    os.chdir(ROOT)
    jupyterlab(["--notebook-dir=notebooks", "notebooks/00_start_here.ipynb", *options])
    return 0


def demo() -> int:
    """run the 2048 notebook in this terminal"""
    from art_nb.course.demo import demo

    return demo()


def test() -> int:
    """run the linter, the type checker and all tests"""
    if importlib.util.find_spec("pytest") is None:
        from art_nb.course.doctor import SETUP

        print(f"The tests need more than the course does: run `{SETUP} dev` first.", file=sys.stderr)
        return 1
    for check in CHECKS:
        print("$", *check, flush=True)
        if code := subprocess.run([sys.executable, "-m", *check], cwd=ROOT).returncode:
            return code
    return 0


def doctor() -> int:
    """say what is installed and what is missing"""
    from art_nb.course.doctor import can_run, doctor

    return 0 if can_run(doctor()) else 1


def setup_cell() -> int:
    """write the first code cell of every notebook anew"""
    from art_nb.course.setup_cell import write_setup_cells

    for path in write_setup_cells():
        print(path)
    return 0


COMMANDS = {
    "lab": lab,
    "demo": demo,
    "test": test,
    "doctor": doctor,
    "setup-cell": setup_cell,
}


def main(arguments: list[str]) -> int:
    """Runs the command named by the first argument; returns the exit code."""
    for stream in sys.stdout, sys.stderr:  # a pipe on Windows knows some 250 signs: a question mark for the others
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    match arguments:
        case ["lab", *options]:
            return lab(*options)
        case [name] if name in COMMANDS:
            return COMMANDS[name]()
    asked = arguments in (["--help"], ["-h"])
    print("usage: python -m art_nb COMMAND, where COMMAND is one of", file=sys.stdout if asked else sys.stderr)
    for name, command in COMMANDS.items():
        print(f"  {name:<14} {command.__doc__}", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
