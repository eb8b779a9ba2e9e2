"""Costs, seconds and tokens in history(), by step and split, and their sums over the run and a restart."""

import asyncio
import importlib.util
import json
import math
from types import SimpleNamespace

import pytest
from openai.types.chat.chat_completion import Choice
from test_backend import base, gather, registered  # noqa: F401
from tiny_models import make_checkpoint  # noqa: F401

import art_nb as art
from art_nb.api_costs import counted_tokens, listed_pricing, load_litellm
from art_nb.backends.base import FileBackend, RegisteredModel
from art_nb.backends.steps import StepRequest
from art_nb.metrics import MetricsBuilder, track_api_cost
from art_nb.storage import run_log
from art_nb.storage.summary import as_groups, counts, summary
from art_nb.training.names import PolicyNames
from art_nb.training.sequences import compute_advantages, has_signal
from art_nb.types import TrainResult
from art_nb.widgets import TrainingView

NEEDS_LITELLM = pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="pip install 'art-nb[judge]'")
EPOCH = {"data/step_num_scenarios": 2, "data/step_num_trajectories": 8, "data/step_num_groups_submitted": 2}


async def step(model, number):
    groups = await gather(model, number)
    for i, group in enumerate(groups):
        group.metadata["scenario_id"] = f"s{number + i}"
        group.metrics["judge_cost_usd"] = 0.25
        for trajectory in group:
            trajectory.metrics["costs/train/user"] = 0.5
    await model.train(groups, art.TrainConfig(learning_rate=5e-2))
    return groups


def tokens(groups):
    return sum(len(choice.token_ids) for group in groups for t in group for choice in t.choices())


def test_sums_continue_after_a_restart(base, tmp_path):  # noqa: F811
    async def first():
        model = await registered(base, tmp_path, gpu_cost_per_hour_usd=3600.0)
        trained = [await step(model, 0), await step(model, 1)]
        checked = await gather(model, 9)
        with model.metrics_builder("eval").activate_context():
            bought()
        await model.log(checked)
        return model, trained, checked

    async def second():
        model = await registered(base, tmp_path)
        return model, await step(model, 2)

    @track_api_cost(source="user", provider="openai", model_name="x", prompt_price_per_million=2, completion_price_per_million=10)
    def bought():
        return {"usage": {"prompt_tokens": 500_000, "completion_tokens": 100_000}}

    model, trained, checked = asyncio.run(first())
    one, two, val = model.history().to_dict("records")
    for row, groups in ((one, trained[0]), (two, trained[1]), (val, checked)):
        assert {name: row[name] for name in EPOCH} == EPOCH and row["data/step_actor_tokens"] == tokens(groups)
    assert one["data/step_num_groups_trainable"] == sum(len({t.reward for t in g}) > 1 for g in trained[0])
    assert one["data/step_trainer_tokens"] == one["tokens_trained"] and one["time/step_trainer_s"] == one["train_s"]
    assert one["time/step_wall_s"] >= one["train_s"] and one["costs/gpu"] == pytest.approx(one["time/step_wall_s"])
    assert one["costs/train/judge/ruler"] == 0.5 and one["costs/train/user"] == 4 and one["costs/train"] == 4.5
    assert one["costs/all"] == pytest.approx(4.5 + one["costs/gpu"]) and "group_costs/train/user" not in one
    assert val["costs/eval/user"] == val["costs/all"] == 2.0 and math.isnan(val["costs/train"])
    assert val["costs/cum/all"] == pytest.approx(one["costs/all"] + two["costs/all"] + 2.0)
    assert two["data/cum/num_unique_scenarios"] == 3
    rate = (one["data/step_trainer_tokens"] + two["data/step_trainer_tokens"]) / (one["train_s"] + two["train_s"])
    assert two["throughput/avg_trainer_tok_per_s"] == pytest.approx(rate)

    model, groups = asyncio.run(second())
    last = model.history().to_dict("records")[-1]
    assert "costs/gpu" not in json.loads((model.run_log.folder / "history.jsonl").read_text().splitlines()[-1])
    assert last["costs/cum/all"] == pytest.approx(val["costs/cum/all"] + 4.5)
    assert last["data/cum/actor_tokens"] == sum(map(tokens, (*trained, checked, groups)))
    assert last["data/cum/num_unique_scenarios"] == 4


