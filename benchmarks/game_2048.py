"""Speed of 2048's rules and players compared with plain lists and loops, and strength of the players.

`python -m benchmarks.game_2048 [--games 20]` prints one JSON line. `ratio`: moves per second of random legal play, over
those of the same games with plain lists. `expectimax_ratio`: time per move of exact expectimax at depth 2 with lists,
over ours. Raises SystemExit if the two implementations differ in any result.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

from game_2048 import players, random_board
from game_2048.rules import MOVES, after_move, legal_moves, start_board


def plain_slide(board: list[list[int]], move: str) -> list[list[int]]:
    """Slide a board with a straightforward implementation of the rules."""
    lines = [list(line) for line in (board if move in ("left", "right") else zip(*board, strict=True))]
    slid = []
    for line in lines:
        tiles = [tile for tile in (line if move in ("left", "up") else line[::-1]) if tile]
        i = 0
        while i + 1 < len(tiles):
            if tiles[i] == tiles[i + 1]:
                tiles[i] *= 2
                del tiles[i + 1]
            i += 1
        tiles += [0] * (len(line) - len(tiles))
        slid.append(tiles if move in ("left", "up") else tiles[::-1])
    return slid if move in ("left", "right") else [list(line) for line in zip(*slid, strict=True)]


def plain_legal_moves(board: list[list[int]]) -> list[str]:
    return [move for move in MOVES if plain_slide(board, move) != board]


def plain_spawn(board: list[list[int]], rng: random.Random) -> list[list[int]]:
    empty = [(i, j) for i, row in enumerate(board) for j, tile in enumerate(row) if tile == 0]
    i, j = empty[int(rng.random() * len(empty))]
    board = [list(row) for row in board]
    board[i][j] = 4 if rng.random() < 0.1 else 2
    return board


def plain_after_move(board: list[list[int]], move: str, rng: random.Random) -> list[list[int]]:
    return plain_spawn(plain_slide(board, move), rng)


def plain_start(rng: random.Random) -> list[list[int]]:
    return plain_spawn(plain_spawn([[0] * 4 for _ in range(4)], rng), rng)


def plain_value(board: list[list[int]], depth: int) -> float:
    if depth == 0:
        return players.evaluate(tuple(map(tuple, board)))
    return max(plain_move_values(board, depth).values(), default=0.0)


def plain_move_values(board: list[list[int]], depth: int) -> dict[str, float]:
    return {move: plain_mean(plain_slide(board, move), depth - 1) for move in plain_legal_moves(board)}


def plain_mean(moved: list[list[int]], depth: int) -> float:
    total, empty = 0.0, [(i, j) for i in range(4) for j in range(4) if moved[i][j] == 0]
    for i, j in empty:
        for tile, probability in ((2, 0.9), (4, 0.1)):
            moved[i][j] = tile
            total += probability * plain_value(moved, depth)
        moved[i][j] = 0
    return total / len(empty)


def random_games(start: Callable, legal: Callable, after: Callable, games: int) -> tuple[float, list]:
    """Return (moves per second, the final boards) of random legal play, with one generator for tiles and moves."""
    moves, boards, started = 0, [], time.perf_counter()
    for seed in range(games):
        rng = random.Random(seed)
        board = start(rng)
        while choices := legal(board):
            board = after(board, choices[int(rng.random() * len(choices))], rng)
            moves += 1
        boards.append([list(row) for row in board])
    return moves / (time.perf_counter() - started), boards


def seconds_per_board(values: Callable, boards: list) -> tuple[float, list[dict[str, float]]]:
    started = time.perf_counter()
    found = [values(board) for board in boards]
    return (time.perf_counter() - started) / len(boards), found


def expectimax_speed() -> dict[str, float]:
    rng = random.Random(0)
    boards = [random_board(rng) for _ in range(30)]
    players.move_values(boards[0], 2)  # computes the tables
    fast, found = seconds_per_board(lambda board: players.move_values(board, 2), boards)
    lists = [[list(row) for row in board] for board in boards]
    plain, expected = seconds_per_board(lambda board: plain_move_values(board, 2), lists)
    for a, b in zip(found, expected, strict=True):
        if a.keys() != b.keys() or any(abs(a[m] - b[m]) > 1e-6 * max(1, abs(b[m])) for m in a):
            raise SystemExit(f"the two searches give different values: {a} and {b}")
    return {"expectimax_ratio": plain / fast, "plain_expectimax_2_ms": 1000 * plain}


def strength(player: players.Player, games: int) -> dict[str, float]:
    started = time.perf_counter()
    played = [players.play(player, 2_000_000 + seed) for seed in range(games)]
    moves = sum(game.moves for game in played)
    return {
        "games": games,
        "reached_2048": sum(game.won for game in played) / games,
        "reached_512": sum(game.max_tile >= 512 for game in played) / games,
        "mean_score": sum(game.score for game in played) / games,
        "ms_per_move": 1000 * (time.perf_counter() - started) / moves,
    }


def main() -> None:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=20, help="games per player, on the first test seeds")
    games = parser.parse_args().games
    ours, boards = random_games(start_board, legal_moves, after_move, 300)
    plain, plain_boards = random_games(plain_start, plain_legal_moves, plain_after_move, 300)
    if boards != plain_boards:
        raise SystemExit("the two implementations of the rules played different games")
    result = {"benchmark": "game_2048", "ratio": ours / plain, "moves_per_s": ours}
    result |= {"plain_moves_per_s": plain, "game_moves_per_s": game_moves_per_s()} | expectimax_speed()
    racers = {"random": players.random_player(0), "corner": players.corner_player}
    racers |= {f"expectimax_{depth}": players.expectimax_player(depth) for depth in (1, 2, 3)}
    result["players"] = {name: strength(player, games) for name, player in racers.items()}
    print(json.dumps(rounded(result)))


def game_moves_per_s() -> float:
    """Return moves per second of whole games through `Game`, with its rewards and checks."""
    started = time.perf_counter()
    moves = sum(players.play(players.random_player(seed), seed).moves for seed in range(300))
    return moves / (time.perf_counter() - started)


def rounded(value: object) -> object:
    """Return the value with the floats of its dicts, but not of lists, rounded to four significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
