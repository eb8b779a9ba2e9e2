"""kill -9 at random times: no file is ever incomplete, and the killed run reaches the same adapter as an undisturbed one.

The test runs this file in a separate process, which imports everything once and forks a child for each attempt.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = 24
EXPECTED = {"adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "state.json"}


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has torch loaded")
def test_runs_killed_at_random_resume_to_the_same_adapter(tmp_path):
    from tiny_models import make_checkpoint

    make_checkpoint(tmp_path / "base")
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    seed = os.environ.get("KILL_SEED", str(time.time_ns()))
    command = [sys.executable, __file__, str(tmp_path), seed]
    done = subprocess.run(command, env=os.environ | quiet, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"KILL_SEED={seed}\n{done.stderr[-3000:]}"
    report = json.loads(done.stdout.splitlines()[-1])
    assert min(report[each] for each in ("loading", "working", "saving", "half_saved")) >= 1, (seed, report)
    assert report["steps"] >= 5 and report["compared"] >= 2, (seed, report)


async def run_steps(base, path, until, tell):
    """Train on gathered conversations, as a notebook does, and delete checkpoints every four steps."""
    import art_nb as art
    from art_nb.backends.local import LocalBackend
    from art_nb.types import TrainConfig

    async def rollout(model, scenario):
        trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": scenario}])
        for _ in range(2):
            answer = await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=4
            )
            trajectory.messages_and_choices += [answer.choices[0], {"role": "user", "content": "more"}]
        trajectory.reward = sum(ord(x) % 2 for c in trajectory.choices() for x in c.message.content) / 8
        return trajectory

    peft_args = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1}
    model = art.TrainableModel(name="m", project="p", base_model=str(base), _internal_config={"peft_args": peft_args})
    saves = lambda text: text == "saving the checkpoint" and tell(b"c")  # noqa: E731
    await model.register(LocalBackend(path=path, engine="transformers", progress=saves))
    tell(b"r")
    for step in range(await model.get_step(), until):
        rollouts = [art.TrajectoryGroup(rollout(model, f"{step} {g}") for _ in range(4)) for g in range(2)]
        groups = await art.gather_trajectory_groups(rollouts, pbar_desc=None)
        await model.train(groups, TrainConfig(learning_rate=5e-2, num_updates=2))
        if step % 4 == 3:
            await model.delete_checkpoints("train/reward")


def start(base, path, until):
    """Fork a child that runs until step `until`. Returns its PID and a pipe to which it writes a byte per event."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    try:
        asyncio.run(run_steps(base, path, until, lambda byte: os.write(write, byte)))
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def finish(base, path, until):
    """Run a child to its end. Returns the seconds that loading took, and the seconds per step."""
    started = time.perf_counter()
    child, pipe = start(base, path, until)
    os.read(pipe, 1)
    loaded = time.perf_counter()
    assert os.waitpid(child, 0)[1] == 0
    os.close(pipe)
    return loaded - started, (time.perf_counter() - loaded) / max(until, 1)


def check_files(folder):
    """Assert that every file with its final name is complete. Returns the last step."""
    steps = sorted(int(f.name) for f in (folder / "checkpoints").iterdir() if f.name.isdecimal())
    for step in steps:
        checkpoint = folder / f"checkpoints/{step:04d}"
        assert EXPECTED <= {f.name for f in checkpoint.iterdir()}
        assert json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))["step"] == step
        for name in ("adapter_model", "optimizer"):
            check_safetensors((checkpoint / f"{name}.safetensors").read_bytes())
    for file in (folder / "trajectories").rglob("*.jsonl"):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        assert len(lines) == 8 and all(json.loads(line)["turns"] and line.endswith("\n") for line in lines)
    trained = [row["step"] for row in rows(folder)]
    # The row of the last checkpoint may be missing until the next start.
    assert trained in (list(range(1, (steps or [0])[-1] + 1)), list(range(1, (steps or [0])[-1])))
    return (steps or [0])[-1]


def check_safetensors(data):
    """Assert that the header fits the size: https://github.com/huggingface/safetensors#format."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    assert len(data) == 8 + size + max(ends, default=0)


def rows(folder):
    path = folder / "history.jsonl"
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


def kill_again_and_again(base, path, startup, step, draw):
    """Kill KILLS times, and further until each phase was hit and a checkpoint was incomplete. Returns the kills before the model was
    loaded, before the first checkpoint was begun, and later, as the child told, and those that left an incomplete checkpoint."""
    folder = path / "p/models/m"
    killed = {"loading": 0, "working": 0, "saving": 0, "half_saved": 0}
    for number in range(5 * KILLS):
        if number >= KILLS and all(killed.values()):
            break
        child, pipe = start(base, path, 10_000)
        during = ["loading", "working", "saving", "saving"][number % 4]
        told = b""
        while during != "loading" and not told.endswith({"working": b"r", "saving": b"c"}[during]):
            told += (byte := os.read(pipe, 1))
            assert byte, "the child ended by itself"
        time.sleep(draw.uniform(0, {"loading": startup, "working": 2 * step, "saving": step / 2}[during]))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the child ended by itself"
        told += os.read(pipe, 100)
        os.close(pipe)
        killed["saving" if b"c" in told else "working" if told else "loading"] += 1
        if (folder / "checkpoints").exists():
            killed["half_saved"] += any((folder / "checkpoints").glob(".tmp-*"))
            check_files(folder)
    return killed


def compare(killed, quiet, last):
    """Compare adapters, optimizer states and trajectories bit for bit, and metrics without times. Returns the number of checkpoints."""
    steps = sorted(int(f.name) for f in (killed / "checkpoints").iterdir())
    assert steps[-1] == last
    same = [f"checkpoints/{s:04d}/{n}.safetensors" for s in steps for n in ("adapter_model", "optimizer")]
    same += [f"trajectories/train/{s:04d}.jsonl" for s in range(1, last + 1)]
    for name in same:
        if (quiet / name).exists():  # the undisturbed run has deleted some
            assert (killed / name).read_bytes() == (quiet / name).read_bytes(), name
    assert (quiet / f"checkpoints/{last:04d}").exists()
    timed = ("time", "_s", "_per_s", "duration")
    without_times = [
        [{k: v for k, v in row.items() if not k.endswith(timed)} for row in rows(folder)] for folder in (killed, quiet)
    ]
    assert without_times[0] == without_times[1]
    assert [row["step"] for row in rows(killed)] == list(range(1, last + 1))
    return sum((quiet / f"checkpoints/{s:04d}").exists() for s in steps)


def main(folder, seed):
    # Everything that a child would import, which takes ten times as long as a step. No operation is run: a fork of torch's
    # threads would hang.
    import peft  # noqa: F401

    import art_nb.backends.local
    import art_nb.inference.sampler
    import art_nb.training.learner  # noqa: F401

    base = folder / "base"
    startup, step = finish(base, folder / "timing", 3)
    killed = kill_again_and_again(base, folder / "killed", startup, step, random.Random(seed))
    last = max(6, check_files(folder / "killed/p/models/m") + 1)
    last += last % 4 == 0  # one step after a deletion, which may leave a single checkpoint to compare
    finish(base, folder / "killed", last)
    finish(base, folder / "quiet", last)
    compared = compare(folder / "killed/p/models/m", folder / "quiet/p/models/m", last)
    print(json.dumps({**killed, "steps": last, "compared": compared}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