def test_training_by_arts_calls_gives_the_same_metrics(base, tmp_path):  # noqa: F811
    async def main():
        model = await registered(base, tmp_path)
        groups = await gather(model, 0)
        result = await model.backend().train(model, groups, learning_rate=5e-2)
        await model.log(groups, metrics=result.metrics, step=result.step, split="train")
        return model.history().to_dict("records")[0]

    row = asyncio.run(main())
    assert row["data/cum/trainer_tokens"] == row["tokens_trained"] and row["time/cum/trainer_s"] == row["train_s"]
    assert row["step"] == 1 and row["time/step_wall_s"] > row["train_s"] and "costs/all" not in row


class Folder(FileBackend):
    """Keeps files only."""

    def __init__(self, path, **options):
        super().__init__(path, None, **options)

    async def load(self, model):
        return RegisteredModel(PolicyNames(model.name, model.base_model, self.output_dir(model)), self.output_dir(model))

    async def take_step(self, model, request): ...

    async def fork(self, *args, **options): ...


async def in_folder(path, **options):
    model = art.TrainableModel(name="m", project="p", base_model="b")
    await model.register(Folder(path, **options))
    return model


def test_a_row_that_cannot_be_appended_is_counted_once_when_logged_again(tmp_path, monkeypatch):
    async def main():
        model = await in_folder(tmp_path)
        groups = [art.TrajectoryGroup([art.Trajectory(metrics={"costs/eval/user": 1.0})], metrics={"judge_cost_usd": 0.5})]
        model.metrics_builder("eval").add_cost("eval/api", 2.0)
        step = model.log(groups, step=0), model.log(groups, step=0)
        assert await refused(step[0], full_disk) and not model.run_log.rows()
        await step[1]
        assert model.run_log.rows()[-1]["costs/cum/all"] == model.run_log.rows()[-1]["costs/all"] == 3.5
        monkeypatch.setattr(model, "monitors", [SimpleNamespace(submit=full_disk)])
        assert await refused(model.log(groups, step=1))  # after the row has been appended
        model.monitors = []

        loaded = model.backend().loaded(model)
        monkeypatch.setattr(loaded, "sampled", lambda: (60, 2.0))
        request, result = StepRequest(groups, art.TrainConfig(), True), TrainResult(1, {"time/step_trainer_s": 1.0})
        assert await refused(model.backend().log_step(model, request, result), full_disk)
        await model.backend().log_step(model, request, result)
        return model.run_log.rows()

    def full_disk(*args):
        raise OSError("no space")

    async def refused(call, append=run_log.append_jsonl):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
            patch.setattr(run_log, "append_jsonl", append)
            await call
        return True

    *_, last, step = asyncio.run(main())
    assert last["costs/cum/all"] == 5 and step["costs/cum/all"] == 6.5 and step["time/cum/trainer_s"] == 1
    assert step["rollout_s"] == step["time/cum/actor_s"] == 2


def test_seconds_and_counts_in_the_builder_replace_automatic_ones(tmp_path):
    """The calls of ART's documentation: `measure`, `add_data` and `add_user_timing`, then `log`."""

    async def rollout():
        await asyncio.sleep(0.01)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}, "token_ids": [1, 2]}
        return art.Trajectory(messages_and_choices=[{"role": "user", "content": "?"}, Choice.model_validate(choice)])

    async def main():
        model = await in_folder(tmp_path, gpu_cost_per_hour_usd=3600.0)
        for split, context in (("val", "eval"), ("train", "train"), ("test", "eval")):
            groups = await art.gather_trajectory_groups([art.TrajectoryGroup([rollout()])], pbar_desc=None)
            if split != "test":
                builder = model.metrics_builder(context)
                builder.add_data(step_num_scenarios=7, step_actor_tokens=70)
                builder.add_user_timing(step_eval_s=50, step_wall_s=60, step_actor_s=35)
                builder.add_metric("time/step_trainer_s", 20)
                builder.add_metric("data/step_trainer_tokens", 200)
                builder.add_cost("gpu", 0.5)
            # A RemoteBackend's rows contain all of these.
            automatic = {"data/step_trainer_tokens": 10.0, "time/step_actor_s": 9.0, "time/step_trainer_s": 1.0, "time/step_wall_s": 2.0}
            await model.log(groups, split, metrics=automatic | {"data/step_num_scenarios": 1, "data/step_actor_tokens": 2}, step=1)
        return model.run_log.rows()

    *given, test = asyncio.run(main())
    trainer = "time/step_trainer_s", "data/step_trainer_tokens"
    assert [[row[name] for name in trainer] for row in (*given, test)] == [[20, 200], [20, 200], [1, 10]]
    assert (test["time/cum/trainer_s"], test["data/cum/trainer_tokens"]) == (41, 410)
    names = [f"data/step_{name}" for name in ("num_scenarios", "actor_tokens")] + [f"time/step_{n}_s" for n in ("eval", "wall", "actor")]
    for row in given:
        assert [row[name] for name in (*names, "costs/gpu")] == [7, 70, 50, 60, 35, 0.5] and row["data/step_num_trajectories"] == 1
    assert given[1]["throughput/avg_actor_tok_per_s"] == 2
    assert (test["data/step_num_scenarios"], test["data/step_actor_tokens"], test["time/step_actor_s"]) == (1, 2, 9)
    assert test["time/step_eval_s"] < 5 and test["data/cum/actor_tokens"] == 142


