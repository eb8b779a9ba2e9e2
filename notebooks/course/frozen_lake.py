"""Random maps of gymnasium's FrozenLake, written like data/nano's 2048 boards, and a simple policy's success probability."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from itertools import count
from typing import Any

from art_nb.environments.adapters.gymnasium import GymnasiumEnvironment
from course.splits import distinct

SIZE, FROZEN = 4, 0.75  # cells per side; probability that a cell is ice
MAX_TURNS = 16
FIRST_SEED = {"train": 0, "val": 1_000_000, "test": 2_000_000}
CHARACTERS = {"S": ".", "F": ".", "H": "4", "G": "8"}
STEPS = {"down": (1, 0), "right": (0, 1), "up": (-1, 0), "left": (0, -1)}


@lru_cache(4096)
def board(seed: int) -> tuple[str, ...]:
    """Return the rows of a random map with a reachable goal; S is the start, F ice, H a hole, G the goal."""
    from gymnasium.envs.toy_text.frozen_lake import generate_random_map

    return tuple(generate_random_map(SIZE, p=FROZEN, seed=seed))


def drawn(environment: Any, observation: int) -> str:
    """Return the lake as text: 2 is the player, 4 a hole, 8 the goal."""
    place = divmod(int(observation), SIZE)
    rows = enumerate(environment.unwrapped.desc.astype(str))
    return "\n".join(" ".join("2" if (r, c) == place else CHARACTERS[x] for c, x in enumerate(row)) for r, row in rows)


def lake(seed: int) -> GymnasiumEnvironment:
    """Return the environment of a lake. The ice is not slippery."""
    return GymnasiumEnvironment("FrozenLake-v1", desc=board(seed), is_slippery=False, describe=drawn, goal="")


def distinct_lakes(**counts: int) -> dict[str, list[int]]:
    """Return `counts[split]` seeds for each split; see `distinct`. No map is in two splits."""
    return distinct(lambda split: count(FIRST_SEED[split]), board, **counts)


def careful_chance(seed: int) -> float:
    """Return the probability that a player who looks one step ahead reaches the goal within MAX_TURNS steps.

    The player goes down or right if either cell has no hole, else up or left; each free direction is equally likely.
    """
    rows, reached = board(seed), 0.0
    places: dict[tuple[int, int], float] = {(0, 0): 1.0}
    for _ in range(MAX_TURNS):
        moved: defaultdict[tuple[int, int], float] = defaultdict(float)
        for (r, c), probability in places.items():
            near = {name: (r + down, c + right) for name, (down, right) in STEPS.items()}
            free = [n for n, (y, x) in near.items() if 0 <= y < SIZE and 0 <= x < SIZE and rows[y][x] != "H"]
            ways = [name for name in free if name in ("down", "right")] or free
            for name in ways:
                moved[near[name]] += probability / len(ways)
        reached += moved.pop((SIZE - 1, SIZE - 1), 0.0)
        places = moved
    return reached
