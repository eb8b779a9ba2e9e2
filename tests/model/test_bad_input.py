"""Bad input to registering, gathering, training and logging is refused before anything is computed or written."""

import asyncio
import json
import math

import numpy as np
import pytest
from openai.types.chat.chat_completion import Choice
from tiny_models import make_checkpoint

import art_nb as art
from art_nb.api_costs import load_litellm
from art_nb.local import LocalBackend

ASKED = {"role": "user", "content": "left or right?"}
ANSWERED = Choice(index=0, finish_reason="stop", message={"role": "assistant", "content": "left"})
OTHER = ANSWERED.model_copy(update={"message": ANSWERED.message.model_copy(update={"content": "right"})})
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
    (lambda: None, "got NoneType"), (lambda: "abc", "got str"), (trajectory, "got Trajectory"), (lambda: {"a": 1}, "got dict"), (lambda: [[trajectory()]], "got list"),
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
    ("messages_and_choices", ["hi", ANSWERED], "messages_and_choices contains 'hi': expected a dict like"),
    ("messages_and_choices", [{"content": "hi"}, ANSWERED], "messages_and_choices contains .*: expected a dict like"),
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
    ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0: expected a number >= 0"),
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
        (lambda: model.train(pair(), art.TrainConfig(grpo={"router_aux_loss_coef": 0.1})), "not a Mixture-of-Experts"),
    ):
        with pytest.raises(ValueError, match=words):
            asyncio.run(call())
    assert unchanged(model)
    assert asyncio.run(model.train_sft([DEMONSTRATION])).step == 2


@pytest.mark.parametrize("rate", [1e38, 1e20])  # infinite weights; weights whose products are infinite
def test_a_step_that_makes_weights_too_large_is_undone(model, rate):
    with pytest.raises(FloatingPointError, match="made weights too large: lower the rate"):
        asyncio.run(model.train(changed("messages_and_choices", [ASKED, OTHER]), art.TrainConfig(learning_rate=rate)))
    assert unchanged(model)


def test_a_bare_learner_that_trl_refuses_leaves_accelerate_usable(model, tmp_path):
    from art_nb.training.learner import Learner

    with pytest.raises(ValueError, match="not a Mixture-of-Experts"):
        Learner(model.backend().loaded(model).policy, grpo={"router_aux_loss_coef": 0.1}, output_dir=str(tmp_path))
    assert unchanged(model)


@pytest.mark.parametrize(("options", "words"), [
    ({"slots": 0}, "slots is 0: expected an integer from 1"), ({"slots": 2.5}, "slots is 2.5"), ({"seed": None}, "seed is None"), ({"seed": 2**63}, "expected an integer from"),
    ({"gpu_cost_per_hour_usd": "x"}, "gpu_cost_per_hour_usd is 'x'"), ({"gpu_cost_per_hour_usd": -1}, "expected US dollars"),
])  # fmt: skip
def test_wrong_options_of_a_backend(tmp_path, options, words):
    for backend in (LocalBackend, art.RayBackend):  # before Ray starts
        with pytest.raises(ValueError, match=words):
            backend(path=tmp_path, **options)


def test_wrong_arguments_of_a_model():
    for options, words in (
        ({"monitors": ["wandb"]}, r"monitors contain \['wandb'\]: expected e\.g\. WandbMonitor"),
        ({"monitors": [art.monitoring.WandbMonitor]}, r"monitors contain .*: expected e\.g\. WandbMonitor"),
    ):
        with pytest.raises(ValueError, match=words):
            art.TrainableModel(name="m", project="p", base_model="b", **options)
    with pytest.warns(UserWarning, match="only init_args, .* are known; no effect: lora"):  # or one of ART's that is not read
        art.TrainableModel(name="m", project="p", base_model="b", _internal_config={"lora": {"r": 4}})
    for backend in (LocalBackend, "local", None):
        with pytest.raises(TypeError, match="expected an instance, e.g. `await model.register"):
            asyncio.run(art.Model(name="m", project="p").register(backend))


def test_log_refuses_before_it_writes(tmp_path):
    model = art.Model(name="m", project="p", base_path=str(tmp_path))
    for options, error, words in (
        ({"step": -1}, ValueError, "step is -1: expected a non-negative integer"), ({"step": 1.5}, ValueError, "step is 1.5"),
        ({"metrics": {"time": 9}}, ValueError, "metrics contain time: `log` sets these itself"), ({"metrics": {"a": object()}}, TypeError, ""),
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


async def played_for(reward, **fields):
    found = trajectory(**fields)
    found.reward = reward
    return found


def test_a_rollout_must_return_a_numeric_reward():
    for reward in (None, "1"):
        with pytest.raises(TypeError, match=f"reward={reward!r}: expected numbers"):
            asyncio.run(art.gather_trajectories([played_for(reward)]))


def test_what_other_libraries_pass_is_accepted(base, tmp_path):
    """LiteLLM's messages, numpy's scalars, infinity for no limit, generators, options of TRL that have no effect."""
    load_litellm()  # which downloads nothing
    from litellm.types.utils import Message

    backend = LocalBackend(path=tmp_path, engine="transformers", seed=np.int64(3), slots=np.int64(8), gpu_cost_per_hour_usd=np.float32(2.5))
    model = art.TrainableModel(name="m", project="p", base_model=base)
    asyncio.run(model.register(backend))
    groups = changed("messages_and_choices", [Message(role="user", content="left or right?"), ANSWERED])
    grpo = {"epsilon_high": math.inf, "max_grad_norm": np.float32(0.5), "warmup_ratio": 0.1}
    with pytest.warns(UserWarning, match="no effect here: warmup_ratio"):
        assert asyncio.run(model.train((each for each in groups), art.TrainConfig(grpo=grpo))).step == 1
    with pytest.warns(UserWarning, match="no effect here: warmup_ratio"):
        assert asyncio.run(model.train_sft(iter([DEMONSTRATION]), art.TrainSFTConfig(sft={"warmup_ratio": 0.1}))).step == 2
    asyncio.run(model.log([trajectory()], step=np.int64(2)))
    assert model.records("val")[0]["step"] == 2


def test_a_wrong_message_of_a_demonstration_names_it(model):
    with pytest.raises(ValueError, match="trajectory 0: messages_and_choices contains 'hi'"):
        asyncio.run(model.train_sft(changed("messages_and_choices", ["hi", ANSWERED])[0].trajectories[1:]))
    assert unchanged(model)


def test_a_metric_does_not_hide_the_reward():
    with pytest.raises(TypeError, match="reward=None"):
        asyncio.run(art.gather_trajectories([played_for(None, metrics={"reward": 1.0})]))
