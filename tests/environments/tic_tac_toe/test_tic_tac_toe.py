"""Tic-tac-toe: published counts, rules against another implementation, players, splits and Elo ratings."""

import itertools
import random

import pytest

from tic_tac_toe import EMPTY, Game, TicTacToeEnvironment, board_of, legal_moves, openings, render, value
from tic_tac_toe.players import careful_player, elo, perfect_player, random_player, tactical_player
from tic_tac_toe.rules import after_move, canonical, positions, to_move, winner


def test_the_numbers_of_positions_are_the_published_ones():
    """5,478 positions are reachable, 765 up to symmetry; both numbers are well known."""
    by_ply = [positions(plies) for plies in range(10)]
    assert [len(each) for each in by_ply] == [1, 9, 72, 252, 756, 1260, 1520, 1140, 390, 78]
    assert len({canonical(board) for each in by_ply for board in each}) == 765


def test_games_end_as_in_another_implementation():
    """In a magic square, three numbers of a player that sum to 15 form a line."""
    magic = (2, 7, 6, 9, 5, 1, 4, 3, 8)
    for board in itertools.chain.from_iterable(positions(plies) for plies in range(10)):
        held = {side: [magic[i] for i in range(9) if board[i] == side] for side in "xo"}
        won = [side for side in "xo" if any(sum(three) == 15 for three in itertools.combinations(held[side], 3))]
        assert ([winner(board)] if winner(board) else []) == won
        assert len(legal_moves(board)) == (0 if won else board.count("."))


def test_perfect_play_draws_and_values_are_invariant_under_symmetry():
    assert value(EMPTY) == 0
    assert value("xx.oo....") == 1 and value("x...o...x") == 0
    for board in positions(4):
        assert value(board) == value(canonical(board))


def play(x, o, opening):
    game = Game(opening)
    while not game.over:
        game.move((x if game.to_move == "x" else o)(game.board))
    return game


def test_the_perfect_player_never_loses_and_a_random_one_does():
    rng, lost = random.Random(0), 0
    for game_seed in range(200):
        opening = rng.choice(openings("test"))
        perfect, other = perfect_player(game_seed), random_player(game_seed)
        assert play(perfect, other, opening).won_by != "o" and play(other, perfect, opening).won_by != "x"
        assert play(perfect, perfect, opening).ended_by == "full"
        lost += play(perfect, other, opening).won_by == "x"
    assert lost > 100


def test_the_careful_player_blocks_and_ignores_its_own_lines():
    assert {careful_player(seed)("xx..o....") for seed in range(20)} == {"3"}
    assert {careful_player(seed)("xx.oo....") for seed in range(20)} == {"6"}  # 3 would win
    assert {careful_player(seed)("x...o...x") for seed in range(60)} == set("234678")
    assert {careful_player(seed)("xxo.x.o..") for seed in range(40)} == {"8", "9"}  # two to stop


def test_the_tactical_player_completes_its_line_first_and_else_blocks():
    assert {tactical_player(seed)("xx.oo....") for seed in range(20)} == {"3"}
    assert {tactical_player(seed)("xx..o....") for seed in range(20)} == {"3"}  # o to move: nothing to complete
    assert {tactical_player(seed)("x...o...x") for seed in range(60)} == set("234678")


def test_a_board_reads_back():
    assert board_of(render("x.o.x...o")) == [[1, 0, 2], [0, 1, 0], [0, 0, 2]]
    environment = TicTacToeEnvironment(perfect_player)
    environment.reset("xx.oo....")
    assert board_of(environment.move("3")) == [[1, 1, 1], [2, 2, 0], [0, 0, 0]]  # the tool says after it that the game is over
    assert board_of("x to move") is None and board_of("say\na b c\n. . .\n. . .") is None


def test_splits_share_no_opening_up_to_symmetry():
    chosen = {split: openings(split) for split in ("train", "val", "test")}
    classes = {split: {canonical(board) for board in boards} for split, boards in chosen.items()}
    assert len(set.union(*classes.values())) == sum(map(len, classes.values()))
    assert {split: len(set(boards)) for split, boards in chosen.items()} == {"train": 74, "val": 32, "test": 56}
    everything = [board for boards in chosen.values() for board in boards]
    assert all(value(board) == 0 for board in everything)
    assert {to_move(board) for board in chosen["train"]} == {to_move(board) for board in chosen["test"]} == {"x", "o"}
    assert openings("train", 5) == chosen["train"][:5]
    with pytest.raises(ValueError, match="train, val, test"):
        openings("dev")


@pytest.mark.parametrize(("answer", "ended_by"), [("5", "illegal"), ("10", "illegal"), ("0", "illegal"), ("b2", "malformed")])
@pytest.mark.parametrize("around", ["{}", " {}\n"])
def test_an_answer_that_is_not_a_free_square_loses(answer, ended_by, around):
    game = Game("....x....")
    game.move(around.format(answer))
    assert (game.ended_by, game.won_by, game.reward("o"), game.reward("x")) == (ended_by, "x", -1.0, 1.0)
    with pytest.raises(ValueError, match="over"):
        game.move("1")


@pytest.mark.parametrize("answer", [None, "", "５", "²", "<|im_end|>", "5 6"])
def test_strange_answers_are_malformed(answer):
    game = Game()
    game.move(answer)
    assert game.ended_by == "malformed" and game.board == EMPTY


def test_invalid_moves_and_openings_raise():
    with pytest.raises(ValueError, match="leaves no move"):
        Game("xxxoo....")
    for board in ("", ".", "abcdefghi", "." * 10):
        with pytest.raises(ValueError, match="expected nine squares"):
            Game(board)
    for board in ("oo.......", "xx.......", "o........"):
        with pytest.raises(ValueError, match="expected as many x as o, or one more"):
            TicTacToeEnvironment().reset(board)
    for n in (-1, 10**6):
        with pytest.raises(ValueError, match="the size of the train split"):
            openings("train", n)
    with pytest.raises(ValueError, match="not a legal move"):
        after_move("x........", "1")


def test_the_board_as_text():
    assert render("x.o......") == "x to move\nx . o\n. . .\n. . ."


def test_elo_recovers_the_true_ratings():
    true = {"a": 150.0, "b": 50.0, "c": -200.0}
    games = {(p, q): 1 / (1 + 10 ** ((true[q] - true[p]) / 400)) for p, q in itertools.combinations(true, 2)}
    found = elo(games, games=1e6)
    assert all(abs(found[name] - true[name]) < 0.5 for name in true)
    always = elo({("a", "b"): 1.0}, games=100)
    assert 400 < always["a"] - always["b"] < 4000
    with pytest.raises(ValueError, match="expected shares of the points, from 0 to 1"):
        elo({("a", "b"): 37}, games=48)
