"""The course's commands: `python -m art_nb doctor | demo | setup-cell`."""

from __future__ import annotations

import sys


def doctor() -> int:
    """say what is installed and what is missing"""
    from art_nb.course.doctor import can_run, doctor

    return 0 if can_run(doctor()) else 1


def demo() -> int:
    """run the 2048 notebook in this terminal"""
    from art_nb.course.demo import demo

    return demo()


def setup_cell() -> int:
    """write the first code cell of every notebook anew"""
    from art_nb.course.setup_cell import write_setup_cells

    for path in write_setup_cells():
        print(path)
    return 0


COMMANDS = {
    "doctor": doctor,
    "demo": demo,
    "setup-cell": setup_cell,
}


def main(arguments: list[str]) -> int:
    """Runs the command named by the only argument; returns the exit code."""
    if len(arguments) == 1 and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]]()
    print("usage: python -m art_nb COMMAND, where COMMAND is one of", file=sys.stderr)
    for name, command in COMMANDS.items():
        print(f"  {name:<14} {command.__doc__}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
