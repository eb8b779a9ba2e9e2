"""TrajectoryViewer and GroupView in Chromium without a kernel: the selected trajectory, boards, rewards, themes."""

from __future__ import annotations

import math

import pytest
import synthetic
from page_alone import show_alone

from art_nb.widgets import GroupView, TrajectoryViewer

pytestmark = pytest.mark.browser


def record(index, reward=0.0, advantage=None, turns=(), **more):
    given = {} if advantage is None else {"advantage": advantage}
    return {"step": 1, "group": 0, "index": index, "reward": reward, "turns": list(turns), "metrics": {}, "metadata": {}, "logs": [], **given, **more}


def said(text, **more):
    return {"role": "assistant", "content": text, "trainable": True, **more}


def viewer_of(page, records, **options):
    show_alone(page, TrajectoryViewer(records, **options))
    page.locator(".an-viewer[data-shown]").wait_for()
    return page.locator(".an-viewer")


def test_the_selected_trajectory_is_shown_though_another_was_being_unpacked(page):
    """Down and up again at the border of two chunks: the first request must not win."""
    viewer = viewer_of(page, [record(i, turns=[said(f"answer {i}")]) for i in range(10)])
    viewer.focus()
    for _ in range(7):
        page.keyboard.press("ArrowDown")
    page.wait_for_function("document.querySelector('.an-viewer').dataset.shown === '7'")
    page.evaluate("""() => { for (const key of ["ArrowDown", "ArrowUp"])
        document.querySelector(".an-viewer").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })) }""")
    page.wait_for_timeout(500)
    assert viewer.get_attribute("data-shown") == "7" and "trajectory 7" in viewer.locator(".an-heading").inner_text()
    selected = viewer.locator("[aria-selected=true]")
    assert selected.get_attribute("id") == viewer.locator(".an-list").get_attribute("aria-activedescendant")


def test_a_trajectory_without_boards_shows_none(page):
    """Not that of the trajectory before it; and one with boards is enough for the viewer to have them."""
    games = [synthetic.game_record(1, 0, i, moves=3) for i in range(3)]
    for i, reward in enumerate((0.5, 9.0, -9.0)):
        games[i]["reward"] = reward
    for extreme in games[1:]:
        extreme["turns"] = [said("no board")]
    viewer = viewer_of(page, games, boards=synthetic.boards)
    assert viewer.locator(".an-board").is_visible()
    viewer.focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.querySelector('.an-viewer').dataset.shown === '1'")
    assert not viewer.locator(".an-board").is_visible() and not viewer.locator(".an-move").is_visible()


def test_all_conversations_of_a_trajectory_are_shown_and_its_split_is_listed(page):
    asked = [{"role": "user", "content": "and?"}, said("of a sub-agent")]
    viewer = viewer_of(page, [record(0, turns=[said("main")], additional_turns=[asked]), record(0, turns=[said("x")], split="val")])
    assert viewer.locator(".an-where").inner_text() == "1 / 3"
    headers = [text.split() for text in viewer.locator(".an-turn header").all_inner_texts()]
    assert headers == [["assistant"], ["user", "conversation", "2"], ["assistant", "conversation", "2"]]
    assert viewer.locator(".an-turn").last.inner_text().endswith("of a sub-agent")
    assert viewer.locator(".an-who").all_inner_texts() == ["1 · g0 · 0", "val 1 · g0 · 0"]


def test_a_turn_with_tokens_but_without_probabilities_is_drawn(page):
    viewer = viewer_of(page, [record(0, turns=[said("one two", tokens=["one", " two"]), said("last")])])
    assert viewer.locator(".an-token").count() == 2 and "last" in viewer.locator(".an-talk").inner_text()
    viewer.locator(".an-token").first.hover()
    assert "NaN" not in viewer.locator(".an-tip").inner_text()


def test_a_reward_that_is_no_number_is_the_worst(page):
    rewards = [-1.0, math.nan, 2.0, -2.0]
    viewer = viewer_of(page, [record(i, reward=r, turns=[said("x")]) for i, r in enumerate(rewards)])
    viewer.get_by_label("Sort").select_option("high")
    rows = viewer.locator(".an-row .an-who").all_inner_texts()
    assert [row.split(" · ")[-1] for row in rows] == ["2", "0", "3", "1"]


def test_calls_stand_apart(page):
    calls = [{"name": "search", "arguments": "{}"}, {"name": "read", "arguments": "{}"}]
    viewer = viewer_of(page, [record(0, turns=[said("thinking", tool_calls=calls)])])
    assert viewer.locator(".an-text").inner_text().splitlines() == ["thinking", "search({})", "read({})"]


def test_a_group_without_signal_is_told_from_one_with_turn_rewards(page):
    with_turns = [record(i, reward=1.0, advantage=a) for i, a in enumerate((0.8, -0.8, 0.3))]
    rounding = [record(i, reward=r) for i, r in enumerate((0.1 + 0.2, 0.3, 0.3))]
    for records, silent in ((with_turns, False), (rounding, True), ([record(0, 1.0), record(1, math.nan), record(2, 0.0)], False)):
        show_alone(page, GroupView(records))
        page.locator(".an-group[data-group]").wait_for()
        assert page.locator(".an-notice").is_visible() == silent
    assert page.locator(".an-mark").count() == 2


def test_the_keyboard_keeps_the_selected_member_in_sight(page):
    show_alone(page, GroupView([record(i, reward=float(i)) for i in range(40)]))
    page.locator(".an-chart").focus()
    for _ in range(35):
        page.keyboard.press("ArrowDown")
    chart, member = page.locator(".an-chart").bounding_box(), page.locator(".an-on").bounding_box()
    assert chart["y"] <= member["y"] and member["y"] + member["height"] <= chart["y"] + chart["height"] + 1


@pytest.mark.parametrize(("background", "theme"), [("oklch(1 0 0)", "light"), ("color(srgb 0.1 0.1 0.1)", "dark"), ("#fff", "light"), ("black", "dark")])
def test_the_theme_follows_any_css_colour(page, background, theme):
    show_alone(page, GroupView([record(0), record(1, 1.0)]), background)
    page.locator(f".an-group[data-theme={theme}]").wait_for()
