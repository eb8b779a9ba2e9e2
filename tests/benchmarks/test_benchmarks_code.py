"""The benchmarks of mutation repair run on tiny settings and print one line; both sides do the same. Nothing is timed."""

import asyncio
import json

import pytest
from test_benchmarks import printed
from test_benchmarks_email import COLUMNS, ScriptedModel, written

import art_nb as art
from art_nb.training.sequences import compute_advantages
from benchmarks import rise_code, rollout_code
from code_repair import problems
from code_repair.mutation_repair import MUTATION_TURNS, mutation_sites

PROBLEM = next(problem for problem in problems("train") if problem.bug.kind == "operator")
CHANGE = mutation_sites(next(iter(PROBLEM.files.values()))).index(("operator", PROBLEM.bug.line)) + 1
REPAIR = [("mend", {"change": CHANGE}), ("submit", {})]
CHEAT = [*(("answer_example", {"example": n}) for n in (1, 2, 3)), ("submit", {})]


def test_rollout_code(capsys):
    result = printed(capsys, "rollout_code", lambda: rollout_code.measure(str(rollout_code.CODE_BASE), groups=1, size=2))
    keys = ("tokens_per_s", "tokens", "seconds", "turns", "submitted")
    assert result.keys() == {"benchmark", "ratio"} | {f"{side}_{key}" for side in ("ours", "stock") for key in keys}
    assert result["ratio"] > 0
    for side in ("ours", "stock"):
        assert 1 <= result[f"{side}_turns"] <= MUTATION_TURNS and 0 <= result[f"{side}_submitted"] <= 1


def test_rise_code(capsys, monkeypatch):
    """One training step on one group, after which no group has a signal; the evaluation must still run."""
    monkeypatch.setattr(rise_code, "GROUPS", 1)
    monkeypatch.setattr(rise_code, "SIZE", 2)
    result = printed(capsys, "rise_code", lambda: rise_code.measure([0], "val", "simple", steps=1, count=3))
    assert result.keys() == {"benchmark", "split", "reward", "runs", "ratio"}
    (run,) = result["runs"]
    assert run.keys() == {"seed", "at_random", "rises", *COLUMNS} and run["seconds"] > 0 <= run["at_random"] <= 100
    assert run["rises"].keys() == rise_code.MEASURED.keys()
    assert all(found["low"] <= found["rise"] <= found["high"] for found in run["rises"].values())


def test_the_rewards_of_a_repair_and_of_a_special_case():
    def paid(calls, reward):
        return asyncio.run(rise_code.play_with_reward(ScriptedModel(map(written, calls)), PROBLEM, reward))

    repair, cheat, nothing = (paid(calls, "simple") for calls in (REPAIR, CHEAT, [None]))
    assert (repair.reward, cheat.reward, nothing.reward) == (1, -0.25, -1)
    assert (repair.metrics["special"], cheat.metrics["special"], repair.metrics["tries"]) == (0, 1, 1)
    assert [paid(calls, "visible").reward for calls in (REPAIR, CHEAT, [None])] == [1, 1, -1]
    assert repair.turn_rewards == [1, 0] and cheat.turn_rewards == [0, 0, 0, -0.25]
    both = asyncio.run(rise_code.play_with_reward(ScriptedModel(["".join(map(written, REPAIR))]), PROBLEM, "simple"))
    assert both.turn_rewards == [1] and both.metrics["turns"] == 2  # an answer with two calls gets the sum of their rewards
    config = art.TrainConfig(learning_rate=rise_code.LEARNING_RATE, turn_discount=1, scale_rewards="batch")
    assert rise_code.config(0, 1) == config
    for reward in rise_code.REWARDS:
        (advantages,) = compute_advantages([art.TrajectoryGroup(paid(calls, reward) for calls in (REPAIR, CHEAT))], config)
        assert [len(each) for each in advantages] == [2, 4]  # one per answer: `train` accepts the rewards
    whole = paid(REPAIR, "whole")
    assert whole.reward == pytest.approx(2.4) and whole.turn_rewards is None
    assert json.loads(whole.choices()[0].message.tool_calls[0].function.arguments) == REPAIR[0][1]