def test_sums_and_scenarios_continue_after_a_builder_was_used_before_register(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def main(run):
        model = art.Model(name="m", project="p")
        token = model.activate_metrics_context("train")  # while the model's folder is still that of `base_path`
        model.metrics_builder().register_model_pricing("x", prompt_per_million=1, completion_per_million=1)
        MetricsBuilder.get_active().add_cost("train/early", 1.0)
        backend = Folder(tmp_path / "elsewhere")
        await model.register(backend)
        for each in range(2):
            MetricsBuilder.get_active().add_cost("train/late", 2.0)
            model.metrics_builder().add_data(scenario_ids=["of both", f"{run} {each}"])
            await model.log(metrics={"reward": 1.0}, split="train", step=run)
            await model.register(backend)  # a cell that is run twice
        token.var.reset(token)
        return model.run_log.rows()

    asyncio.run(main(0))
    rows = asyncio.run(main(1))
    assert [row["costs/cum/all"] for row in rows] == [3, 5, 8, 10]
    assert [row["data/cum/num_unique_scenarios"] for row in rows] == [2, 3, 4, 5]


def test_the_training_view_shows_the_cost_and_no_other_total():
    row = {"step": 1, "split": "train", "reward": 0.5, "costs/all": 2.0, "costs/cum/all": 3.0, "time/step_wall_s": 1.0}
    view = TrainingView.from_history([{**row, "time": 0.0}, {**row, "step": 2, "costs/all": 2.5, "time": 1.0}])
    assert set(view.rows[0]) == {"step", "split", "reward", "costs/all", "time"}
    assert "Cost, US$" in view.static_html()


@track_api_cost(source="search", provider="openai", model_name="x")
async def search(usd):
    await asyncio.sleep(0)
    return {"usage": {"cost": usd}}


async def errand(usd, fails=False):
    """A rollout with three searches, some in tasks."""
    await search(usd)
    await asyncio.gather(*(asyncio.create_task(search(usd)) for _ in range(2)))
    if fails:
        raise ValueError("lost")
    return art.Trajectory(messages_and_choices=[{"role": "user", "content": "?"}], reward=usd, metrics={"costs/train/mail": 0.5})


def test_the_cost_of_concurrent_and_failed_rollouts_is_separate():
    builder = MetricsBuilder("train")

    async def outer():
        """A rollout that runs two others: their cost is part of its own."""
        inner = await art.gather_trajectories([errand(1), errand(2)], pbar_desc=None)
        assert [t.metrics["cost_usd"] for t in inner] == [3.5, 6.5]
        return art.Trajectory()

    async def pair():
        await search(8)
        return [art.Trajectory(), art.Trajectory()]

    async def main():
        with builder.activate_context():
            group = art.TrajectoryGroup([*(errand(i) for i in (1, 2, 4)), errand(100, fails=True), outer(), quiet()])
            (group,) = await art.gather_trajectory_groups([group], pbar_desc=None, max_exceptions=1)
            return group, await art.gather_trajectories([pair()], pbar_desc=None), await builder.flush()

    async def quiet():
        return art.Trajectory()

    group, (twins,), row = asyncio.run(main())
    assert [t.metrics.get("cost_usd") for t in group] == [3.5, 6.5, 12.5, 9.0, None]
    assert [t.metrics["cost_usd"] for t in twins] == [4.0, 4.0]
    assert row["costs/train/search"] == 3 * (1 + 2 + 4 + 100) + 9 + 8


def test_tokens_seconds_and_costs_by_rollout_in_history_and_view(base, tmp_path):  # noqa: F811
    async def main():
        model = await registered(base, tmp_path)

        async def rollout(i):
            question = [{"role": "user", "content": f"say {i}"}]
            ask = model.openai_client().chat.completions.create
            trajectory = art.Trajectory(reward=i % 2)
            said = [(await ask(messages=question, model=model.name, max_tokens=2 + i % 3)).choices[0] for _ in range(2)]
            await search(i)
            more = [art.trajectories.History(messages_and_choices=[*question, said[1]])]
            trajectory.messages_and_choices, trajectory.additional_histories = [*question, said[0]], more
            return trajectory.finish() if i == 1 else trajectory

        with model.metrics_builder("train").activate_context():
            groups = await art.gather_trajectory_groups([art.TrajectoryGroup(rollout(i) for i in range(4))], pbar_desc=None)
        await model.train(groups, art.TrainConfig(learning_rate=5e-2))
        checked = await art.gather_trajectory_groups([art.TrajectoryGroup(rollout(i) for i in range(2))], pbar_desc=None)
        await model.log(checked)
        return model, groups[0]

    model, group = asyncio.run(main())
    train, val = model.history().to_dict("records")
    counted = [sum(len(c.token_ids) for c in (*t.choices(), *t.additional_histories[0].choices())) for t in group]
    assert [t.metrics["sampled_tokens"] for t in group] == counted
    assert train["sampled_tokens"] == sum(counted) / 4 and train["data/step_actor_tokens"] == sum(counted)
    taken = [t.metrics["duration"] if i == 1 else t.rollout_span[1] - t.rollout_span[0] for i, t in enumerate(group)]
    assert train["duration"] == pytest.approx(sum(taken) / 4) and min(taken) > 0
    assert not any("duration" in group.trajectories[i].metrics for i in (0, 2, 3))  # seconds are not stored in trajectories
    assert train["cost_usd"] == (0 + 1 + 2 + 3) / 4 and train["costs/train/search"] == train["costs/all"] == 6
    assert math.isnan(val["cost_usd"]) and val["duration"] > 0  # no price was given
    assert math.isnan(val["throughput/avg_actor_tok_per_s"])  # the next training row has the seconds of these tokens
    assert val["time/step_eval_s"] >= val["duration"] and math.isnan(train["time/step_eval_s"])
    table = model.trajectories("train")
    assert list(table.sampled_tokens) == counted and list(table.cost_usd) == [0, 1, 2, 3]
    page = TrainingView.from_history(model.history()).static_html()
    assert all(name in page for name in ("Tokens per rollout", "Seconds per rollout", "Cost per rollout, US$"))


def test_an_unknown_price_raises():
    builder = MetricsBuilder("train")
    answer = {"usage": {"prompt_tokens": 1_000_000, "completion_tokens": 0}}
    with pytest.raises(ValueError, match="no price is known"):
        builder.add_response_cost("a", answer, provider="openai", model_name="nobody/knows-it")
    with pytest.raises(ValueError, match="no token counts"):
        builder.add_response_cost("a", {}, provider="openai", model_name="gpt-4o-mini")
    listed = listed_pricing("openai/gpt-4o-mini")
    assert builder.add_response_cost("a", answer, provider="openai", model_name="openai/gpt-4o-mini") == listed.prompt_per_million
    said = SimpleNamespace(usage=None, _hidden_params={"response_cost": 0.125})
    assert builder.add_response_cost("a", said, provider="openai", model_name="nobody/knows-it") == 0.125
    assert asyncio.run(builder.flush())["costs/train/a"] == listed.prompt_per_million + 0.125
    with pytest.raises(LookupError):
        MetricsBuilder.get_active()


@NEEDS_LITELLM
def test_another_providers_price_of_a_model_of_the_same_name_is_not_used():
    litellm = load_litellm()
    names = "openai/gpt-4o anthropic/claude-sonnet-4-5 vertex_ai/gemini-2.5-pro bedrock/amazon.nova-pro-v1:0 cohere/command-r-08-2024 gpt-4o"
    for name in names.split():
        listed, priced = listed_pricing(name), litellm.cost_per_token(model=name, prompt_tokens=1000, completion_tokens=1000)
        assert (listed.prompt_per_million, listed.completion_per_million) == pytest.approx([usd * 1000 for usd in priced])
    assert litellm.model_cost["deepseek-chat"]["input_cost_per_token"] and listed_pricing("hosted_vllm/deepseek-chat") is None
    assert listed_pricing("ollama/gpt-4o") is None and listed_pricing("nobody/knows-it") is None
    assert listed_pricing("openai/gpt-3.5-turbo-instruct"), "its provider in the table is text-completion-openai"


@NEEDS_LITELLM
def test_cached_tokens_of_anthropic_are_counted_once_in_its_own_form_and_in_litellms():
    usage = {"input_tokens": 70, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 1000, "output_tokens": 5}
    converted = load_litellm().AnthropicConfig().calculate_usage(usage, reasoning_content=None)
    assert converted.prompt_tokens == 1100
    own, litellms = (counted_tokens({"usage": each}, "anthropic") for each in (usage, converted))
    cached = {"cache_creation_per_million": 30, "cache_read_per_million": 1000}
    assert own == litellms == cached | {"prompt_per_million": 70, "completion_per_million": 5}


def test_a_group_is_trainable_if_the_trainer_finds_a_signal_in_it():
    def played(reward, turn_rewards):
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
        answers = [Choice.model_validate(choice) for _ in turn_rewards or [0]]
        question = {"role": "user", "content": "?"}
        return art.Trajectory(messages_and_choices=[question, *answers], reward=reward, turn_rewards=turn_rewards)

    plain, by_turn = [(1, None), (0, None)], [(1, [0, 1]), (1, [1, 0])]
    silent = [[(1, None)] * 2, [(1, [0, 1])] * 2, [(1, [1]), (0, [1])], [(0, [0]), (0, [0, 0])]]
    for members, expected in [(plain, 1), (by_turn, 1), *((each, 0) for each in silent)]:
        group = art.TrajectoryGroup([played(*each) for each in members])
        (unscaled,) = compute_advantages([group], art.TrainConfig(scale_rewards="none"))
        assert counts([group], "train")["data/step_num_groups_trainable"] == has_signal(group, unscaled) == expected, members


def test_a_single_trajectory_is_one_group():
    (group,) = as_groups(trajectory := art.Trajectory(reward=2))
    assert group.trajectories == [trajectory] and summary([group])["reward"] == 2


def test_given_prices_do_not_load_litellm(monkeypatch):
    looked = []
    monkeypatch.setattr("art_nb.api_costs.listed_pricing", looked.append)
    builder, given = MetricsBuilder("train"), {"prompt_price_per_million": 2, "completion_price_per_million": 10}
    usage = {"prompt_tokens": 400_000, "completion_tokens": 100_000}

    def cost(**more):
        answer = {"usage": usage | more}
        return builder.add_response_cost("a", answer, provider="openai", model_name="gpt-4o-mini", **given)

    assert cost() == cost(prompt_tokens_details={"cached_tokens": 0}) == 1.8 and not looked
    assert cost(prompt_tokens_details={"cached_tokens": 9}) == 1.8 and looked == ["gpt-4o-mini"]  # the table has a price for cached tokens


def test_async_functions_and_invalid_names():
    builder = MetricsBuilder("eval")

    @track_api_cost(source="judge", provider="openai", model_name="m", response_getter=lambda pair: pair[1])
    async def ask():
        return "text", {"usage": {"cost": 0.5}}

    async def main():
        assert (await ask())[0] == "text"  # no active builder
        with builder.activate_context():
            await asyncio.gather(ask(), asyncio.create_task(ask()))
        return await builder.flush(), await builder.flush()

    assert asyncio.run(main()) == (
        {**{f"costs/{name}": 1.0 for name in ("eval/judge", "eval", "all")}, **{f"costs/cum/{name}": 1.0 for name in ("eval/judge", "eval", "all")}}, {},
    )  # fmt: skip
    for bad in ("reward", "data/cum/x", "/x", "x/"):
        with pytest.raises(ValueError, match="section/name"):
            builder.add_metric(bad, 1)
    builder.add_metric("time/a/b", 1)
    for clash in ("time/a", "time/a/b/c"):
        with pytest.raises(ValueError, match="part of"):
            builder.add_metric(clash, 1)
