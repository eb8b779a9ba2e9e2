"""JudgeView in a real JupyterLab: its numbers, hostile reasons, and the reader's order by mouse and by keys."""

from __future__ import annotations

import pytest
from test_widgets_in_lab import SETUP, open_notebook, run_all, settle, wait_idle

pytestmark = pytest.mark.browser

GROUPS = """
import art_nb as art
from course.explorers import JudgeView

def judged(score, truth, reason):
    messages = [{"role": "user", "content": synthetic.HOSTILE}, {"role": "assistant", "content": f"I did {truth}"}]
    metrics = {"ruler_score": score, "independent_reward": truth}
    return art.Trajectory(messages_and_choices=messages, metrics=metrics, logs=[f"RULER explanation: {reason}"])

first = [judged(0.9, 2, synthetic.HOSTILE), judged(0.7, 3, "good"), judged(0.2, -1, "bad"), judged(0.2, 0, "so so")]
groups = [art.TrajectoryGroup(first), art.TrajectoryGroup([judged(0.5, 1, "alone")])]
"""


def order(view):
    settle(view.page)
    return [int(item.get_attribute("data-i")) for item in view.locator("li").all()]


def test_scores_truth_and_the_readers_own_order(page, lab, shot):
    path = lab.write("judge.ipynb", SETUP + GROUPS, "view = JudgeView(groups)\nview", "print('mine', view.mine)")
    open_notebook(page, lab, path)
    run_all(page)
    view = page.locator(".an-judge")
    view.locator("li").first.wait_for()
    wait_idle(page)
    facts = view.locator(".an-facts")
    # of six pairs: 0 and 1 are ordered wrongly, 2 and 3 scored alike
    assert order(view) == [0, 1, 2, 3] and facts.inner_text() == "judge and truth: 4.5 of 6 pairs alike"
    assert "<script>window.hacked=1</script>" in view.locator("li").first.inner_text()
    view.locator("li").first.click()
    settle(page)
    assert "<script>window.hacked=1</script>" in view.locator(".an-said").inner_text()
    assert page.evaluate("window.hacked") is None and view.locator("img, script").count() == 0
    assert [bool(item.locator(".an-off").count()) for item in view.locator("li").all()] == [True, True, True, False]
    shot(view, "judge")
    view.get_by_label("Order", exact=True).select_option("truth")
    assert order(view) == [1, 0, 3, 2]

    view.get_by_label("Order", exact=True).select_option("mine")
    assert view.locator(".an-bar, .an-truth").count() == 0, "scores and truth are hidden"
    view.locator("li").nth(1).drag_to(view.locator("li").first)
    assert order(view) == [1, 0, 2, 3]
    assert facts.inner_text() == "you and the truth: 5 of 6 pairs alike; you and the judge: 4 of 5 pairs alike"
    view.locator("li").nth(3).click()
    page.keyboard.press("Alt+ArrowUp")
    assert order(view) == [1, 0, 3, 2] and facts.inner_text().startswith("you and the truth: 6 of 6")
    shot(view, "mine")
    view.get_by_label("next group").click()
    assert order(view) == [0] and facts.inner_text() == "Drag the best to the top."
    view.get_by_label("previous group").click()
    assert order(view) == [1, 0, 3, 2]

    page.locator(".jp-CodeCell").nth(2).click()
    page.keyboard.press("Control+Enter")
    page.get_by_text("mine {'0': [1, 0, 3, 2]}").wait_for()
