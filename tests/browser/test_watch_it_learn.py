"""The page "Watch it learn": what Chromium computes is what transformers computes, and a reader gets through the page."""

from __future__ import annotations

import functools
import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_reference import ITEMS, Reference
from test_widgets_in_lab import press, settle

import game_2048
import tic_tac_toe
from book import watch
from course.policy_files import POSITIONS
from tic_tac_toe.rules import positions

pytestmark = pytest.mark.browser

REPOSITORY = Path(__file__).resolve().parents[2]
FIRST_SEED = 2_000_000
MOST_BYTES = 8_000_000
SEEDS = range(FIRST_SEED, FIRST_SEED + 20)
ENGINE = """(code) => { window.engine = new Function(code + "; return { Policies, Game2048, RULES_2048, RULES_TIC_TAC_TOE, Tokenizer, greedyAnswer }")(); }"""
READY = """async ([game, state]) => {
  const { Policies, RULES_2048, RULES_TIC_TAC_TOE } = engine;
  const rules = game === "2048" ? RULES_2048 : RULES_TIC_TAC_TOE;
  const policies = new Policies({ ...state, steps: state.steps.map((each) => each.step) }, rules.answers, rules.render);
  for (const each of state.steps) policies.add(each.step, await (await fetch(`/${each.file.url}`)).arrayBuffer());
  (window.policies ??= {})[game] = policies;
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def write_page(place: Path) -> Path:
    """Write both views on one page, as the book has them, a screen apart. Returns the folder."""
    views = [watch.view_of(game, item, place) for game, item in ITEMS.items()]
    (place / "live.js").write_text((REPOSITORY / "book/static/live.js").read_text("utf-8"), "utf-8")
    page = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>watch</title>'
    between = '<div style="height: 2000px"></div>'
    (place / "index.html").write_text(f'{page}<body>{between.join(views)}<script src="live.js"></script>', "utf-8")
    return place


@contextmanager
def serve(folder: Path, handler: type[SimpleHTTPRequestHandler] = Quiet) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def states(folder: Path) -> dict[str, dict]:
    found = re.findall(r'type="application/json">(.*?)</script>', (folder / "index.html").read_text("utf-8"))
    return {state["game"]: state for state in (json.loads(text)["state"] for text in found)}


@pytest.fixture(scope="module")
def engine(browser, watch_site, watch_folder):
    """A tab in which `policies["2048"]` and `policies.tic_tac_toe` are loaded."""
    tab = browser.new_page()
    tab.goto(watch_site)
    found = states(watch_folder)
    tab.evaluate(ENGINE, found["2048"]["_esm"].replace("export default", "const view ="))
    for game, state in found.items():
        tab.evaluate(READY, [game, {key: state[key] for key in ("config", "tokenizer", "scale", "steps")}])
    yield tab
    tab.close()


def sample(game: str, count: int) -> list[list]:
    """Return boards as the browser has them: arrays of cells."""
    rng = random.Random(0)
    if game == "2048":
        return [[tile for row in game_2048.random_board(rng) for tile in row] for _ in range(count)]
    boards = [board for plies in range(9) for board in positions(plies) if tic_tac_toe.legal_moves(board)]
    return [list(board) for board in rng.sample(boards, count)]


def rows(cells: list) -> tuple:
    return tuple(tuple(cells[i : i + 4]) for i in range(0, 16, 4))


def text_of(game: str, cells: list) -> str:
    return game_2048.render(rows(cells)) if game == "2048" else tic_tac_toe.render("".join(cells))


def answers_of(game: str) -> list[str]:
    return list(game_2048.MOVES if game == "2048" else tic_tac_toe.SQUARES)


def legal_of(game: str, cells: list) -> list[str]:
    return game_2048.legal_moves(rows(cells)) if game == "2048" else tic_tac_toe.legal_moves("".join(cells))


@pytest.mark.parametrize("game", ITEMS)
def test_logits_are_those_of_transformers_after_every_step(engine, references, game):
    """On 200 boards at the first and the last step, on 40 at the others: only the adapter changes from step to step."""
    reference, sampled = references[game], sample(game, 200)
    for step in reference.steps:
        boards = sampled if step in (reference.steps[0], reference.steps[-1]) else sampled[:40]
        found = engine.evaluate("([game, step, boards]) => boards.map((board) => [...policies[game].logits(step, board)])", [game, step, boards])
        wanted = reference.logits(step, [text_of(game, board) for board in boards])
        assert (torch.tensor(found) - wanted).abs().max().item() < 1e-3, step


@pytest.mark.parametrize("game", ITEMS)
def test_the_steps_are_different_policies(references, game):
    """Otherwise the comparison above could hold with an adapter that changes nothing."""
    reference, boards = references[game], [text_of(game, board) for board in sample(game, 20)]
    found = [reference.logits(step, boards) for step in reference.steps]
    assert all((a - b).abs().max() > 0.01 for a, b in zip(found, found[1:], strict=False))


def test_legal_answers_are_those_of_the_environments(engine):
    for game, rules in (("2048", "RULES_2048"), ("tic_tac_toe", "RULES_TIC_TAC_TOE")):
        boards = sample(game, 200)
        assert engine.evaluate(f"(boards) => boards.map((board) => engine.{rules}.legal(board))", boards) == [legal_of(game, board) for board in boards]


@pytest.mark.parametrize("game", ITEMS)
def test_prompts_have_the_tokenizer_s_ids(engine, references, game):
    boards = sample(game, 200)
    found = engine.evaluate("([game, boards]) => boards.map((board) => policies[game].tokenizer.prompt(policies[game].render(board)))", [game, boards])
    assert found == [references[game].prompt(text_of(game, board)) for board in boards]


@pytest.mark.parametrize("game", ITEMS)
def test_any_text_has_the_tokenizer_s_ids(engine, references, game):
    backend = references[game].tokenizer.backend_tokenizer
    kept = [token for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")]

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.one_of(st.text(alphabet="0123456789 .xo\nleftrighupdown", max_size=40), st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), max_size=20)))
    def check(text):
        if not any(token in text for token in kept):
            wanted = backend.encode(text, add_special_tokens=False).ids
            assert engine.evaluate("([game, text]) => policies[game].tokenizer.encode(text)", [game, text]) == wanted, text

    check()


def test_text_cannot_become_a_control_token(engine, references):
    ids = engine.evaluate("() => policies['2048'].tokenizer.encode('<|im_end|>')")
    assert references["2048"].tokenizer.convert_tokens_to_ids("<|im_end|>") not in ids


def greedy_games(reference: Reference, step: int) -> list[dict]:
    games = [game_2048.Game(seed, winning_tile=reference.facts["winning_tile"]) for seed in SEEDS]
    while running := [game for game in games if not game.over]:
        for game, answer in zip(running, reference.answers(step, [game.render() for game in running]), strict=True):
            game.move(answer)
    return [{"board": [tile for row in game.board for tile in row], "moves": game.moves, "endedBy": game.ended_by} for game in games]


@pytest.fixture(scope="module")
def greedy(references):
    return greedy_games(references["2048"], references["2048"].steps[-1])


def test_the_same_greedy_games_of_2048_on_20_seeds(engine, references, greedy):
    play = """([step, seeds, tile]) => seeds.map((seed) => {
      const game = new engine.Game2048(seed, tile);
      while (!game.endedBy) game.move(policies[2048].answer(step, game.board, 0));
      return { board: game.board, moves: game.moves, endedBy: game.endedBy };
    })"""
    reference = references["2048"]
    assert engine.evaluate(play, [reference.steps[-1], list(SEEDS), reference.facts["winning_tile"]]) == greedy


def test_the_same_greedy_answers_in_tic_tac_toe_on_every_board(engine, references):
    reference = references["tic_tac_toe"]
    boards = [board for plies in range(9) for board in positions(plies) if tic_tac_toe.legal_moves(board)]
    found = engine.evaluate("([step, boards]) => boards.map((board) => policies.tic_tac_toe.answer(step, [...board], 0))", [reference.steps[-1], boards])
    wanted = reference.answers(reference.steps[-1], [tic_tac_toe.render(board) for board in boards])
    assert found == [answer if answer in tic_tac_toe.SQUARES else "other text" for answer in wanted]


def test_the_perfect_player_of_the_page_never_loses_value(engine):
    """Its squares are minimax-optimal by the environment's own search."""
    boards = [board for board in positions(3) + positions(4) if tic_tac_toe.legal_moves(board)]
    code = "(boards) => boards.map((board) => engine.PLAYERS.perfect([...board], Math.random))"
    engine.evaluate("(code) => { engine.PLAYERS = new Function(code + '; return PLAYERS')(); }", (REPOSITORY / "notebooks/course/explorers/tic_tac_toe.js").read_text("utf-8"))
    for board, square in zip(boards, engine.evaluate(code, boards), strict=True):
        cell = int(square) - 1
        assert tic_tac_toe.value(board) == tic_tac_toe.value(board[:cell] + tic_tac_toe.to_move(board) + board[cell + 1 :])


