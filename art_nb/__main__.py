"""`art-nb COMMAND` or `python -m art_nb COMMAND`: serve, worker and export; in the repository also the course's commands.

The course's commands come from the package `course` (notebooks/course/commands.py), if it is installed.
"""

import importlib
import importlib.util
import io
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
        return importlib.import_module("course.commands").run(name, *options)
    needs_help = arguments in (["--help"], ["-h"])
    out = sys.stdout if needs_help else sys.stderr
    if name and not needs_help:
        print(f"no command {name!r}", file=out)
    print("usage: art-nb COMMAND, where COMMAND is one of", file=out)
    for name, command in known.items():
        print(f"  {name:<14} {(command.__doc__ or '').splitlines()[0]}", file=out)
    if not needs_help and len(known) == len(COMMANDS):
        print("The course's commands (lab, demo, test, ...) exist only in the repository, after `make setup`.", file=out)
    return 0 if needs_help else 2


def run() -> None:
    """Run the console script `art-nb`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
