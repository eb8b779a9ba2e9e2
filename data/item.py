"""Writes an item of data: what its maker made and the hashes of that, whole or not at all.

It knows nothing of what an item is. A maker lies in the folder that it fills, so whatever was not made stays there.
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
    """Replace what was made in `folder` by what `fill(an empty folder)` writes, and its SHA256SUMS.

    What was made before is what the old SHA256SUMS lists; everything else (the maker, above all) is kept as it is.
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
    """An item that was trained: what `save(an empty folder)` writes, its facts, and the card filled with them."""

    def fill(new: Path) -> None:
        save(new)
        write_text(new / "training.json", json.dumps(facts, indent=2) + "\n")
        write_text(new / "README.md", card.format(**facts))

    write_item(folder, fill)


def read_sums(folder: Path) -> dict[str, str]:
    """The SHA-256, in hexadecimal, of each file that was made in the folder, by name; none where nothing was."""
    sums = folder / SUMS
    lines = sums.read_text(encoding="utf-8").splitlines() if sums.exists() else []
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}


def write_text(path: Path, text: str) -> None:
    """The same bytes on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")
