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

from collections.abc import Awaitable

import art_nb as art
from art_nb.tasks.email_search import EmailSearch, Scenario, course_mailbox, scenarios
from benchmarks.gathering import registered
from benchmarks.rising import TEMPERATURES, before_and_after, command, falling, of_seeds, rises
from benchmarks.rollout_email import EMAIL_BASE, rollout

STEPS, GROUPS, SIZE = 45, 16, 8  # groups a step, searches in a group
LEARNING_RATE = 2e-3
TURN_DISCOUNT = None  # a number: earlier calls are credited with less of the reward; None: all with the same
REWARDS = ("simple", "art-e", "mild", "calls")
QUESTIONS = {"test": 200, "val": 120}
MEASURED = {"correct": 100, "sources_right": 100, "read_right": 100, "malformed": 100, "turns": 1}  # 100: in percent


def config(step: int, steps: int, reward: str = "simple", first: float = LEARNING_RATE) -> art.TrainConfig:
    """The settings of one training step, counted from 0. first: the learning rate of the first."""
    rate = falling(step, steps, first)
    if reward == "calls":
        return art.TrainConfig(learning_rate=rate, turn_discount=0.0, scale_rewards="batch")
    return art.TrainConfig(learning_rate=rate, **({} if TURN_DISCOUNT is None else {"turn_discount": TURN_DISCOUNT}))


async def paid(model: art.TrainableModel, scenario: Scenario, reward: str, **asked: float) -> art.Trajectory:
    """One search with one of REWARDS. asked: see `rollout`."""
    trajectory = await rollout(model, scenario, **asked)
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


async def measure_seed(folder: str, seed: int, split: str, reward: str, steps: int = STEPS, count: int = 0) -> dict:
    """Trains from one seed and asks before and after; seconds of gathering and updating."""
    questions = scenarios(split, count or QUESTIONS[split])
    model = await registered(folder, EMAIL_BASE, f"rise-{seed}", seed=seed)
    configs = [config(step, steps, reward) for step in range(steps)]

    def play(question: Scenario, temperature: float) -> Awaitable[art.Trajectory]:
        return paid(model, question, reward, temperature=temperature)

    before, after, seconds = await before_and_after(
        model, play, questions, scenarios("train"), configs, GROUPS, SIZE, MEASURED
    )
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
    return of_seeds(measure_seed, "correct", seeds, split, reward, **fewer)


def main() -> None:
    command("rise_email", __doc__, measure, QUESTIONS, REWARDS)


if __name__ == "__main__":
    main()
