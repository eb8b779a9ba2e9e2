"""A model from registration to checkpoints: the files of a step, and the state after an error or an interrupt."""

import asyncio
import gc
import json
import math
import os
import random
import subprocess
import sys
import warnings
import weakref
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from tiny_models import make_checkpoint

import art_nb as art
from art_nb.backends import loaded_model
from art_nb.backends.local import LocalBackend
from art_nb.storage import checkpoints
from art_nb.storage.run_log import RunLog
from art_nb.types import TrainConfig

METRICS = [
    "reward", "reward_std", "reward_min", "reward_max", "kl", "entropy", "clip_fraction", "ratio_min", "ratio_max",
    "grad_norm", "loss", "learning_rate", "rollout_tokens_per_s", "train_tokens_per_s", "rollout_s", "train_s",
    "save_s", "groups", "groups_without_signal", "trajectories", "tokens_trained", "evens",
]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(make_checkpoint(tmp_path_factory.mktemp("base")))


async def registered(base, path, *, name="m", peft=None, trainer=None, **options):
    backend = LocalBackend(path=path, engine="transformers", **options)
    internal = {"peft_args": {"r": 4, "lora_alpha": 8} | (peft or {}), "trainer_args": trainer or {}}
    model = art.TrainableModel(name=name, project="p", base_model=base, _internal_config=internal)
    await model.register(backend)
    return model


async def rollout(model, scenario, turns=2):
    """Play a conversation whose reward is the share of even bytes in the model's answers."""
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": f"say {scenario}"}])
    client = model.openai_client()
    for turn in range(turns):
        answer = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=6
        )
        trajectory.messages_and_choices += [answer.choices[0], {"role": "user", "content": f"more {turn}"}]
    letters = [ord(c) for choice in trajectory.choices() for c in choice.message.content]
    trajectory.reward = sum(x % 2 == 0 for x in letters) / max(len(letters), 1)
    trajectory.metrics["evens"] = trajectory.reward
    return trajectory


async def gather(model, step, groups=2, size=4):
    return await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(model, f"{step} {g}") for _ in range(size)) for g in range(groups)],
        pbar_desc=None,
    )


async def run(model, until, between=None):
    """Run the training loop of a notebook; `between` is called after each step."""
    for step in range(await model.get_step(), until):
        await model.train(await gather(model, step), TrainConfig(learning_rate=5e-2))
        if between:
            await between(step)


def adapter(path, step, name="m"):
    return (path / "p/models" / name / f"checkpoints/{step:04d}/adapter_model.safetensors").read_bytes()


def state_of(model):
    """Return the weights, the optimizer's moments and all files, to compare."""
    running = model.backend().loaded(model)
    weights = {n: p.detach().clone() for n, p in running.policy.model.named_parameters()}
    files = {f: f.read_bytes() for f in sorted(running.folder.rglob("*")) if f.is_file()}
    return weights, moments(running.learner), files


def moments(learner):
    """Return the optimizer's moments as bytes."""
    state = learner.optimizer.state_dict()["state"]
    return {(i, name): value.numpy().tobytes() for i, each in state.items() for name, value in each.items()}


def assert_unchanged(before, after):
    assert before[0].keys() == after[0].keys()
    assert all(torch.equal(weight, after[0][name]) for name, weight in before[0].items())
    assert before[1:] == after[1:]


def test_the_seconds_of_a_step_begin_with_its_first_gather_call(base, tmp_path):
    def tokens(trajectories):
        return sum(len(choice.token_ids) for t in trajectories for choice in t.choices())

    async def main():
        model, total = await registered(base, tmp_path), (0, 0.0)
        for step in range(2):
            await asyncio.gather(*(rollout(model, f"not logged {i}") for i in range(12)))
            groups = await gather(model, step)
            validation = await art.gather_trajectories([rollout(model, f"validation {i}") for i in range(3)], pbar_desc=None)
            await model.log(validation, split="val")
            row = (await model.train(groups, TrainConfig())).metrics
            sampled = tokens(validation) + sum(map(tokens, groups))
            assert row["rollout_s"] * row["rollout_tokens_per_s"] == pytest.approx(sampled)
            total = total[0] + sampled, total[1] + row["rollout_s"]
        last = model.history().query("split == 'train'").iloc[-1]
        assert last["throughput/avg_actor_tok_per_s"] == pytest.approx(total[0] / total[1])  # the same tokens and seconds

    asyncio.run(main())


