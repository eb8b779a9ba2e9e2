"""The benchmarks of customer service run on tiny settings and print one line; both sides do the same. Nothing is timed."""

import asyncio

import pytest
from test_benchmarks import printed
from test_benchmarks_email import COLUMNS, ScriptedModel, written

import art_nb as art
from art_nb.training.sequences import compute_advantages
from benchmarks import rise_service, rollout_service
from customer_service import course_tasks, course_world
from customer_service.clerks import Clerk
from customer_service.desk import DESK_TURNS
from customer_service.front_desk import FrontDesk

TASK = next(task for task in course_tasks("retail", "train") if task.wants["kind"] == "cancel")


def clerks_calls(task):
    """Return the calls of a careful clerk."""

    class Noted(FrontDesk):
        def call(self, name, arguments):
            calls.append((name, arguments))
            return super().call(name, arguments)

    calls = []
    Clerk()(Noted(course_world("retail"), task))
    return calls


def test_rollout_service(capsys):
    base = str(rollout_service.SERVICE_BASE)
    result = printed(capsys, "rollout_service", lambda: rollout_service.measure(base, groups=1, size=2))
    keys = ("tokens_per_s", "tokens", "seconds", "turns", "left")
    assert result.keys() == {"benchmark", "ratio"} | {f"{side}_{key}" for side in ("ours", "stock") for key in keys}
    assert result["ratio"] > 0
    for side in ("ours", "stock"):
        assert 1 <= result[f"{side}_turns"] <= DESK_TURNS and 0 <= result[f"{side}_left"] <= 1


def test_rise_service(capsys, monkeypatch):
    monkeypatch.setattr(rise_service, "GROUPS", 1)
    monkeypatch.setattr(rise_service, "SIZE", 2)
    result = printed(capsys, "rise_service", lambda: rise_service.measure([0], "val", "milestones", steps=1, count=4))
    assert result.keys() == {"benchmark", "split", "reward", "runs", "ratio"}
    (run,) = result["runs"]
    assert run.keys() == {"seed", "rule_clean", "rises", *COLUMNS} and run["seconds"] > 0
    assert run["rises"].keys() == {*rise_service.MEASURED, "due"}
    assert all(found["low"] <= found["rise"] <= found["high"] for found in run["rises"].values())


def test_the_rewards_of_a_conversation():
    def paid(calls, reward):
        return asyncio.run(rise_service.play_with_reward(ScriptedModel(map(written, calls)), TASK, reward))

    calls = clerks_calls(TASK)
    served = {reward: paid(calls, reward) for reward in rise_service.REWARDS}
    config = art.TrainConfig(learning_rate=rise_service.LEARNING_RATE, turn_discount=0, scale_rewards="batch")
    assert rise_service.config(0, 1) == config
    for reward, talk in served.items():
        (advantages,) = compute_advantages([art.TrajectoryGroup([talk, paid([None], reward)])], config)
        assert [len(each) for each in advantages] == [len(calls), 1]  # one per answer: `train` accepts the rewards
    assert served["milestones"].turn_rewards == [*[0.25] * (len(calls) - 1), 1]
    assert sum(served["progress"].turn_rewards) == served["progress"].reward == 1
    assert served["whole"].reward == 1 and served["whole"].turn_rewards is None
    assert {talk.metrics["solved"] for talk in served.values()} == {1} and served["whole"].metrics["declined"] == 0
    assert paid([None], "milestones").reward == -0.6 and paid([None], "whole").reward == 0
    both = asyncio.run(rise_service.play_with_reward(ScriptedModel(["".join(map(written, calls))]), TASK, "milestones"))
    assert both.turn_rewards == [pytest.approx(0.25 * (len(calls) - 1) + 1)]  # an answer with several calls gets the sum of their rewards


def test_tasks_that_require_an_action_are_counted_separately():
    tasks = course_tasks("retail", "val")
    idle = [{name: float(not task.actions and not task.outputs) for name in rise_service.MEASURED} for task in tasks]
    found = rise_service.compare(tasks, idle, [dict.fromkeys(rise_service.MEASURED, 1.0)] * len(tasks))
    assert found["due"]["before"] == 0 < found["solved"]["before"] and found["due"]["rise"] == 100
