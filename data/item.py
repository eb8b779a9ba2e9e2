"""Write an item of data: the files that its maker makes and their hashes, whole or not at all.

A maker may be in the folder that it fills; files that it does not make stay there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from art_nb.storage.checkpoints import write_folder

SUMS = "SHA256SUMS"


def write_item(folder: Path, fill: Callable[[Path], None]) -> None:
    """Replace the generated files of `folder` with those that `fill(an empty folder)` writes, and SHA256SUMS.

    The files made before are those in the old SHA256SUMS; all other files, such as the maker, are kept.
    """

    def refill(new: Path) -> None:
        fill(new)
        made = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(new.iterdir())}
        write_text(new / SUMS, "".join(f"{digest}  {name}\n" for name, digest in made.items()))
        if folder.exists():
            gone = {SUMS, "__pycache__", *made, *read_sums(folder)}
            shutil.copytree(folder, new, ignore=lambda at, _: gone if Path(at) == folder else (), dirs_exist_ok=True)

    write_folder(folder, refill)


def write_described(folder: Path, save: Callable[[Path], None], facts: dict, card: str) -> None:
    """Write a trained item: the files of `save(an empty folder)`, training.json with the facts, and the card with them."""

    def fill(new: Path) -> None:
        save(new)
        write_text(new / "training.json", json.dumps(facts, indent=2) + "\n")
        write_text(new / "README.md", card.format(**facts))

    write_item(folder, fill)


def read_sums(folder: Path) -> dict[str, str]:
    """Return name -> SHA-256 in hexadecimal of the generated files of a folder; empty without SHA256SUMS."""
    sums = folder / SUMS
    lines = sums.read_text(encoding="utf-8").splitlines() if sums.exists() else []
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}


def write_text(path: Path, text: str) -> None:
    """Write text as the same bytes on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")
