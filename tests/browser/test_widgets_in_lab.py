"""The three widgets in a real JupyterLab: run the notebook, interact while the kernel is busy, reopen without it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import TimeoutError

pytestmark = pytest.mark.browser

SETUP = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import synthetic
from art_nb.widgets import GroupView, TrainingView, TrajectoryViewer
"""
RECORDS = "records = synthetic.game_records()"
VIEWER = "TrajectoryViewer(records, boards=synthetic.boards)"
LIVE = "view = TrainingView(total_steps=40, title='2048')\nview"
TRAIN = """
def train(first, last, pause):
    for step in range(first, last + 1):
        view.status(f"gathering {step % 8 * 8}/64 games")
        time.sleep(pause)
        if step % 10 == 0:
            view.update(synthetic.validation_row(step))
        view.update(synthetic.history_row(step, signal=step != 7))
"""


def open_notebook(page, lab, path, theme="Light"):
    page.goto(f"{lab.url}/lab/tree/{path.name}?reset")
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
    page.get_by_text("(ipykernel) | Idle").wait_for(timeout=60_000)
    close_side_bar(page)
    set_theme(page, theme)


def close_side_bar(page):
    if page.locator(".jp-SideBar.jp-mod-left .lm-TabBar-tab.lm-mod-current").count():
        page.keyboard.press("Control+b")


def set_theme(page, theme):
    change = f"window.jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {theme}'}})"
    page.evaluate(change)
    wanted = "true" if theme == "Light" else "false"
    page.wait_for_function(f"document.body.dataset.jpThemeLight === '{wanted}'")
    page.wait_for_selector("#jupyterlab-splash", state="detached")


def run_all(page):
    """Run All Cells, again if the kernel was not listening yet (JupyterLab then drops the request silently)."""
    for _ in range(5):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        try:
            page.wait_for_selector(".jp-InputPrompt:not(:text-is('[ ]:'))", timeout=4000)
            return
        except TimeoutError:
            continue
    raise AssertionError("JupyterLab ran no cell")


def settle(page):
    """Wait for two frames: a view draws the changes of an event in the next one."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)
    settle(page)


def wait_idle(page, timeout=60_000):
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=timeout)


def save(page, path):
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Save Notebook(?! As)")).click()
    page.wait_for_function("!document.querySelector('.jp-mod-dirty')")
    return json.loads(path.read_text())


def test_jupyterlab_neither_offers_news_nor_looks_for_newer_versions(page, lab):
    """With the settings of `make lab`."""
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    open_notebook(page, lab, lab.write("news.ipynb", "1 + 1"))
    page.wait_for_timeout(2000)
    assert page.get_by_text("Jupyter news").count() == 0
    assert requests and not [url for url in requests if "/lab/api/news" in url or "/lab/api/update" in url]


def test_views_respond_while_the_kernel_trains(page, lab, shot):
    path = lab.write("live.ipynb", SETUP + TRAIN, RECORDS, VIEWER, "GroupView(records)", LIVE, "train(1, 20, 0.1)", lab.hold("live"), "train(21, 24, 0.1)")
    open_notebook(page, lab, path)
    run_all(page)
    page.get_by_text("step 20 of 40").wait_for(timeout=60_000)

    viewer = page.locator("[aria-label^='Trajectory viewer']")
    where = viewer.locator(".an-where")
    slider = viewer.locator("input[type=range]")
    slider.fill("7")
    settle(page)
    assert where.inner_text().startswith("8 /")
    viewer.focus()
    press(page, "ArrowRight")
    assert where.inner_text().startswith("9 /")
    heading = viewer.locator(".an-heading").inner_text()
    press(page, "ArrowDown")
    assert viewer.locator(".an-heading").inner_text() != heading
    viewer.get_by_role("button", name="advantage").click()
    settle(page)
    assert viewer.get_by_role("button", name="advantage").get_attribute("aria-pressed") == "true"
    every = viewer.locator(".an-count").inner_text()
    viewer.locator(".an-bounds input").first.fill("0.9")
    press(page, "Tab")
    assert viewer.locator(".an-count").inner_text() != every
    assert 0 < viewer.locator(".an-row").count() < 60, "only visible entries are in the page"
    groups = page.locator("[aria-label*='rewards']").first
    before = groups.get_attribute("aria-label")
    page.locator(".an-chart").first.focus()
    press(page, "ArrowLeft", "ArrowLeft")
    assert groups.get_attribute("aria-label") != before
    training = page.locator(".an-training")
    training.locator(".an-grid").focus()
    press(page, "ArrowLeft", "ArrowLeft", "ArrowDown")
    assert "Groups of step 19" in training.locator("[data-key=groups]").inner_text()
    assert training.locator(".an-group-text").inner_text().startswith("Group 1 of 8: 8 trajectories")
    press(page, "Escape")
    assert "step 20 of 40" in page.locator(".an-step").inner_text(), "the kernel was busy during all of this"
    shot(page, "busy_light")

    lab.release("live")
    page.get_by_text("step 24 of 40").wait_for()
    wait_idle(page)
    assert "−0\n" not in page.locator(".an-grid").inner_text()
    saved = save(page, path)
    stills = [sum("image/png" in out.get("data", {}) for out in cell["outputs"]) for cell in saved["cells"]]
    assert stills == [0, 0, 1, 1, 1, 0, 0, 0], "each view saved a static picture"
    set_theme(page, "Dark")
    shot(page, "idle_dark")

    lab.shut_kernels_down()
    open_notebook(page, lab, path)
    page.wait_for_selector(".jp-OutputArea img", timeout=30_000)
    visible = [image for image in page.locator(".jp-OutputArea img").all() if image.is_visible()]
    assert len(visible) == 3, "without the old kernel the static pictures are shown"
    shot(page, "reopened")


def test_hostile_text_is_escaped_and_long_runs_stay_small(page, lab, shot):
    many = (
        "records = [synthetic.game_record(1 + i // 100, i // 10 % 10, i % 10, 100) for i in range(1000)]\n"
        "TrajectoryViewer(records, boards=synthetic.boards)"
    )
    path = lab.write("hostile.ipynb", SETUP, "TrajectoryViewer([synthetic.talk_record(i) for i in range(3)])", many)
    open_notebook(page, lab, path)
    run_all(page)
    viewers = page.locator("[aria-label^='Trajectory viewer']")
    viewers.nth(1).wait_for(timeout=90_000)
    wait_idle(page, 120_000)
    talk = viewers.first.locator(".an-talk")
    assert "<script>window.hacked=1</script>" in talk.inner_text()
    assert page.evaluate("window.hacked") is None
    assert viewers.first.locator("img, script, b:text('bold')").count() == 0
    viewers.nth(1).locator(".an-row").first.wait_for()
    assert "1,000" in viewers.nth(1).locator(".an-count").inner_text().replace("1000", "1,000")
    assert viewers.nth(1).locator(".an-row").count() < 60
    assert viewers.nth(1).locator("*").count() < 6000
    shot(viewers.nth(1), "thousand")
