"""Bad input to registering, gathering, training and logging is refused before anything is computed or written."""

import asyncio
import json
import math

import numpy as np
import pytest
from openai.types.chat.chat_completion import Choice
from tiny_models import make_checkpoint

import art_nb as art
from art_nb.local import LocalBackend

ASKED = {"role": "user", "content": "left or right?"}
ANSWERED = Choice(index=0, finish_reason="stop", message={"role": "assistant", "content": "left"})
DEMONSTRATION = art.Trajectory(messages_and_choices=[ASKED, {"role": "assistant", "content": "left"}])


def trajectory(reward=1.0, **fields):
    return art.Trajectory(messages_and_choices=[ASKED, ANSWERED], reward=reward, **fields)


def changed(name, value):
    """Return a group in which a field of the second trajectory was set after its construction, without validation."""
    found = [trajectory(0.0), trajectory(1.0)]
    setattr(found[1], name, value)
    return [art.TrajectoryGroup(found)]


def pair():
    return [art.TrajectoryGroup([trajectory(0.0), trajectory(1.0)])]


async def played():
    return trajectory()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(make_checkpoint(tmp_path_factory.mktemp("base")))


@pytest.fixture
def model(base, tmp_path):
    model = art.TrainableModel(name="m", project="p", base_model=base)
    asyncio.run(model.register(LocalBackend(path=tmp_path, engine="transformers")))
    return model


def unchanged(model):
    """Return whether the model is at step 0 with nothing logged, and still learns."""
    before = asyncio.run(model.get_step()), len(model.history()), model.records()
    return before == (0, 0, []) and asyncio.run(model.train(pair())).step == 1