def test_a_step_reports_all_metrics(base, tmp_path):
    async def main():
        model = await registered(base, tmp_path)
        assert await model.get_step() == 0
        groups = await gather(model, 0, groups=3)
        for trajectory in groups[1]:
            trajectory.reward = 0.5
        result = await model.train(groups, TrainConfig(learning_rate=1e-2))
        assert await model.get_step() == result.step == 1
        return model, groups, result

    model, groups, result = asyncio.run(main())
    [row] = model.history().to_dict("records")
    for name in METRICS:
        assert math.isfinite(result.metrics[name]), name
        assert row[name] == pytest.approx(result.metrics[name]), name
    rewards = [[t.reward for t in group] for group in groups]
    assert row["step"] == 1 and row["split"] == "train" and row["group_rewards"] == rewards
    assert row["reward"] == pytest.approx(sum(map(sum, rewards)) / 12)
    assert row["groups_without_signal"] == 1 and row["groups"] == 3
    # In the first update the trained policy equals the policy that sampled.
    assert row["ratio_min"] == pytest.approx(1, abs=1e-4) == row["ratio_max"]
    assert row["clip_fraction"] == 0 and row["kl"] == pytest.approx(0, abs=1e-6)
    assert 0 < row["entropy"] < math.log(259)
    trained = [choice for group in (groups[0], groups[2]) for t in group for choice in t.choices()]
    advantages = [advantage for choice in trained for advantage in choice.token_advantages]
    assert row["tokens_trained"] == len(advantages) == sum(len(choice.token_ids) for choice in trained)
    assert row["loss"] == pytest.approx(-sum(advantages) / len(advantages), abs=1e-5)  # every ratio is 1
    records = model.records("train", 1)
    assert [(r["group"], r["index"]) for r in records] == [(g, i) for g in range(3) for i in range(4)]
    assert records[0]["turns"][1]["advantages"] and records[0]["turns"][1]["tokens"]


def test_checkpoints_contain_the_adapters_of_step_0_and_of_each_step(base, tmp_path):
    async def main():
        model = await registered(base, tmp_path)
        start = state_of(model)[0]
        result = await model.train(await gather(model, 0), TrainConfig(learning_rate=1e-2))
        return start, state_of(model)[0], result

    start, trained, result = asyncio.run(main())
    folder = tmp_path / "p/models/m/checkpoints"
    assert result.checkpoint_path == str(folder / "0001") and checkpoints.list_checkpoints(folder) == [0, 1]
    for step, weights in [(0, start), (1, trained)]:
        saved = load_file(folder / f"{step:04d}/adapter_model.safetensors")
        assert len(saved) == sum("lora_" in name for name in weights)
        for name, tensor in saved.items():
            assert torch.equal(tensor, weights[name.replace(".weight", ".default.weight")])
    assert any(not torch.equal(start[n], trained[n]) for n in start)
    assert json.loads((folder / "0000/state.json").read_text()) == {"step": 0, "split": "train", "row": None}


