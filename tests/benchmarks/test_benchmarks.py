"""Each benchmark runs on tiny settings and prints its one line; both sides read the same prompts. Nothing is timed."""

import ast
import asyncio
import json
import random
import re
import runpy
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from types import SimpleNamespace

import pytest

from art_nb.training.grpo import returns_to_go
from benchmarks import (
    batches,
    gathering,
    learner,
    rise,
    rise_lake,
    rise_real,
    rise_reasoning_gym,
    rise_self_play,
    rising,
    rollout,
    rollout_real,
    skills,
    time_to_skill,
)
from benchmarks.result import print_result
from email_search import scenarios as email_questions
from game_2048 import MOVE_TOOL

BASE = str(rollout.BASE)
trl_can_train = pytest.mark.skipif(
    not (find_spec("triton") or find_spec("unsloth")), reason="stock TRL can't train without Triton or Unsloth"
)
has_unsloth = pytest.mark.skipif(not find_spec("unsloth"), reason="Unsloth is not installed")
MACHINE = {"processor", "cores", "threads", "load", "device", "versions", "date"}


def printed(capsys, name, measure) -> dict:
    """Return the benchmark's output, which must be one line of JSON."""
    print_result(name, measure)
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert result["benchmark"] == name
    assert result.pop("machine").keys() == MACHINE
    return result


def test_rollout(capsys):
    result = printed(capsys, "rollout", partial(rollout.measure, BASE, groups=1, size=2, turns=3, late=11))
    sides = {f"{side}_{key}" for side in ("ours", "stock") for key in ("tokens_per_s", "tokens", "seconds", "turns")}
    assert result.keys() == {"benchmark", "ratio", "turn_10_s", "turn_11_s", "turn_cost_ratio"} | sides
    assert result["ratio"] > 0 and result["turn_cost_ratio"] > 0
    assert result["ours_turns"] <= 3 and result["stock_turns"] <= 3


def test_stock_trl_gets_the_same_prompts_as_our_client(tmp_path):
    """The tokens of TRL's games equal those of our client's template: tools, boards and answers."""
    stock = rollout.measure_stock(str(tmp_path), BASE, groups=2, size=2, turns=3)
    ours = asyncio.run(rollout.measure_ours(str(tmp_path), BASE, groups=2, size=2, turns=3))
    assert ours["prompts"] == stock["prompts"]
    tokenizer = gathering.stock_policy(BASE, seed=0).tokenizer
    for prompt, game, messages in zip(stock["prompts"], stock["games"], stock["messages"], strict=True):
        text = tokenizer.decode(prompt).split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        conversation = [{"role": "user", "content": text}, *messages]
        whole = tokenizer.apply_chat_template(conversation, tools=[MOVE_TOOL], tokenize=False)
        assert whole.startswith(tokenizer.decode(game).removesuffix("<|im_end|>"))
        assert len(messages) == 5 or not messages[-1].get("tool_calls")  # three answers, two boards in between


def test_an_illegal_move_neither_ends_the_game_nor_changes_the_board():
    environment = rollout.EndlessEnvironment()
    board = environment.reset(seed=3)
    while "left" in environment.game.legal_moves():
        board = environment.move("left")
    assert environment.move("left") == board and environment.move("nowhere") == board
    for _ in range(400):  # many more turns than such bad games last
        board = environment.move((environment.game.legal_moves() or ["left"])[0])
    assert board == environment.game.render() and not environment.game.over


@trl_can_train
@pytest.mark.parametrize("other", ["trl", pytest.param("unsloth", marks=has_unsloth)])
def test_learner(capsys, other):
    count = batches.GROUP
    quick = partial(learner.measure, "games", [4, count], repeats=1, other=other, count=count, shortest=1, longest=3)
    result = printed(capsys, "learner", quick)
    assert result.keys() == {
        "benchmark", "other", "ratio", "ratio_to_padded", "ours_tokens_per_s", "padded_tokens_per_s", "stock_tokens_per_s",
        "stock_batch_size", "stock_tokens_per_s_by_batch_size", "sequences", "tokens", "distinct_tokens", "trained_tokens",
        "padding_of_stock", "grad_norms",
    }  # fmt: skip
    assert result["ratio"] > 0 and result["sequences"] == count  # raises when the gradients differ from stock TRL's
    assert 0 < result["trained_tokens"] < result["tokens"] and 0 <= result["padding_of_stock"] < 1
    assert 0 < result["distinct_tokens"] < result["tokens"]


def test_rollout_of_the_real_model(capsys):
    result = printed(capsys, "rollout_real", partial(rollout_real.measure, BASE, groups=1, size=2, rounds=1))
    sides = {f"{side}{load}_tokens_per_s" for side in ("ours", "float32") for load in ("", "_under_load")}
    assert result.keys() == {"benchmark", "ratio", "ratio_under_load"} | sides and min(result[side] for side in sides) > 0


