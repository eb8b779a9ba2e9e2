"""Baseline players: random, one that only blocks, one that also completes its lines, and perfect; and Elo ratings."""

from __future__ import annotations

import random
from collections.abc import Callable

from tic_tac_toe.rules import Board, after_move, legal_moves, to_move, value, winner

Player = Callable[[Board], str]


def other_side(side: str) -> str:
    """Return "o" for "x" and "x" for "o"."""
    return "o" if side == "x" else "x"


def completing(board: Board, side: str) -> list[str]:
    """Return the free squares that complete a line for a side."""
    return [square for square in legal_moves(board) if winner(board[: int(square) - 1] + side + board[int(square) :])]


def random_player(seed: int) -> Player:
    """Return a player that chooses uniformly among the free squares."""
    rng = random.Random(seed)
    return lambda board: rng.choice(legal_moves(board))


def careful_player(seed: int) -> Player:
    """Return a player that blocks the opponent's line if it can, and else plays at random, even if it could win."""
    rng = random.Random(seed)
    return lambda board: rng.choice(completing(board, other_side(to_move(board))) or legal_moves(board))


def tactical_player(seed: int) -> Player:
    """Return a player that completes a line of its own if it can, and else plays like the careful one."""
    rng = random.Random(seed)

    def play(board: Board) -> str:
        side = to_move(board)
        return rng.choice(completing(board, side) or completing(board, other_side(side)) or legal_moves(board))

    return play


def perfect_player(seed: int) -> Player:
    """Return a player that chooses uniformly among the minimax-optimal squares."""
    rng = random.Random(seed)

    def play(board: Board) -> str:
        best = max if to_move(board) == "x" else min
        values = {square: value(after_move(board, square)) for square in legal_moves(board)}
        return rng.choice([square for square, worth in values.items() if worth == best(values.values())])

    return play


def elo(results: dict[tuple[str, str], float], games: float = 1.0, rounds: int = 2000) -> dict[str, float]:
    """Return Elo ratings with mean 0.

    results: (a, b) -> a's share of the points against b; a draw counts half a point. games: number of games per result.
    Raises: ValueError for a share outside 0 to 1.

    The maximum-likelihood ratings of the Bradley-Terry model (1952): each player's expected points,
    1 / (1 + 10 ** ((b - a) / 400)), equal the actual ones. One drawn game against an average player is added for each
    player, so that ratings stay finite.
    """
    if wrong := {pair: share for pair, share in results.items() if not 0 <= share <= 1}:
        raise ValueError(f"results has {wrong}: expected shares of the points, from 0 to 1; divide points by games")
    players = sorted({player for pair in results for player in pair})
    rating = dict.fromkeys(players, 0.0)
    for _ in range(rounds):
        for player in players:
            against = [(b, s) if a == player else (a, 1 - s) for (a, b), s in results.items() if player in (a, b)]
            expected = games * sum(_expected(rating[player] - rating[other]) for other, _ in against)
            surplus = games * sum(s for _, s in against) - expected + 0.5 - _expected(rating[player])
            rating[player] += 200 * surplus / (games * len(against) + 1)
        mean = sum(rating.values()) / max(1, len(rating))
        rating = {player: value - mean for player, value in rating.items()}
    return rating


def _expected(difference: float) -> float:
    return 1 / (1 + 10 ** (-difference / 400))
