"""The email task's benchmarks run on tiny settings and print one line; both sides do the same. Nothing is timed."""

import asyncio
import json
import sys
from functools import partial
from statistics import NormalDist
from types import SimpleNamespace

import pytest
from scripted_generation import ScriptedGeneration
from test_benchmarks import printed

import art_nb as art
from art_nb.inference.chat import parse_options
from art_nb.inference.streaming import build_completion
from art_nb.training.sequences import compute_advantages
from benchmarks import gathering, rise_email, rise_real_email, rising, rollout_email
from data.real_email_trained import maker as trained_maker
from email_search import environment as task
from email_search.players import avoid_giving_up

QUESTIONS = task.scenarios("train", 2)
COLUMNS = {  # that all benchmarks of learning share
    "untrained_t1", "untrained_best", "trained_t1", "trained_best", "rule", "pass_at_8_untrained", "untrained_temperature",
    "trained_temperature", "rise_value", "rise_low", "rise_high", "over_rule_value", "over_rule_low", "over_rule_high",
    "validation", "seconds",
}  # fmt: skip


def calls_for(scenario):
    """Return the calls of a search that finds, reads and answers."""
    return [
        ("search_emails", {"keywords": " ".join(scenario.about), "max_results": 10}),
        ("read_email", {"message_id": scenario.sources[0]}),
        ("return_final_answer", {"answer": scenario.answer, "sources": [scenario.sources[0]]}),
    ]


def written(call) -> str:
    return f'<tool_call>{json.dumps({"name": call[0], "arguments": call[1]})}</tool_call>' if call else "done"


class ScriptedModel:
    """A model that gives these answers, one after another, through the client's interface."""

    def __init__(self, texts):
        self.texts, self.requests = iter(texts), []
        self.chat = self.completions = self

    def openai_client(self):
        return self

    def get_inference_name(self):
        return "scripted"

    async def create(self, messages, **parameters):
        self.requests.append(messages)
        options = parse_options(parameters)
        return build_completion("key", options, [ScriptedGeneration(options, next(self.texts))])


def with_parsed_arguments(messages):
    """Return the conversation with the calls' arguments as objects, as chat templates expect."""
    copied = json.loads(json.dumps(messages))
    for call in (call for message in copied for call in message.get("tool_calls", ())):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return copied


def searched(texts, scenario=QUESTIONS[0]) -> art.Trajectory:
    return asyncio.run(rollout_email.rollout(ScriptedModel(texts), scenario))


def test_a_rollout_equals_the_search_of_its_calls():
    trajectory = searched(map(written, calls_for(QUESTIONS[0])))
    search = task.EmailSearch(task.course_mailbox(), QUESTIONS[0])
    results = [search.call(*call) for call in calls_for(QUESTIONS[0])]
    assert search.correct and trajectory.reward == search.reward() == pytest.approx(1 + 0.3 + 0.1 + 0.07)
    assert trajectory.metrics == search.metrics()
    assert [m["content"] for m in trajectory.messages() if m["role"] == "tool"] == results


@pytest.mark.parametrize(("text", "reward"), [("no call", -2.0), (written(("move", {})), -1.9), (written(("read_email", {})), -1.8)])
def test_a_malformed_call_ends_the_rollout(text, reward):
    trajectory = searched([text])
    assert trajectory.metrics["malformed"] == trajectory.metrics["turns"] == len(trajectory.choices()) == 1
    assert trajectory.reward == pytest.approx(reward + 0.1 + 0.1 / task.MAX_TURNS)


def test_a_rollout_ends_at_the_limit_of_turns():
    trajectory = searched([written(("search_emails", {}))] * 20)
    assert len(trajectory.choices()) == task.MAX_TURNS and trajectory.metrics["out_of_turns"] == 1


def test_stock_trl_gets_the_same_prompts_as_our_client(tmp_path, monkeypatch):
    """Both sides get the same scripted answers; stock TRL requests one more after the last call."""
    tokenizer = gathering.stock_policy(str(rollout_email.EMAIL_BASE), seed=0).tokenizer
    turns = iter([*zip(*map(calls_for, QUESTIONS), strict=True), (None, None)])

    def fake_turn(trainer, prompt_ids, *_, **__):
        if trainer.max_tool_calling_iterations == 1:  # the warm-up
            return [tokenizer.encode("done<|im_end|>")] * len(prompt_ids), None
        return [tokenizer.encode(f"{written(call)}<|im_end|>") for call in next(turns) for _ in range(2)], None

    monkeypatch.setattr(gathering.TimedTrainer, "_generate_single_turn", fake_turn)
    stock = gathering.measure_stock(rollout_email.TASK, str(tmp_path), str(rollout_email.EMAIL_BASE), QUESTIONS, 2)
    assert (stock["turns"], stock["answered"]) == (4, 1)
    twice = [question for question in QUESTIONS for _ in range(2)]
    for question, prompt, game in zip(twice, stock["prompts"], stock["games"], strict=True):
        model = ScriptedModel(map(written, calls_for(question)))
        trajectory = asyncio.run(rollout_email.rollout(model, question))
        prompts = [
            tokenizer.apply_chat_template(messages, tools=rollout_email.EmailSearch.tools, add_generation_prompt=True, tokenize=False)
            for messages in map(with_parsed_arguments, model.requests)
        ]
        assert tokenizer.decode(prompt) == prompts[0]
        assert all(tokenizer.decode(game).startswith(prompt) for prompt in prompts)
        assert trajectory.metrics["correct"] == 1