def test_the_value_of_a_board_is_subtracted_from_the_return_of_its_move():
    rewards, values = [1.0, -0.5, 2.0, 0.25], [0.5, 3.0, -1.0, 2.0]
    plain, less = (returns_to_go(each, 0.7) for each in (rewards, rise.shaped(rewards, values, 0.7)))
    assert less == pytest.approx([total - value for total, value in zip(plain, values, strict=True)])


def test_rise_of_2048_has_the_columns_of_the_comparison(tmp_path, monkeypatch):
    for constant, small in {"WINNING_TILE": 16, "GROUPS": 1, "SIZE": 2}.items():
        monkeypatch.setattr(rise, constant, small)
    run = asyncio.run(rise.measure_seed(str(tmp_path), 3, rise.TrainingRecipe(steps=1), validation=2, test=4, passes=2))
    shares = {"untrained_t1", "untrained_best", "trained_t1", "trained_best", "rule", "greedy", "pass_at_8_untrained"}
    intervals = {f"{of}_{part}" for of in ("rise", "over_rule") for part in ("value", "low", "high")}
    chosen = {"untrained_temperature", "trained_temperature"}
    assert run.keys() == shares | intervals | chosen | {"seed", "seconds", "won_in_training", "validation"}
    assert all(0 <= run[name] <= 100 for name in shares) and len(run["won_in_training"]) == 1
    assert all(set(shares) == {1.0, 0.5, 0.3, 0.0} for shares in run["validation"].values())


def test_rise_of_generated_tasks_and_lakes(capsys):
    generated = partial(rise_reasoning_gym.measure, [3], "word_sequence_reversal", str(BASE), 1, steps=1, test=2)
    for name, quick in (("rise_reasoning_gym", generated), ("rise_lake", partial(rising.run_seeds, rise_lake.measure_seed, [3], steps=1, test=2))):
        (run,) = printed(capsys, name, quick)["runs"]
        assert run["seed"] == 3 and {"untrained_best", "trained_best", "rule", "pass_at_8_untrained", "rise_low"} < run.keys()
    table = printed(capsys, "rise_reasoning_gym", partial(rise_reasoning_gym.table, str(BASE), ["products"], 2))
    assert list(table["tasks"]) == ["products", "products, 4 examples"]
    assert table["tasks"]["products"].keys() == {"T = 1", "T = 0.5", "T = 0.3", "T = 0", "pass@8", "rule"}


def test_a_scenario_for_validation_and_for_the_test_has_the_metrics_of_its_test():
    calls = count()

    async def play(_: str, temperature: float) -> SimpleNamespace:
        call = next(calls)
        await asyncio.sleep(0 if call > 8 else 0.2 - 0.02 * call)  # what is played first ends last
        return SimpleNamespace(metrics={"won": int(call in (0, 1, 8)), "call": call})

    questions = ["first", "second"]
    measured, metrics = asyncio.run(rising.evaluate("agent", play, "won", questions, questions))
    assert measured.temperature == 1 and [m["won"] for m in metrics] == measured.best == [1, 0]
    assert [m["call"] for m in metrics] == [8, 9]  # after four temperatures on validation


def test_rise_of_the_real_model(capsys):
    task = replace(rise_real.TASKS["largest"], steps=1)
    result = printed(capsys, "rise_real", partial(rise_real.measure, [3], task, str(BASE), count=2))
    (run,) = result.pop("runs")
    assert result.keys() == {"benchmark", "ratio"} and run["seed"] == 3 and run["rule"] == 100  # no ties in these two
    assert {"untrained_t1", "untrained_best", "trained_t1", "trained_best", "pass_at_8_untrained", "rise_low"} < run.keys()


