"""The exercises of notebook 03, Tic-tac-toe."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp
from statistics import fmean
from typing import TYPE_CHECKING

from course.exercises import Exercise, checker, collected
from course.exercises.training import draw, with_new_model
from tic_tac_toe import Game, openings
from tic_tac_toe.players import careful_player, completing, other_side
from tic_tac_toe.rules import LINES, SQUARES, Board, legal_moves, render, to_move

if TYPE_CHECKING:
    from art_nb import TrainableModel

BOARDS = [
    "x...o...x", "xo..x...o", "x.o......", "o.x.x.o..", ".........", "xx.oo....", "x.oo.....", "..x.o.x..", "xx.o.o...",
    "..x.xooxo",
]  # fmt: skip


def _threats(cells: Board, side: str) -> int:
    return sum(sorted(cells[i] for i in line) == [".", side, side] for line in LINES)


def _forks(board: Board, at_least: int = 2, for_other: bool = False) -> list[str]:
    side = to_move(board)
    side = "xo".replace(side, "") if for_other else side
    after = {square: board[:cell] + side + board[cell + 1 :] for cell, square in enumerate(SQUARES) if board[cell] == "."}
    return [square for square, cells in after.items() if _threats(cells, side) >= at_least]


def _half_empty_lines(board: Board) -> list[str]:
    """Return the squares on two or more lines without a mark of the opponent, whether or not they make threats."""
    side, found = to_move(board), []
    for square in legal_moves(board):
        cell = SQUARES.index(square)
        open_lines = [line for line in LINES if cell in line and all(board[i] in (".", side) for i in line)]
        if len(open_lines) >= 2:
            found.append(square)
    return found


FORKS = Exercise(
    right=_forks,
    cases=lambda: [(board,) for board in BOARDS],
    observe=collected(sorted),  # in any order
    mistakes={
        "One threat is not a fork: it can be blocked. Count the lines that could be completed next.": lambda b: _forks(b, 1),
        "Use the side to move, `to_move(board)`, not its opponent.": lambda b: _forks(b, for_other=True),
        "Count a line that has two of your marks and an empty square after the move, not every line without the opponent's.":
            _half_empty_lines,
        "These are all free squares. Return those after which there are two threats.": legal_moves,
        "There are forks on some of these boards.": lambda b: [],
    },
)  # fmt: skip


def _expected(mine: float, other: float) -> float:
    return 1 / (1 + 10 ** ((other - mine) / 400))


EXPECTED = Exercise(
    right=_expected,
    cases=lambda: [(0.0, 0.0), (1200.0, 1000.0), (900.0, 1000.0), (1500.0, 700.0), (-200.0, 0.0)],
    mistakes={
        "Inverted: the player with the higher rating gets more.": lambda mine, other: _expected(other, mine),
        "Elo's scale is base 10 and 400 points, not e and 400.": lambda mine, other: 1 / (1 + exp((other - mine) / 400)),
        "Only the difference counts, not the ratio of the ratings.":
            lambda mine, other: mine / (mine + other) if mine + other else 0.5,
        "Expected points are between 0 and 1; this is a difference.": lambda mine, other: (mine - other) / 400,
    },
)  # fmt: skip


# 2. A teacher whose moves can be predicted

DEMONSTRATIONS, BATCH = 1536, 64
Player = Callable[[Board], str]


def blocks(board: Board) -> list[str]:
    """Return the free squares with which the opponent of the side to move would complete a line."""
    return completing(board, other_side(to_move(board)))


def demonstrations(player: Player) -> list[tuple[Board, str]]:
    """Have a player play itself from training openings. Returns its boards and moves, shuffled.

    A move to a square that is not free ends its game.
    """
    rng, starts = random.Random(0), openings("train")
    found: list[tuple[Board, str]] = []
    while len(found) < DEMONSTRATIONS:
        game = Game(rng.choice(starts))
        while not game.over:
            board, square = game.board, player(game.board)
            found.append((board, square))
            game.move(str(square))
    rng.shuffle(found)
    return found[:DEMONSTRATIONS]


def loss_of(shown: list[tuple[Board, str]]) -> list[float]:
    """Train a new model on demonstrations as the notebook does. Returns the loss of each batch."""
    from openai.types.chat import ChatCompletionAssistantMessageParam, ChatCompletionUserMessageParam

    import art_nb as art

    def trajectory(board: Board, square: str) -> art.Trajectory:
        asked: ChatCompletionUserMessageParam = {"role": "user", "content": render(board)}
        answered: ChatCompletionAssistantMessageParam = {"role": "assistant", "content": square}
        return art.Trajectory(messages_and_choices=[asked, answered])

    async def use(model: TrainableModel) -> list[float]:
        rates = [5e-3 * (1 - 0.9 * i / len(shown)) for i in range(0, len(shown), BATCH)]
        config = art.TrainSFTConfig(learning_rate=rates, batch_size=BATCH)
        await model.train_sft([trajectory(*each) for each in shown], config)
        return model.history().query("split == 'sft'").iloc[0].losses

    return with_new_model("nano_tic_tac_toe", use)


def _why_unpredictable(teacher: Player) -> str | None:
    shown = demonstrations(teacher)
    first: dict[Board, str] = {}
    for board, square in shown:
        if not isinstance(square, str):
            return f"Your teacher plays {square!r}. Return a string such as {legal_moves(board)[0]!r}."
        if square not in legal_moves(board):
            return f"On the board {board!r} your teacher plays {square!r}, which is not a free square."
        if blocks(board) and square not in blocks(board):
            return f"On the board {board!r} your teacher plays {square!r}, but it must block: {' or '.join(blocks(board))}."
        if first.setdefault(board, square) != square:
            return f"On the board {board!r} your teacher plays {first[board]!r} once and {square!r} another time."
    careful, yours = loss_of(demonstrations(careful_player(0))), loss_of(shown)
    draw(
        {"loss, nats per token": {"the careful player": [careful], "your teacher": [yours]}},
        {"the careful player": "rule", "your teacher": "trained"}, "batch",
    )  # fmt: skip
    last = [fmean(losses[-5:]) for losses in (careful, yours)]
    if last[1] <= 0.6 * last[0]:
        return None
    return (f"The loss of the last five batches is {last[1]:.2f}, for the careful player {last[0]:.2f}. Your teacher always "
            "plays the same square on the same board, but its rule is hard to learn. Find a simpler one.")  # fmt: skip


TEACHER = Exercise(
    right=lambda board: (blocks(board) or legal_moves(board))[0],
    cases=lambda: [(board,) for board in BOARDS],
    accept=_why_unpredictable,
)

EXERCISES = {"forks": FORKS, "teacher": TEACHER, "expected_points": EXPECTED}
check = checker(EXERCISES)
