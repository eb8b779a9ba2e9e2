"""The book in Chromium, from local files and without a kernel: drag, scrub, open, keys, a phone, and no external requests."""

from __future__ import annotations

import functools
import json
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import synthetic
from test_chat_widget_in_lab import CHAT
from test_explorers_group_in_lab import amount, check_advantages, check_surrogate, drag, slider
from test_explorers_token_in_lab import HOSTILE, shown_numbers
from test_judge_view_in_lab import GROUPS, order
from test_widgets_in_lab import RECORDS, SETUP, VIEWER, press, settle

from book.build import STATE, VIEW, build, with_states
from course.explorers import KLExplorer

pytestmark = pytest.mark.browser

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
PAGES = [*(path.stem for path in NOTEBOOKS), "views"]
TRAINING = "rows = [synthetic.history_row(step) for step in range(1, 31)]\nTrainingView.from_history(rows, 30)"
TALK = "TrajectoryViewer([synthetic.talk_record(i) for i in range(2)])"
EXPLORERS = f"""
from IPython.display import display
from course.explorers import AdvantageExplorer, TokenLens
display(AdvantageExplorer([0, 0, 1, 1]), TokenLens({[*HOSTILE, "<!--<script>"]!r}, [-1.0] * {len(HOSTILE) + 1}))
"""