def test_the_prompts_of_the_real_model():
    asked = {split: [re.findall(r"\d+", rise_real.largest(split, i)[0]) for i in range(400)] for split in ("train", "val", "test")}
    fours = {split: {tuple(sorted(numbers)) for numbers in asked[split]} for split in asked}
    assert not fours["train"] & fours["test"] and not fours["train"] & fours["val"] and not fours["val"] & fours["test"]
    for split, questions in asked.items():
        assert len(fours[split]) > 390 and all(len(set(numbers)) == 4 for numbers in questions)
        assert all(rise_real.largest(split, i)[1] == max(map(int, numbers)) for i, numbers in enumerate(questions))
        tied = [a // 10 == b // 10 for a, b in (sorted(map(int, numbers))[-2:] for numbers in questions)]
        wrong = [not rise_real.by_tens(split, i) for i in range(len(questions))]
        assert all(tie or not error for tie, error in zip(tied, wrong, strict=True)) and 0 < sum(wrong) < sum(tied)
    places = Counter(numbers.index(max(numbers)) for numbers in asked["train"])
    assert min(places[i] for i in range(4)) > 70  # the largest number is at each place about as often: 100 are expected
    assert all(rise_real.by_expression("test", i) for i in range(50))


def test_the_second_task_is_that_of_notebook_06():
    cells = json.loads((rise_self_play.NOTEBOOK.parent / "06_real_model.ipynb").read_text("utf-8"))["cells"]
    (source,) = ("".join(cell["source"]) for cell in cells if "def largest(" in "".join(cell["source"]))
    names = {"Random": random.Random}
    exec(source.partition("async def")[0], names)
    for split in ("train", "val", "test"):
        assert [names["largest"](split, i) for i in range(200)] == [rise_real.largest(split, i) for i in range(200)]


def test_what_the_maker_of_the_policy_adds_to_notebook_03_has_names_of_its_own():
    tree = ast.parse(rise_self_play.program("folder", 0))
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert not bound & {"kept_steps", "won_after", "COLUMNS"} and {"GAMES_OF", "model", "base", "played", "tactical"} <= bound


def test_short_answers_get_alternating_rewards(tmp_path):
    async def main():
        return await batches.gathered(await gathering.registered(str(tmp_path), BASE, "model"), "answers", groups=2, size=4)

    groups = asyncio.run(main())
    assert [[t.reward for t in group] for group in groups] == [[0, 1, 0, 1]] * 2
    assert len({str(t.messages()[1]) for group in groups for t in group}) == 2


def test_tool_calls_are_executed_and_the_conversation_continues(tmp_path):
    async def main():
        model = await gathering.registered(str(tmp_path), BASE, "model")  # a model for 2048, which cannot search mails
        return await batches.gathered(model, "tools", groups=2, size=4, turns=3)

    groups = asyncio.run(main())
    assert [[t.reward for t in group] for group in groups] == [[0, 1, 0, 1]] * 2
    for trajectory in (t for group in groups for t in group):
        seen: list[int] = []
        for choice in trajectory.choices():
            assert choice.prompt_token_ids[: len(seen)] == seen
            seen = choice.prompt_token_ids + choice.token_ids
        assert 1 <= len(trajectory.choices()) <= 3


def nano_answers() -> skills.Skill:
    """Use a nano model for the short answers, so that SmolLM2's wheel is not needed."""
    return replace(skills.answers(), base=lambda: BASE)


def short_games(by_tool: bool = False) -> skills.Skill:
    """Let games end at the 16 tile."""
    skill = skills.game_2048(by_tool)
    short = {name: partial(getattr(skill, name), winning_tile=16) for name in ("play", "play_as_stock")}
    return replace(skill, **short)


@trl_can_train
@pytest.mark.parametrize("skill", [short_games, partial(short_games, True), skills.email, nano_answers])
def test_time_to_skill(skill, capsys, monkeypatch):
    monkeypatch.setattr(skills, "MAX_TURNS", 2)
    small = replace(skill(), groups=1, size=2)
    result = printed(capsys, "time_to_skill", partial(time_to_skill.measure, small, 1, 0.5, 2, 2))
    assert result.keys() == {
        "benchmark", "goal", "ratio", "ratio_is_at_least", "ours_mean_s", "stock_mean_s", "limit_s", "held_out",
        "ours", "stock",
    }  # fmt: skip
    for (run,) in (result["ours"], result["stock"]):
        assert run.keys() == {"seed", "seconds", "stopped", "steps", "before", "after"}
        assert run["seconds"] <= 0.5 and run["stopped"] == (run["after"] < run["before"] + small.rise)


def test_both_sides_get_the_same_reward_for_an_answer():
    texts = ["It costs 12 dollars", "12", "of 12, 13", "none", "112"]
    assert skills.price_reward([[{"role": "assistant", "content": text}] for text in texts], [12] * 5) == [1, 1, 0, 0, 0]


def test_stock_trl_is_rewarded_for_correct_answers():
    environment, scenario = skills.EmailCorrectnessEnvironment(), email_questions("train", 1)[0]
    for answer, paid in ((scenario.answer, 1.0), ("I don't know", 0.0), ("no such thing", 0.0)):
        environment.reset(scenario.id)
        assert environment.get_reward() == 0
        environment.return_final_answer(answer, [])
        assert environment.get_reward() == paid


def test_a_run_stops_at_its_time_limit_or_its_target():
    race = time_to_skill.Race("ours", 0, limit=30.0, goal=0.2)
    race.add_evaluation(0.2)
    race.add_training_time(4.0)
    assert not race.due and not race.reached_goal
    race.add_training_time(8.0)
    assert race.due
    race.add_evaluation(0.4)
    assert race.reached_goal and not race.out_of_time and not race.result()["stopped"]
    race.add_training_time(40.0)
    assert race.out_of_time and race.result()["seconds"] == 30.0


@pytest.mark.parametrize("name", ["kills", "neighbour", "overlap", "ray_kills", "samplers", "server", "stranger"])
def test_a_benchmark_without_options_prints_its_docstring(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    assert f"`python -m benchmarks.{name}" in capsys.readouterr().out


@pytest.mark.parametrize("module", [rollout, learner, time_to_skill])
def test_the_help_describes_the_output(module, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark", "--help"])
    with pytest.raises(SystemExit):
        module.main()
    assert "one JSON line" in " ".join(capsys.readouterr().out.split())
