"""Simulate how a run's time depends on samplers, groups and turns: the backends' scheduler with measured durations.

It models conversations, samplers and one learner by their durations; no model is run.

An episode is assigned to the sampler with the fewest episodes and stays there, where its KV cache is. A sampler answers all
its episodes together, one turn at a time. The learner trains on a batch when the batch's last episode has ended; a batch may
begin before its predecessor has been trained on if its policy is then at most `max_staleness` steps behind.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Times:
    """Measured durations, in seconds.

    turn: one turn of a sampler, by the number of conversations that it answers together. turns: numbers of turns of measured
    episodes. train: one step of the learner, by the number of episodes. adapter_transfer: of an adapter to all samplers.
    """

    turn: Callable[[int], float]
    turns: Sequence[int]
    train: Callable[[int], float]
    adapter_transfer: float = 0.0


@dataclass(frozen=True)
class SimulationResult:
    """Result of a simulation. seconds: of the run; sampling, training: shares of it in which samplers and learner were busy.

    ages: for each batch, how many steps its policy was behind the policy that it trained.
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
) -> SimulationResult:
    """Simulate a run of `steps` steps of `groups` x `group_size` episodes.

    slots: conversations that one sampler answers at once; the others wait. seed: for drawing each episode's number of turns.

    Raises: ValueError when a number is too small.
    """
    for name, value, least in (
        ("samplers", samplers, 1), ("groups", groups, 1), ("group_size", group_size, 1), ("steps", steps, 1),
        ("slots", slots, 1), ("turns", min(times.turns, default=0), 1), ("max_staleness", max_staleness, 0),
    ):  # fmt: skip
        if value < least:
            raise ValueError(f"{name} is {value}: expected at least {least}")
    draw, episodes = random.Random(seed), groups * group_size
    trained: list[float] = []  # when each step was done and its adapter sent
    free = busy_sampling = busy_training = 0.0  # free: when the samplers may begin the next batch
    ages = []
    for step in range(steps):
        # With a staleness of s, the policy of step - s must be ready and the previous batch must be sampled.
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
        trained.append(max(free, trained[-1] if trained else 0.0) + seconds + times.adapter_transfer)
    total = trained[-1]
    return SimulationResult(total, busy_sampling / (samplers * total), busy_training / total, tuple(ages))


def by_samplers(times: Times, counts: Sequence[int], **run: int) -> list[dict[str, float]]:
    """Call `simulate` for each number of samplers: seconds, speed-up over the first, paid sampler hours."""
    rows: list[dict[str, float]] = []
    for count in counts:
        played = simulate(times, samplers=count, **run)
        speed_up = rows[0]["seconds"] / played.seconds if rows else 1.0
        rows.append(
            {
                "samplers": count, "seconds": played.seconds, "speed_up": speed_up, "sampling": played.sampling,
                "training": played.training, "sampler_hours": count * played.seconds / 3600,
            }
        )  # fmt: skip
    return rows


def measured_turn(points: Sequence[tuple[int, float]]) -> Callable[[int], float]:
    """Interpolate the seconds of a turn linearly in the number of conversations; constant below, extrapolated above.

    points: (conversations, seconds); points with equal counts are averaged. Raises: ValueError for fewer than two numbers.
    """
    repeated: defaultdict[int, list[float]] = defaultdict(list)
    for count, spent in points:
        repeated[count].append(spent)
    known = [(count, fmean(repeated[count])) for count in sorted(repeated)]
    if len(known) < 2:
        raise ValueError(f"{len(points)} points: expected at least two different numbers of conversations")

    def seconds(count: int) -> float:
        if count <= known[0][0]:
            return known[0][1]
        pair = next(((a, b) for a, b in zip(known, known[1:], strict=False) if count <= b[0]), (known[-2], known[-1]))
        (low, at_low), (high, at_high) = pair
        return at_low + (at_high - at_low) * (count - low) / (high - low)

    return seconds


def _shares(episodes: int, samplers: int) -> list[int]:
    """Return the episodes of each sampler when each episode goes to the one with the fewest."""
    least, more = divmod(episodes, samplers)
    return [least + (i < more) for i in range(samplers)]


def _sampler(times: Times, turns: list[int], slots: int) -> float:
    """Return the seconds that one sampler needs for episodes with these numbers of turns, at most `slots` at once."""
    waiting, seconds = turns[::-1], 0.0
    playing: list[int] = []
    while waiting or playing:
        while waiting and len(playing) < slots:
            playing.append(waiting.pop())
        together = min(playing)  # rounds until the first of them ends
        seconds += together * times.turn(len(playing))
        playing = [left - together for left in playing if left > together]
    return seconds
