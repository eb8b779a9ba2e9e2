"""The exercises of notebook 11, Serve."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import count, permutations, product
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING

from course.exercises import Exercise, NeverEnds, checker, is_number
from course.exercises.training import draw, draws, gather, percents, with_new_model

if TYPE_CHECKING:
    from art_nb import TrainableModel

# Failures of the attempts in turn: the request or the response is lost, or neither. Later attempts succeed.
FAILURES = ["response", *["request"] * 30, "none", "response", "response", "none", "response", "none"]
BATCHES = ["batch 0", "batch 1", "batch 1"]  # the same twice: two steps
ATTEMPTS = 100


class LossyServer:
    """A server that trains once for each new key, behind a connection that loses requests and responses."""

    def __init__(self) -> None:
        self.failures, self.attempts = iter(FAILURES), 0
        self.trained: list[str] = []
        self.last: tuple[str, str] | None = None  # the last key and its result

    def send(self, key: str, batch: str) -> str:
        self.attempts += 1
        if self.attempts > ATTEMPTS:
            raise NeverEnds(f"{ATTEMPTS} attempts, most of them successful: return after the first success")
        failure = next(self.failures, "none")
        if failure == "request":
            raise ConnectionError("the request was lost")
        if self.last is None or self.last[0] != key:
            self.trained.append(batch)
            self.last = key, f"result of {batch}"
        if failure == "response":
            raise ConnectionError("the response was lost")
        return self.last[1]


def _keys() -> Callable[[], str]:
    numbers = count()
    return lambda: f"key {next(numbers)}"


def _train_once(send: Callable[[str, str], str], batch: str, new_key: Callable[[], str]) -> str:
    key = new_key()
    while True:
        try:
            return send(key, batch)
        except ConnectionError:
            pass


def _why_not_once(answer: Callable) -> str | None:
    server, new_key = LossyServer(), _keys()
    for number, batch in enumerate(BATCHES):
        before = len(server.trained)
        try:
            result = answer(server.send, batch, new_key)
        except ConnectionError:
            return f"A failed attempt ended your function after {server.attempts} attempts. Send the request again."
        if result is None:
            return f"Your function gave up on {batch}: a later attempt succeeds."
        times = len(server.trained) - before
        if times > 1:
            return f"The server trained {times} times on {batch}: after a lost response, a new key is a new request to it."
        if times == 0:
            return f"The server did not train in step {number}: it got nothing, or it knew the key and sent an old result."
        if result != f"result of {batch}":
            return f"For {batch} you returned {result!r}, but the server's result is {f'result of {batch}'!r}."
    return None


def _first_attempt() -> tuple:
    """Return the function's inputs, with a connection that never fails."""
    server = LossyServer()
    server.failures = iter(())
    return server.send, BATCHES[0], _keys()


TRAIN_ONCE = Exercise(right=_train_once, cases=lambda: [_first_attempt()], mistakes={}, accept=_why_not_once)

LEASES = [
    ([("open", None), ("leased", 5.0), ("leased", 20.0), ("done", 5.0)], 10.0),
    ([("leased", 10.0)], 10.0),
    ([("done", None), ("open", None)], 0.0),
    ([], 3.0),
    ([("leased", 0.0)], 1.0),
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


def _places() -> list[tuple[int, ...]]:
    """Return places (step, group, member, turn): small ones, and those with one number up to 999, one 0 or 1, the rest 0."""
    places: set[tuple[int, ...]] = set(product(range(3), range(12), range(12), range(3)))
    for a, b in permutations(range(4), 2):
        for high, low in product((0, 1), range(1000)):
            place = [0] * 4
            place[a], place[b] = high, low
            places.add(tuple(place))
    return sorted(places)


def _what_is_wrong(seed_of) -> str | None:
    places = _places()
    seeds = [seed_of(*place) for place in places]
    if not all(is_number(seed, Integral) and seed >= 0 for seed in seeds):
        return "Expected integers of at least 0 as seeds."
    if seeds != [seed_of(*place) for place in places]:
        return "The same episode must get the same seed each time, or a second worker samples something different."
    if len(set(seeds)) < len(seeds):
        first: dict[int, tuple[int, ...]] = {}
        for place, seed in zip(places, seeds, strict=True):
            if seed in first:
                return f"{first[seed]} and {place} get the same seed {seed}: two requests would sample the same tokens."
            first[seed] = place
    draw = random.Random(0)
    largest = max(seed_of(*(draw.randrange(1000) for _ in range(4))) for _ in range(1000))
    if largest < 1000**4 / 10:
        return (f"The largest seed of 1000 random places is {largest:,}. With 1000**4 places and so few seeds, some places "
                "share one.")  # fmt: skip
    return None


def _seed_of(step: int, group: int, member: int, turn: int) -> int:
    return ((step * 1000 + group) * 1000 + member) * 1000 + turn


SEED = Exercise(
    right=_seed_of,
    cases=lambda: [(1, 2, 3, 4)],
    accept=_what_is_wrong,
)

STEPS, GROUPS, SIZE = 6, 2, 12


def trained_with(seed_of: Callable[[int, int, int, int], int]) -> tuple[list[float], list[float]]:
    """Train a new model on 2048 to the 32 tile with these seeds for its requests.

    Returns by step the share of games won, and the share of groups without a signal.
    """
    import art_nb as art
    from course.short_2048 import WIN, play
    from game_2048 import Game, scenarios

    async def use(model: TrainableModel) -> tuple[list[float], list[float]]:
        for step in range(STEPS):
            played = await gather(
                [
                    play(model, Game(seed, winning_tile=WIN), seed_of=partial(seed_of, step, group, member))
                    for member in range(SIZE)
                ]
                for group, seed in enumerate(scenarios("train", STEPS * GROUPS)[step * GROUPS : (step + 1) * GROUPS])
            )
            await model.train(played, art.TrainConfig(learning_rate=2e-3, turn_discount=0.8))
        rows = model.history().query("split == 'train'")
        return rows.won.tolist(), (rows.groups_without_signal / GROUPS).tolist()

    return with_new_model("nano", use)


def _why_it_still_learns(seed_of: Callable[[int, int, int, int], int]) -> str | None:
    seed = seed_of(1, 2, 3, 4)
    if not is_number(seed, Integral) or seed < 0:
        return f"Expected an integer of at least 0 as a seed, got {seed!r}."
    won, silent = trained_with(lambda *place: index(seed_of(*place)))  # also numpy's integers
    if draws():
        good = trained_with(_seed_of)
        curves = zip(("share of games won", "share of groups without a signal"), (won, silent), good, strict=True)
        shown = {title: {"your seeds": [yours], "a seed for each request": [theirs]} for title, yours, theirs in curves}
        draw(shown, {"your seeds": "failed", "a seed for each request": "trained"})
    if min(silent) == 1:
        return None
    return (f"The policy still learns: by step, the share of groups without a signal was {percents(silent)}. "
            "Which argument makes the games of one group differ?")  # fmt: skip


SILENT = Exercise(
    right=lambda step, group, member, turn: _seed_of(step, group, 0, turn),
    cases=lambda: [(1, 2, 3, 4)],
    accept=_why_it_still_learns,
)

EXERCISES = {"train_once": TRAIN_ONCE, "free": FREE, "seed": SEED, "silent": SILENT}

check = checker(EXERCISES)
