"""Models: logging, reading the log, and the calls to their backend (here a stand-in)."""

import asyncio
import json
import math

import pytest

import art_nb as art
from art_nb.types import LocalTrainResult


class RecordingBackend:
    """Counts steps and records its calls."""

    def __init__(self, path):
        self.path, self.step, self.received = path, 0, []

    async def register(self, model):
        self.received.append("register")

    async def _prepare_backend_for_training(self, model, config=None):
        return None, None

    def output_dir(self, model):
        return self.path / model.project / "models" / model.name

    def client(self, model):
        return f"client of {model.name}"

    async def _get_step(self, model):
        return self.step

    def _model_inference_name(self, model, step=None):
        return f"{model.name}@{self.step if step is None else step}"

    async def train(self, model, trajectory_groups, *, config=None, **options):
        self.step += 1
        self.received.append((config, options))
        return LocalTrainResult(self.step, {"loss": 0.5})

    async def _delete_checkpoint_files(self, model, steps_to_keep):
        self.received.append(steps_to_keep)


@pytest.fixture
def backend(tmp_path):
    return RecordingBackend(tmp_path)


@pytest.fixture
def model(backend):
    model = art.TrainableModel(name="agent", project="p", base_model="some/folder")
    asyncio.run(model.register(backend))
    return model


def trajectory(reward, **metrics):
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "x"}], reward=reward, metrics=metrics
    )


def groups():
    return [
        art.TrajectoryGroup([trajectory(0.0, won=False, moves=4), trajectory(2.0, won=True, moves=8)]),
        art.TrajectoryGroup([trajectory(1.0, won=True), ValueError("broke")], metrics={"seed": 7}),
    ]


def log(model, *args, **options):
    asyncio.run(model.log(*args, **options))


# -- logging


def test_a_row_summarises_the_groups(model, tmp_path):
    log(model, groups(), split="val", step=3, metrics={"seconds": 1.5})
    (row,) = map(json.loads, (tmp_path / "p/models/agent/history.jsonl").read_text().splitlines())
    assert row.pop("time") > 0
    totals = {name: row.pop(name) for name in list(row) if "/" in name}
    assert totals["data/step_num_trajectories"] == totals["data/cum/num_trajectories"] == row["trajectories"] + row["exceptions"]
    assert row == {
        "step": 3,
        "split": "val",
        "reward": 1.0,
        "reward_min": 0.0,
        "reward_max": 2.0,
        "reward_std": pytest.approx(math.sqrt(2)),
        "group_rewards": [[0.0, 2.0], [1.0]],
        "groups": 2,
        "trajectories": 3,
        "exceptions": 1,
        "won": pytest.approx(2 / 3),
        "moves": 6.0,
        "group_seed": 7.0,
        "seconds": 1.5,
    }


def test_trajectories_are_stored_as_records(model, tmp_path):
    log(model, groups(), split="train", step=12)
    assert (tmp_path / "p/models/agent/trajectories/train/0012.jsonl").exists()
    records = model.records()
    assert [(r["step"], r["split"], r["group"], r["index"], r["reward"]) for r in records] == [
        (12, "train", 0, 0, 0.0),
        (12, "train", 0, 1, 2.0),
        (12, "train", 1, 0, 1.0),
    ]


def test_logging_a_step_again_replaces_its_trajectories(model):
    log(model, groups(), step=1)
    log(model, [trajectory(5.0)], step=1)
    assert [r["reward"] for r in model.records("val", 1)] == [5.0]


def test_records_by_split_and_step(model):
    for split, step in (("val", 2), ("train", 10), ("train", 9), ("val", 10)):
        log(model, [trajectory(float(step))], split=split, step=step)
    where = [(r["split"], r["step"]) for r in model.records()]
    assert where == [("train", 9), ("train", 10), ("val", 2), ("val", 10)]
    assert [r["step"] for r in model.records("val")] == [2, 10]
    assert [r["split"] for r in model.records(step=10)] == ["train", "val"]
    assert model.records("test") == []


def test_loose_trajectories_are_one_group(model):
    log(model, [trajectory(1.0), ValueError("x"), trajectory(3.0)])
    row = model.history().iloc[0]
    assert (row["groups"], row["trajectories"], row["exceptions"], row["step"]) == (1, 2, 1, 0)


def test_groups_mixed_with_trajectories_raise(model):
    with pytest.raises(TypeError, match="got Trajectory, TrajectoryGroup"):
        log(model, [trajectory(1.0), groups()[0]])


def test_metrics_alone(model):
    log(model, metrics={"loss": 0.25}, split="train", step=4)
    log(model)
    history = model.history()
    assert list(history.columns) == ["step", "split", "time", "loss"]
    assert list(history["loss"]) == [0.25] and model.records() == []


def test_the_history_of_a_new_model_is_an_empty_table(model):
    assert list(model.history().columns) == ["step", "split", "time"] and len(model.history()) == 0
    assert len(model.trajectories()) == 0


def test_non_finite_numbers_round_trip(model):
    log(model, [trajectory(math.nan, x=math.inf)], metrics={"loss": -math.inf, "list": [[math.nan]]})
    row = model.history().iloc[0]
    assert math.isnan(row["reward"]) and (row["x"], row["loss"]) == (math.inf, -math.inf)
    assert math.isnan(row["list"][0][0])
    table = model.trajectories()
    assert math.isnan(table["reward"][0]) and table["x"][0] == math.inf


def test_trajectory_table(model):
    t = trajectory(1.0, won=True)
    t.metadata = {"seed": 3, "temperature": math.nan}
    log(model, [t], split="train", step=2)
    row = model.trajectories("train", 2).iloc[0]
    assert math.isnan(row["temperature"])
    assert (row["step"], row["split"], row["seed"], row["won"], row["reward"]) == (2, "train", 3, 1, 1.0)
    assert row["turns"][0]["content"] == "x"