# The page


def view(tab, game: str):
    return tab.locator(".an-policy").nth(list(ITEMS).index(game))


def opened(tab, address: str, game: str, references=None, **size):
    """Open the page, go to the game's view and wait until all weights are there."""
    if size:
        tab.set_viewport_size(size)
    tab.goto(address)
    tab.wait_for_selector(".an-policy")
    found = view(tab, game)
    found.scroll_into_view_if_needed()
    count = found.locator(".an-ticks button").count()
    tab.wait_for_function("([i, count]) => document.querySelectorAll('.an-policy')[i].dataset.loaded == count", arg=[list(ITEMS).index(game), count])
    return found


def check_shares(table: dict[str, str], reference: Reference, game: str, step: int, cells: list) -> None:
    """The texts of a table, by answer, are the reference's probabilities."""
    shares = reference.logits(step, [text_of(game, cells)])[0].softmax(-1)
    for answer in answers_of(game):
        text = table[answer]
        percent = {"<0.1%": 0.0, ">99.9%": 100.0}.get(text) if text[0] in "<>" else float(text[:-1])
        assert percent == pytest.approx(100 * shares[reference.tokenizer.convert_tokens_to_ids(answer)].item(), abs=0.51), answer


def check_table(found, reference: Reference, game: str, step: int, cells: list) -> None:
    """The table has the reference's probabilities, and marks exactly the illegal answers."""
    answers = answers_of(game)
    rows = found.locator("tbody tr").all()
    table = {row.get_attribute("data-answer"): row.locator(".an-share > span").last.inner_text() for row in rows}
    check_shares(table, reference, game, step, cells)
    marked = found.locator("tbody tr.an-illegal").evaluate_all("(rows) => rows.map((row) => row.dataset.answer)")
    assert marked == [answer for answer in answers if answer not in legal_of(game, cells)] + ["other text"]