def test_a_new_process_resumes_bit_exactly_from_the_latest_checkpoint(base, tmp_path):
    async def in_one_go():
        await run(await registered(base, tmp_path / "a"), 4)

    async def until(step):
        random.seed(step), torch.manual_seed(step)  # another process, another state of the global generators
        await run(await registered(base, tmp_path / "b"), step)

    asyncio.run(in_one_go())
    for step in (1, 3, 4):
        asyncio.run(until(step))
    assert adapter(tmp_path / "a", 4) == adapter(tmp_path / "b", 4)
    assert adapter(tmp_path / "a", 4) != adapter(tmp_path / "a", 3)
    rows = RunLog(tmp_path / "b/p/models/m").rows()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_truncated_checkpoint_is_named_and_the_one_before_it_continued(base, tmp_path, name):
    async def main():
        await run(await registered(base, tmp_path), until=2)
        folder = tmp_path / "p/models/m/checkpoints"
        os.truncate(folder / "0002" / name, 40)
        with pytest.warns(UserWarning, match=f"0002.{name}.*Continuing from step 1"):
            model = await registered(base, tmp_path)
        assert await model.get_step() == 1 and checkpoints.list_checkpoints(folder) == [0, 1]
        assert len(list(folder.glob("damaged-0002-*"))) == 1
        await run(model, until=2)
        os.truncate(folder / "0002" / name, 40)
        await model.delete_checkpoints()
        with pytest.raises(checkpoints.DamagedCheckpoint, match=name):
            await registered(base, tmp_path)

    asyncio.run(main())


LOADS = """
import asyncio, sys
import art_nb as art
from art_nb.storage import checkpoints
checkpoints.LOCK_S = 0.1
for _ in range(2):
    sys.stdin.readline()
    model = art.TrainableModel(name="m", project="p", base_model=sys.argv[1], _internal_config={"peft_args": {"r": 4, "lora_alpha": 8}})
    try:
        asyncio.run(model.register(art.LocalBackend(path=sys.argv[2], engine="transformers")))
        print("LOADED", flush=True)
    except RuntimeError as error:
        print("REFUSED:", error, flush=True)
"""


UNHEARD = """
import asyncio, os, sys, threading
import transformers, trl  # before art_nb, as in a program that uses both: the libraries have read their environment
tried = []
sys.addaudithook(lambda event, args: tried.append(args) if event in ("socket.getaddrinfo", "socket.connect") else None)
import art_nb as art
from art_nb.local import LocalBackend
from huggingface_hub.utils import send_telemetry

QUESTION = [{"role": "user", "content": "2048"}]

async def main(base, path, engine):
    async with LocalBackend(path=path, engine=engine) as backend:
        model = art.TrainableModel(name="m", project="p", base_model=base)
        await model.register(backend)

        async def answer(reward):
            completion = await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=QUESTION, max_tokens=2)
            return art.Trajectory(messages_and_choices=[*QUESTION, completion.choices[0]], reward=reward)

        await model.train(await art.gather_trajectory_groups([art.TrajectoryGroup(map(answer, [0.0, 1.0]))]))
        said = art.Trajectory(messages_and_choices=[*QUESTION, {"role": "assistant", "content": "up"}])
        await model.train_sft([said], art.TrainSFTConfig())

send_telemetry("trl/GRPOTrainer")  # as every trainer of TRL does when it is made, outside of this package, too
asyncio.run(main(*sys.argv[1:]))
others = [thread.name for thread in threading.enumerate() if "telemetry" in thread.name]
assert not tried and not others and os.environ["DISABLE_SAFETENSORS_CONVERSION"] == "1", (tried, others)
"""


@pytest.mark.parametrize("engine", ["transformers", "unsloth"])
def test_training_reports_to_nobody(base, tmp_path, engine):
    """TRL reports each trainer to the hub by default, except where the variable CI is set."""
    if engine == "unsloth" and find_spec("unsloth") is None:
        pytest.skip("Unsloth is not installed here")
    hides = ("CI", "DO_NOT_TRACK", "TELEMETRY", "OFFLINE", "STATISTICS", "CONVERSION")  # what would hide a report
    environment = {name: value for name, value in os.environ.items() if not any(part in name for part in hides)}
    folder = Path(base)
    command = [sys.executable, "-c", UNHEARD, f"{folder.parent.name}/{folder.name}", str(tmp_path), engine]
    subprocess.run(command, cwd=folder.parent.parent, env=environment, check=True, timeout=180)


