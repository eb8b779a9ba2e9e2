"""The baseline players of 2048: expectimax against a direct implementation of its definition, and their ranking."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from game_2048 import environment as g
from game_2048 import players as p


@st.composite
def playable_boards(draw, sizes=(2, 3, 4)):
    rng = random.Random(draw(st.integers(0, 2**32)))
    return g.random_board(rng, 2048, draw(st.sampled_from(sizes)))


def value(board, depth):
    """Compute the definition in `move_values` on tuples."""
    if depth == 0:
        return p.evaluate(board)
    return max((mean_after(g.slide(board, move)[0], depth - 1) for move in g.legal_moves(board)), default=0.0)


def mean_after(moved, depth):
    total, empty = 0.0, [(i, j) for i, row in enumerate(moved) for j, tile in enumerate(row) if tile == 0]
    for i, j in empty:
        for tile, probability in ((2, 0.9), (4, 0.1)):
            cells = [list(row) for row in moved]
            cells[i][j] = tile
            total += probability * value(tuple(map(tuple, cells)), depth)
    return total / len(empty)


def literal_move_values(board, depth):
    return {move: mean_after(g.slide(board, move)[0], depth - 1) for move in g.legal_moves(board)}


@settings(max_examples=60, deadline=None)
@given(playable_boards(), st.sampled_from((1, 2)))
def test_expectimax_is_exact(board, depth):
    assert p.move_values(board, depth) == pytest.approx(literal_move_values(board, depth), rel=1e-9, abs=1e-6)


def test_expectimax_is_exact_at_depth_three():
    boards = (
        ((4, 2), (0, 8)),
        ((2, 4, 8), (64, 32, 16), (2, 0, 128)),
        ((2, 4, 8, 16), (4, 8, 16, 32), (8, 16, 32, 64), (2, 2, 64, 512)),
    )
    for board in boards:
        assert p.move_values(board, 3) == pytest.approx(literal_move_values(board, 3), rel=1e-9, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(playable_boards())
def test_packed_boards_move_like_boards(board):
    packed, size = np.array([p.pack(board)], np.uint64), len(board)
    assert p._transpose(packed)[0] == p.pack(tuple(zip(*board, strict=True)))
    for move, moved in zip(g.MOVES, p._moves(packed, size)[:, 0], strict=True):
        assert int(moved) == p.pack(g.slide(board, move)[0])


def test_a_row_value_by_hand():
    base = 200_000
    assert p.row_value((0, 0, 0, 0)) == base + 4 * 270
    assert p.row_value((2, 2, 0, 4)) == pytest.approx(
        # levels 1 1 0 2: two chances to merge, falls 1, rises 16, weights 1 + 1 + 2**3.5
        base + 270 + 2 * 700 - 47 * 1 - 11 * (2 + 2**3.5)
    )
    assert p.row_value((4, 4, 4, 4)) == pytest.approx(base + 4 * 700 - 11 * 4 * 2**3.5)


def test_expectimax_raises_for_boards_that_it_cannot_pack():
    for board in (((2,) * 5,) * 5, ((32768, 32768), (2, 0))):
        with pytest.raises(ValueError, match="2x2 to 4x4"):
            p.move_values(board, 1)
    with pytest.raises(ValueError, match="depth"):
        p.move_values(((2, 0), (0, 0)), 0)


@settings(max_examples=50, deadline=None)
@given(playable_boards())
def test_players_move_legally(board):
    greedy = p.greedy_player(g.TurnWeights())
    for player in (p.random_player(0), p.corner_player, greedy, p.expectimax_player(1), p.expectimax_player(2)):
        assert player(board) in g.legal_moves(board)


def test_the_greedy_player_takes_the_move_that_earns_most():
    board = ((8, 8, 16, 0), (0, 0, 0, 0), (0, 0, 0, 0), (2, 0, 0, 0))
    by_merges = p.greedy_player(g.TurnWeights(merges=1, empty=0, monotonicity=0, smoothness=0), 128)
    assert by_merges(board) in ("left", "right")  # the other two merge nothing
    by_closeness = p.greedy_player(g.TurnWeights(merges=0, empty=0, monotonicity=0, smoothness=0, closeness=1), 128)
    assert by_closeness(((0, 64, 0, 2), (0,) * 4, (0,) * 4, (0,) * 4)) == "down"  # nearer to the lower left than by left


def test_play_ends_with_the_game_or_at_the_limit():
    assert p.play(p.random_player(0), 0).ended_by == "stuck"
    assert p.play(p.corner_player, 0, max_moves=5).moves == 5
    won = p.play(p.expectimax_player(2), 0, winning_tile=128, size=4)
    assert (won.won, won.max_tile) == (True, 128)
    assert p.play(p.random_player(4), 9).board == p.play(p.random_player(4), 9).board


def mean_score(player, seeds=range(6)):
    games = [p.play(player, seed, winning_tile=2**15, max_moves=1000) for seed in seeds]
    assert {game.ended_by for game in games} <= {"stuck", None}
    return sum(game.score for game in games) / len(games)


def test_each_player_beats_the_one_before():
    """Six games each, of at most 1000 moves; benchmarks/game_2048.py measures the strength itself."""
    scores = [mean_score(player) for player in (p.random_player(0), p.corner_player, p.expectimax_player(1))]
    assert scores == sorted(scores)
    assert mean_score(p.expectimax_player(2)) > 2 * scores[-1]


def test_expectimax_at_depth_three_reaches_2048():
    assert sum(p.play(p.expectimax_player(3), seed).won for seed in range(3)) >= 2