def test_rollout_email(capsys):
    result = printed(capsys, "rollout_email", lambda: rollout_email.measure(str(rollout_email.EMAIL_BASE), groups=1, size=2))
    keys = ("tokens_per_s", "tokens", "seconds", "turns", "answered")
    assert result.keys() == {"benchmark", "ratio"} | {f"{side}_{key}" for side in ("ours", "stock") for key in keys}
    assert result["ratio"] > 0
    for side in ("ours", "stock"):
        assert 1 <= result[f"{side}_turns"] <= task.MAX_TURNS and 0 <= result[f"{side}_answered"] <= 1


def test_rise_email(capsys, monkeypatch):
    """One training step on one group, after which no group has a signal; the evaluation must still run."""
    monkeypatch.setattr(rise_email, "GROUPS", 1)
    monkeypatch.setattr(rise_email, "SIZE", 2)
    controlled = []

    def counted(client):
        control = avoid_giving_up(client, 2)

        async def create(**request):
            controlled.append(request)
            return await control.chat.completions.create(**request)

        return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))

    monkeypatch.setattr(rise_email, "avoid_giving_up", counted)
    result = printed(capsys, "rise_email", lambda: rise_email.measure([0], "val", "calls", steps=1, count=3))
    assert result.keys() == {"benchmark", "split", "reward", "runs", "ratio"}
    assert (result["split"], result["reward"]) == ("val", "calls")
    (run,) = result["runs"]
    assert run.keys() == {"seed", "kinds", "rises", "control", *COLUMNS} and run["seconds"] > 0
    assert run["control"]["after"] == pytest.approx(run["trained_best"])
    assert len(controlled) >= 3  # each question of the control had a call
    correct = run["rises"]["correct"]
    assert (correct["before"], correct["after"]) == pytest.approx((run["untrained_best"], run["trained_best"]))
    assert (correct["rise"], correct["low"]) == pytest.approx((run["rise_value"], run["rise_low"]))
    for found in (run["rises"][metric] for metric in rise_email.MEASURED):
        assert found["rise"] == pytest.approx(found["after"] - found["before"], abs=0.02)
        assert found["low"] <= found["rise"] <= found["high"]


def test_rise_real_email(capsys, monkeypatch):
    """The same with two seeds."""
    monkeypatch.setattr(trained_maker, "GROUPS", 1)
    monkeypatch.setattr(trained_maker, "SIZE", 2)
    quick = partial(rise_real_email.measure, [0, 1], "val", str(rollout_email.EMAIL_BASE), steps=1, count=3)
    result = printed(capsys, "rise_real_email", quick)
    assert result.keys() == {"benchmark", "split", "runs", "ratio"} and [run["seed"] for run in result["runs"]] == [0, 1]
    for run in result["runs"]:
        assert run.keys() == {"seed", "seconds", "kinds", *rise_real_email.MEASURED} and run["seconds"] > 0
        for name in rise_real_email.MEASURED:
            assert run[name]["low"] <= run[name]["rise"] <= run[name]["high"]
        totals = [sum(found) for found in zip(*run["kinds"]["after"].values(), strict=True)]
        assert totals == [3, *(round(3 * run[name]["after"] / 100) for name in ("read_right", "correct"))]


def test_search_with_stored():
    base = str(rollout_email.EMAIL_BASE)
    found = asyncio.run(rise_real_email.search_with_stored({"one": base, "other": base}, QUESTIONS))["searches"]
    assert found.keys() == {"one, T = 1", "one, T = 0", "other, T = 1", "other, T = 0"}
    for metrics in found.values():
        assert tuple(metrics) == rise_real_email.METRICS and all(len(each) == len(QUESTIONS) for each in metrics.values())
        ends = zip(*(metrics[name] for name in ("correct", "wrong", "gave_up", "out_of_turns", "malformed")), strict=True)
        assert all(sum(each) == 1 for each in ends)  # a search ends in exactly one way
    assert found["one, T = 0"] == found["other, T = 0"]


