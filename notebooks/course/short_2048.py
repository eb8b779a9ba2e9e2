"""Short games of 2048 for notebooks 10, 11 and 12: notebook 02's rollout, except that each answer includes its end token."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from openai.types.chat import ChatCompletionUserMessageParam

import art_nb as art
from game_2048 import Game, outcome_reward

WIN = 32


async def play(
    model: art.Model, game: Game, step: int | None = None, wait: float = 0.0, limit: int = 10_000,
    seed_of: Callable[[int], int] | None = None,
) -> art.Trajectory:  # fmt: skip
    """Play a game to its end, or for `limit` moves.

    step: of the policy that plays the whole game; None: the latest when it starts. wait: seconds after each move.
    seed_of: number of moves so far -> seed of the next request; None: requests have no seed.
    """
    client, policy = model.openai_client(), model.get_inference_name(step)
    trajectory = art.Trajectory(messages_and_choices=[], metadata={"seed": game.seed})
    while not game.over and game.moves < limit:
        board: ChatCompletionUserMessageParam = {"role": "user", "content": game.render()}
        seed = seed_of(game.moves) if seed_of else None
        completion = await client.chat.completions.create(model=policy, messages=[board], max_tokens=4, seed=seed)
        trajectory.messages_and_choices += [board, completion.choices[0]]
        game.move(completion.choices[0].message.content)
        if wait:
            await asyncio.sleep(wait)
    trajectory.reward, trajectory.turn_rewards = outcome_reward(game), list(game.turn_rewards)
    faults = {fault: game.ended_by == fault for fault in ("illegal", "malformed")}
    trajectory.metrics = {"won": game.won, **faults, "moves": game.moves}
    return trajectory.finish()


async def rollout(model: art.Model, seed: int, step: int | None = None, wait: float = 0.0) -> art.Trajectory:
    """Play the game of `seed`, which is won by making the 32 tile; see `play`."""
    return await play(model, Game(seed, winning_tile=WIN), step, wait)


def late_game(seed: int) -> Game:
    """Return a game that is nearly won: a 16, two 8s and four small tiles are on the board, at random places."""
    draw, game = random.Random(seed), Game(seed, winning_tile=WIN)
    tiles = [16, 8, 8, 4, 4, 2, 2] + [0] * 9
    draw.shuffle(tiles)
    game.board = tuple(tuple(tiles[i : i + 4]) for i in range(0, 16, 4))
    return game
