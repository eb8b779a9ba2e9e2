"""Generated history rows and trajectory records for the widget tests, with the structure of a real run."""

from __future__ import annotations

import math
import random
import statistics
import time

MOVES = ("left", "right", "up", "down")
HOSTILE = "<img src=x onerror=\"window.hacked=1\"></script><script>window.hacked=1</script><b>bold</b> & 'x'"


def history_row(step: int, seed: int = 0, groups: int = 8, size: int = 8, signal: bool = True) -> dict:
    """Return a training row as in history.jsonl, with a reward that rises over about 30 steps."""
    draw = random.Random(f"{seed}/{step}")
    level = 1.3 * (1 - math.exp(-step / 14)) - 0.2
    rewards = [[round(level + draw.gauss(0, 0.12) + draw.gauss(0, 0.3) * signal, 3) for _ in range(size)] for _ in range(groups)]
    if not signal:
        rewards = [[group[0]] * size for group in rewards]
    flat = [reward for group in rewards for reward in group]
    return {
        "step": step, "split": "train", "time": time.time(), "reward": sum(flat) / len(flat), "reward_std": statistics.fmean(map(statistics.stdev, rewards)),
        "reward_min": min(flat), "reward_max": max(flat), "group_rewards": rewards, "kl": 0.002 * step + draw.random() * 0.004,
        "entropy": 1.2 * math.exp(-step / 40) + draw.random() * 0.05, "clip_fraction": 0.0, "ratio_min": 1.0, "ratio_max": 1.0,
        "grad_norm": 0.4 + draw.random() * 0.2, "loss": draw.gauss(0, 0.004), "learning_rate": 1e-3,
        "rollout_tokens_per_s": 5200 + draw.gauss(0, 200), "train_tokens_per_s": 9100 + draw.gauss(0, 400),
        "rollout_s": 2.1, "train_s": 1.2, "save_s": 0.05, "groups": groups, "groups_without_signal": 0 if signal else groups,
        "trajectories": groups * size, "tokens_trained": 12_000,
        "won": min(1.0, max(0.0, 0.1 + 0.018 * step + draw.gauss(0, 0.06))), "max_tile": 60 + 2.2 * step + draw.gauss(0, 6),
        "moves": 48 + step * 0.5 + draw.gauss(0, 4),
    }  # noqa: E501


def validation_row(step: int) -> dict:
    return {"step": step, "split": "val", "time": time.time(), "reward": 1.25 * (1 - math.exp(-step / 15)) - 0.2, "won": 0.08 + 0.017 * step}


def render(board: list[list[int]]) -> str:
    return "\n".join(" ".join(str(value) if value else "." for value in row) for row in board)


def boards(content: str) -> list[list[int]] | None:
    """Return the board in a user message, or None if there is none."""
    rows = [line.split() for line in content.split("\n")]
    if len(rows) != 4 or any(len(row) != 4 or not all(cell == "." or cell.isdigit() for cell in row) for row in rows):
        return None
    return [[0 if cell == "." else int(cell) for cell in row] for row in rows]


def game_record(step: int, group: int, index: int, moves: int, seed: int = 0, advantages: bool = True) -> dict:
    """Return a generated game: growing tiles, a one-word answer after each board. It does not follow the rules of 2048."""
    draw = random.Random(f"{seed}/{step}/{group}/{index}")
    board = [[0] * 4 for _ in range(4)]
    turns, advantage = [], draw.gauss(0, 1)
    for move in range(moves):
        board[draw.randrange(4)][draw.randrange(4)] = 2 ** draw.randint(1, 2 + min(9, move // 8))
        turns.append({"role": "user", "content": render(board), "trainable": False})
        logprobs = [round(-draw.expovariate(1.3), 4), round(-draw.expovariate(30), 4)]
        tokens = [draw.choice(MOVES), "<|im_end|>"]
        turn = {"role": "assistant", "content": tokens[0], "trainable": True, "tokens": tokens, "logprobs": logprobs,
                "reward": round(draw.gauss(0, 0.2), 3)}
        if advantages:
            turn["advantages"] = [round(advantage + draw.gauss(0, 0.4), 4)] * 2
        turns.append(turn)
    return {
        "step": step, "split": "train", "group": group, "index": index, "reward": round(advantage * 0.4 + 0.6, 3),
        "advantage": round(advantage, 3), "metrics": {"won": int(advantage > 0.8), "max_tile": max(map(max, board)), "moves": moves},
        "metadata": {"seed": group}, "logs": [], "turn_rewards": None, "turns": turns,
    }  # noqa: E501


def game_records(steps: int = 3, groups: int = 4, size: int = 8, moves: int = 30) -> list[dict]:
    return [game_record(step, group, index, moves + (index * 7) % 13)
            for step in range(1, steps + 1) for group in range(groups) for index in range(size)]


def talk_record(index: int = 0) -> dict:
    """Return a short tool conversation without a board, in which every text is hostile HTML."""
    tokens = ["Looking", " it", " up", ".\n", HOSTILE, "<|im_end|>"]
    return {
        "step": 1, "split": "val", "group": 0, "index": index, "reward": 0.5 * index, "advantage": None,
        "metrics": {HOSTILE: 1.0}, "metadata": {"question": HOSTILE}, "logs": [HOSTILE], "turn_rewards": None,
        "turns": [
            {"role": "system", "content": "You answer questions about a mailbox. " + HOSTILE, "trainable": False},
            {"role": "user", "content": HOSTILE, "trainable": False},
            {"role": "assistant", "content": "".join(tokens[:-1]), "trainable": True, "tokens": tokens,
             "logprobs": [-0.2, -0.01, -1.5, -0.4, -3.2, -0.02], "tool_calls": [{"name": "search", "arguments": HOSTILE}]},
            {"role": "tool", "content": HOSTILE, "trainable": False},
            {"role": "assistant", "content": "The answer is 42.", "trainable": False,
             "tool_calls": [{"name": "finish", "arguments": '{"ids": [1, 2]}'}]},
        ],
    }
