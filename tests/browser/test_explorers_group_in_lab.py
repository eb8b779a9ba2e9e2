"""AdvantageExplorer and SurrogateExplorer in a real JupyterLab: drags and keys while the kernel is busy, and Python's numbers."""

from __future__ import annotations

import pytest
from test_widgets_in_lab import open_notebook, press, run_all, set_theme, settle, wait_idle

from course.explorers import AdvantageExplorer, SurrogateExplorer

pytestmark = pytest.mark.browser

SETUP = "from course.explorers import AdvantageExplorer, SurrogateExplorer"
PRESETS = {
    "One outlier": [0, 0, 0, 0, 0, 1],
    "Half and half": [0, 0, 0, 1, 1, 1],
    "Close together": [0.5, 0.51, 0.52, 0.53, 0.5, 0.51],
    "All equal": [0.5] * 6,
}


def value(text):
    return float(text.replace("−", "-"))


def slider(view, label):
    return view.get_by_role("slider", name=label, exact=True)


def amount(view, label):
    return float(slider(view, label).get_attribute("aria-valuenow"))


def drag(page, dot, dx, dy):
    settle(page)
    box = dot.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + dx / 2, y + dy / 2)
    page.mouse.move(x + dx, y + dy)
    page.mouse.up()
    settle(page)


def check_advantages(page, view, batch_std):
    """Assert that all numbers in the columns and below the dots equal Python's, to four digits."""
    dots = view.get_by_role("slider")
    rewards = [float(dot.get_attribute("aria-valuenow")) for dot in dots.all()]
    expected = AdvantageExplorer(rewards, batch_std).advantages()
    for name, row in expected.items():
        shown = [value(text) for text in view.locator(f"[data-row={name}]").all_text_contents()]
        assert shown == pytest.approx(row, abs=0.00501)
    for i, dot in enumerate(dots.all()):
        dot.focus()
        settle(page)
        shown = view.locator(".an-caption").inner_text().split("advantage: ")[1].split(", ")
        assert [value(part.split()[1]) for part in shown] == pytest.approx([row[i] for row in expected.values()], abs=5.01e-5)
    return rewards


def change_rewards(page, view, shot):
    slider(view, "Reward of trajectory 1").wait_for()
    assert check_advantages(page, view, 1.0) == [0, 0.2, 0.4, 0.6, 0.8, 1]

    drag(page, slider(view, "Reward of trajectory 3"), 0, -60)  # 200 pixels are 3 units of reward
    assert amount(view, "Reward of trajectory 3") == pytest.approx(1.3, abs=0.02)
    press(page, "Shift+ArrowDown", "ArrowDown", "ArrowDown")
    assert amount(view, "Reward of trajectory 3") == pytest.approx(0.6, abs=0.02)
    press(page, "Tab", "ArrowUp")
    assert amount(view, "Reward of trajectory 4") == 0.7
    assert slider(view, "Reward of trajectory 4").evaluate("node => getComputedStyle(node.querySelector('.an-ring')).stroke") != "none"
    check_advantages(page, view, 1.0)
    shot(page, "advantage_light")

    for name, rewards in PRESETS.items():
        view.get_by_role("button", name=name).click()
        settle(page)
        assert check_advantages(page, view, 1.0) == rewards
        assert view.locator(".an-notice").is_visible() == (name == "All equal")
    view.get_by_label("Standard deviation of the batch").fill("0.25")
    press(page, "Tab")
    view.get_by_role("button", name="Remove the last").click()
    settle(page)
    drag(page, slider(view, "Reward of trajectory 1"), 0, 2000)
    assert check_advantages(page, view, 0.25) == [-1, 0.5, 0.5, 0.5, 0.5], "dragging is limited to the axis"
    slider(view, "Reward of trajectory 2").focus()
    press(page, *["Shift+ArrowUp"] * 5)
    assert check_advantages(page, view, 0.25)[1] == 3.0, "keys go beyond it, and the axis is extended"
    assert page.get_by_text("now [").count() == 0, "the kernel was busy during all of this"

    for _ in range(12):
        more = view.get_by_role("button", name="Add a trajectory")
        if more.is_disabled():
            break
        more.click()
        settle(page)
    assert view.get_by_role("slider").count() == 16
    view.get_by_label("Standard deviation of the batch").fill("-3")
    press(page, "Tab")
    assert view.get_by_label("Standard deviation of the batch").input_value() == "0.25"
    rewards = check_advantages(page, view, 0.25)
    set_theme(page, "Dark")
    shot(page, "advantage_dark")
    return rewards