@pytest.mark.parametrize("game", ITEMS)
def test_the_slider_changes_the_policy_by_pointer_and_keys(page, watch_site, references, game, shot):
    found, reference, cells = opened(page, watch_site, game), references[game], POSITIONS[game][0][2]
    check_table(found, reference, game, 0, cells)
    slider = found.get_by_label("Training step")
    slider.focus()
    press(page, "End")
    assert found.get_attribute("data-step") == str(reference.steps[-1])
    check_table(found, reference, game, reference.steps[-1], cells)
    press(page, "ArrowLeft")
    check_table(found, reference, game, reference.steps[-2], cells)
    found.locator(".an-ticks button").nth(1).click()
    settle(page)
    check_table(found, reference, game, reference.steps[1], cells)
    press(page, "End")
    page.wait_for_function("([i, n]) => document.querySelectorAll('.an-policy')[i].dataset.shown == n", arg=[list(ITEMS).index(game), len(reference.steps)])
    spark = found.locator("tbody tr").first.locator("svg")
    assert spark.get_attribute("aria-label").count("step") == len(reference.steps) and spark.locator("circle").count() == len(reference.steps)
    assert found.locator(".an-change").inner_text().startswith("Step 0 to step ")
    shot(found, f"watch_{game}")


def test_a_board_is_edited_by_clicks_keys_and_dragging(page, watch_site, references):
    found, reference = opened(page, watch_site, "2048"), references["2048"]
    cells = list(POSITIONS["2048"][0][2])
    board = found.locator(".an-stage .an-cell")
    board.nth(0).click()  # an empty cell becomes a 2
    cells[0] = 2
    check_table(found, reference, "2048", 0, cells)
    board.nth(0).click(modifiers=["Shift"])
    cells[0] = 0
    check_table(found, reference, "2048", 0, cells)
    board.nth(0).focus()
    press(page, "ArrowRight", "ArrowDown", "+", "+", "+")
    cells[5] = 8
    assert board.nth(5).get_attribute("aria-label") == "row 2, column 2: 8"
    check_table(found, reference, "2048", 0, cells)
    press(page, "Delete")
    cells[5] = 0
    board.nth(12).hover()
    page.mouse.down()
    board.nth(8).hover()
    board.nth(4).hover()
    page.mouse.up()
    settle(page)
    cells[4], cells[12] = cells[12], cells[4]  # the tile on the way stays
    assert [int(text or 0) for text in board.all_inner_texts()] == cells
    check_table(found, reference, "2048", 0, cells)
    assert found.get_by_label("Position").input_value() == ""
    for i in range(16):
        if cells[i] == 0:
            board.nth(i).click()
            if i % 2:
                board.nth(i).click()
            cells[i] = 4 if i % 2 else 2
    check_table(found, reference, "2048", 0, cells)