@pytest.mark.parametrize(("groups", "words"), [
    (lambda: [trajectory(), trajectory()], "expected a list of TrajectoryGroup, got Trajectory"),
    (lambda: pair()[0], "expected a list of TrajectoryGroup, got TrajectoryGroup"),
    (lambda: [art.TrajectoryGroup([played(), played()])], "got PendingGroup: gather them first"),
    (lambda: None, "got NoneType"), (lambda: "abc", "got str"), (lambda: [[trajectory()]], "got list"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:coroutine")
def test_train_names_what_it_got_in_place_of_groups(model, groups, words):
    with pytest.raises(TypeError, match=words):
        asyncio.run(model.train(groups()))
    assert unchanged(model)


def test_train_sft_names_what_it_got_in_place_of_trajectories(model):
    for given, words in ((DEMONSTRATION, "got Trajectory"), (pair(), "got TrajectoryGroup"), (None, "got NoneType")):
        with pytest.raises(TypeError, match=f"expected a list of Trajectory, {words}"):
            asyncio.run(model.train_sft(given))
    assert unchanged(model)


def test_a_config_of_another_type_is_refused(model):
    for call in (
        lambda: model.train(pair(), {"learning_rate": 1e-3}), lambda: model.train(pair(), art.TrainSFTConfig()),
        lambda: model.train_sft([DEMONSTRATION], art.TrainConfig()), lambda: model.backend().train(model, pair(), config=1e-3),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"config is .*: expected art.Train(SFT)?Config\(\.\.\.\)"):
            asyncio.run(call())
    assert unchanged(model)


@pytest.mark.parametrize(("name", "value", "words"), [
    ("reward", None, "reward is None, not a finite number"), ("reward", "1", "reward is 1, not a finite number"),
    ("messages_and_choices", ["hi", ANSWERED], r"messages_and_choices\[0\] is 'hi': expected a dict like"),
    ("messages_and_choices", [{"content": "hi"}, ANSWERED], r"messages_and_choices\[0\] is .*: expected a dict like"),
    ("messages_and_choices", [ASKED | {"content": "left " * 200}, ANSWERED], "tokens, the model's context has 512: shorten it"),
])  # fmt: skip
def test_a_field_that_was_set_to_something_wrong_names_its_trajectory(model, name, value, words):
    with pytest.raises(ValueError, match=f"group 0, trajectory 1.* {words}"):
        asyncio.run(model.train(changed(name, value)))
    assert unchanged(model)


def test_metadata_of_numpy_are_written_as_json(model):
    asyncio.run(model.train(changed("metadata", {"seed": np.int64(3), "share": np.float32(0.5), "won": np.bool_(True)})))
    assert model.records()[1]["metadata"] == {"seed": 3, "share": 0.5, "won": True}


@pytest.mark.parametrize(("grpo", "words"), [
    ({"no_such_option": 1}, "trl.GRPOConfig has no option no_such_option"),
    ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0: expected a number from 0"),
    ({"epsilon": "a"}, "epsilon is 'a'"), ({"temperature": math.nan}, "temperature is nan"),
])  # fmt: skip
def test_a_wrong_option_of_trl_leaves_model_and_backend_usable(model, grpo, words):
    with pytest.raises(ValueError, match=words):
        asyncio.run(model.train(pair(), art.TrainConfig(grpo=grpo)))
    assert unchanged(model)


def test_an_option_that_trl_refuses_leaves_model_and_backend_usable(model):
    """A trainer's constructor resets Accelerate's state before TRL checks its options."""
    for call, words in (
        (lambda: model.train_sft([DEMONSTRATION], art.TrainSFTConfig(sft={"loss_type": "zz"})), "zz"),
        (lambda: model.train(pair(), art.TrainConfig(grpo={"loss_type": "zz"})), "zz"),
        (lambda: model.train(pair(), art.TrainConfig(grpo={"reward_weights": [1, 2]})), "reward weights"),
    ):
        with pytest.raises(ValueError, match=words):
            asyncio.run(call())
    assert unchanged(model)
    assert asyncio.run(model.train_sft([DEMONSTRATION])).step == 2


def test_a_step_that_makes_infinite_weights_is_undone(model):
    with pytest.raises(FloatingPointError, match="not finite after a step with learning rate 1e[+]38: lower it"):
        asyncio.run(model.train(pair(), art.TrainConfig(learning_rate=1e38)))
    assert unchanged(model)


@pytest.mark.parametrize(("options", "words"), [
    ({"slots": 0}, "slots is 0: expected an integer from 1"), ({"slots": 2.5}, "slots is 2.5"), ({"seed": None}, "seed is None"),
    ({"gpu_cost_per_hour_usd": "x"}, "gpu_cost_per_hour_usd is 'x'"), ({"gpu_cost_per_hour_usd": -1}, "expected US dollars"),
])  # fmt: skip
def test_wrong_options_of_a_backend(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        LocalBackend(path=tmp_path, **options)


def test_wrong_arguments_of_a_model():
    for options, words in (
        ({"_internal_config": {"lora": {"r": 4}}}, "_internal_config contains lora: expected some of init_args, peft_args"),
        ({"monitors": ["wandb"]}, r"monitors contain \['wandb'\]: expected for example WandbMonitor"),
    ):
        with pytest.raises(ValueError, match=words):
            art.TrainableModel(name="m", project="p", base_model="b", **options)
    for backend in (LocalBackend, "local", None):
        with pytest.raises(TypeError, match="expected an instance, e.g. `await model.register"):
            asyncio.run(art.Model(name="m", project="p").register(backend))


def test_log_refuses_before_it_writes(tmp_path):
    model = art.Model(name="m", project="p", base_path=str(tmp_path))
    for options, error, words in (
        ({"step": -1}, ValueError, "step is -1: expected an integer from 0"), ({"step": 1.5}, ValueError, "step is 1.5"),
        ({"metrics": {"step": 9}}, ValueError, "metrics contain step"), ({"metrics": {"a": object()}}, TypeError, ""),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            asyncio.run(model.log([trajectory()], **options))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    asyncio.run(model.log([trajectory()], step=2, metrics={"a": 1}))
    assert [json.loads(line)["step"] for line in (model.run_log.folder / "history.jsonl").read_text().splitlines()] == [2]


def test_after_each_must_return_groups():
    with pytest.raises(TypeError, match="after_each returned Trajectory: expected a TrajectoryGroup"):
        asyncio.run(art.gather_trajectory_groups([art.TrajectoryGroup([played()])], after_each=returns_a_trajectory))


async def returns_a_trajectory(group):
    return group.trajectories[0]


async def played_for(reward):
    found = trajectory()
    found.reward = reward
    return found


def test_a_rollout_must_return_a_numeric_reward():
    for reward in (None, "1"):
        with pytest.raises(TypeError, match=f"reward={reward!r}: expected numbers"):
            asyncio.run(art.gather_trajectories([played_for(reward)]))
