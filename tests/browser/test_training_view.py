"""TrainingView in Chromium without a kernel: the groups of a step, quiet panels, light and dark, and on a phone."""

from __future__ import annotations

import math
import re
import statistics

import pytest
import synthetic
from page_alone import show_alone

from art_nb.widgets import TrainingView

pytestmark = pytest.mark.browser

THEMES = {"light": ("#ffffff", "#111111"), "dark": ("#111111", "#eeeeee")}


def show(page, rows, theme="light", width=1200, panels=("entropy",)):
    """Show the view of these rows alone on a page."""
    background, ink = THEMES[theme]
    page.set_viewport_size({"width": width, "height": 900})
    show_alone(page, TrainingView.from_history(rows, total_steps=20, title="2048", panels=panels), background, ink)
    page.locator(".an-training[data-steps]").wait_for()
    return page.locator(".an-training")


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


@pytest.fixture
def rows():
    return [synthetic.history_row(step, signal=step != 3) for step in range(1, 6)]


def test_rewards_that_differ_by_rounding_are_drawn(page):
    """Eight equal rewards have a mean that is not quite the same number; between the two there is no round number."""
    rewards = [0.7] * 8
    mean = sum(rewards) / 8
    assert mean != 0.7
    row = {"step": 1, "split": "train", "reward": mean, "reward_std": 0.0, "group_rewards": [rewards, rewards], "groups": 2}
    assert show(page, [row]).locator(".an-notice").inner_text().startswith("No signal at step 1")


def test_every_panel_that_was_asked_for_is_shown(page, rows):
    """Of many task metrics, and of a panel whose first metric is constant."""
    many = {f"task_{i}": 0 for i in range(8)}
    rows = [row | {name: row["step"] + i for i, name in enumerate(many)} for row in rows]
    assert show(page, rows, panels=["task_7"]).locator("[data-key=task_7]").count() == 1
    costs = [row | {"cost_usd": 0.0, "judge_cost_usd": 0.01 * row["step"]} for row in rows]
    view = show(page, costs, panels=["judge_cost_usd"])
    assert view.locator("section[data-key=cost_usd]").count() == 1 and view.locator("details[data-key=cost_usd]").count() == 0


def test_a_reward_that_is_no_number_is_left_out(page, rows):
    rows[-1]["group_rewards"] = [[5.0, math.nan, 5.0], [1.0, 2.0, 3.0]]
    view = show(page, rows)
    view.locator(".an-grid").focus()
    press(page, "ArrowDown")
    assert "all 2 trajectories earned 5" in view.locator(".an-group-text").inner_text()


@pytest.mark.parametrize(("low", "step"), [(10.01, 0.01), (0.9991, 0.0002), (1200.1, 0.3), (10_000, 13)])
def test_neighbouring_ticks_have_different_labels(page, rows, low, step):
    rows = [row | {"entropy": low + i * step} for i, row in enumerate(rows)]
    labels = show(page, rows).locator("[data-key=entropy] svg text").all_text_contents()
    values = [float(label.replace("K", "e3")) for label in labels]
    assert labels and len(set(labels)) == len(labels) and all(low - step <= value <= low + 5 * step for value in values)


