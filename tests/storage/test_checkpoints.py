"""Checkpoint files under kill -9, on full disks and with several writers: what is read is always complete."""

import errno
import os
import random
import signal
import sys
import tempfile
import time
from io import FileIO
from pathlib import Path

import pytest

from art_nb.storage import checkpoints as ck

FILES = {"adapter.bin": 9_000, "sub/optimizer.bin": 5_000}
# tests/project/test_any_laptop.py kills writers on every system; here they are killed before every single call.
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the writers that it kills")


@pytest.fixture
def tmp_path(tmp_path):
    """A folder in memory if possible: a kill is not a power failure, and fsync costs nothing there."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def fill(value):
    def write(folder):
        for name, size in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(bytes([value]) * size)

    return write


def content(folder):
    """Return the value that a folder was filled with; fails unless all files are complete and of the same write."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert {name: len(data) for name, data in found.items()} == FILES
    values = set(b"".join(found.values()))
    assert len(values) == 1
    return values.pop()


def leftovers(folder):
    return [p.name for p in folder.iterdir() if p.name.startswith(".") and not p.name.endswith(".lock")]


def in_child(work):
    """Run `work` in a forked process and return its PID."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    finally:
        os._exit(code)


def kill_before_call(number):
    """Kill this process just before its `number`-th call into the operating system from now on."""
    calls = 0

    def count(_frame, event, function):
        nonlocal calls
        if event == "c_call" and (function.__module__ in ("posix", "fcntl") or isinstance(function.__self__, FileIO)):
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1

    sys.setprofile(count)


def killed_at_every_call(work):
    """Run `work` in child processes, each killed one call later than the one before, and yield after each."""
    for number in range(2000):

        def child(number=number):
            kill_before_call(number)
            work()

        _, status = os.waitpid(in_child(child), 0)
        yield number
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            assert number > 10, "the kills never came"
            return


def test_folder_is_created_replaced_and_listed(tmp_path):
    runs = tmp_path / "a" / "checkpoints"
    assert ck.list_checkpoints(runs) == [] and ck.latest(runs) is None
    for step in (0, 12, 3):
        ck.write_folder(ck.step_folder(runs, step), fill(step + 1))
    ck.write_folder(ck.step_folder(runs, 3), fill(99))
    (runs / "notes").mkdir()
    (runs / "0007").write_text("a file, not a checkpoint")
    assert ck.list_checkpoints(runs) == [0, 3, 12] and ck.latest(runs) == 12
    assert content(runs / "0003") == 99 and content(runs / "0012") == 13
    assert leftovers(runs) == []


def test_prune_keeps_the_given_steps(tmp_path):
    for step in range(5):
        ck.write_folder(ck.step_folder(tmp_path, step), fill(1))
    ck.prune(tmp_path, keep={1, 4, 77})
    assert ck.list_checkpoints(tmp_path) == [1, 4] and leftovers(tmp_path) == []


@forks
def test_replacing_survives_a_kill_before_every_system_call(tmp_path):
    target = ck.step_folder(tmp_path, 1)
    ck.write_folder(target, fill(1))
    seen = set()
    for number in killed_at_every_call(lambda: ck.write_folder(target, fill(2))):
        ck.recover(tmp_path)
        assert ck.list_checkpoints(tmp_path) == [1] and leftovers(tmp_path) == [], number
        seen.add(content(target))
        ck.write_folder(target, fill(1))
    assert seen == {1, 2}


@forks
def test_pruning_survives_a_kill_before_every_system_call(tmp_path):
    for number in killed_at_every_call(lambda: ck.prune(tmp_path, keep={2})):
        steps = ck.list_checkpoints(tmp_path)
        assert all(content(ck.step_folder(tmp_path, step)) == 1 for step in steps), number
        ck.recover(tmp_path)
        assert leftovers(tmp_path) == [] and ck.list_checkpoints(tmp_path) == steps, number
        for step in (1, 2):
            ck.write_folder(ck.step_folder(tmp_path, step), fill(1))


def test_listing_changes_nothing_and_recovery_moves_the_old_folder_back(tmp_path):
    """A writer was killed between the two renames of a replacement: step 1 is missing until `recover`."""
    dead = 99999999
    for name in (f".old-{dead}-00c0ffee-0001", f".tmp-{dead}-00c0ffee", "0002"):
        (tmp_path / name).mkdir()
        fill(1)(tmp_path / name)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert ck.list_checkpoints(tmp_path) == [2] and ck.latest(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    ck.recover(tmp_path)
    assert ck.list_checkpoints(tmp_path) == [1, 2] and content(tmp_path / "0001") == 1 and leftovers(tmp_path) == []


def test_a_pruned_step_does_not_come_back(tmp_path):
    """A writer was killed after its replacement was in place, before the old folder was gone."""
    ck.write_folder(tmp_path / "0001", fill(2))
    (tmp_path / ".old-99999999-00c0ffee-0001").mkdir()
    fill(1)(tmp_path / ".old-99999999-00c0ffee-0001")
    ck.prune(tmp_path, keep=set())
    assert ck.list_checkpoints(tmp_path) == [] and list(tmp_path.iterdir()) == []


@forks
def test_appending_survives_a_kill_before_every_system_call(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = []
    for number in killed_at_every_call(lambda: ck.append_jsonl(path, [{"n": 1}, {"n": 2}])):
        found = ck.read_jsonl(path)
        assert found in (rows, rows + [{"n": 1}, {"n": 2}]), number
        rows = found


@forks
def test_random_kills_of_a_busy_writer(tmp_path):
    """Fifty times: a process writes, replaces, prunes and logs without pause until it is killed."""
    runs, log = tmp_path / "checkpoints", tmp_path / "history.jsonl"
    dice = random.Random(0)
    done = 0
    for _ in range(50):
        listen, tell = os.pipe()

        def busy(tell=tell):
            ck.recover(runs)
            for n in range(len(ck.read_jsonl(log)), 10_000_000):
                os.write(tell, b".")
                ck.write_folder(ck.step_folder(runs, 0), fill(n % 256))
                ck.write_folder(ck.step_folder(runs, n + 1), fill(n % 256))
                ck.append_jsonl(log, [{"n": n, "text": "é\n" * dice.randrange(3_000)}])
                ck.prune(runs, keep={0, n, n + 1})

        pid = in_child(busy)
        rounds = dice.randrange(1, 3)
        os.close(tell)
        for _ in range(rounds):  # it has begun so many rounds, and is killed somewhere in one of them
            assert os.read(listen, 1) == b"."
        time.sleep(dice.uniform(0, 0.01))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(listen)

        ck.recover(runs)
        assert not runs.exists() or leftovers(runs) == []
        rows = ck.read_jsonl(log)
        steps = ck.list_checkpoints(runs)
        assert [row["n"] for row in rows] == list(range(len(rows)))
        assert len(rows) >= done + rounds - 1
        assert all(content(ck.step_folder(runs, step)) in range(256) for step in steps)
        assert not rows or {0, len(rows)} <= set(steps)
        done = len(rows)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "disk full"), KeyboardInterrupt()])
def test_a_failure_while_filling_leaves_nothing_behind(tmp_path, error):
    ck.write_folder(tmp_path / "0001", fill(1))

    def fail(folder):
        fill(2)(folder)
        raise error

    for name in ("0001", "0002"):
        with pytest.raises(type(error)):
            ck.write_folder(tmp_path / name, fail)
    assert [p.name for p in tmp_path.iterdir()] == ["0001"] and content(tmp_path / "0001") == 1


def test_an_interrupt_between_the_two_renames_puts_the_old_folder_back(tmp_path, monkeypatch):
    ck.write_folder(tmp_path / "0001", fill(1))
    rename, moved = os.rename, []

    def interrupted(source, target):
        if moved and len(moved) == 1:
            moved.append(target)
            raise KeyboardInterrupt
        rename(source, target)
        if ".old-" in str(target):
            moved.append(target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ck.write_folder(tmp_path / "0001", fill(2))
    assert len(moved) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["0001"] and content(tmp_path / "0001") == 1


def test_files_are_synced_before_the_folder_is_renamed(tmp_path, monkeypatch):
    events, sync, rename = [], ck._sync, os.rename

    def recorded_sync(path):
        events.append(("sync", path))
        sync(path)

    def recorded_rename(source, target):
        events.append(("rename", target))
        rename(source, target)

    monkeypatch.setattr(ck, "_sync", recorded_sync)
    monkeypatch.setattr(os, "rename", recorded_rename)
    target = tmp_path / "0001"
    ck.write_folder(target, fill(1))
    new = events[0][1].parent if events[0][1].name == "adapter.bin" else events[0][1].parent.parent
    synced = [path for event, path in events[: events.index(("rename", target))] if event == "sync"]
    assert sorted(synced) == sorted([new, new / "adapter.bin", new / "sub", new / "sub" / "optimizer.bin"])
    assert synced.index(new) == len(synced) - 1
    assert events[-1] == ("sync", tmp_path)


@forks
def test_write_file_replaces_in_one_step(tmp_path):
    path = tmp_path / "deep" / "state.json"
    ck.write_file(path, b"one")
    for _ in killed_at_every_call(lambda: ck.write_file(path, b"two")):
        assert path.read_bytes() in (b"one", b"two")
        ck.recover(path.parent)
        assert leftovers(path.parent) == []
        ck.write_file(path, b"one")


def test_an_incomplete_last_line_is_ignored_and_removed(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert ck.read_jsonl(path) == []
    ck.append_jsonl(path, [{"a": 1}])
    whole = path.read_bytes()
    for torn in (b"{", b'{"a": 2}', b"\0" * 200_000, '{"b": "é'.encode()[:-1]):
        path.write_bytes(whole + torn)
        assert ck.read_jsonl(path) == [{"a": 1}]
        ck.append_jsonl(path, [{"c": 3}])
        assert ck.read_jsonl(path) == [{"a": 1}, {"c": 3}]
    path.write_bytes(b'{"torn": ')
    assert ck.read_jsonl(path) == []
    ck.append_jsonl(path, [{"c": 3}])
    assert ck.read_jsonl(path) == [{"c": 3}]


def test_a_corrupt_line_is_named_in_the_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2, is not JSON"):
        ck.read_jsonl(path)


def test_any_text_survives_the_round_trip(tmp_path):
    rows = [
        {"text": "line\nbreak \u2028 \x00 é 你 \ud800 <b>"},
        {},
        {"nested": [{"x": None}, 1.5e-300, True]},
    ]
    ck.append_jsonl(tmp_path / "rows.jsonl", rows)
    assert ck.read_jsonl(tmp_path / "rows.jsonl") == rows


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_a_row_that_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path, bad):
    path = tmp_path / "rows.jsonl"
    ck.append_jsonl(path, [{"a": 1}])
    with pytest.raises(ValueError, match=r"row 1 for rows\.jsonl cannot be written as JSON"):
        ck.append_jsonl(path, [{"a": 2}, {"loss": bad}])
    assert ck.read_jsonl(path) == [{"a": 1}]


@forks
def test_a_full_disk_in_the_middle_of_a_line_adds_no_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    ck.append_jsonl(path, [{"a": 1}])
    before = path.read_bytes()

    def child():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, len(before) + 50))
        with pytest.raises(OSError, match="do not fit"):
            ck.append_jsonl(path, [{"b": "x" * 20}, {"c": "y" * 100}])

    _, status = os.waitpid(in_child(child), 0)
    assert status == 0 and path.read_bytes() == before


@forks
def test_recovery_leaves_what_living_processes_write(tmp_path):
    """Garbage of dead processes is deleted, also of a predecessor with our PID; what is being written stays."""
    dead = in_child(lambda: None)
    os.waitpid(dead, 0)
    alive = in_child(lambda: time.sleep(60))
    try:
        for pid in (dead, alive, os.getpid()):
            (tmp_path / f".tmp-{pid}-00c0ffee").mkdir()
        (tmp_path / ".tmp-of-another-program").mkdir()

        def recover_meanwhile(folder):
            fill(1)(folder)
            ck.recover(tmp_path)

        ck.write_folder(tmp_path / "0001", recover_meanwhile)
        assert content(tmp_path / "0001") == 1
        assert sorted(leftovers(tmp_path)) == sorted([f".tmp-{alive}-00c0ffee", ".tmp-of-another-program"])
    finally:
        os.kill(alive, signal.SIGKILL)
        os.waitpid(alive, 0)


@forks
def test_several_writers_and_recoveries_do_not_disturb_each_other(tmp_path):
    log = tmp_path / "rows.jsonl"

    def writer(me):
        for n in range(25):
            ck.write_folder(ck.step_folder(tmp_path, 0), fill(me))
            ck.write_folder(ck.step_folder(tmp_path, me), fill(n))
            ck.append_jsonl(log, [{"writer": me, "n": n, "text": "x" * 9000}] * 2)

    def recoverer():
        for _ in range(150):
            ck.recover(tmp_path)
            ck.list_checkpoints(tmp_path)
            ck.read_jsonl(log)

    children = [in_child(lambda me=me: writer(me)) for me in (1, 2, 3)] + [
        in_child(recoverer) for _ in range(2)
    ]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 5
    assert ck.list_checkpoints(tmp_path) == [0, 1, 2, 3] and leftovers(tmp_path) == []
    assert content(tmp_path / "0000") in (1, 2, 3) and content(tmp_path / "0002") == 24
    rows = ck.read_jsonl(log)
    for me in (1, 2, 3):
        assert [row["n"] for row in rows if row["writer"] == me] == [n for n in range(25) for _ in range(2)]
