"""Makes the course's data anew: `python -m data nano mailbox`; without a name, all of it.

Each item lies beside its maker, which writes it whole or not at all.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def nano() -> dict:
    """the base model that plays 2048 (5 minutes on two cores)"""
    from data import nano_model
    from data.nano.maker import RECIPE

    return nano_model.build(RECIPE, HERE / "nano")


def nano_email() -> dict:
    """the base model that searches mails (12 minutes on two cores)"""
    from data import nano_model
    from data.nano_email.maker import RECIPE

    return nano_model.build(RECIPE, HERE / "nano_email")


def nano_tic_tac_toe() -> dict:
    """the base model for self-play (minutes on two cores)"""
    from data import nano_model
    from data.nano_tic_tac_toe.maker import RECIPE

    return nano_model.build(RECIPE, HERE / "nano_tic_tac_toe")


def nano_code() -> dict:
    """the base model that mends functions (11 minutes on one core)"""
    from data import nano_model
    from data.nano_code.maker import RECIPE

    return nano_model.build(RECIPE, HERE / "nano_code")


def nano_service() -> dict:
    """the base model that serves customers (11 minutes on one core)"""
    from data import nano_model
    from data.nano_service.maker import RECIPE

    return nano_model.build(RECIPE, HERE / "nano_service")


def real_email() -> dict:
    """the adapter with which SmolLM2 searches mails (half an hour on two cores; fetches the model, 93 MB)"""
    from data.real_email.maker import build

    return build(HERE / "real_email")


def real_email_trained() -> dict:
    """that adapter after GRPO (half an hour on one core)"""
    from data.real_email_trained.maker import build

    return build(HERE / "real_email_trained")


def mailbox() -> dict:
    """the made-up mails and the questions about them (seconds)"""
    from data.mailbox.build import build

    return build(HERE / "mailbox")


def judged_groups() -> dict:
    """played groups to hold a judge against (a minute)"""
    from data.judged_groups.maker import build

    return build(HERE / "judged_groups")


def code_repair() -> dict:
    """the functions with bugs to repair (a minute)"""
    from data.code_repair.maker import build

    return build(HERE / "code_repair")


def customer_service() -> dict:
    """the made-up shop and airline, and their customers (seconds)"""
    from data.customer_service.maker import build

    return build(HERE / "customer_service")


ITEMS = {
    "nano": nano, "nano_email": nano_email, "nano_tic_tac_toe": nano_tic_tac_toe, "nano_code": nano_code,
    "nano_service": nano_service, "mailbox": mailbox, "judged_groups": judged_groups, "code_repair": code_repair,
    "customer_service": customer_service, "real_email": real_email, "real_email_trained": real_email_trained,
}  # fmt: skip


def main(names: list[str]) -> int:
    """Makes the items of these names, all when there is none. Returns the exit code."""
    if unknown := [name for name in names if name not in ITEMS]:
        print(f"no item {unknown[0]!r}; there are", file=sys.stderr)
        for name, make in ITEMS.items():
            print(f"  {name:<18} {make.__doc__}", file=sys.stderr)
        return 2
    for name in names or ITEMS:
        for fact, value in ITEMS[name]().items():
            print(f"{name}: {fact} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