def test_groups_by_keyboard_and_pointer(page, rows):
    view = show(page, rows)
    text = view.locator(".an-group-text")
    assert text.inner_text().startswith("A dot is a trajectory")
    view.locator(".an-grid").focus()
    press(page, "ArrowDown", "ArrowDown")
    group = rows[-1]["group_rewards"][1]
    shown_rewards = [float(x.replace("−", "-")) for x in re.findall(r"−?\d+\.\d+|−?\d+(?= to|,|\.)", text.inner_text().split("rewards")[1])]
    quartiles = statistics.quantiles(group, n=4, method="inclusive")
    expected = [min(group), max(group), quartiles[0], quartiles[2], statistics.fmean(group), statistics.stdev(group)]
    assert text.inner_text().startswith("Group 2 of 8: 8 trajectories") and shown_rewards == pytest.approx(expected, rel=5e-3)

    press(page, "ArrowLeft", "ArrowLeft", "ArrowLeft")
    tile = view.locator("[data-key=groups]")
    assert "Groups of step 3" in tile.inner_text() and "8 of 8 all equal" in tile.inner_text()
    assert "no signal" in text.inner_text() and tile.locator(".an-hollow").count() == 8 and tile.locator(".an-half").count() == 0
    press(page, "Escape")
    assert "Groups of step 5" in tile.inner_text() and tile.locator(".an-half").count() == 8

    box = tile.locator("svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 50)
    assert text.inner_text().startswith("Group 8 of 8")
    assert tile.locator(".an-frame").count() == 1
    page.mouse.move(2, 2)
    assert text.inner_text().startswith("A dot is a trajectory")


def test_every_trajectory_has_its_dot_at_the_height_of_its_reward(page, rows):
    view = show(page, rows)
    dots = view.locator("[data-key=groups] svg").evaluate(
        "(svg) => ['pos', 'neg'].map((kind) => (svg.querySelector(`.an-${kind}`).getAttribute('d').match(/M[^h]+h0/g) ?? [])"
        ".map((dot) => Number(dot.split(' ')[1].slice(0, -2))))"
    )
    above = [reward for group in rows[-1]["group_rewards"] for reward in group if reward > statistics.fmean(group)]
    below = [reward for group in rows[-1]["group_rewards"] for reward in group if reward < statistics.fmean(group)]
    for heights, rewards in zip(dots, (above, below), strict=True):
        assert len(heights) == len(rewards)
        assert statistics.correlation(sorted(heights), sorted(rewards, reverse=True)) < -0.999 or len(rewards) < 3


def test_quiet_panels_are_collapsed_and_expand(page, rows):
    view = show(page, rows)
    assert view.locator("section[data-key=clip_fraction]").count() == 0 and view.locator("section[data-key=entropy]").count() == 1
    line = view.locator(".an-quiet details[data-key=clip_fraction]")
    assert "num_updates=1" in line.locator("summary").inner_text() and not line.locator("p").is_visible()
    line.locator("summary").focus()
    press(page, "Enter")
    assert line.locator("p").is_visible()


def test_the_view_starts_with_four_panels_and_shows_the_rest_on_request(page, shot, rows):
    for chosen, small in (((), ["won", "max_tile"]), (("entropy", "won"), ["won", "entropy"])):
        view = show(page, rows, panels=chosen)
        tiles = view.locator("section[data-key]")
        keys = "(all) => all.map((tile) => tile.dataset.key)"
        assert tiles.evaluate_all(keys) == ["reward", "groups", *small]
        more = view.locator(".an-more")
        assert more.inner_text() == f"More panels ({6 - 2})" and more.get_attribute("aria-expanded") == "false"
        shot(view, f"four_panels_{len(chosen)}")
        more.focus()
        press(page, "Enter")
        assert {"reward", "groups", "won", "max_tile", "moves", "kl", "entropy", "rollout_tokens_per_s"} == set(tiles.evaluate_all(keys))
        assert more.inner_text() == "Fewer panels" and view.locator("[data-key=kl] svg .an-line").count() == 1
        more.click()
        assert tiles.count() == 4


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [375, 1200])
@pytest.mark.parametrize(("groups", "size"), [(8, 4), (64, 64)])
def test_readable_in_every_theme_and_width(page, shot, theme, width, groups, size):
    rows = [synthetic.history_row(step, groups=groups, size=size) for step in range(1, 13)]
    rows[-1]["group_rewards"][0] = [0.5] * size
    view = show(page, rows, theme, width)
    assert view.get_attribute("data-theme") == theme
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    tile = view.locator("[data-key=groups]")
    assert tile.locator("svg").bounding_box()["width"] > 0.7 * min(width, 500)
    assert (tile.locator(".an-hollow").count(), tile.locator(".an-half").count()) == (1, groups - 1)
    ask = view.locator("section[data-key=entropy] .an-ask")
    ask.click()
    help = view.locator("section[data-key=entropy] .an-help").bounding_box()
    assert 0 <= help["x"] and help["x"] + help["width"] <= width
    ask.click()
    shot(view, f"groups_{groups}x{size}_{theme}_{width}")
