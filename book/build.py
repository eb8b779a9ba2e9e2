"""Makes the static site of the course from the committed notebooks: `python book/build.py`, into out/book.

Nothing is executed and nothing fetched: pages show the outputs that the notebooks hold. Where a cell shows a widget, the
page holds its module and its state, which the notebook keeps in its metadata, and static/live.js draws it without a kernel.

Knows notebooks and Sphinx (pyproject's extra `book`). Knows nothing about art_nb, so that neither it nor torch is needed.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
COLAB = REPOSITORY.replace("https://github.com", "https://colab.research.google.com/github") + "/blob/main/notebooks"
VIEW, STATE = (f"application/vnd.jupyter.widget-{part}+json" for part in ("view", "state"))
CONTENTS = "\n```{toctree}\n:hidden:\n:glob:\nnotebooks/*\n```\n"


def build(notebooks: list[Path], target: Path) -> None:
    """Write the site of these notebooks to `target`, with the README as its first page.

    Raises: RuntimeError when Sphinx warns, e.g. of a link that leads nowhere; ValueError as `with_states` does.
    """
    pages = target.with_name(f"{target.name}-pages")
    for folder in (pages, target):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "pictures", pages / "book/pictures")
    shutil.copytree(ROOT / "notebooks/pictures", pages / "notebooks/pictures")
    (pages / "index.md").write_text(first_page((ROOT / "README.md").read_text("utf-8")) + CONTENTS, "utf-8")
    for path in notebooks:
        page = with_badge(with_states(json.loads(path.read_text("utf-8")), path.name), path.name)
        (pages / "notebooks" / path.name).write_text(json.dumps(page), "utf-8")
    options = ["-qW", "--keep-going", "-j", "auto", "-d", f"{pages}/.doctrees", "-c", str(HERE)]
    if sphinx_build([*options, str(pages), str(target)]):
        raise RuntimeError("Sphinx made no book; what it said stands above.")


def first_page(readme: str) -> str:
    """The README, with its links to files that are no page of the book leading to the repository."""
    return re.sub(r"(?<=\]\()(?!https?:|#|notebooks/\w|book/)", f"{REPOSITORY}/blob/main/", readme)


def with_states(notebook: dict, name: str) -> dict:
    """The notebook with each widget's state where it had the widget's address.

    A state may hold what a model wrote. As JSON without "<" it cannot end the element that it lies in.

    Raises: ValueError when the notebook lacks the state of a widget that it shows.
    """
    states = notebook["metadata"].pop("widgets", {}).get(STATE, {}).get("state", {})
    for output in (output for cell in notebook["cells"] for output in cell.get("outputs", [])):
        if VIEW not in output.get("data", {}):
            continue
        if (model := output["data"][VIEW]["model_id"]) not in states:
            raise ValueError(f"{name} lacks the state of a widget: execute it (`pytest --nbmake --overwrite`).")
        state = json.dumps(states[model]).replace("<", "\\u003c")
        output["data"] = {"text/html": f'<script class="art-nb-state" type="application/json">{state}</script>'}
    return notebook


def with_badge(notebook: dict, name: str) -> dict:
    """The notebook with a link below its title that opens it on Colab."""
    title, *rest = "".join(notebook["cells"][0]["source"]).split("\n")
    badge = f"[![Open in Colab](../book/pictures/colab.svg)]({COLAB}/{name})"
    notebook["cells"][0]["source"] = "\n".join([title, "", badge, *rest])
    return notebook


if __name__ == "__main__":
    build(sorted((ROOT / "notebooks").glob("*.ipynb")), ROOT / "out/book")
    sys.exit(print(f"The book is {ROOT / 'out/book/index.html'}"))
