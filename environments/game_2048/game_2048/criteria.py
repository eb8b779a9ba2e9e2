"""Criteria of `RubricJudge` for 2048, computed from the boards and answers in a trajectory.

The goal is metadata["winning_tile"], by default 2048. A last board that was not answered counts as final.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

from art_nb.rewards.rubric import weighted
from art_nb.trajectories import Trajectory
from game_2048.environment import GAME_OVER
from game_2048.rules import MOVES, Board, last_board, slide


@dataclass(frozen=True)
class ReplayedGame:
    """A game reconstructed from its trajectory.

    board: the last board, after the last move if it was legal, without the new tile. answers: the model's, in lower case, or
    the repr of arguments that cannot be parsed. fault: "illegal" or "malformed" if such an answer ended the game, else None.
    goal: the winning tile.
    """

    board: Board
    answers: list[str]
    fault: str | None
    goal: int

    @property
    def largest(self) -> int:
        return max(map(max, self.board))

    @property
    def total(self) -> int:
        return sum(map(sum, self.board))

    @property
    def progress(self) -> float:
        """The share of the doublings from 2 to the goal that the largest tile reached."""
        return min(1.0, (log2(self.largest) - 1) / (log2(self.goal) - 1))


def accuracy(trajectory: Trajectory) -> tuple[float, str]:
    """The result: 1 for the winning tile, 0 for an illegal or malformed answer, else the progress in doublings."""
    game = replay(trajectory)
    if game.fault:
        return 0.0, "an illegal move ended the game" if game.fault == "illegal" else "a malformed answer ended the game"
    if game.largest >= game.goal:
        return 1.0, f"it made the {game.goal} tile"
    return game.progress, f"it made the {game.largest} tile; the goal is {game.goal}"


def efficiency(trajectory: Trajectory) -> tuple[float, str]:
    """How well tiles were merged: the largest tile relative to the largest that the sum allows, in doublings."""
    game = replay(trajectory)
    if game.fault:
        return 0.0, "an invalid answer ended the game"
    possible = max(2, min(game.goal, 2 ** int(log2(game.total))))
    share = log2(min(game.largest, possible)) / log2(possible)
    return share, f"its tiles sum to {game.total}, the largest is {game.largest}"


def completeness(trajectory: Trajectory) -> tuple[float, str]:
    """How long the game was: the board's sum relative to a board full of winning tiles, in doublings; 1 if won."""
    game = replay(trajectory)
    if game.largest >= game.goal and not game.fault:
        return 1.0, "it was played until it was won"
    full = len(game.board) ** 2 * game.goal
    return min(1.0, (log2(game.total) - 1) / (log2(full) - 1)), f"number of answers: {len(game.answers)}"


def user_satisfaction(trajectory: Trajectory) -> tuple[float, str]:
    """The share of answers that are exactly one of the four directions."""
    answers = replay(trajectory).answers
    clear = sum(answer in MOVES for answer in answers)
    return clear / len(answers) if answers else 0.0, f"answers that are just a direction: {clear} of {len(answers)}"


CRITERIA = weighted(
    accuracy=accuracy, efficiency=efficiency, completeness=completeness, user_satisfaction=user_satisfaction
)


def replay(trajectory: Trajectory) -> ReplayedGame:
    """Reconstruct the game from boards in user or tool messages and answers given as words or tool calls.

    Of several calls in one message only the first counts.

    Raises: ValueError if the last user or tool message other than "game over" does not end with a board.
    """
    shown, answers, over, answered = None, [], False, False
    for message in trajectory.messages():
        if message["role"] == "assistant":
            if shown is not None and not over:
                answers.append(_answer(message))
            answered = True
        else:
            over = str(message["content"]).strip() == GAME_OVER
            shown, answered = (shown, answered) if over else (str(message["content"]), False)
    board = last_board(shown or "")
    if board is None:
        raise ValueError(f"the last user or tool message of {trajectory} ends with no 2048 board; write it with `render`")
    board, fault = _after(board, answers[-1]) if answered and answers else (board, None)
    return ReplayedGame(board, answers, fault, int(trajectory.metadata.get("winning_tile") or 2048))


def _after(board: Board, answer: str) -> tuple[Board, str | None]:
    if answer not in MOVES:
        return board, "malformed"
    moved, _ = slide(board, answer)
    return moved, "illegal" if moved == board else None


def _answer(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls") or []
    if not calls:
        return str(message["content"]).strip().lower()
    try:
        return str(json.loads(calls[0]["function"]["arguments"])["direction"]).strip().lower()
    except (ValueError, KeyError, TypeError, RecursionError):
        return repr(calls[0]["function"]["arguments"])  # never equal to a direction
