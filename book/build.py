"""Build the course's static site from the committed notebooks: `python -m book.build`, into out/book.

No notebook is executed and nothing is downloaded: pages show the outputs that the notebooks hold. Where a cell shows a
widget, the page holds the widget's module and its state, which the notebook keeps in its metadata, and static/live.js draws
it without a kernel. The page "Watch it learn" runs trained policies in the browser (watch.py).

Depends on Sphinx (pyproject's extra `book`), and neither on art_nb nor on torch.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import tomllib
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build

from book import watch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT.get("urls", {}).get("Repository")  # None until `python -m art_nb address URL`
VIEW, STATE = (f"application/vnd.jupyter.widget-{part}+json" for part in ("view", "state"))
RESULTS = "application/vnd.art-nb.results+json"  # data for `make demo` (course/results.py), beside a text
CONTENTS = """
```{toctree}
:hidden:
:glob:
book/watch_it_learn
notebooks/*
art_nb/README
book/guides/*
```
"""
WATCH = "book/watch_it_learn.md"
GUIDES = [f"book/guides/{path.name}" for path in sorted(HERE.glob("guides/*.md"))]
MARKDOWN = ["README.md", WATCH, "art_nb/README.md", *GUIDES]
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def build(notebooks: list[Path], target: Path) -> None:
    """Write the site of these notebooks, the guides and the README, its first page, to `target`.

    Raises: RuntimeError when Sphinx warns, e.g. of a broken link; ValueError as `with_states` does.
    """
    pages = target.with_name(f"{target.name}-pages")
    for folder in (pages, target):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "pictures", pages / "book/pictures")
    shutil.copytree(ROOT / "notebooks/pictures", pages / "notebooks/pictures")
    for name in filter(lambda name: (ROOT / name).exists(), MARKDOWN):
        page = pages / ("index.md" if name == "README.md" else name)
        page.parent.mkdir(parents=True, exist_ok=True)
        text = with_links((ROOT / name).read_text("utf-8"), name)
        page.write_text(text + CONTENTS * (name == "README.md"), "utf-8")
    page = pages / WATCH
    page.write_text(watch.with_policies(page.read_text("utf-8"), target / "book"), "utf-8")
    for path in notebooks:
        page = with_badge(with_states(json.loads(path.read_text("utf-8")), path.name), path.name)
        (pages / "notebooks" / path.name).write_text(json.dumps(page), "utf-8")
    options = ["-qW", "--keep-going", "-j", "auto", "-d", f"{pages}/.doctrees", "-c", str(HERE)]
    if sphinx_build([*options, str(pages), str(target)]):
        raise RuntimeError("Sphinx failed; its messages above say why.")


def with_links(text: str, name: str) -> str:
    """Return the text of the Markdown file `name` with links that work in the book.

    A link to a file that is not in the book leads to the repository; without an address its text alone remains.
    """

    def replaced(link: re.Match) -> str:
        picture, label, place, anchor = link.groups(default="")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(name), place))
        if file == "README.md":
            return link[0].replace(place, posixpath.relpath("index.md", posixpath.dirname(name) or "."))
        if picture or file in MARKDOWN or re.match(r"notebooks/\w+\.ipynb$", file):
            return link[0]
        return f"[{label}]({REPOSITORY}/blob/main/{file}{anchor})" if REPOSITORY else label

    return LINK.sub(replaced, text)


def with_states(notebook: dict, name: str) -> dict:
    """Replace each reference to a widget in the notebook by the widget's state, drop results as data, return the notebook.

    A state may contain text that a model wrote. As JSON without "<" it cannot close the element that contains it.

    Raises: ValueError when the notebook lacks the state of a widget that it shows.
    """
    states = notebook["metadata"].pop("widgets", {}).get(STATE, {}).get("state", {})
    for output in (output for cell in notebook["cells"] for output in cell.get("outputs", [])):
        output.get("data", {}).pop(RESULTS, None)
        if VIEW not in output.get("data", {}):
            continue
        if (model := output["data"][VIEW]["model_id"]) not in states:
            raise ValueError(f"{name} lacks the state of a widget: execute the notebook (`pytest --nbmake --overwrite`)")
        state = json.dumps(states[model]).replace("<", "\\u003c")
        output["data"] = {"text/html": f'<script class="art-nb-state" type="application/json">{state}</script>'}
    return notebook


def with_badge(notebook: dict, name: str) -> dict:
    """Return the notebook with a link below its title that opens it on Colab, where the repository has an address."""
    if REPOSITORY is None:
        return notebook
    colab = REPOSITORY.replace("https://github.com", "https://colab.research.google.com/github")
    title, *rest = "".join(notebook["cells"][0]["source"]).split("\n")
    badge = f"[![Open in Colab](../book/pictures/colab.svg)]({colab}/blob/v{PROJECT['version']}/notebooks/{name})"
    notebook["cells"][0]["source"] = "\n".join([title, "", badge, *rest])
    return notebook


if __name__ == "__main__":
    build(sorted((ROOT / "notebooks").glob("*.ipynb")), ROOT / "out/book")
    print(f"The book is {ROOT / 'out/book/index.html'}")
