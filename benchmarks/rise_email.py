"""The rise in accuracy over the training of notebook 04, Email search, across seeds.

`python -m benchmarks.rise_email --seeds 0 1 2` prints one JSON line: for each seed of the backend (initial adapter and all
samples), over the first 200 test questions, the columns of `rising.before_and_after` for `correct`; the rule-based baseline
is `ordering_player`. `rises` compares before and after, each at its best temperature, with 95% intervals paired by
question: `correct`, `sources_right`, `read_right` (the correct email was read) and `malformed` in percent, and `turns`, the
mean number of calls. `control` makes the same comparison for `correct` alone, where "before" is the untrained model under
`email_search.players.avoid_giving_up`, at temperature 1. `kinds`: see `by_kind`. Training is as in the notebook. `ratio` is
the mean of `trained_best` over that of `untrained_best`. Use `--split val` to choose settings, so that the test questions
stay unseen. `--reward` chooses the reward of training: `calls` has one reward per call, see `EmailSearch.progress`;
`simple` is 1 for a correct answer, -1 for a malformed call and 0 for any other end; `art-e` is the published reward; `mild`
is the same, but a wrong answer costs no more than no answer (notebook 04 trains with `calls`, and compares `art-e` and
`mild` over six steps).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import art_nb as art
from benchmarks.gathering import registered
from benchmarks.paired import paired
from benchmarks.rising import before_and_after, command, decayed_rate, reward_answers, rises, run_seeds
from benchmarks.rollout_email import EMAIL_BASE
from benchmarks.rollout_email import play as play_search
from email_search import EmailSearch, Scenario, course_mailbox, scenarios
from email_search.players import avoid_giving_up, ordering_player
from email_search.players import play as search

STEPS, GROUPS, SIZE = 45, 16, 8  # groups per step, searches per group
LEARNING_RATE = 1.5e-3
TURN_DISCOUNT = None  # of all rewards but `calls`: below 1, earlier calls get less credit; None: all get the same
REWARDS = ("calls", "simple", "art-e", "mild")
QUESTIONS = {"test": 200, "val": 120}
VALIDATION = 48  # for choosing the temperature
MEASURED = {"correct": 100, "sources_right": 100, "read_right": 100, "malformed": 100, "turns": 1}  # 100: percent


def config(step: int, steps: int, reward: str = "calls", first: float = LEARNING_RATE) -> art.TrainConfig:
    """Return the settings of a step, counted from 0. first: the learning rate of the first step."""
    rate = decayed_rate(step, steps, first)
    discount = 0.0 if reward == "calls" else TURN_DISCOUNT
    given = {} if discount is None else {"turn_discount": discount}
    return art.TrainConfig(learning_rate=rate, scale_rewards="batch", **given)


async def play_with_reward(model: art.TrainableModel, scenario: Scenario, reward: str, **request: float) -> art.Trajectory:
    """Play one search with one of REWARDS. request: see `rollout_email.play`."""
    search = EmailSearch(course_mailbox(), scenario)
    trajectory = await play_search(model, search, **request)
    if reward == "calls":
        reward_answers(trajectory, search.turn_rewards)
        return trajectory
    if reward == "simple":
        trajectory.reward = trajectory.metrics["correct"] - trajectory.metrics["malformed"]
    if reward == "mild":
        trajectory.reward += trajectory.metrics["wrong"]  # ART-E starts from -1 for a wrong answer, from 0 for no answer
    if TURN_DISCOUNT is not None:
        trajectory.turn_rewards = [0.0] * (len(trajectory.choices()) - 1) + [trajectory.reward]
    return trajectory


async def measure_seed(folder: str, seed: int, split: str, reward: str, steps: int = STEPS, count: int = 0) -> dict:
    """Train with one seed; evaluate before and after."""
    questions = scenarios(split, count or QUESTIONS[split])
    model = await registered(folder, EMAIL_BASE, f"rise-{seed}", seed=seed)
    configs = [config(step, steps, reward) for step in range(steps)]

    def play(question: Scenario, temperature: float) -> Awaitable[art.Trajectory]:
        return play_with_reward(model, question, reward, temperature=temperature)

    client = avoid_giving_up(model.openai_client())
    searches = (play_search(model, EmailSearch(course_mailbox(), question), client=client) for question in questions)
    control = [trajectory.metrics["correct"] for trajectory in await asyncio.gather(*searches)]
    rule = [search(ordering_player, EmailSearch(course_mailbox(), question)).metrics()["correct"] for question in questions]
    columns, before, after = await before_and_after(
        model, play, "correct", questions, scenarios("val", count or VALIDATION), scenarios("train"), configs, GROUPS, SIZE,
        MEASURED, rule,
    )  # fmt: skip
    return {
        "seed": seed, **columns, "rises": rises(before, after, MEASURED), "kinds": by_kind(questions, after),
        "control": paired(control, [metrics["correct"] for metrics in after]),
    }  # fmt: skip


def by_kind(questions: list[Scenario], found: list[dict[str, float]]) -> dict[str, list[int]]:
    """Return for each kind of question the numbers of questions, of correct emails read and of correct answers."""
    kinds: dict[str, list[int]] = {}
    for question, metrics in zip(questions, found, strict=True):
        seen = kinds.setdefault(question.kind, [0, 0, 0])
        for i, one in enumerate((1, metrics["read_right"], metrics["correct"])):
            seen[i] += int(one)
    return kinds


def measure(seeds: list[int], split: str, reward: str, **overrides: int) -> dict:
    """Run all seeds. overrides: `steps`, `count` (of questions)."""
    return {"split": split, "reward": reward, **run_seeds(measure_seed, seeds, split, reward, **overrides)}


def main() -> None:
    command("rise_email", __doc__, measure, QUESTIONS, REWARDS)


if __name__ == "__main__":
    main()