def check_surrogate(view):
    """Assert that value, gradient and verdict equal Python's for the handles' numbers."""
    ratio, low, high = (amount(view, label) for label in ("Ratio", "Lower bound, 1 − epsilon low", "Upper bound, 1 + epsilon high"))
    advantage = float(view.get_by_label("Advantage", exact=True).input_value())
    python = SurrogateExplorer(ratio, round(1 - low, 2), round(high - 1, 2), advantage)
    ([expected], [gradient]) = python.curve([ratio])
    assert value(view.locator(".an-v").inner_text()) == pytest.approx(expected, abs=5.01e-5)
    assert value(view.locator(".an-g").inner_text()) == pytest.approx(gradient, abs=0.00501)
    verdict = view.locator(".an-verdict").inner_text()
    assert verdict == ("None." if advantage == 0 else "Kept." if gradient else "Cut.")
    return ratio, round(1 - low, 2), round(high - 1, 2), advantage, verdict


def change_the_surrogate(page, view, shot):
    point, low, high = (slider(view, name) for name in ("Ratio", "Lower bound, 1 − epsilon low", "Upper bound, 1 + epsilon high"))
    point.wait_for()
    point.scroll_into_view_if_needed()
    assert check_surrogate(view) == (1, 0.2, 0.2, 1, "Kept.")

    drag(page, point, 120, 10)
    ratio, *_, verdict = check_surrogate(view)
    assert 1.2 < ratio < 2 and verdict == "Cut." and "flat, clipped branch" in view.locator(".an-words").inner_text()
    shot(page, "surrogate_light")
    view.get_by_role("button", name="Flip").click()
    settle(page)
    assert check_surrogate(view)[3:] == (-1, "Kept.") and "wrong side" in view.locator(".an-words").inner_text()
    drag(page, point, -220, 0)
    ratio, *_, verdict = check_surrogate(view)
    assert ratio < 0.8 and verdict == "Cut."
    drag(page, low, -400, 0)
    assert check_surrogate(view)[1] == 1 and check_surrogate(view)[4] == "Kept."
    view.get_by_role("button", name="DAPO").click()
    settle(page)
    assert check_surrogate(view)[1:3] == (0.2, 0.28)

    high.focus()
    press(page, "Shift+ArrowRight", "ArrowLeft")
    low.focus()
    press(page, "ArrowLeft")
    assert check_surrogate(view)[1:3] == (0.21, 0.37)
    for advantage in ("1.75", "0", "-0.5"):
        view.get_by_label("Advantage", exact=True).fill(advantage)
        for keys in (["Home"], ["ArrowRight"] * 3, ["Shift+ArrowRight"] * 8, ["End"], ["Shift+ArrowLeft"] * 6, ["ArrowLeft"] * 4):
            point.focus()
            press(page, *keys)
            assert check_surrogate(view)[3] == float(advantage)
    ratio, *_ = check_surrogate(view)
    assert page.get_by_text("now [").count() == 0, "the kernel was busy during all of this"
    set_theme(page, "Dark")
    shot(page, "surrogate_dark")
    return ratio


def test_the_explorers_change_by_mouse_and_keys(page, lab, shot):
    now = ("print('now', rewards.rewards, rewards.batch_std)\n"
           "print('now', [clipped.ratio, clipped.epsilon_low, clipped.epsilon_high, clipped.advantage])")  # fmt: skip
    path = lab.write("group.ipynb", SETUP, "rewards = AdvantageExplorer([0, 0.2, 0.4, 0.6, 0.8, 1])\nrewards",
                     "clipped = SurrogateExplorer()\nclipped", lab.hold("group"), now)  # fmt: skip
    open_notebook(page, lab, path)
    run_all(page)
    rewards = change_rewards(page, page.locator(".an-advantage"), shot)
    set_theme(page, "Light")
    ratio = change_the_surrogate(page, page.locator(".an-surrogate"), shot)

    lab.release("group")
    wait_idle(page)
    page.locator(".jp-CodeCell").nth(4).click()
    page.keyboard.press("Control+Enter")
    page.get_by_text(f"now {rewards} 0.25").wait_for()
    page.get_by_text(f"now [{ratio}, 0.21, 0.37, -0.5]").wait_for()
