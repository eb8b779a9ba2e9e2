"""Short tracebacks: the user's frames, the message and the count; causes and the full traceback are kept."""

import asyncio
import re
import subprocess
import sys
import textwrap
import traceback
from types import SimpleNamespace

import pytest
from jupyter_client.manager import start_new_kernel

import art_nb as art
from art_nb.rollouts.tracebacks import ShortTraceback

MOST = 25  # lines
ROLLOUTS = """
import asyncio, art_nb as art

async def raising(i):
    await asyncio.sleep(0.01)
    if i == 1:
        raise ValueError("no board")
    return art.Trajectory()

async def forgetful(i):
    await asyncio.sleep(0.01)

async def nesting(i):
    await art.gather_trajectories([raising(k) for k in range(4)], pbar_desc=None)

async def parsing(i):
    try:
        int("up")
    except ValueError as error:
        raise RuntimeError("no move in the answer") from error

async def waiting(i):
    print("waiting", flush=True)
    await asyncio.sleep(600)

def groups(rollout):
    return [art.TrajectoryGroup(rollout(i) for i in range(4)) for _ in range(3)]
"""


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(kernel_name="python3")
    client.execute_interactive(ROLLOUTS, timeout=120)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def shown(kernel, code: str, interrupt_when: str = "(never)") -> str:
    """Return the traceback that a cell shows, without colours. Interrupts the kernel when the cell prints `interrupt_when`."""
    manager, client = kernel
    found, printed = [], []

    def on_output(message):
        content = message["content"]
        if message["msg_type"] == "error":
            found.extend(content["traceback"])
        if message["msg_type"] == "stream" and interrupt_when in content["text"] and not printed:
            printed.append(content["text"])
            manager.interrupt_kernel()

    client.execute_interactive(code, output_hook=on_output, timeout=120)
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(found))


def gathering(rollout: str) -> str:
    return f"await art.gather_trajectory_groups(groups({rollout}), pbar_desc=None)"


@pytest.mark.parametrize(
    ("rollout", "lines"),
    [
        ("raising", ['raise ValueError("no board")', "ValueError: no board", "1 of 12 rollouts failed; max_exceptions=0"]),
        ("nesting", ["await art.gather_trajectories([raising(k)", 'raise ValueError("no board")', "1 of 4 rollouts failed"]),
        ("forgetful", ["TypeError: a rollout returned NoneType, expected a Trajectory", "1 of 12 rollouts failed"]),
        ("parsing", ["invalid literal for int()", "direct cause", "RuntimeError: no move in the answer", "1 of 12"]),
    ],
)
def test_a_raising_rollout_shows_the_users_lines(kernel, rollout, lines):
    text = shown(kernel, gathering(rollout))
    for line in [gathering(rollout), *lines]:
        assert line in text
    assert len(text.splitlines()) <= MOST and "asyncio/" not in text and "gathering.py" not in text


def test_an_interrupted_gather_shows_the_cell(kernel):
    text = shown(kernel, gathering("waiting"), interrupt_when="waiting")
    assert gathering("waiting") in text and "interrupted" in text
    assert len(text.splitlines()) <= MOST and "File " not in text


def test_the_kernel_keeps_the_full_traceback(kernel):
    shown(kernel, gathering("raising"))
    text = shown(kernel, 'import sys, traceback; raise RuntimeError("".join(traceback.format_tb(sys.last_value.full_traceback)))')
    assert "in in_order" in text and 'raise ValueError("no board")' in text


def test_a_plain_python_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ROLLOUTS + textwrap.dedent("""
        async def main():
            await art.gather_trajectory_groups(groups(raising), pbar_desc=None)

        asyncio.run(main())
    """), encoding="utf-8")  # fmt: skip
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert run.returncode == 1 and "art_nb" not in run.stderr and len(run.stderr.splitlines()) <= MOST
    assert 'raise ValueError("no board")' in run.stderr and "1 of 12 rollouts failed" in run.stderr


# -- without a kernel: the function names in a traceback


def path_of(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


async def failing():
    await asyncio.sleep(0)
    raise ValueError("broke")


async def batches():
    async for _ in art.trajectory_group_batches([art.TrajectoryGroup([failing()])], batch_size=1, pbar_desc=None):
        pass


async def directly():
    await art.TrajectoryGroup(failing() for _ in range(3))


async def judged():
    async def judge(group):
        raise ValueError("broke")

    pending = [art.TrajectoryGroup([returning()])]
    await art.gather_trajectory_groups(pending, after_each=judge, pbar_desc=None)


async def returning():
    return art.Trajectory()


@pytest.mark.parametrize(("main", "innermost"), [(batches, "failing"), (directly, "failing"), (judged, "judge")])
def test_tracebacks_of_every_gather_function(main, innermost):
    with pytest.raises(ValueError, match="broke") as caught:
        asyncio.run(main())
    assert path_of(caught.value)[-2:] == [main.__name__, innermost]


def test_a_directly_awaited_group_counts_its_rollouts():
    with pytest.raises(ValueError) as caught:
        asyncio.run(directly())
    assert caught.value.__notes__ == ["1 of 3 rollouts failed; max_exceptions=0 allows no more."]


def test_the_users_notes_are_kept():
    async def noting():
        error = ValueError("broke")
        error.add_note("seed 7")
        raise error

    with pytest.raises(ValueError) as caught:
        asyncio.run(art.gather_trajectories([noting()], pbar_desc=None))
    assert caught.value.__notes__ == ["seed 7", "1 of 1 rollouts failed; max_exceptions=0 allows no more."]


def test_a_tolerated_error_keeps_its_full_traceback_as_text():
    async def main():
        pending = [art.TrajectoryGroup([failing(), returning()])]
        return await art.gather_trajectory_groups(pending, max_exceptions=1, pbar_desc=None)

    (group,) = asyncio.run(main())
    assert "in attempt" in group.exceptions[0].traceback and "in failing" in group.exceptions[0].traceback


def test_the_cause_from_an_inner_gather_is_short():
    async def inner():
        try:
            await art.gather_trajectories([failing()], pbar_desc=None)
        except ValueError as error:
            raise RuntimeError("inner") from error

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(art.gather_trajectories([inner()], pbar_desc=None))
    assert path_of(caught.value.__cause__) == ["inner", "failing"]


def test_an_interrupt_in_training_shows_no_library(tmp_path):
    class Deep:
        async def train(self, *_, **__):
            re.sub("a", interrupt, "a")

    def interrupt(_):
        raise KeyboardInterrupt

    model = art.TrainableModel(name="m", project="p", base_model="none", base_path=str(tmp_path))
    model._backend = SimpleNamespace(train=Deep().train)

    async def main():
        await model.train([])

    with pytest.raises(KeyboardInterrupt) as caught:
        asyncio.run(main())
    assert path_of(caught.value)[-3:] == ["main", "train", "interrupt"]  # `train` is the one above, not the model's
    assert [frame.name for frame in traceback.extract_tb(caught.value.full_traceback)][-2:] == ["sub", "interrupt"]


def test_nested_blocks_keep_the_full_traceback():
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught, ShortTraceback(), ShortTraceback():
        re.sub("a", interrupt, "a")
    assert "sub" not in path_of(caught.value)
    assert [frame.name for frame in traceback.extract_tb(caught.value.full_traceback)][-2:] == ["sub", "interrupt"]