def test_a_model_is_loaded_in_one_process_at_a_time(base, tmp_path):
    async def main():
        model = await registered(base, tmp_path)
        await registered(base, tmp_path)  # again in this process: a cell that is run twice
        half_written.mkdir()
        other.stdin.write("now\n")
        other.stdin.flush()
        assert other.stdout.readline().startswith("REFUSED: another process is using")
        assert half_written.exists()  # its writer may live in another container, whose PIDs are hidden
        await model.backend().close()

    half_written = tmp_path / "p/models/m/checkpoints/.tmp-999999999-0123abcd"
    command = [sys.executable, "-c", LOADS, base, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        asyncio.run(main())
        gc.collect()
        assert other.communicate("again\n")[0] == "LOADED\n"
    assert other.returncode == 0 and not half_written.exists()


def test_a_closed_backend_keeps_no_model(base, tmp_path):
    async def main():
        model = await registered(base, tmp_path)
        await run(model, 1)
        loaded = model.backend().loaded(model)
        parts = [weakref.ref(part) for part in (loaded.policy.base, loaded.sampler, loaded.learner)]
        del loaded
        await model.backend().close()
        assert [part() for part in parts] == [None] * 3

    asyncio.run(main())


def test_the_seed_determines_the_run(base, tmp_path):
    async def go(path, seed):
        await run(await registered(base, path, seed=seed), 1)

    for folder, seed in [("a", 1), ("b", 1), ("c", 2)]:
        asyncio.run(go(tmp_path / folder, seed))
    assert adapter(tmp_path / "a", 1) == adapter(tmp_path / "b", 1) != adapter(tmp_path / "c", 1)


BAD_BATCHES = {
    "reward is nan": lambda groups: setattr(groups[1].trajectories[2], "reward", math.nan),
    "reward is inf": lambda groups: setattr(groups[1].trajectories[2], "reward", math.inf),
    "has 1 turn_rewards and 2 choices": lambda groups: [
        setattr(t, "turn_rewards", [1.0, 1.0][: 1 + (i != 2)]) for i, t in enumerate(groups[1])
    ],
    "no trainable token": lambda groups: setattr(
        groups[1].trajectories[2], "messages_and_choices", [{"role": "user", "content": "?"}]
    ),
    "2 groups contain no trajectory; the first of 8 errors: builtins.OSError: lost": lambda groups: [
        groups.clear(),
        groups.extend(art.TrajectoryGroup([OSError("lost")] * 4) for _ in range(2)),
    ],
}  # fmt: skip


def test_a_batch_that_cannot_be_trained_on_changes_nothing(base, tmp_path):
    async def main():
        model = await registered(base, tmp_path)
        await run(model, 1)
        before = state_of(model)
        for message, spoil in BAD_BATCHES.items():
            groups = await gather(model, 1)
            spoil(groups)
            with pytest.raises(ValueError, match=message) as refused:
                await model.train(groups, TrainConfig(learning_rate=1e-2))
            assert groups[0].trajectories == [] or "group 1, trajectory 2" in str(refused.value)
            assert_unchanged(before, state_of(model))
        assert await model.get_step() == 1

    asyncio.run(main())


def test_a_step_that_fails_halfway_changes_nothing(base, tmp_path, monkeypatch):
    async def main():
        model = await registered(base, tmp_path)
        await run(model, 1)
        before, groups = state_of(model), await gather(model, 1)
        learner = model.backend().loaded(model).learner
        step = learner.optimizer.step

        def breaks_after_the_update(*args):
            step(*args)
            raise MemoryError("no room")

        monkeypatch.setattr(learner.optimizer, "step", breaks_after_the_update)
        with pytest.raises(MemoryError):
            await model.train(groups, TrainConfig(learning_rate=1e-2))
        assert_unchanged(before, state_of(model))
        assert await model.get_step() == 1

    asyncio.run(main())


def test_a_step_that_fails_and_is_tried_again_is_counted_once(base, tmp_path, monkeypatch):
    async def trained(path, failures):
        model = await registered(base, path)
        groups, save = await gather(model, 0), loaded_model.LoadedModel.save
        groups[0].trajectories[0].metrics["costs/train/user"] = 1.0

        def full_disk(*args):
            monkeypatch.setattr(loaded_model.LoadedModel, "save", save)
            raise OSError("no space")

        if failures:
            monkeypatch.setattr(loaded_model.LoadedModel, "save", full_disk)
            with pytest.raises(OSError, match="no space"):
                await model.train(groups)
            groups[0].trajectories[0].metrics["costs/train"] = 1.0
            with pytest.raises(ValueError, match="part of the other"):
                await model.train(groups)
            del groups[0].trajectories[0].metrics["costs/train"]
        await model.train(groups)
        row = model.history().iloc[-1]
        return {name: row[name] for name in row.index if name.startswith(("costs/", "data/")) and name != "data/scenario_ids"}

    async def logged_late(path):
        """The checkpoint is written, its row is not: the step is done, and the next one's sums go on from it."""
        model = await registered(base, path)
        groups, append = await gather(model, 0), RunLog.append_row
        groups[0].trajectories[0].metrics["costs/train/user"] = 1.0

        def full_disk(*args):
            monkeypatch.setattr(RunLog, "append_row", append)
            raise OSError("no space")

        monkeypatch.setattr(RunLog, "append_row", full_disk)
        with pytest.raises(OSError, match="no space"):
            await model.train(groups)
        assert await model.get_step() == 1
        await model.train(await gather(model, 1))
        await model.log(metrics={"costs/eval/user": 0.5})
        return model.history()["costs/cum/all"].tolist()

    assert asyncio.run(logged_late(tmp_path / "late"))[::2] == [1, 1.5]
    counted = asyncio.run(trained(tmp_path / "retried", True))
    assert counted == asyncio.run(trained(tmp_path / "once", False)) and counted["costs/cum/all"] == 1


def test_a_step_whose_row_cannot_be_logged_stays_and_is_counted_once(base, tmp_path, monkeypatch):
    """The disk stays full: the row is not logged when the step ends, nor when its checkpoint is loaded again."""

    def full_disk(*args):
        raise OSError("no space")

    async def main():
        model = await registered(base, tmp_path)

        async def step(number):
            groups = await gather(model, number)
            groups[0].trajectories[0].metrics["costs/train/user"] = 1.0
            await model.train(groups)

        await step(0)
        with monkeypatch.context() as patch:
            patch.setattr(RunLog, "append_row", full_disk)
            with pytest.raises(OSError, match="no space"):
                await step(1)
            with pytest.warns(UserWarning, match="not logged for any kept step"):
                await model.delete_checkpoints()
        assert checkpoints.list_checkpoints(tmp_path / "p/models/m/checkpoints") == [1, 2]
        await step(2)
        return model.history()

    history = asyncio.run(main())
    assert list(history["step"]) == list(history["costs/cum/all"]) == [1, 2, 3]


def test_a_step_taken_again_after_damage_replaces_policy_and_row(base, tmp_path, monkeypatch):
    async def main():
        model = await registered(base, tmp_path)
        await run(model, 2)
        await gather(model, 9)  # keeps m@2 in memory
        os.truncate(tmp_path / "p/models/m/checkpoints/0002/adapter_model.safetensors", 40)
        loaded = model.backend().loaded(model)
        with pytest.warns(UserWarning, match="Continuing from step 1"):
            model.backend().restore(model, loaded)  # as after a step that failed
        groups = await gather(model, 3)
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):  # in place of a kill
            patch.setattr(RunLog, "append_row", lambda *args: 1 / 0)
            await model.train(groups, TrainConfig(learning_rate=0.5))

        async def answer():
            client, messages = model.openai_client(), [{"role": "user", "content": "say"}]
            options = {"max_tokens": 4, "temperature": 0, "logprobs": True}
            (choice,) = (await client.chat.completions.create(model="m@2", messages=messages, **options)).choices
            return [each.logprob for each in choice.logprobs.content]

        answered = await answer()
        loaded.policies.clear()
        loaded.sampler.forget()
        assert answered == await answer() and await model.get_step() == 2
        reward = json.loads((tmp_path / "p/models/m/checkpoints/0002/state.json").read_text())["row"]["reward"]
        return model.history()[["step", "reward"]].to_numpy().tolist(), reward

    (*_, logged_before, logged), reward = asyncio.run(main())
    assert logged_before[0] == 2 and logged == [2, reward]


