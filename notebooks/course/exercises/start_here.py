"""The exercises of notebook 00, Start here."""

from __future__ import annotations

from statistics import fmean, pstdev, stdev, variance

from course.exercises import Exercise, checker

WORDS = ("left", "right", "up", "down")
GROUPS = [([0, 0, 0, 1],), ([1, 1, 1, 1],), ([-1, -2, -3, -4],), ([-1, 1, -1, 1],), ([0, 0, 0],), ([-2, -2],)]

HAS_SIGNAL = Exercise(
    right=lambda rewards: max(rewards) != min(rewards),
    cases=lambda: GROUPS,
    mistakes={
        "High rewards alone carry no signal: in [1, 1, 1, 1] no answer is better than another.":
            lambda rewards: max(rewards) > 0,
        "Negative rewards carry a signal as well: in [-1, -2, -3, -4] the first is the best.":
            lambda rewards: max(rewards) > 0 and max(rewards) != min(rewards),
        "The mean does not measure differences: [-1, 1, -1, 1] has mean zero and a strong signal.":
            lambda rewards: fmean(rewards) != 0,
        "Inverted: return True where the group carries a signal.": lambda rewards: max(rewards) == min(rewards),
        "All rewards need not be different; it is enough that two are.":
            lambda rewards: len(set(rewards)) == len(rewards),
    },
)  # fmt: skip


def _advantages(rewards: list[float]) -> list[float]:
    return [(r - fmean(rewards)) / (stdev(rewards) + 1e-4) for r in rewards]


ADVANTAGES = Exercise(
    right=_advantages,
    cases=lambda: [([3.0, 1.0, 1.0, 0.0],), ([0.0, 1.0],), ([2.0, 2.0],)],
    mistakes={
        "The sign: better than the mean is positive.": lambda rewards: [-a for a in _advantages(rewards)],
        "This standard deviation divides by n. Use the one that divides by n - 1, statistics.stdev.":
            lambda rewards: [(r - fmean(rewards)) / (pstdev(rewards) + 1e-4) for r in rewards],
        "You divide by the variance. Divide by its square root, the standard deviation.":
            lambda rewards: [(r - fmean(rewards)) / (variance(rewards) + 1e-4) for r in rewards],
        "Centred, but not yet divided by the standard deviation.": lambda rewards: [r - fmean(rewards) for r in rewards],
        "Subtract the group's mean before you divide.": lambda rewards: [r / (stdev(rewards) + 1e-4) for r in rewards],
    },
)  # fmt: skip


def _what_is_wrong(reward) -> str | None:
    worth = {word: reward(word) for word in WORDS}
    for word, value in worth.items():
        if not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
            return f"A reward is a finite number; for {word!r} it is {value!r}."
    best = max(worth, key=worth.__getitem__)
    if len(set(worth.values())) == 1:
        return "Every word has the same reward, so no answer is better than another: there is no signal."
    if worth["up"] == min(worth.values()):
        return "The sign: 'up' has the lowest reward of all, so the policy will avoid it."
    if worth["up"] < worth[best]:
        return f"{best!r} has a higher reward than 'up', so the policy will learn to say that."
    tied = [word for word in WORDS if word != "up" and worth[word] == worth["up"]]
    return f"{tied[0]!r} has the same reward as 'up', so the policy cannot learn to prefer 'up'." if tied else None


REWARD = Exercise(right=lambda word: float(word == "up"), cases=lambda: [(word,) for word in WORDS], accept=_what_is_wrong)

EXERCISES = {"has_signal": HAS_SIGNAL, "advantages": ADVANTAGES, "reward": REWARD}

check = checker(EXERCISES)
