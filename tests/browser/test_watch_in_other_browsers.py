"""The page "Watch it learn" in Firefox and WebKitGTK: the logits of transformers, and a reader gets through the page."""

from __future__ import annotations

import shutil
import threading

import pytest
import torch
from policy_reference import ITEMS
from test_watch_it_learn import ENGINE, READY, Quiet, check_shares, sample, serve, states, text_of
from webdriver import Firefox, WebKit

import tic_tac_toe
from course.policy_files import POSITIONS

pytestmark = pytest.mark.browser

PACKAGES = {Firefox: "firefox-esr", WebKit: "webkit2gtk-driver xvfb"}
LOADED = "(i) => { const view = document.querySelectorAll('.an-policy')[i]; return view && view.dataset.loaded == view.querySelectorAll('.an-ticks button').length; }"
SHOW = "(i) => document.querySelectorAll('.an-policy')[i].scrollIntoView()"
SHARES = """(i) => Object.fromEntries([...document.querySelectorAll('.an-policy')[i].querySelectorAll('tbody tr')].map(
  (row) => [row.dataset.answer, row.querySelector('.an-share > span:last-child').textContent]))"""
CELLS = """(i) => [...document.querySelectorAll('.an-policy')[i].querySelectorAll('.an-stage .an-cell')].map(
  (cell) => cell.getAttribute("aria-label").split(": ")[1])"""
FOCUS = """([i, label]) => document.querySelectorAll('.an-policy')[i].querySelector(`[aria-label="${label}"]`).focus()"""
CHOOSE = """([i, label, value]) => {
  const box = document.querySelectorAll('.an-policy')[i].querySelector(`select[aria-label="${label}"]`);
  box.value = value;
  box.dispatchEvent(new Event("change"));
}"""
GAME_2048, TIC_TAC_TOE = ".an-policy[data-seed] ", ".an-policy:not([data-seed]) "  # only 2048 has seeds


@pytest.fixture(scope="module", params=PACKAGES, ids=lambda browser: browser.__name__.lower())
def tab(request, tmp_path_factory):
    if missing := [program for program in request.param.programs if not shutil.which(program)]:
        pytest.skip(f"{' and '.join(missing)} not found. On Debian: apt-get install -y {PACKAGES[request.param]}")
    with request.param(tmp_path_factory.mktemp("profile")) as tab:
        tab.command("SetWindowRect", "window/rect", width=1360, height=1000)
        yield tab


def opened(tab, address: str, i: int) -> None:
    """Open the page, go to its i-th view and wait until all weights are there."""
    tab.open(address)
    tab.wait("(i) => document.querySelectorAll('.an-policy').length > i", i)
    tab.evaluate(SHOW, i)
    tab.wait(LOADED, i)


def test_logits_and_greedy_answers_are_those_of_transformers(tab, watch_site, watch_folder, references):
    tab.open(watch_site)
    found = states(watch_folder)
    tab.evaluate(ENGINE, found["2048"]["_esm"].replace("export default", "const view ="))
    for game, state in found.items():
        tab.evaluate(READY, [game, {key: state[key] for key in ("config", "tokenizer", "scale", "steps")}])
        reference, boards = references[game], sample(game, 10)
        texts = [text_of(game, board) for board in boards]
        for step in (0, reference.steps[-1]):
            logits = tab.evaluate("([game, step, boards]) => boards.map((board) => [...policies[game].logits(step, board)])", [game, step, boards])
            difference = (torch.tensor(logits) - reference.logits(step, texts)).abs().max().item()
            print(f"{type(tab).__name__}, {game}, step {step}: {difference:.1e}")
            assert difference < 1e-3
            answers = tab.evaluate("([game, step, boards]) => boards.map((board) => policies[game].answer(step, board, 0))", [game, step, boards])
            assert answers == reference.answers(step, texts)


