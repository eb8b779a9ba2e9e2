"""The README's table: a row for each notebook, its minutes as the notebook says them, a badge with the repository's address."""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
ROW = re.compile(r"^\| \[(\w+)\]\(notebooks/\1\.ipynb\) \[!\[Open in Colab\]\(book/pictures/colab\.svg\)\]\((\S+)\) \| (\d+) \| ", re.MULTILINE)
NUMBERS = "zero one two three four five six seven eight nine ten".split()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def minutes(path: Path) -> int:
    """What the notebook's opening says it takes on two CPU cores: "five to six minutes" are 6."""
    opening = "".join(json.loads(path.read_text("utf-8"))["cells"][0]["source"])
    return NUMBERS.index(re.search(r"\*\*Cost\*\*: (?:\w+ )*?(\w+) minutes?\b", opening)[1])


def test_each_notebook_has_a_row_with_its_minutes():
    assert {name: int(said) for name, _, said in ROW.findall(README)} == {path.stem: minutes(path) for path in NOTEBOOKS}


def test_each_badge_opens_its_notebook_on_colab_at_the_repository_of_pyproject():
    """After a change of the address there: sed -i 's#/github/OLD/#/github/NEW/#' README.md"""
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
    colab = repository.replace("https://github.com/", "https://colab.research.google.com/github/")
    assert {name: link for name, link, _ in ROW.findall(README)} == {
        path.stem: f"{colab}/blob/main/notebooks/{path.name}" for path in NOTEBOOKS
    }


def test_its_pictures_are_there_and_small():
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)
    assert len(set(pictures)) > 2
    assert all((ROOT / picture).stat().st_size < 150_000 for picture in pictures)
