"""The READMEs of the environments: their example runs, and their tables name all tools and metrics."""

import re
from pathlib import Path

import pytest

ENVIRONMENTS = Path(__file__).parents[2] / "environments"


@pytest.mark.parametrize(("name", "episode"), [("email_search", "search"), ("code_repair", "repair")])
def test_the_example_succeeds_and_the_tables_name_all_tools_and_metrics(name, episode, capsys):
    readme = (ENVIRONMENTS / name / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    scope: dict = {}
    exec(example, scope)
    *_, last = capsys.readouterr().out.splitlines()
    assert last.endswith(" 1.0") and scope[episode].reward() > 1
    named = set(re.findall(r"`(\w+)`", readme))
    assert {tool["function"]["name"] for tool in scope[episode].tools} <= named
    assert set(scope[episode].metrics()) <= named


def test_the_metrics_of_a_failed_search_are_named_as_well():
    from email_search import EmailSearch, course_mailbox, scenarios

    search = EmailSearch(course_mailbox(), scenarios("val", 1)[0])
    search.call(None, None)
    assert set(search.metrics()) <= set(re.findall(r"`(\w+)`", (ENVIRONMENTS / "email_search/README.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", sorted(ENVIRONMENTS.glob("*/README.md")), ids=lambda path: path.parent.name)
def test_links_lead_to_files(path):
    prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)#]+)", prose)
    assert all((path.parent / link).exists() for link in links), links
