"""The course's commands: `python -m art_nb COMMAND`. The Makefile's targets call them."""

from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Callable

from course.setup_venv import ROOT

# JupyterLab's default settings: it neither asks about news nor requests its newest version at each start.
LAB_SETTINGS = ROOT / "notebooks" / "course" / "jupyter"
LINT = ["ruff", "check", "."]
TYPES = ["mypy", "art_nb", "environments", "notebooks/course"]
# Two processes of one thread each (conftest.py): small models gain little from a second thread. pytest hands out files one
# by one in this order, so the notebooks, which take longest, come first.
TESTS = ["pytest", "--nbmake", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "notebooks", "tests"]
QUICK_TESTS = ["pytest", "-n", "2", "--dist", "worksteal", "-m", "not slow and not browser", "tests"]
CHECKS = (LINT, TYPES, TESTS)
QUICK_CHECKS = (LINT, TYPES, QUICK_TESTS)


def lab(*options: str) -> int:
    """open the notebooks in JupyterLab; its own options may follow (`jupyter lab --help` lists them)"""
    from jupyterlab.labapp import main as jupyterlab

    os.chdir(ROOT)
    paths = [str(LAB_SETTINGS), os.environ.get("JUPYTER_CONFIG_PATH")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    jupyterlab(["--notebook-dir=notebooks", "notebooks/00_start_here.ipynb", *options])
    return 0


def demo() -> int:
    """run the 2048 notebook in this terminal"""
    from course.demo import demo

    return demo()


def test(*options: str) -> int:
    """run the linter, the type checker, all tests and all notebooks; --quick: no notebooks or slow tests"""
    if options not in ((), ("--quick",)):
        print(f"test {' '.join(options)}: the only option is --quick. For others, call pytest directly.", file=sys.stderr)
        return 2
    if importlib.util.find_spec("pytest") is None:
        from course.doctor import SETUP

        print(f"The tests need more packages than the course: run `{SETUP} dev` first.", file=sys.stderr)
        return 1
    for check in QUICK_CHECKS if options else CHECKS:
        print("$", *check, flush=True)
        if code := subprocess.run([sys.executable, "-m", *check], cwd=ROOT).returncode:
            return code
    return 0


def doctor() -> int:
    """check the installation, and explain how to fix what is missing"""
    from course.doctor import can_run, doctor

    return 0 if can_run(doctor()) else 1


def lock() -> int:
    """resolve all packages again and write requirements/course.txt and dev.txt (needs the extra `dev`)"""
    from course.lock import write_locks

    return _print_all(write_locks())


def colab() -> int:
    """write out/art_nb.zip, the files that notebooks need, to upload in a notebook's first cell on Colab"""
    from course.setup_cell import write_zip

    path = write_zip(ROOT / "out")
    print(f"{path} ({path.stat().st_size / 1e6:.0f} MB)")
    return 0


def address(*url: str) -> int:
    """set the repository's address (`address https://github.com/OWNER/NAME`; `address ""` removes it)"""
    from course.setup_cell import set_address

    if len(url) != 1:
        print('usage: art-nb address https://github.com/OWNER/NAME, or address "" to remove it', file=sys.stderr)
        return 2
    return _print_all(set_address(url[0]))


def setup_cell() -> int:
    """write the first code cell of every notebook, and the README's badges, to match the repository's address"""
    from course.setup_cell import write_badges, write_setup_cells

    return _print_all([*write_setup_cells(), *write_badges()])


def real_model() -> int:
    """download a real language model, SmolLM2-135M-Instruct (once), and print its folder"""
    from course.real_model import smollm2

    return _print_all([smollm2()])


def _print_all(paths: list) -> int:
    print(*paths, sep="\n", end="\n" if paths else "")
    return 0


COMMANDS: dict[str, Callable[..., int]] = {
    "lab": lab,
    "demo": demo,
    "test": test,
    "doctor": doctor,
    "smollm2": real_model,
    "lock": lock,
    "colab": colab,
    "address": address,
    "setup-cell": setup_cell,
}


def run(name: str, *options: str) -> int:
    """Run the command of that name; return its exit code. Expected errors and Ctrl-C become one line on stderr."""
    command = COMMANDS[name]
    if options in (("--help",), ("-h",)):
        print(f"art-nb {name}: {inspect.getdoc(command)}")
        return 0
    if options and not inspect.signature(command).parameters:
        print(f"art-nb {name} takes no options; given: {' '.join(options)}", file=sys.stderr)
        return 2
    try:
        return command(*options)
    except (ValueError, RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as error:
        print(f"art-nb {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
