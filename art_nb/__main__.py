"""`art-nb COMMAND` or `python -m art_nb COMMAND`: serve, worker and export; in its repository also the course's commands.

The course's commands are those of the package `course` (notebooks/course/commands.py), where it is installed.
"""

import importlib
import importlib.util
import inspect
import io
import subprocess
import sys
from collections.abc import Callable

Command = Callable[..., int]  # takes the options as strings, or nothing; returns the exit code


def serve(*options: str) -> int:
    """serve models to other processes and machines (extras `train` and `server`); `serve --help` lists its options"""
    needed = ("torch", "trl", "fastapi", "uvicorn", "prometheus_client")
    if missing := [name for name in needed if not importlib.util.find_spec(name)]:
        print(f"art-nb serve needs {', '.join(missing)}: pip install 'art-nb[train,server]'", file=sys.stderr)
        return 1
    from art_nb.serving.app import serve

    return serve(options)


def worker(*options: str) -> int:
    """play episodes for a server; `worker --help` lists its options"""
    from art_nb.serving.worker import work

    return work(options)


def export(*options: str) -> int:
    """write a checkpoint for other engines: adapter, merged or GGUF; `export --help` lists its options"""
    from art_nb.export.command import export

    return export(options)


COMMANDS: dict[str, Command] = {"serve": serve, "worker": worker, "export": export}


def commands() -> dict[str, Command]:
    """Return the commands by name; the first line of a command's docstring is its help."""
    try:
        course = importlib.import_module("course.commands").COMMANDS
    except ModuleNotFoundError as error:
        if error.name not in ("course", "course.commands"):
            raise
        course = {}
    return course | COMMANDS


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names; return the exit code."""
    for stream in sys.stdout, sys.stderr:  # a pipe on Windows encodes some 250 characters: print "?" for the others
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    known = commands()
    name, *options = arguments or [""]
    if name in COMMANDS:
        return COMMANDS[name](*options)  # they report their own errors
    if name in known:
        return _run_course_command(name, known[name], options)
    needs_help = arguments in (["--help"], ["-h"])
    out = sys.stdout if needs_help else sys.stderr
    if name and not needs_help:
        print(f"no command {name!r}", file=out)
    print("usage: art-nb COMMAND, where COMMAND is one of", file=out)
    for name, command in known.items():
        print(f"  {name:<14} {(command.__doc__ or '').splitlines()[0]}", file=out)
    if not needs_help and len(known) == len(COMMANDS):
        print("The course's commands (lab, demo, test, ...) exist in its repository only, after `make setup`.", file=out)
    return 0 if needs_help else 2


def _run_course_command(name: str, command: Command, options: list[str]) -> int:
    if options in (["--help"], ["-h"]):
        print(f"art-nb {name}: {inspect.getdoc(command)}")
        return 0
    if options and not inspect.signature(command).parameters:
        print(f"art-nb {name} takes no options; given: {' '.join(options)}", file=sys.stderr)
        return 2
    try:
        return command(*options)
    except (ValueError, RuntimeError, OSError, subprocess.CalledProcessError) as error:
        print(f"art-nb {name}: {error}", file=sys.stderr)
        return 1


def run() -> None:
    """Run the console script `art-nb`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