def test_a_loaded_name_with_another_base_model_raises(base, tmp_path):
    async def main():
        model = await registered(base, tmp_path)
        again = art.TrainableModel(name="m", project="p", base_model=base, _internal_config=model.internal_config)
        await again.register(model.backend())
        for change in ({"base_model": "another"}, {"_internal_config": {"peft_args": {"r": 8}}}):
            given = {"base_model": base, "_internal_config": model.internal_config} | change
            with pytest.raises(ValueError, match="give this one another name"):
                await art.TrainableModel(name="m", project="p", **given).register(model.backend())

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_leaves_its_folder_unlocked(tmp_path):
    async def main():
        with pytest.raises(Exception, match="nothing_here") as raised:
            await registered(str(tmp_path / "nothing_here"), tmp_path)
        return raised

    raised = asyncio.run(main())  # keeps the traceback, as a notebook does, and so the lock's object
    FileLock(tmp_path / "p/models/m/.lock").acquire(timeout=0)
    assert raised.tb


def test_files_of_other_programs_among_the_trajectories_are_left_alone(base, tmp_path):
    folder = tmp_path / "p/models/m/trajectories"
    (folder / "train").mkdir(parents=True)
    (folder / ".DS_Store").touch()
    (folder / "train/.tmp-999999999-0123abcd").touch()  # of a killed writer
    asyncio.run(registered(base, tmp_path))
    assert (folder / ".DS_Store").exists() and not list((folder / "train").iterdir())