def test_2048_by_keys_and_pointer(tab, watch_site, references):
    opened(tab, watch_site, 0)
    reference, cells = references["2048"], list(POSITIONS["2048"][0][2])

    def check(step):
        tab.wait("([i, step]) => document.querySelectorAll('.an-policy')[i].dataset.step == step", [0, step])
        check_shares(tab.evaluate(SHARES, 0), reference, "2048", step, cells)

    check(0)
    tab.evaluate(FOCUS, [0, "Training step"])
    tab.press("End")
    check(reference.steps[-1])
    tab.press("ArrowLeft")
    check(reference.steps[-2])
    tab.click(f"{GAME_2048}.an-ticks button", 1)
    check(reference.steps[1])
    board = f"{GAME_2048}.an-stage .an-cell"
    # The clicks come while the view computes the other steps and draws the board again.
    for tile in (2, 4, 8):
        tab.click(board, 0)
        assert tab.evaluate(CELLS, 0)[0] == str(tile)
    tab.drag((board, 0), (board, 1))
    tab.press("ArrowRight", "ArrowRight", "+")
    cells[1], cells[2] = 8, 2
    assert tab.evaluate(CELLS, 0) == [str(tile or "empty") for tile in cells]
    check(reference.steps[1])
    buttons = f"{GAME_2048}.an-play button"
    tab.click(buttons, 0)
    tab.wait("() => document.querySelector('.an-policy').dataset.moves > 3")
    tab.click(buttons, 0)
    assert tab.evaluate("(selector) => document.querySelector(selector).textContent", buttons) == "Play"


def test_a_move_of_tic_tac_toe(tab, watch_site, references):
    opened(tab, watch_site, 1)
    reference = references["tic_tac_toe"]
    for label, key in (("Training step", "End"), ("Temperature", "Home")):
        tab.evaluate(FOCUS, [1, label])
        tab.press(key)
    tab.evaluate(CHOOSE, [1, "You", "x"])
    tab.click(f"{TIC_TAC_TOE}.an-stage .an-cell", 4)
    cells = list("....x....")
    (answer,) = reference.answers(reference.steps[-1], [tic_tac_toe.render("".join(cells))])
    cells[int(answer) - 1] = "o"
    tab.wait("() => document.querySelector('.an-policy:not([data-seed]) .an-board-status').textContent.startsWith('Your turn')")
    assert tab.evaluate(CELLS, 1) == [{"x": "cross", "o": "nought", ".": "empty"}[cell] for cell in cells]
    check_shares(tab.evaluate(SHARES, 1), reference, "tic_tac_toe", reference.steps[-1], cells)


def test_both_views_load_at_once_from_the_disk(tab, watch_folder, references):
    text = (watch_folder / "index.html").read_text("utf-8")
    (watch_folder / "both.html").write_text(text.replace("height: 2000px", ""), "utf-8")
    tab.command("SetWindowRect", "window/rect", width=1360, height=1090)
    opened(tab, (watch_folder / "both.html").as_uri(), 0)
    tab.evaluate(SHOW, 1)
    for i, game in enumerate(ITEMS):
        tab.wait(LOADED, i)
        check_shares(tab.evaluate(SHARES, i), references[game], game, 0, POSITIONS[game][0][2])


def test_a_reader_who_leaves_while_weights_load_finds_them_on_the_way_back(tab, watch_folder):
    """WebKit keeps the page, and breaks its downloads."""
    left = threading.Event()

    class Slow(Quiet):
        def do_GET(self):
            if self.path.endswith("2048_0000.safetensors"):
                left.wait(20)
            super().do_GET()

        def copyfile(self, source, outputfile):
            try:
                super().copyfile(source, outputfile)
            except ConnectionError:
                pass

    (watch_folder / "elsewhere.html").write_text("<!doctype html><title>elsewhere</title>", "utf-8")
    with serve(watch_folder, Slow) as address:
        tab.open(address)
        tab.wait("() => document.querySelector('.an-loading')?.textContent.startsWith('Loading')")
        tab.open(f"{address}/elsewhere.html")
        left.set()
        tab.command("Back", "back")
        tab.wait(LOADED, 0)
