"""The first code cell of every notebook: on Colab it installs the course, elsewhere it does nothing.

Colab opens a notebook without its repository, so the address must stand in the cell itself. It is written
there from pyproject.toml by `python -m art_nb setup-cell`, and a test keeps the two equal.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TEMPLATE = """\
# On Colab this fetches the course and installs what is missing there. Anywhere else it does nothing.
import importlib.util
import os
import subprocess
import sys

REPOSITORY = "{repository}"
if "COLAB_RELEASE_TAG" in os.environ and importlib.util.find_spec("art_nb") is None:
    subprocess.run(["git", "clone", "--depth=1", REPOSITORY, "course"], check=True)
    subprocess.run([sys.executable, "-I", "course/art_nb/course/setup_venv.py", "--here"], check=True)
    sys.path.insert(0, os.path.abspath("course"))
    from google.colab import output

    output.enable_custom_widget_manager()"""


def setup_cell() -> str:
    """The cell's source, with the repository's address from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return TEMPLATE.format(repository=project["urls"]["Repository"])


def first_code_cell(notebook: dict) -> dict:
    """The first code cell of a notebook that was read as JSON."""
    return next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")


def write_setup_cells() -> list[Path]:
    """Writes the cell into every notebook where it differs; returns the notebooks that were changed.

    Raises: ValueError when a notebook's first code cell is neither empty nor an earlier form of this one.
    """
    changed = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cell = first_code_cell(notebook)
        source = "".join(cell["source"])
        if source and not source.startswith(TEMPLATE.splitlines()[0]):
            raise ValueError(f"{path.name}: its first code cell is taken; put an empty one before it")
        if source != setup_cell():
            cell["source"] = setup_cell().splitlines(keepends=True)
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
            changed.append(path)
    return changed