def test_a_step_without_signal_is_counted_and_reported(base, tmp_path):
    texts = []

    async def main():
        model = await registered(base, tmp_path, progress=texts.append)
        groups = await gather(model, 0)
        for group in groups:
            for trajectory in group:
                trajectory.reward = 1.0
        return await model.train(groups)

    result = asyncio.run(main())
    assert result.step == 1 and result.metrics["groups_without_signal"] == 2 == result.metrics["groups"]
    assert adapter(tmp_path, 0) == adapter(tmp_path, 1)
    assert "nothing to learn: in every group all advantages are zero" in texts


def test_progress_reports_each_long_operation(base, tmp_path):
    texts = []

    async def main():
        await run(await registered(base, tmp_path, progress=texts.append), 1)

    asyncio.run(main())
    assert texts == [f"loading {base}", "training: update 1, micro-batch 1 of 1", "saving the checkpoint"]


def test_training_prints_nothing_and_warns_of_nothing(base, tmp_path, capfd):
    async def main():
        await run(await registered(base, tmp_path), 1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
    out, err = capfd.readouterr()
    assert out == "" and err == ""


def test_only_the_documented_files_are_written(base, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    async def main():
        await run(await registered(base, tmp_path / "runs"), 1)

    asyncio.run(main())
    files = {str(f.relative_to(tmp_path / "runs/p/models/m")) for f in tmp_path.rglob("*") if f.is_file()}
    logged = {"history.jsonl", ".history.jsonl.lock", ".lock", "trajectories/train/0001.jsonl"}
    assert {f for f in files if not f.startswith("checkpoints/")} == logged
    kept = {"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "state.json"}
    for step in ("0000", "0001"):
        assert {os.path.basename(f) for f in files if f.startswith(f"checkpoints/{step}")} - {"README.md"} == kept


def test_trl_options_apply_to_one_call_and_keep_the_optimizer_state(base, tmp_path):
    async def go(path, configs):
        model = await registered(base, path, trainer={"epsilon": 0.3})
        for step, grpo in enumerate(configs):
            groups = await gather(model, step)
            await model.train(groups, TrainConfig(learning_rate=1e-2, grpo=grpo))
        learner = model.backend().loaded(model).learner
        return learner, moments(learner)

    learner, _ = asyncio.run(go(tmp_path / "a", [{}, {"loss_type": "dr_grpo"}]))
    assert learner.loss_type == "dr_grpo" and learner.epsilon_low == 0.3
    learner, one_by_one = asyncio.run(go(tmp_path / "b", [{}, {"adam_beta1": 0.9}, {}]))
    assert learner.loss_type == "dapo"
    assert asyncio.run(go(tmp_path / "c", [{}, {}, {}]))[1] == one_by_one  # 0.9 is the default


def test_delete_checkpoints_keeps_the_best_and_the_latest_step(base, tmp_path):
    async def main():
        model = await registered(base, tmp_path)

        async def validate(step):
            trajectory = art.Trajectory(reward=[0.1, 0.9, 0.3, 0.2][step])
            await model.log([art.TrajectoryGroup([trajectory])], split="val")

        await run(model, 4, validate)
        await model.delete_checkpoints()
        kept = checkpoints.list_checkpoints(tmp_path / "p/models/m/checkpoints")
        await model.log([art.Trajectory(reward=-0.4)], split="val", step=2)  # now 3, which is deleted, has the highest mean
        await model.delete_checkpoints()
        return kept, checkpoints.list_checkpoints(tmp_path / "p/models/m/checkpoints")

    assert asyncio.run(main()) == ([2, 4], [2, 4])


def test_an_unregistered_model_raises_with_its_name(base, tmp_path):
    async def main():
        model = await registered(base, tmp_path)
        stranger = art.TrainableModel(name="other", project="p", base_model=base)
        with pytest.raises(ValueError, match="'other' is not registered here"):
            await model.backend().train(stranger, [])

    asyncio.run(main())


def test_invalid_arguments_raise(base, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(ValueError, match="file' is a file: give a folder"):
            LocalBackend(path=path)

    async def register(**options):
        model = art.TrainableModel(name="m", project="p", base_model=options.pop("base_model", base))
        await model.register(LocalBackend(path=tmp_path / "runs", **options))

    with pytest.raises(ValueError, match="engine is 'unslot': expected 'auto', 'unsloth' or 'transformers'"):
        asyncio.run(register(engine="unslot"))
    with pytest.raises(FileNotFoundError, match="no model at './missing'"):
        asyncio.run(register(base_model="./missing"))


def test_an_adapter_with_another_shape_raises(base, tmp_path):
    asyncio.run(registered(base, tmp_path))
    for peft in ({"r": 8}, {"target_modules": ["q_proj"]}):
        with pytest.raises(ValueError, match="0000 does not fit this model: it was made with another base model"):
            asyncio.run(registered(base, tmp_path, peft=peft))


class Interrupts:
    """A rollout function whose call number `at` raises KeyboardInterrupt, once."""

    def __init__(self, at):
        self.left = at

    async def __call__(self, model, scenario):
        await rollout(model, scenario, turns=1)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return await rollout(model, scenario)


@pytest.mark.parametrize("at", [1, 3, 8])
def test_an_interrupt_while_gathering_changes_nothing(base, tmp_path, uninterrupted, at):
    async def main():
        model = await registered(base, tmp_path)
        model.backend().loaded(model).learner.tokens_per_micro_batch = 64
        await run(model, 1)
        before, interrupts = state_of(model), Interrupts(at)
        with pytest.raises(KeyboardInterrupt):
            await art.gather_trajectory_groups(
                [art.TrajectoryGroup(interrupts(model, f"1 {g}") for _ in range(4)) for g in range(2)],
                pbar_desc=None,
            )
        assert_unchanged(before, state_of(model))
        await run(model, 3)

    asyncio.run(main())
    assert adapter(tmp_path, 3) == uninterrupted


def test_earlier_samples_do_not_affect_a_gather_call(base, tmp_path, uninterrupted):
    """Earlier samples: validation, also on the scenarios of the next step, and requests outside of any gather call."""

    async def main():
        model = await registered(base, tmp_path)
        model.backend().loaded(model).learner.tokens_per_micro_batch = 64

        async def between(step):
            await gather(model, step + 1, groups=3, size=2)
            await rollout(model, f"{step + 1} 1", turns=3)

        await between(-1)
        await run(model, 3, between)

    asyncio.run(main())
    assert adapter(tmp_path, 3) == uninterrupted


def test_a_gather_call_inside_a_rollout_draws_new_samples(base, tmp_path):
    """Eight rollouts send the same request, each in its own gather call, one after the other."""

    async def nested(model):
        [inner] = await art.gather_trajectories([rollout(model, "the same", turns=1)], pbar_desc=None)
        return inner

    async def main():
        model = await registered(base, tmp_path)

        async def one_after_the_other():
            return [await nested(model) for _ in range(8)]

        [inner] = await art.gather_trajectories([one_after_the_other()], pbar_desc=None)
        return {t.choices()[0].message.content for t in inner}

    assert len(asyncio.run(main())) > 4


def interrupted_in_learning(model, monkeypatch, at):
    """Raise KeyboardInterrupt in the forward or the update of micro-batch `at`, once."""
    learner = model.backend().loaded(model).learner
    learner.tokens_per_micro_batch = 64
    count = [0]
    for name in ("compute_loss", "update"):
        original = getattr(learner, name)

        def wrapped(*args, original=original, **kwargs):
            result = original(*args, **kwargs)
            count[0] += 1
            if count[0] == at:
                raise KeyboardInterrupt
            return result

        monkeypatch.setattr(learner, name, wrapped)


def interrupted_in_saving(monkeypatch, module, name, at):
    """Raise KeyboardInterrupt before call number `at` of a function that saving uses, once."""
    original, count = getattr(module, name), [0]

    def wrapped(*args, **kwargs):
        count[0] += 1
        if count[0] == at:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, wrapped)


@pytest.fixture(scope="module")
def uninterrupted(base, tmp_path_factory):
    path = tmp_path_factory.mktemp("uninterrupted")

    async def main():
        model = await registered(base, path)
        model.backend().loaded(model).learner.tokens_per_micro_batch = 64
        await run(model, 3)

    asyncio.run(main())
    return adapter(path, 3)


PLACES = {
    **{f"micro-batch {at}": lambda model, patch, at=at: interrupted_in_learning(model, patch, at) for at in (1, 3, 5)},
    "after the update": lambda model, patch: interrupted_in_learning(model, patch, 9),
    **{
        f"{name} {at}": lambda model, patch, name=name, at=at: interrupted_in_saving(patch, *SAVING[name], at)
        for name, at in [("trajectories", 1), ("fill", 1), ("sync", 3), ("rename", 1), ("row", 1), ("end", 1)]
    },
}  # fmt: skip
SAVING = {
    "trajectories": (RunLog, "write_trajectories"),
    "fill": (loaded_model, "save_policy_state"),
    "sync": (checkpoints, "_sync"),
    "rename": (checkpoints, "_rename"),
    "row": (RunLog, "append_row"),
    "end": (loaded_model.LoadedModel, "finish"),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_while_training_or_saving_leaves_the_last_checkpoint(base, tmp_path, monkeypatch, uninterrupted, place):
    async def main():
        model = await registered(base, tmp_path)
        model.backend().loaded(model).learner.tokens_per_micro_batch = 64
        await run(model, 1)
        groups, before = await gather(model, 1), state_of(model)
        with monkeypatch.context() as patch:
            PLACES[place](model, patch)
            with pytest.raises(KeyboardInterrupt):
                await model.train(groups, TrainConfig(learning_rate=5e-2))
        after = state_of(model)
        assert await model.get_step() == checkpoints.latest(tmp_path / "p/models/m/checkpoints")
        if await model.get_step() == 1:
            weights, optimizer, files = after
            # The trajectories of the step that will be repeated may exist; no other file.
            files.pop(tmp_path / "p/models/m/trajectories/train/0002.jsonl", None)
            assert_unchanged(before, (weights, optimizer, files))
        await run(model, 3)

    asyncio.run(main())
    assert adapter(tmp_path, 3) == uninterrupted
    assert [row["step"] for row in RunLog(tmp_path / "p/models/m").rows()] == [1, 2, 3]
    assert not list((tmp_path / "p/models/m/checkpoints").glob(".*"))
