"""The course's commands: `python -m art_nb COMMAND`, or `art-nb COMMAND`. The Makefile's targets call them."""

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
    # Two processes of one thread each (conftest.py): small models gain little from a second thread. Files are handed out
    # one by one, in this order: the notebooks, which take longest, come first.
    ["pytest", "--nbmake", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "notebooks", "tests"],
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


def real_model() -> int:
    """fetch a real language model, SmolLM2-135M-Instruct (once), and print its folder"""
    from art_nb.real_model import smollm2

    print(smollm2())
    return 0


def setup_cell() -> int:
    """write the first code cell of every notebook anew"""
    from art_nb.course.setup_cell import write_setup_cells

    for path in write_setup_cells():
        print(path)
    return 0


def serve(*options: str) -> int:
    """serve models to other processes and machines (extra `server`); `serve --help` lists its options"""
    if not _server_is_installed():
        return 1
    from art_nb.server.app import serve

    return serve(options)


def worker(*options: str) -> int:
    """play episodes for a server (extra `server`); `worker --help` lists its options"""
    if not _server_is_installed():
        return 1
    from art_nb.server.worker import work

    return work(options)


def export(*options: str) -> int:
    """write a checkpoint for other engines: adapter, merged or GGUF; `export --help` lists its options"""
    from art_nb.cluster.export_command import export

    return export(options)


def _server_is_installed() -> bool:
    if importlib.util.find_spec("fastapi") and importlib.util.find_spec("pydantic_settings"):
        return True
    from art_nb.course.doctor import SETUP

    print(f"This needs more than the course does: run `{SETUP} server` first.", file=sys.stderr)
    return False


COMMANDS = {
    "lab": lab,
    "demo": demo,
    "test": test,
    "serve": serve,
    "worker": worker,
    "export": export,
    "doctor": doctor,
    "smollm2": real_model,
    "setup-cell": setup_cell,
}


def main(arguments: list[str]) -> int:
    """Runs the command named by the first argument; returns the exit code."""
    for stream in sys.stdout, sys.stderr:  # a pipe on Windows knows some 250 signs: a question mark for the others
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    match arguments:
        case ["lab" | "serve" | "worker" | "export" as name, *options]:
            return COMMANDS[name](*options)
        case [name] if name in COMMANDS:
            return COMMANDS[name]()
    asked = arguments in (["--help"], ["-h"])
    print("usage: python -m art_nb COMMAND, where COMMAND is one of", file=sys.stdout if asked else sys.stderr)
    for name, command in COMMANDS.items():
        print(f"  {name:<14} {command.__doc__}", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def run() -> None:
    """The console script `art-nb`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