def executed(folder: Path) -> Path:
    """Return an executed notebook with the course's views of generated records."""
    from nbclient import NotebookClient
    from nbformat import v4, write

    sources = [SETUP + RECORDS, TRAINING, VIEWER, "GroupView(records)", TALK, GROUPS + "JudgeView(groups)", EXPLORERS,
               CHAT + "chat.play()"]  # fmt: skip
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell("# Views"), *map(v4.new_code_cell, sources)])
    NotebookClient(notebook, kernel_name="python3").execute()
    write(notebook, folder / "views.ipynb")
    return folder / "views.ipynb"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Build a book of all notebooks and of one with generated records; return its folder."""
    folder = tmp_path_factory.mktemp("book")
    build([*NOTEBOOKS, executed(folder)], folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def site(book):
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=book)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def tab(page):
    """Return a tab. Asserts at the end that its console has no error."""
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield page
    assert not errors, errors


def open_page(tab, address, **size):
    if size:
        tab.set_viewport_size(size)
    tab.goto(address)
    tab.wait_for_function("[...document.querySelectorAll('.art-nb-state')].every((script) => script.parentElement.querySelector('.art-nb *'))")


def show(view):
    view.evaluate("(node) => node.scrollIntoView({ block: 'center', behavior: 'instant' })")


def test_three_explorers_are_dragged_and_agree_with_python(tab, site, shot):
    open_page(tab, f"{site}/notebooks/01_grpo_theory.html")
    advantage, surrogate, kl, lens = map(tab.locator, (".an-advantage", ".an-surrogate", ".an-kl", ".an-lens"))
    assert check_advantages(tab, advantage, 1.0) == [0, 0, 1, 0.2, 0.4, 1]
    drag(tab, slider(advantage, "Reward of trajectory 1"), 0, -60)
    press(tab, "ArrowDown")
    rewards = check_advantages(tab, advantage, 1.0)
    assert rewards[0] > 0.5 and rewards[1:] == [0, 1, 0.2, 0.4, 1]
    shot(tab, "book_advantage")

    before = check_surrogate(surrogate)
    show(surrogate)
    drag(tab, slider(surrogate, "Ratio"), 90, 0)
    assert check_surrogate(surrogate)[0] > before[0] + 0.2 and check_surrogate(surrogate)[-1] == "Cut."
    surrogate.get_by_role("button", name="Flip").click()
    settle(tab)
    assert check_surrogate(surrogate)[-2:] == (-1, "Kept.")

    show(kl)
    drag(tab, kl.locator(".an-handle circle"), 80, 0)
    press(tab, "ArrowRight")
    shift, width = (float(kl.locator(f"input[aria-label={name}]").input_value()) for name in ("shift", "width"))
    found, divergences = shown_numbers(kl)
    assert shift > 1.5 and divergences == pytest.approx(KLExplorer(shift, width).divergences(), abs=6e-4, rel=0.06)
    assert found["k2"][0] == pytest.approx(KLExplorer(shift, width).estimates()["k2"]["mean"], abs=6e-4, rel=0.06)

    lens.locator(".an-chip").first.focus()
    press(tab, "ArrowRight", "ArrowRight")
    assert lens.locator(".an-now b").first.inner_text().endswith("(2)")
    assert tab.locator("math").count() > 10, "the browser renders the formulas"


def test_training_is_scrubbed_by_pointer_and_keys(tab, site, shot):
    open_page(tab, f"{site}/notebooks/views.html")
    view = tab.locator(".an-training")
    grid, caption = view.locator(".an-grid"), view.locator(".an-caption")
    grid.focus()
    for key, step in (("Home", 1), ("ArrowRight", 2), ("End", 30)):
        press(tab, key)
        assert caption.inner_text().startswith(f"Step {step} ")
        reward = view.locator("[data-key=reward] .an-value").inner_text().split("\n")[0]
        assert float(reward.replace("−", "-")) == pytest.approx(synthetic.history_row(step)["reward"], abs=5e-4)
    show(view)
    box = view.locator("[data-key=reward] svg").bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    settle(tab)
    assert 10 < int(caption.inner_text().split()[1]) < 20
    shot(view, "book_training")


def test_a_chat_is_readable_without_a_kernel(tab, site, shot):
    open_page(tab, f"{site}/notebooks/views.html")
    chat = tab.locator(".an-chat")
    assert chat.locator(".an-outcome").inner_text() == "To write here, run the notebook." and not chat.get_by_label("What you say").is_visible()
    show(chat)
    chat.locator("summary", has_text="return_delivered_order_items").click()
    assert "return requested" in chat.locator(".an-call pre").last.inner_text()
    assert chat.locator(".an-changes li").count() == 3 and chat.locator(".an-said").count() == 9
    shot(chat, "book_chat")


def test_a_trajectory_is_opened_and_replayed_and_hostile_text_is_escaped(tab, site, shot):
    open_page(tab, f"{site}/notebooks/views.html")
    game, talk = (tab.locator(".an-viewer").nth(i) for i in (0, 1))
    game.locator(".an-row").nth(2).click()
    record = synthetic.game_records()[2]
    tab.wait_for_function("document.querySelector('.an-viewer').dataset.shown === '2'")
    assert f"reward\u00a0{record['reward']:g}".replace("\u00a0", "\n") in game.locator(".an-heading").inner_text().replace("−", "-")
    press(tab, "ArrowRight", "ArrowRight")
    second = synthetic.boards(record["turns"][4]["content"])
    assert game.locator(".an-board").get_attribute("aria-label") == f"board: {' / '.join(' '.join(map(str, row)) for row in second)}"
    assert "<script>window.hacked=1</script>" in talk.locator(".an-talk").inner_text()
    assert "<!--<script>" in tab.locator(".an-lens .an-chips").inner_text()
    assert tab.evaluate("window.hacked") is None and tab.locator(".art-nb :is(img, script)").count() == 0
    group = tab.locator(".an-group [aria-label*='rewards']").first
    before = group.get_attribute("aria-label")
    tab.locator(".an-group .an-chart").focus()
    press(tab, "ArrowLeft")
    assert group.get_attribute("aria-label") != before
    judge = tab.locator(".an-judge")
    judge.get_by_label("Order", exact=True).select_option("truth")
    assert order(judge) == [1, 0, 3, 2]
    shot(game, "book_viewer")


@pytest.mark.parametrize("name", ["index", "../book/watch_it_learn", *PAGES])
def test_every_page_fits_a_phone_and_draws_its_widgets(tab, site, name):
    open_page(tab, f"{site}/{name if name == 'index' else f'notebooks/{name}'}.html", width=375, height=812)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    assert [img for img in tab.locator("img").all() if img.evaluate("(img) => img.complete && !img.naturalWidth")] == []
    views = [path for path in NOTEBOOKS if path.stem == name]
    if views:
        notebook = json.loads(views[0].read_text("utf-8"))
        shown = [out["data"][VIEW]["model_id"] for cell in notebook["cells"] for out in cell.get("outputs", []) if VIEW in out.get("data", {})]
        states = notebook["metadata"].get("widgets", {}).get(STATE, {}).get("state", {})
        stills = sum("wanted" in states[model]["state"] for model in shown)  # a kernel would send the weights
        assert tab.locator(".art-nb").count() == len(shown) - stills
        assert tab.locator(".art-nb-still:visible").count() == stills, "the widgets replace the other static pictures"


def test_touch_drags_and_scrubs_on_a_phone_in_dark_mode(tab, site, shot):
    tab.emulate_media(color_scheme="dark")
    open_page(tab, f"{site}/notebooks/views.html", width=375, height=812)
    touch = functools.partial(tab.context.new_cdp_session(tab).send, "Input.dispatchTouchEvent")

    def swipe(view, dx, dy):
        show(view)
        box = view.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for kind, share in (("touchStart", 0), ("touchMove", 0.3), ("touchMove", 0.6), ("touchMove", 1)):
            touch({"type": kind, "touchPoints": [{"x": x + share * dx, "y": y + share * dy}]})
        settle(tab)

    swipe(slider(tab.locator(".an-advantage"), "Reward of trajectory 1"), 0, -60)  # 200 pixels are 3 units of reward
    assert amount(tab.locator(".an-advantage"), "Reward of trajectory 1") == pytest.approx(0.9, abs=0.02)
    touch({"type": "touchEnd", "touchPoints": []})
    swipe(tab.locator(".an-training [data-key=reward] svg"), -100, 0)
    assert int(tab.locator(".an-training .an-caption").inner_text().split()[1]) < 12
    touch({"type": "touchEnd", "touchPoints": []})
    assert tab.locator(".an-advantage").get_attribute("data-theme") == "dark"
    for name in ("advantage", "viewer"):
        show(tab.locator(f".an-{name}").first)
        shot(tab, f"book_phone_{name}")


def test_the_reader_finds_a_word_and_the_next_notebook(tab, site):
    tab.goto(f"{site}/search.html?q=importance")
    tab.locator("#search-results a[href*='01_grpo_theory']").first.wait_for()
    tab.goto(f"{site}/notebooks/00_start_here.html")
    tab.locator("a.next-page").click()
    tab.get_by_role("heading", name="GRPO from first principles").wait_for()


def test_the_book_opens_from_local_files(browser, book):
    tab = browser.new_page()
    open_page(tab, (book / "notebooks/01_grpo_theory.html").as_uri())
    assert tab.locator(".an-advantage").count() == 1
    tab.close()


def test_a_notebook_without_widget_state_raises():
    notebook = {"metadata": {}, "cells": [{"outputs": [{"data": {VIEW: {"model_id": "gone"}}}]}]}
    with pytest.raises(ValueError, match="x.ipynb lacks the state"):
        with_states(notebook, "x.ipynb")