def test_it_plays_a_greedy_game_as_python_does(page, watch_site, references, greedy):
    found, reference = opened(page, watch_site, "2048"), references["2048"]
    found.get_by_label("Training step").focus()
    press(page, "End")
    found.get_by_label("Temperature").focus()
    press(page, "Home")
    assert found.locator(".an-dial output").inner_text() == "0 (greedy)"
    found.get_by_role("button", name="New game").click()
    assert found.get_attribute("data-seed") == str(FIRST_SEED + 1)
    for _ in range(3):
        found.get_by_role("button", name="One move").click()
    assert found.get_attribute("data-moves") == "3"
    found.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_function("document.querySelector('.an-policy').dataset.moves > 5")
    found.get_by_role("button", name="Pause").click()
    # The rest of the games at full speed; the seeds after the first are those of the reference.
    found.get_by_role("button", name="Play 10 games").click()
    page.wait_for_function("document.querySelector('.an-policy').dataset.games >= 2", timeout=120_000)
    found.get_by_role("button", name="Stop").click()
    assert found.get_by_role("button", name="Play 10 games").is_visible()
    assert found.locator(".an-change").inner_text().startswith("Step 0 to step "), "the table comes back"
    text = found.locator(".an-score").inner_text()
    games = int(re.search(r"(\d+) games", text)[1])
    won, rule = int(re.search(r"model won (\d+)", text)[1]), int(re.search(r"corner rule (\d+)", text)[1])
    finished = greedy[1 : 1 + games]
    assert won == sum(game["endedBy"] == "won" for game in finished)
    from game_2048.players import corner_player, play

    tile = reference.facts["winning_tile"]
    assert rule == sum(play(corner_player, FIRST_SEED + 1 + i, winning_tile=tile).won for i in range(games))


def test_the_reader_plays_tic_tac_toe_against_a_step(page, watch_site, references, shot):
    found, reference = opened(page, watch_site, "tic_tac_toe"), references["tic_tac_toe"]
    found.get_by_label("Training step").focus()
    press(page, "End")
    found.get_by_label("Temperature").focus()
    press(page, "Home")
    found.get_by_label("You").select_option("x")
    board, cells = found.locator(".an-stage .an-cell"), list(".........")
    for square in (5, 1, 2, 3, 4, 6, 7, 8, 9):
        if cells[square - 1] != ".":
            continue
        cells[square - 1] = "x"
        board.nth(square - 1).click()
        if not tic_tac_toe.legal_moves("".join(cells)):
            break
        (answer,) = reference.answers(reference.steps[-1], [tic_tac_toe.render("".join(cells))])
        if answer not in tic_tac_toe.legal_moves("".join(cells)):
            found.get_by_text("it loses").wait_for()
            break
        cells[int(answer) - 1] = "o"
        page.wait_for_function("([i]) => document.querySelectorAll('.an-policy')[1].querySelectorAll('.an-stage .an-cell')[i].dataset.level === 'o'", arg=[int(answer) - 1])
        if not tic_tac_toe.legal_moves("".join(cells)):
            break
        found.get_by_text("Your turn").wait_for()
    page.wait_for_function("document.querySelectorAll('.an-policy')[1].dataset.ended !== ''")
    assert [{"✕": "x", "◯": "o"}.get(text[:1], ".") for text in board.all_inner_texts()] == cells
    board.nth(0).click()  # a game that is over takes no more marks
    assert [{"✕": "x", "◯": "o"}.get(text[:1], ".") for text in board.all_inner_texts()] == cells
    shot(found, "watch_played")
    found.get_by_role("button", name="New game").click()
    found.get_by_text("Your turn").wait_for()
    found.get_by_role("button", name="40 games against the perfect player").click()
    page.wait_for_function("document.querySelectorAll('.an-policy')[1].dataset.games == 40")
    counts = list(map(int, re.findall(r"(?:won|drew|lost) (\d+)", found.locator(".an-score").inner_text())))
    assert sum(counts) == 40 and counts[0] == 0, "nobody beats the perfect player from a drawn opening"