def test_the_rewards_of_the_rise():
    scenario = QUESTIONS[0]
    right, wrong = calls_for(scenario), [("return_final_answer", {"answer": "nothing", "sources": []})]
    rewards = {}
    for reward in rise_email.REWARDS:
        paid = [
            asyncio.run(rise_email.play_with_reward(ScriptedModel(map(written, calls)), scenario, reward))
            for calls in (right, wrong, [None])
        ]
        rewards[reward] = [trajectory.reward for trajectory in paid]
        assert [trajectory.turn_rewards is None for trajectory in paid] == [reward != "calls"] * 3
        (advantages,) = compute_advantages([art.TrajectoryGroup(paid)], rise_email.config(0, 1, reward))
        assert [len(each) for each in advantages] == [3, 1, 1]  # one per answer: `train` accepts the rewards
    assert rewards["simple"] == [1, 0, -1]
    assert rewards["art-e"][0] > 1 and rewards["art-e"][1] < 0
    assert rewards["mild"] == [rewards["art-e"][0], rewards["art-e"][1] + 1, rewards["art-e"][2]]


def test_a_turn_discount_needs_the_reward_at_the_last_turn(monkeypatch):
    monkeypatch.setattr(rise_email, "TURN_DISCOUNT", 0.9)
    model = ScriptedModel(map(written, calls_for(QUESTIONS[0])))
    trajectory = asyncio.run(rise_email.play_with_reward(model, QUESTIONS[0], "art-e"))
    assert trajectory.turn_rewards == [0, 0, trajectory.reward] and rise_email.config(0, 1, "art-e").turn_discount == 0.9


def test_rises_are_paired_by_question():
    """Every second question improved: the interval is that of the paired differences, not of the two shares."""
    def metrics(correct):
        return {"correct": correct, "sources_right": 0.0, "read_right": 0.0, "malformed": 1.0, "turns": 2.0 + correct}

    before, after = [metrics(0.0), metrics(1.0)] * 50, [metrics(1.0)] * 100
    found = rising.rises(before, after, rise_email.MEASURED)
    half = NormalDist().inv_cdf(0.975) * 100 * (0.25 * 100 / 99) ** 0.5 / 10
    assert found["correct"] == pytest.approx({"before": 50, "after": 100, "rise": 50, "low": 50 - half, "high": 50 + half})
    assert found["turns"]["rise"] == 0.5 and found["malformed"]["low"] == found["malformed"]["high"] == 0


def test_the_learning_rate_falls_linearly():
    rates = [rise_email.config(step, 5).learning_rate for step in range(5)]
    assert rates[0] == rise_email.LEARNING_RATE
    assert rates[-1] == pytest.approx(rise_email.LEARNING_RATE * 0.1)
    assert rates[0] - rates[1] == pytest.approx(rates[3] - rates[4]) and rates[0] > rates[1]


def test_the_help_describes_the_output(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark", "--help"])
    with pytest.raises(SystemExit):
        rise_email.main()
    assert "one JSON line" in " ".join(capsys.readouterr().out.split())


def test_each_call_has_its_own_reward():
    scenario = QUESTIONS[0]
    look, read, answer = calls_for(scenario)
    box = task.course_mailbox()
    ids = [hit.message_id for hit in box.search(scenario.inbox, look[1]["keywords"], limit=10)]
    place = 1 + min(ids.index(source) for source in scenario.sources if source in ids)
    other = ("read_email", {"message_id": next(i for i in ids if i not in scenario.sources)})
    nothing = ("search_emails", {"keywords": "no such words"})

    def paid(*calls):
        return asyncio.run(rise_email.play_with_reward(ScriptedModel(map(written, calls)), scenario, "calls")).turn_rewards

    assert paid(nothing, look, look, other, read, read, answer) == pytest.approx([0, 0.5 / place, 0, 0, 0.5, 0, 1])
    assert paid(look, ("return_final_answer", {"answer": "7 dollars", "sources": []})) == pytest.approx([0.5 / place, 0])
    assert paid(read, ("read_email", {})) == pytest.approx([0.5, -1]) and paid(None) == [-1]
    first, *others = (rise_email.config(0, 1, reward) for reward in rise_email.REWARDS)
    default = art.TrainConfig(learning_rate=rise_email.LEARNING_RATE, scale_rewards="batch")
    assert first == default.model_copy(update={"turn_discount": 0}) and others == [default] * 3  # else only the reward differs


def test_the_kinds_are_counted():
    read, right = {"read_right": 1.0, "correct": 0.0}, {"read_right": 1.0, "correct": 1.0}
    first, *others = task.scenarios("train", 30)
    same = next(scenario for scenario in others if scenario.kind == first.kind)
    other = next(scenario for scenario in others if scenario.kind != first.kind)
    found = rise_email.by_kind([first, other, same], [read, {"read_right": 0.0, "correct": 0.0}, right])
    assert found == {first.kind: [2, 2, 1], other.kind: [1, 0, 0]}
