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
BUSY = "train(1, 24, 0.5)"


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
    """By the menu: Settings, Theme."""
    wanted = "true" if theme == "Light" else "false"
    if page.evaluate("document.body.dataset.jpThemeLight") == wanted:
        return
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.get_by_role("menuitem", name="Theme", exact=True).hover()
    page.get_by_role("menuitem", name=f"JupyterLab {theme}", exact=True).click()
    page.wait_for_function(f"document.body.dataset.jpThemeLight === '{wanted}'")


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


def kernel_status(page):
    return page.locator(".jp-Notebook-ExecutionIndicator").get_attribute("data-status")


def wait_idle(page, timeout=60_000):
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=timeout)


def save(page, path):
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Save Notebook(?! As)")).click()
    page.wait_for_function("!document.querySelector('.jp-mod-dirty')")
    return json.loads(path.read_text())
