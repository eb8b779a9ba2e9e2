"""How far accuracy rises in the training of notebook 03, from several seeds.

`python -m benchmarks.rise_email --seeds 0 1 2` prints one JSON line: for each seed of the backend (the adapter's start
and every draw) for the first 200 test questions, before and after training: `correct`, `sources_right`, `read_right` (the
right mail was opened) and `malformed` in percent, and `turns`, the mean calls of a search; the rise of each with its 95%
interval (question by question, paired), `kinds`, see `by_kind`, and the seconds of training. `drawn` is measured at
temperature 1, as in training, `used` at 0.5. The settings are the notebook's; `ratio` is accuracy after over before,
drawn, in the mean. `--split val` is for choosing settings: test questions stay unseen. `--reward` chooses what is paid:
`simple` pays 1 for a correct answer, -1 for a malformed call and 0 for any other end, `art-e` is the published reward,
`mild` the same with a wrong answer paid as none (notebook 03 compares these three), and `calls` pays each call for what
it did and for nothing that came of it later, see `gains`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from statistics import fmean

import art_nb as art
from art_nb.tasks.email_search import EmailSearch, Scenario, course_mailbox, scenarios
from benchmarks.gathering import registered
from benchmarks.paired import paired
from benchmarks.result import print_result, say
from benchmarks.rollout_email import EMAIL_BASE, rollout

STEPS, GROUPS, SIZE = 45, 16, 8  # groups a step, searches in a group
LEARNING_RATE, LAST_SHARE = 2e-3, 0.1  # it falls in a line, to this share
TURN_DISCOUNT = None  # a number: earlier calls are credited with less of the reward; None: all with the same
REWARDS = ("simple", "art-e", "mild", "calls")
QUESTIONS = {"test": 200, "val": 120}
TEMPERATURES = {"drawn": 1.0, "used": 0.5}
MEASURED = {"correct": 100, "sources_right": 100, "read_right": 100, "malformed": 100, "turns": 1}  # 100: in percent


def config(step: int, steps: int, reward: str = "simple") -> art.TrainConfig:
    """The settings of one training step, counted from 0."""
    rate = LEARNING_RATE * (1 - (1 - LAST_SHARE) * step / max(1, steps - 1))
    if reward == "calls":
        return art.TrainConfig(learning_rate=rate, turn_discount=0.0, scale_rewards="batch")
    return art.TrainConfig(learning_rate=rate, **({} if TURN_DISCOUNT is None else {"turn_discount": TURN_DISCOUNT}))


async def paid(model: art.TrainableModel, scenario: Scenario, reward: str) -> art.Trajectory:
    """One search with one of REWARDS."""
    trajectory = await rollout(model, scenario)
    if reward == "calls":
        trajectory.turn_rewards = gains(trajectory, scenario)
        trajectory.reward = sum(trajectory.turn_rewards)
        return trajectory
    if reward == "simple":
        trajectory.reward = trajectory.metrics["correct"] - trajectory.metrics["malformed"]
    if reward == "mild":
        trajectory.reward += trajectory.metrics["wrong"]  # ART-E starts a wrong answer at -1, none at 0
    if TURN_DISCOUNT is not None:
        trajectory.turn_rewards = [0.0] * (len(trajectory.choices()) - 1) + [trajectory.reward]
    return trajectory


def gains(trajectory: art.Trajectory, scenario: Scenario) -> list[float]:
    """What each answer of the model's is paid for its calls.

    A search is paid 0.5 over the place of the first right mail in its list, as far as none before did better; reading the
    first right mail 0.5; a correct answer 1; a malformed call -1.
    """
    search, right, shown, found = EmailSearch(course_mailbox(), scenario), set(scenario.sources), 0.0, []
    for choice in trajectory.choices():
        had, read = shown, bool(right & search.read)
        for call in choice.message.tool_calls or [None]:
            said = search.call(call and call.function.name, call and call.function.arguments)
            places = [i for i, line in enumerate(said.split("\n"), start=1) if call and line.split(" ")[0] in right]
            if call and call.function.name == "search_emails" and places:
                shown = max(shown, 0.5 / places[0])
        ended = search.metrics()["correct"] - search.metrics()["malformed"]
        found.append(shown - had + 0.5 * (bool(right & search.read) - read) + ended)
    return found


async def train(model: art.TrainableModel, steps: int, reward: str) -> None:
    """All training steps, each on questions of its own until there are no more."""
    questions = scenarios("train")
    for step in range(steps):
        chosen = [questions[(step * GROUPS + g) % len(questions)] for g in range(GROUPS)]
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(paid(model, question, reward) for _ in range(SIZE)) for question in chosen], pbar_desc=None
        )
        await model.train(groups, config(step, steps, reward))
        seen = {name: fmean(t.metrics[name] for group in groups for t in group) for name in MEASURED}
        say(f"step {step + 1} of {steps}: " + ", ".join(f"{name} {value:.2f}" for name, value in seen.items()))


async def asked(model: art.TrainableModel, questions: list[Scenario]) -> dict[str, list[dict[str, float]]]:
    """For each way of sampling the metrics of one search for each question."""
    found = {}
    for name, temperature in TEMPERATURES.items():
        searches = [rollout(model, question, temperature=temperature) for question in questions]
        found[name] = [trajectory.metrics for trajectory in await art.gather_trajectories(searches, pbar_desc=None)]
        say(f"{model.name}, {name}: " + ", ".join(f"{key} {fmean(m[key] for m in found[name]):.3f}" for key in MEASURED))
    return found


def rises(
    before: list[dict[str, float]], after: list[dict[str, float]], measured: dict[str, int]
) -> dict[str, dict[str, float]]:
    """For each metric its means before and after, and the mean rise with its 95% interval, paired by question.

    measured: metric -> its unit, 100 for percent.
    """
    return {name: paired([m[name] for m in before], [m[name] for m in after], unit) for name, unit in measured.items()}


async def measure_seed(folder: str, seed: int, split: str, reward: str, steps: int = STEPS, count: int = 0) -> dict:
    """Trains from one seed and asks before and after; seconds of gathering and updating."""
    questions = scenarios(split, count or QUESTIONS[split])
    model = await registered(folder, EMAIL_BASE, f"rise-{seed}", seed=seed)
    before, started = await asked(model, questions), time.perf_counter()
    await train(model, steps, reward)
    seconds, after = time.perf_counter() - started, await asked(model, questions)
    found: dict = {name: rises(before[name], after[name], MEASURED) for name in TEMPERATURES}
    for name in TEMPERATURES:
        found[name]["kinds"] = by_kind(questions, after[name])
    return {"seed": seed, **found, "seconds": seconds}


def by_kind(questions: list[Scenario], found: list[dict[str, float]]) -> dict[str, list[int]]:
    """For each kind of question how many there are, how many right mails were read, how many answers were correct."""
    kinds: dict[str, list[int]] = {}
    for question, metrics in zip(questions, found, strict=True):
        seen = kinds.setdefault(question.kind, [0, 0, 0])
        for i, one in enumerate((1, metrics["read_right"], metrics["correct"])):
            seen[i] += int(one)
    return kinds


def measure(seeds: list[int], split: str, reward: str, **fewer: int) -> dict:
    """fewer: `steps` and `count` (questions) for a quick look."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, seed, split, reward, **fewer)) for seed in seeds]
    before, after = (fmean(run["drawn"]["correct"][when] for run in runs) for when in ("before", "after"))
    return {"split": split, "reward": reward, "runs": runs, "ratio": after / before if before else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", choices=list(QUESTIONS), default="test", help="whose questions are asked")
    parser.add_argument("--reward", choices=REWARDS, default="simple")
    a = parser.parse_args()
    print_result("rise_email", lambda: measure(a.seeds, a.split, a.reward))


if __name__ == "__main__":
    main()
