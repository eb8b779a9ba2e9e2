"""The exercises of notebook 11, Serve."""

from __future__ import annotations

from itertools import product

from course.exercises import Exercise, checker

SENT = [(["a", "b", "b", "c", "a"],), (["x"],), ([],), (["k", "k", "k"],), (["p", "q", "p"],)]


def _steps(keys: list[str]) -> int:
    return len(set(keys))


APPLIED_ONCE = Exercise(
    right=_steps,
    cases=lambda: SENT,
    mistakes={
        "You count every request, including repeated ones.": lambda keys: len(keys),
        "A request may be repeated later, after others: remember every key, not only the last.":
            lambda keys: sum(key != before for key, before in zip(keys, [None, *keys], strict=False)),
        "Count the requests that were applied, not those that were rejected.": lambda keys: len(keys) - _steps(keys),
    },
)  # fmt: skip

LEASES = [
    ([("open", None), ("leased", 5.0), ("leased", 20.0), ("done", 5.0)], 10.0),
    ([("leased", 10.0)], 10.0),
    ([("done", None), ("open", None)], 0.0),
    ([], 3.0),
]


def _free(episodes: list[tuple[str, float | None]], now: float) -> list[int]:
    return [i for i, (state, until) in enumerate(episodes) if state == "open" or (state == "leased" and until < now)]  # type: ignore[operator]


FREE = Exercise(
    right=_free,
    cases=lambda: LEASES,
    mistakes={
        "You return only episodes that were never leased: those of a killed worker would never be played.":
            lambda episodes, now: [i for i, (state, _) in enumerate(episodes) if state == "open"],
        "A finished episode stays finished, whatever its deadline.":
            lambda episodes, now: [i for i, (_, until) in enumerate(episodes) if until is None or until < now],
        "An unexpired lease belongs to a worker: two workers would play the same episode.":
            lambda episodes, now: [i for i, (state, _) in enumerate(episodes) if state != "done"],
        "Inverted: a lease has expired when its deadline is before now.":
            lambda episodes, now: [
                i for i, (state, until) in enumerate(episodes) if state == "open" or (state == "leased" and until > now)
            ],
        "At its deadline a lease is still valid; it has expired when the deadline is before now.":
            lambda episodes, now: [
                i for i, (state, until) in enumerate(episodes) if state == "open" or (state == "leased" and until <= now)
            ],
    },
)  # fmt: skip


def _what_is_wrong(seed_of) -> str | None:
    places = list(product(range(3), range(12), range(12), range(3)))
    seeds = [seed_of(*place) for place in places]
    if any(not isinstance(seed, int) or seed < 0 for seed in seeds):
        return "A seed is a whole number, 0 or more."
    if seeds != [seed_of(*place) for place in places]:
        return "The same episode must get the same seed each time, or a second worker samples something different."
    if len(set(seeds)) < len(seeds):
        first: dict[int, tuple[int, ...]] = {}
        for place, seed in zip(places, seeds, strict=True):
            if seed in first:
                return f"{first[seed]} and {place} get the same seed {seed}: two episodes would sample the same tokens."
            first[seed] = place
    return None


SEED = Exercise(
    right=lambda step, group, member, turn: ((step * 1000 + group) * 1000 + member) * 1000 + turn,
    cases=lambda: [(1, 2, 3, 4)],
    accept=_what_is_wrong,
)

EXERCISES = {"applied_once": APPLIED_ONCE, "free": FREE, "seed": SEED}

check = checker(EXERCISES)
