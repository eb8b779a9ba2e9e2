"""Players without a model: one that picks any free square, one that only blocks, and one that never makes a mistake."""

from __future__ import annotations

import random
from collections.abc import Callable

from art_nb.tasks.tic_tac_toe.rules import Board, after_move, legal_moves, to_move, value, winner

Player = Callable[[Board], str]


def random_player(seed: int) -> Player:
    """Any free square, all equally likely."""
    rng = random.Random(seed)
    return lambda board: rng.choice(legal_moves(board))


def careful_player(seed: int) -> Player:
    """A square that keeps the other from three in a line, if there is one; else any. It never looks for lines of its own."""
    rng = random.Random(seed)

    def play(board: Board) -> str:
        other = "o" if to_move(board) == "x" else "x"
        free = legal_moves(board)
        blocking = [square for square in free if winner(board[: int(square) - 1] + other + board[int(square) :])]
        return rng.choice(blocking or free)

    return play


def perfect_player(seed: int) -> Player:
    """A square that keeps the best result in reach; of several, any. It never loses a position that is not lost."""
    rng = random.Random(seed)

    def play(board: Board) -> str:
        best = max if to_move(board) == "x" else min
        values = {square: value(after_move(board, square)) for square in legal_moves(board)}
        return rng.choice([square for square, worth in values.items() if worth == best(values.values())])

    return play


def elo(results: dict[tuple[str, str], float], games: float = 1.0, rounds: int = 2000) -> dict[str, float]:
    """Ratings from results: (a, b) -> the share of points that a took from b (a draw is half a point). Their mean is 0.

    The ratings at which each player's expected points, 1 / (1 + 10 ** ((b - a) / 400)), equal those it took: the most likely
    ones under Bradley and Terry's model (1952). One drawn game against an average player is added for each, so that whoever
    won all games has a finite rating; `games` says how many games each result stands for.
    """
    players = sorted({player for pair in results for player in pair})
    rating = dict.fromkeys(players, 0.0)
    for _ in range(rounds):
        for player in players:
            against = [(b, s) if a == player else (a, 1 - s) for (a, b), s in results.items() if player in (a, b)]
            expected = games * sum(_expected(rating[player] - rating[other]) for other, _ in against)
            surplus = games * sum(s for _, s in against) - expected + 0.5 - _expected(rating[player])
            rating[player] += 200 * surplus / (games * len(against) + 1)
        mean = sum(rating.values()) / len(rating)
        rating = {player: value - mean for player, value in rating.items()}
    return rating


def _expected(difference: float) -> float:
    return 1 / (1 + 10 ** (-difference / 400))
