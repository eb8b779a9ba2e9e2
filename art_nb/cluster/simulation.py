"""How a run's time grows with samplers, groups and turns: the scheduler of the real backends, played with measured times.

Knows conversations, samplers and one learner, and how long each takes; nothing is computed that a model would compute.

An episode goes to the sampler that has the fewest and stays there, where its cache is. A sampler answers all of its episodes
together, a turn at a time. The learner trains on a batch when its last episode has ended; a batch may begin before the one
ahead of it was trained on if that makes it no older than `max_staleness` steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """What was measured.

    turn: seconds of one turn of a sampler, by how many conversations it answers together. turns: of episodes, as they came.
    train: seconds of one step of the learner, by how many episodes. hand_over: of a new adapter to all samplers.
    """

    turn: Callable[[int], float]
    turns: Sequence[int]
    train: Callable[[int], float]
    hand_over: float = 0.0


@dataclass(frozen=True)
class Simulated:
    """seconds: of the run; sampling, training: shares of it in which the samplers, on average, and the learner were at work.

    ages: of each batch, by how many steps its policy was behind the one that it trained.
    """

    seconds: float
    sampling: float
    training: float
    ages: tuple[int, ...]

    @property
    def steps_per_minute(self) -> float:
        return 60 * len(self.ages) / self.seconds


def simulate(
    times: Times,
    *,
    samplers: int,
    groups: int,
    group_size: int,
    steps: int = 10,
    max_staleness: int = 0,
    slots: int = 128,
    seed: int = 0,
) -> Simulated:
    """Play a run of `steps` steps of `groups` x `group_size` episodes.

    slots: conversations that one sampler answers at once; the others wait. seed: of how many turns each episode takes.

    Raises: ValueError for numbers that no run has.
    """
    for name, value, least in (
        ("samplers", samplers, 1), ("groups", groups, 1), ("group_size", group_size, 1), ("steps", steps, 1),
        ("slots", slots, 1), ("turns", min(times.turns, default=0), 1), ("max_staleness", max_staleness, 0),
    ):  # fmt: skip
        if value < least:
            raise ValueError(f"{name} is {value}: expected at least {least}")
    draw, episodes = random.Random(seed), groups * group_size
    trained: list[float] = []  # when each step was done, its adapter handed over
    free = busy_sampling = busy_training = 0.0  # free: when the samplers may begin the next batch
    ages = []
    for step in range(steps):
        # With a staleness of s the policy of step - s must be there, and the samplers must have done with the batch before.
        needed = step - max_staleness
        begin = max(free, trained[needed - 1] if needed > 0 else 0.0)
        ages.append(step - sum(done <= begin for done in trained))
        sampled = [
            _sampler(times, [draw.choice(times.turns) for _ in range(share)], slots) for share in _shares(episodes, samplers)
        ]
        busy_sampling += sum(sampled)
        free = begin + max(sampled)
        seconds = times.train(episodes)
        busy_training += seconds
        trained.append(max(free, trained[-1] if trained else 0.0) + seconds + times.hand_over)
    total = trained[-1]
    return Simulated(total, busy_sampling / (samplers * total), busy_training / total, tuple(ages))


def by_samplers(times: Times, counts: Sequence[int], **run: int) -> list[dict[str, float]]:
    """`simulate` for each number of samplers: seconds, how much faster than the first, sampler hours to be paid."""
    rows: list[dict[str, float]] = []
    for count in counts:
        played = simulate(times, samplers=count, **run)
        faster = rows[0]["seconds"] / played.seconds if rows else 1.0
        rows.append(
            {
                "samplers": count, "seconds": played.seconds, "faster": faster, "sampling": played.sampling,
                "training": played.training, "sampler_hours": count * played.seconds / 3600,
            }
        )  # fmt: skip
    return rows


def measured_turn(points: Sequence[tuple[int, float]]) -> Callable[[int], float]:
    """Seconds of a turn by conversations: straight lines through the measured points, level before and on beyond them.

    points: (conversations, seconds), two or more. Raises: ValueError otherwise.
    """
    known = sorted(points)
    if len({count for count, _ in known}) < 2:
        raise ValueError(f"{len(known)} points: a line needs two numbers of conversations or more")

    def seconds(count: int) -> float:
        if count <= known[0][0]:
            return known[0][1]
        pair = next(((a, b) for a, b in zip(known, known[1:], strict=False) if count <= b[0]), (known[-2], known[-1]))
        (low, at_low), (high, at_high) = pair
        return at_low + (at_high - at_low) * (count - low) / (high - low)

    return seconds


def _shares(episodes: int, samplers: int) -> list[int]:
    """How many each sampler gets when each goes to the one that has the fewest."""
    least, more = divmod(episodes, samplers)
    return [least + (i < more) for i in range(samplers)]


def _sampler(times: Times, turns: list[int], slots: int) -> float:
    """Seconds that one sampler takes for episodes of so many turns: `slots` at once, the others as slots fall free."""
    waiting, seconds = turns[::-1], 0.0
    playing: list[int] = []
    while waiting or playing:
        while waiting and len(playing) < slots:
            playing.append(waiting.pop())
        together = min(playing)  # rounds until the first of them ends
        seconds += together * times.turn(len(playing))
        playing = [left - together for left in playing if left > together]
    return seconds
