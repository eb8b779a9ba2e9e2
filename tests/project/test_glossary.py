"""The glossary points at sections that the notebooks have."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "book/guides/glossary.md"
ROWS = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \| (.+) \|$", GLOSSARY.read_text("utf-8"), re.MULTILINE)


def headings(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.findall(r"^#+ (.+)$", prose, re.MULTILINE)


def test_each_section_that_the_glossary_names_is_a_heading_of_the_linked_notebook():
    assert len({term for term, _, _ in ROWS}) == len(ROWS) == GLOSSARY.read_text("utf-8").count("\n| **") > 0
    for term, _, places in ROWS:
        for place in places.split("; "):
            link, sections = re.fullmatch(r"\[[^]]+\]\((\S+\.ipynb)\)(?:: (\*.+\*))?", place).groups()
            known = headings((GLOSSARY.parent / link).resolve())
            missing = [each for each in (sections or "").strip("*").split("*, *") if each and each not in known]
            assert missing == [], f"{term}, {link}"