def test_the_captions_are_true_of_the_weights(references):
    """What watch.SEEN adds to the captions, and the numbers that the page names."""
    shown = {name: (game, cells) for game, positions in POSITIONS.items() for name, _, cells in positions}
    assert watch.SEEN.keys() <= shown.keys()

    def shares(name, step=-1):
        game, cells = shown[name]
        reference = references[game]
        found = reference.logits(reference.steps[step], [text_of(game, cells)])[0].softmax(-1)
        return {answer: found[reference.tokenizer.convert_tokens_to_ids(answer)].item() for answer in answers_of(game)}

    assert shares("Up or right")["up"] > 0.98
    win = shares("One move from the win")
    assert win["up"] == pytest.approx(0.98, abs=0.005) and win["left"] + win["right"] < 0.02
    square = shares("Opposite corners")
    assert max(square, key=square.get) == "5" and "5" not in legal_of("tic_tac_toe", shown["Opposite corners"][1])
    reference, boards = references["2048"], sample("2048", 300)
    avoidable = [board for board in boards if {"right"} < set(legal_of("2048", board))]
    found = reference.logits(reference.steps[-1], [text_of("2048", board) for board in avoidable]).softmax(-1)
    assert found[:, reference.tokenizer.convert_tokens_to_ids("right")].mean() < 0.01 and len(avoidable) > 100


def test_the_corner_rule_s_figure_is_of_the_same_games(references):
    from game_2048.players import corner_player, play

    facts = references["2048"].facts
    won = [play(corner_player, seed, winning_tile=facts["winning_tile"]).won for seed in game_2048.scenarios("val", facts["games"])]
    assert 100 * sum(won) / len(won) == watch.CORNER_RULE_WON


def test_the_reader_plays_2048_by_the_arrows_and_goes_back(page, watch_site):
    found = opened(page, watch_site, "2048")
    board = found.locator(".an-stage .an-cell")
    cells = lambda: [int(text or 0) for text in board.all_inner_texts()]  # noqa: E731
    before = cells()
    assert found.get_by_role("button", name="Reset").is_disabled()
    found.get_by_role("button", name="Play down").click(force=True)  # illegal
    assert cells() == before
    found.get_by_role("button", name="Play left").click()
    assert sum(cells()) in (sum(before) + 2, sum(before) + 4) and 128 in cells()
    found.get_by_role("button", name="Reset").click()
    assert cells() == before and found.get_by_label("Position").input_value() == "0"
    found.get_by_label("Position").select_option(label="One move from the win")
    found.get_by_role("button", name="Play right").click()
    assert found.locator(".an-board-status").inner_text() == "The game is won: a tile has reached 256."
    assert found.locator("tbody tr.an-illegal").count() == 0 and found.locator(".an-change").inner_text() == ""
    assert found.locator(".an-game").first.inner_text() == "0 moves, largest tile 256; won: it reached 256"
    found.get_by_role("button", name="Reset").click()
    for _ in range(2):
        board.nth(0).click(button="right")  # an empty cell stays empty
    assert cells()[0] == 0


