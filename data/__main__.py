"""Make the course's data: `python -m data nano mailbox`; without a name, all of it.

Each item is a folder that its maker writes whole or not at all.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Item(NamedTuple):
    """folder and maker: relative to the repository. description: with the time that making it takes."""

    folder: str
    maker: str
    description: str


ITEMS = {
    "nano": Item("data/nano", "data/nano/maker.py", "base model for 2048 (5 minutes on two cores)"),
    "nano_email": Item(
        "data/nano_email", "data/nano_email/maker.py", "base model for email search (25 minutes on two cores)"
    ),
    "nano_tic_tac_toe": Item(
        "data/nano_tic_tac_toe", "data/nano_tic_tac_toe/maker.py", "base model for self-play (8 minutes on one core)"
    ),
    "nano_code": Item("data/nano_code", "data/nano_code/maker.py", "base model for code repair (11 minutes on one core)"),
    "nano_service": Item(
        "data/nano_service", "data/nano_service/maker.py", "base model for customer service (14 minutes on two cores)"
    ),
    "mailbox": Item(
        "environments/email_search/email_search/data", "environments/email_search/maker/build.py",
        "emails and questions of email search (seconds)",
    ),
    "judged_groups": Item(
        "data/judged_groups", "data/judged_groups/maker.py", "trajectory groups for measuring judges (a minute)"
    ),
    "code_repair": Item(
        "environments/code_repair/code_repair/data", "environments/code_repair/maker/maker.py",
        "functions with bugs to repair (a minute)",
    ),
    "customer_service": Item(
        "environments/customer_service/customer_service/data", "environments/customer_service/maker/maker.py",
        "shop, airline and customers of customer service (seconds)",
    ),
    "real_email": Item(
        "data/real_email", "data/real_email/maker.py",
        "adapter with which SmolLM2 searches emails (half an hour on two cores; downloads the model, 93 MB)",
    ),
    "real_email_trained": Item(
        "data/real_email_trained", "data/real_email_trained/maker.py", "that adapter after GRPO (half an hour on one core)"
    ),
    "policy_2048": Item(
        "data/policy_2048", "data/policy_2048/maker.py",
        "adapters of nano after some steps of training (half an hour on one core)",
    ),
    "policy_tic_tac_toe": Item(
        "data/policy_tic_tac_toe", "data/policy_tic_tac_toe/maker.py",
        "adapters of nano_tic_tac_toe after some steps of training (minutes on one core)",
    ),
}  # fmt: skip


def make(name: str) -> dict:
    """Make an item. Returns its facts."""
    item = ITEMS[name]
    maker = import_module(item.maker.removesuffix(".py").replace("/", "."))
    if hasattr(maker, "RECIPE"):
        from data import nano_model

        return nano_model.build(maker.RECIPE, ROOT / item.folder)
    return maker.build(ROOT / item.folder)


def main(names: list[str]) -> int:
    """Make the named items, or all if there are none. Returns the exit code."""
    if unknown := [name for name in names if name not in ITEMS]:
        print(f"no item {unknown[0]!r}; the items are", file=sys.stderr)
        for name, item in ITEMS.items():
            print(f"  {name:<18} {item.description}", file=sys.stderr)
        return 2
    for name in names or ITEMS:
        for fact, value in make(name).items():
            print(f"{name}: {fact} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
