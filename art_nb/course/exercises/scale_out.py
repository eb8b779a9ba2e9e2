"""The exercises of notebook 09."""

from __future__ import annotations

from art_nb.course.exercises import Exercise, checker

LOADS = [
    (1, [0, 3, 2]),
    (None, [4, 2, 3]),
    (0, [5, 1]),
    (2, [1, 4, None]),
    (None, [None, 6, 7]),
    (1, [None, 2]),
    (0, [None, 9, 8]),
]


def _choose(last: int | None, open_requests: list[int | None]) -> int:
    if last is not None and open_requests[last] is not None:
        return last
    return _least(open_requests)


def _least(open_requests: list[int | None]) -> int:
    return min((i for i, n in enumerate(open_requests) if n is not None), key=lambda i: open_requests[i])  # type: ignore[arg-type,return-value]


CHOOSE = Exercise(
    right=_choose,
    cases=lambda: LOADS,
    mistakes={
        "A conversation stays where its cache is: another sampler would have to read all of it again.":
            lambda last, loads: _least(loads),
        "The sampler that had the conversation is dead (None): it would never answer.":
            lambda last, loads: _least(loads) if last is None else last,
        "Sampler 0 is a sampler, too: `if last` takes it for none. Ask `last is not None`.":
            lambda last, loads: last if last and loads[last] is not None else _least(loads),
        "A dead sampler (None) has no open requests, and is still no good choice.":
            lambda last, loads: last if last is not None and loads[last] is not None else
            min(range(len(loads)), key=lambda i: loads[i] or 0),
        "The one with the fewest open requests is asked for; this is the busiest.":
            lambda last, loads: last if last is not None and loads[last] is not None else
            max(range(len(loads)), key=lambda i: -1 if loads[i] is None else loads[i]),
    },
)  # fmt: skip

RUNS = [(10, 4.0, 4.0), (5, 3.0, 1.0), (7, 1.0, 6.0), (1, 2.0, 5.0), (100, 0.5, 0.25)]


def _seconds(steps: int, sample: float, train: float) -> float:
    return sample + (steps - 1) * max(sample, train) + train


SECONDS = Exercise(
    right=_seconds,
    cases=lambda: RUNS,
    mistakes={
        "So long it takes when nothing overlaps.": lambda steps, sample, train: steps * (sample + train),
        "Nobody trains while the first batch is sampled, and nobody samples while the last one is trained on.":
            lambda steps, sample, train: steps * max(sample, train),
        "The longer of the two is waited for, not the shorter.":
            lambda steps, sample, train: sample + (steps - 1) * min(sample, train) + train,
        "Between the first batch and the last step lie steps - 1 times the longer of the two.":
            lambda steps, sample, train: sample + steps * max(sample, train) + train,
    },
)  # fmt: skip

QUEUE = [(5, 5, 0), (5, 4, 0), (5, 4, 1), (5, 3, 1), (8, 3, 4), (8, 3, 5), (0, 0, 0), (1, 0, 2)]


def _may_begin(step: int, taken: int, max_staleness: int) -> bool:
    return step - taken <= max_staleness


MAY_BEGIN = Exercise(
    right=_may_begin,
    cases=lambda: QUEUE,
    mistakes={
        "At most max_staleness steps old: that many is allowed.": lambda step, taken, most: step - taken < most,
        "So a batch may always begin: where the learner is slow, batches would grow older and older.":
            lambda step, taken, most: True,
        "So nothing overlaps: a batch begins when every step before it is taken.": lambda step, taken, most: step == taken,
        "How old it is does not depend on how long the run is: compare it with the steps that are taken.":
            lambda step, taken, most: step <= most,
    },
)  # fmt: skip

EPISODES = [(8, 1000, 8, 100, 400), (1, 10, 1, 5, 0), (16, 25, 12, 2, 25), (4, 2000, 3, 50, 10)]


def _tokens(group_size: int, prompt: int, turns: int, answer: int, observation: int) -> int:
    return prompt + group_size * turns * (answer + observation)


TOKENS = Exercise(
    right=_tokens,
    cases=lambda: EPISODES,
    mistakes={
        "The prompt is the same for the whole group, and is computed once.":
            lambda size, prompt, turns, answer, seen: size * (prompt + turns * (answer + seen)),
        "This is one episode; a group has several.":
            lambda size, prompt, turns, answer, seen: prompt + turns * (answer + seen),
        "What the environment says is read as well: these are the tokens that are drawn.":
            lambda size, prompt, turns, answer, seen: size * turns * answer,
        "What was read stays in the cache: a turn reads what is new, not the whole conversation again.":
            lambda size, prompt, turns, answer, seen: sum(
                prompt + size * (turn + 1) * (answer + seen) for turn in range(turns)
            ),
        "The prompt is read, too.": lambda size, prompt, turns, answer, seen: size * turns * (answer + seen),
    },
)  # fmt: skip

EXERCISES = {"choose": CHOOSE, "seconds": SECONDS, "may_begin": MAY_BEGIN, "tokens": TOKENS}

check = checker(EXERCISES)