def test_an_illegal_answer_is_marked_and_another_step_ends_the_40_games(page, watch_site):
    found = opened(page, watch_site, "tic_tac_toe")
    found.locator(".an-ticks button").last.click()
    assert found.locator(".an-board-status").inner_text() == "◯ is to move."
    found.get_by_label("Temperature").fill("0")
    found.get_by_label("You").select_option("x")
    found.get_by_label("Position").select_option(label="Opposite corners")
    status = found.locator(".an-board-status.an-warn")
    status.wait_for()
    assert status.inner_text() == "It answered square 5, which is taken: it loses."
    assert found.locator(".an-cell.an-wrong").get_attribute("aria-label") == "square 5: nought"
    found.get_by_label("You").select_option("")
    assert found.locator(".an-board-status").inner_text() == "◯ is to move."
    found.get_by_role("button", name="40 games against the random player").click()
    page.wait_for_function("document.querySelectorAll('.an-policy')[1].dataset.games >= 2")
    assert found.get_by_role("button", name="Stop").count() == 1
    found.locator(".an-ticks button").first.click()
    assert found.get_by_role("button", name="Stop").count() == 0
    games = found.get_attribute("data-games")
    page.wait_for_timeout(300)
    assert found.get_attribute("data-games") == games != "40"


def test_a_board_that_no_game_reaches_is_explained(page, watch_site):
    found = opened(page, watch_site, "tic_tac_toe")
    found.get_by_label("Position").select_option(label="The empty board")
    square = found.locator(".an-stage .an-cell").first
    square.click()
    square.click()
    assert "can't come from a game" in found.locator(".an-board-status").inner_text()
    assert found.locator(".an-share > span").last.inner_text() == "–"


def test_weights_come_when_the_reader_gets_there_and_are_small(page, watch_site, watch_folder):
    asked = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    found = opened(page, watch_site, "2048")
    assert not [name for name in asked if name.startswith("tic_tac_toe")]
    assert [name for name in asked if name.endswith(".safetensors")][0] == "2048_0000.safetensors" and found.locator(".an-loading").is_hidden()
    opened(page, watch_site, "tic_tac_toe")
    files = {name for name in asked if name.endswith(".safetensors")}
    page_bytes = sum((watch_folder / name).stat().st_size for name in ("index.html", "live.js"))
    assert len(files) == sum(len(state["steps"]) for state in states(watch_folder).values())
    assert page_bytes + sum((watch_folder / "policies" / name).stat().st_size for name in files) <= MOST_BYTES


def test_weights_that_cannot_be_read_are_named(page, watch_site):
    page.route("**/2048_0000.safetensors", lambda route: route.fulfill(status=404))
    page.goto(watch_site)
    page.get_by_text("could not be loaded").first.wait_for()
    assert "404" in page.locator(".an-loading").first.inner_text()


def test_the_page_opens_from_the_disk(browser, watch_folder, references):
    tab = browser.new_page()
    found = opened(tab, (watch_folder / "index.html").as_uri(), "2048")
    check_table(found, references["2048"], "2048", 0, POSITIONS["2048"][0][2])
    tab.close()


def test_a_phone_in_the_dark(page, watch_site, shot):
    page.emulate_media(color_scheme="dark")
    page.add_init_script("addEventListener('DOMContentLoaded', () => { document.body.style.background = '#131416'; })")
    for game in ITEMS:
        found = opened(page, watch_site, game, width=375, height=812)
        assert found.get_attribute("data-theme") == "dark"
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        shot(found, f"watch_phone_{game}")


def test_a_screen_reader_gets_a_table_and_names(page, watch_site):
    found = opened(page, watch_site, "2048")
    tree = found.aria_snapshot()
    assert "Probability of each answer on this board" in tree and re.search(r'slider "Training step"', tree)
    assert 'rowheader "left"' in tree and 'columnheader "probability"' in tree and "row 4, column 1: 64" in tree
    assert re.search(r'row "down illegal', tree)


def test_a_view_whose_weights_a_kernel_would_send_leaves_its_picture(page, watch_site, watch_folder):
    state = states(watch_folder)["2048"]
    state["steps"] = [{key: value for key, value in step.items() if key != "file"} for step in state["steps"]]
    text = json.dumps({"state": state | {"wanted": None, "sent": None}}).replace("<", "\\u003c")
    still = '<div><img alt="picture" src="data:,"></div><div><div class="art-nb-still">numbers</div></div>'
    script = '<script src="live.js"></script>'
    page_of = f'<!doctype html><div><script class="art-nb-state" type="application/json">{text}</script></div>{still}{script}'
    (watch_folder / "still.html").write_text(page_of, "utf-8")
    page.goto(f"{watch_site}/still.html")
    page.wait_for_function("document.querySelectorAll('.art-nb-state').length === 0")
    assert page.locator(".an-policy").count() == 0 and page.get_by_text("numbers").is_visible()
