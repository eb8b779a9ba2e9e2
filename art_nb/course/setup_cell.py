"""The first code cell of every notebook: on Colab it installs the course, elsewhere it does nothing.

Colab opens a notebook in /content, without its repository. The cell clones it to /content/course, installs what Colab
lacks and moves to /content/course/notebooks, so that all paths are those of the repository. It may run again, in the
same kernel or after a restart. The address must stand in the cell itself; it is written there from pyproject.toml by
`python -m art_nb setup-cell`, and a test keeps the two equal.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TEMPLATE = """\
# On Colab this fetches the course and installs what is missing there. Anywhere else it does nothing.
import os
import subprocess
import sys

REPOSITORY = "{repository}"
if "COLAB_RELEASE_TAG" in os.environ and not os.path.exists("../art_nb"):
    print("Fetching the course and what it needs: a few minutes, once.", flush=True)
    clone = ["git", "clone", "--depth=1", REPOSITORY, "course"]
    setup = [sys.executable, "-I", "course/art_nb/course/setup_venv.py", "--here"]
    for command in [setup] if os.path.exists("course") else [clone, setup]:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            for line in run.stdout:
                print(line, end="", flush=True)
        assert run.returncode == 0, "this did not work; what is printed above says why"
    os.chdir("course/notebooks")
    sys.path.insert(0, os.path.abspath(".."))
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
