"""The README's table has a row for each notebook, with its minutes as the notebook gives them."""

import json
import re
from pathlib import Path

from course.setup_cell import colab_link, repository

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BADGE = r"(?: \[!\[Open in Colab\]\(book/pictures/colab\.svg\)\]\((\S+)\))?"
ROW = re.compile(rf"^\| \[(\w+)\]\(notebooks/\1\.ipynb\){BADGE} \| (\d+) \| ", re.MULTILINE)
NUMBERS = "zero one two three four five six seven eight nine ten".split()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def minutes(path: Path) -> int:
    """Return the minutes on two CPU cores from the notebook's opening: "five to six minutes" are 6."""
    opening = "".join(json.loads(path.read_text("utf-8"))["cells"][0]["source"])
    return NUMBERS.index(re.search(r"\*\*Cost\*\*: (?:\w+ )*?(\w+) minutes?\b", opening)[1])


def test_each_notebook_has_a_row_with_its_minutes():
    assert {name: int(given) for name, _, given in ROW.findall(README)} == {path.stem: minutes(path) for path in NOTEBOOKS}


def test_a_badge_opens_its_notebook_on_colab_and_exists_only_with_an_address():
    """`python -m art_nb address URL` writes them."""
    url = repository()
    wanted = {path.stem: colab_link(url, path.name) if url else "" for path in NOTEBOOKS}
    assert {name: link for name, link, _ in ROW.findall(README)} == wanted


def test_pictures_exist_and_are_small():
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)
    assert len(set(pictures)) >= 2
    most = {".gif": 2_000_000}  # an animation
    assert all((ROOT / picture).stat().st_size < most.get(Path(picture).suffix, 150_000) for picture in pictures)