@pytest.mark.parametrize("split", ["../val", "a/b", ""])
def test_an_invalid_split_raises(model, split):
    with pytest.raises(ValueError, match="split"):
        log(model, [trajectory(1.0)], split=split)


def test_a_numpy_number_is_a_number(model):
    numpy = pytest.importorskip("numpy")
    log(model, metrics={"loss": numpy.float32(0.5), "n": numpy.int64(3)})
    assert (model.history()["loss"][0], model.history()["n"][0]) == (0.5, 3)


# -- the model and its backend


def test_before_register(tmp_path):
    model = art.TrainableModel(name="a", project="p", base_model="b", base_path=str(tmp_path))
    for ask in (model.openai_client, model.backend):
        with pytest.raises(ValueError, match="call `await model.register"):
            ask()
    with pytest.raises(ValueError, match="register"):
        asyncio.run(model.get_step())
    assert model.inference_base_url is None and model.inference_api_key is None
    assert model.read_state() is None


def test_a_failed_register_leaves_the_model_unregistered(tmp_path):
    class BrokenBackend(RecordingBackend):
        async def register(self, model):
            raise OSError("disk full")

    model = art.Model(name="a", project="p")
    with pytest.raises(OSError):
        asyncio.run(model.register(BrokenBackend(tmp_path)))
    with pytest.raises(ValueError, match="no backend"):
        model.backend()


def test_registered(model, backend):
    assert model.backend() is backend
    assert model.openai_client() == "client of agent"
    assert asyncio.run(model.get_step()) == 0


def test_train_passes_config_and_groups_to_the_backend(model, backend):
    result = asyncio.run(model.train(groups(), art.TrainConfig(learning_rate=1e-3), _config={"epsilon": 0.1}))
    config = backend.received[-1][0]
    assert result.step == 1 and result.metrics == {"loss": 0.5}
    assert config.learning_rate == 1e-3 and config.grpo == {"epsilon": 0.1}
    asyncio.run(model.train(groups()))
    assert "learning_rate" not in backend.received[-1][0].model_fields_set


def test_delete_checkpoints_keeps_the_best_and_the_latest(model, backend):
    backend.step = 5
    for step, reward in ((1, 0.5), (2, 2.0), (2, 0.0), (3, 1.0), (4, 1.0), (5, 0.9)):
        log(model, [trajectory(reward)], step=step)
    log(model, [trajectory(9.0)], split="train", step=1)
    log(model, [trajectory(math.nan)], step=5)
    asyncio.run(model.delete_checkpoints())
    assert backend.received[-1] == [4, 5]
    asyncio.run(model.delete_checkpoints("train/reward"))
    assert backend.received[-1] == [1, 5]


def test_delete_checkpoints_without_a_best_step_warns(model, backend):
    with pytest.warns(UserWarning, match="'val/reward' was not logged for any kept step: all .* but the latest are deleted"):
        asyncio.run(model.delete_checkpoints())
    assert backend.received[-1] == [0]
    with pytest.raises(ValueError, match='"val/reward"'):
        asyncio.run(model.delete_checkpoints("reward"))


def test_state(model, tmp_path):
    assert model.read_state() is None
    model.overwrite_state({"step": 1, "data": {"epoch": 2, "at": [1]}})
    assert model.merge_state({"data": {"epoch": 3}, "more": True}) == model.read_state()
    assert model.read_state() == {"step": 1, "data": {"epoch": 3, "at": [1]}, "more": True}


# -- prompted models, names


def test_a_prompted_model(tmp_path):
    model = art.Model(
        name="judge",
        project="p",
        inference_api_key="key",
        inference_base_url="http://localhost:1/v1",
        inference_model_name="org/judge-7b",
        base_path=str(tmp_path),
    )
    client = model.openai_client()
    assert client is model.openai_client() and str(client.base_url) == "http://localhost:1/v1/"
    assert asyncio.run(model.get_step()) == 0 and not model.trainable
    log(model, [trajectory(1.0)])
    assert (tmp_path / "p/models/judge/history.jsonl").exists()
    assert model.litellm_completion_params() == {
        "model": "org/judge-7b",
        "base_url": "http://localhost:1/v1",
        "api_key": "key",
        "temperature": 1,
    }


def test_a_prompted_model_without_a_server():
    with pytest.raises(ValueError, match="needs an inference_base_url"):
        art.Model(name="a", project="p").openai_client()


def test_inference_names(model, backend):
    backend.step = 5
    assert model.get_inference_name() == "agent@5" and model.get_inference_name(step=3) == "agent@3"
    assert model.litellm_completion_params(step=3)["model"] == "hosted_vllm/agent@3"
    unregistered = art.TrainableModel(name="agent", project="p", base_model="b")
    assert unregistered.get_inference_name() == "agent" and unregistered.get_inference_name(3) == "agent@3"


def test_a_model_with_a_config():
    import pydantic

    class Config(pydantic.BaseModel):
        turns: int = 10

    model = art.Model[Config](name="a", project="p", config=Config(turns=3))
    assert model.config.turns == 3
    assert art.TrainableModel(name="a", project="p", base_model="b", config=Config()).config.turns == 10


def test_an_unknown_argument_raises():
    with pytest.raises((TypeError, ValueError), match="inference_url"):
        art.Model(name="a", project="p", inference_url="x")


def test_models_serialize():
    model = art.TrainableModel(
        name="a", project="p", base_model="b", _internal_config={"peft_args": {"r": 8}}
    )
    assert json.loads(model.model_dump_json())["base_model"] == "b"
    assert model._internal_config == {"peft_args": {"r": 8}}
