"""Differences of other systems: Windows' files, locale and console, unusual folders, other line ends.

Windows is not available here. `Windows` is `os` with the rules of Windows, for the one module that depends on them.
"""

import ast
import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from art_nb.storage import checkpoints as ck
from course import doctor
from course.demo import working_folder

ROOT = Path(__file__).parents[2]
SOURCES = [path for folder in ("art_nb", "data", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
ONLY_POSIX = {"fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "posix", "syslog", "readline", "curses"}
NOT_ON_WINDOWS = {"fork", "pread", "pwrite", "getuid", "geteuid", "fchmod", "chown", "mkfifo", "WNOHANG", "getpgid", "killpg"}


class Windows:
    """`os` with the rules of Windows: folders cannot be opened, and open or existing files cannot be renamed or replaced."""

    def __getattr__(self, name):
        if name in NOT_ON_WINDOWS:
            raise AttributeError(f"module 'os' has no attribute {name!r}")
        return getattr(os, name)

    def kill(self, pid, sign):
        raise AssertionError("os.kill ends the process, whatever the signal")

    def open(self, path, flags, mode=0o777):
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return os.open(path, flags, mode)

    def fsync(self, fd):
        import fcntl

        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        os.fsync(fd)

    def rename(self, source, target):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "Cannot create a file when that file already exists", str(target))
        self.refuse_what_is_open(source)
        os.rename(source, target)

    def replace(self, source, target):
        self.refuse_what_is_open(source)
        self.refuse_what_is_open(target)
        os.replace(source, target)

    @staticmethod
    def refuse_what_is_open(path):
        if any(Path(file.path).is_relative_to(Path(path).resolve()) for file in psutil.Process().open_files()):
            raise PermissionError(errno.EACCES, "The process cannot access the file: it is being used", str(path))


@pytest.fixture
def windows(monkeypatch):
    """Let storage behave as on Windows; on Windows it is unchanged."""
    if sys.platform != "win32":
        monkeypatch.setattr(ck, "os", Windows())
        monkeypatch.setattr(ck, "WINDOWS", True)


def fill(value):
    def write(folder):
        (folder / "sub").mkdir()
        for name in ("adapter.bin", "sub/optimizer.bin"):
            (folder / name).write_bytes(value * 1000)

    return write


def content(folder):
    (value,) = {path.read_bytes() for path in folder.rglob("*.bin")}
    return value[:1]


def test_storage_keeps_its_guarantees_on_windows(windows, tmp_path):
    runs = tmp_path / "Jörgs Läufe" / "checkpoints"
    for step, value in ((1, b"a"), (2, b"b"), (1, b"c")):
        ck.write_folder(ck.step_folder(runs, step), fill(value))
    assert ck.list_checkpoints(runs) == [1, 2] and content(runs / "0001") == b"c"
    ck.prune(runs, keep={1})
    assert [path.name for path in runs.iterdir()] == ["0001"]
    for text in ("one", "two\r\n"):
        ck.write_file(tmp_path / "state.json", text.encode())
        assert (tmp_path / "state.json").read_bytes() == text.encode()
    log = tmp_path / "history.jsonl"
    ck.append_jsonl(log, [{"n": 1}])
    log.write_bytes(log.read_bytes() + b'{"torn')
    ck.append_jsonl(log, [{"text": "é\n"}, {"n": 2}])
    assert ck.read_jsonl(log) == [{"n": 1}, {"text": "é\n"}, {"n": 2}] and b"\r" not in log.read_bytes()


def test_an_interrupted_replacement_is_finished_on_windows(windows, tmp_path):
    fill_old, fill_new = tmp_path / ".old-99999999-00c0ffee-0001", tmp_path / ".old-99999999-00c0ffee-0002"
    for folder, value in ((fill_old, b"a"), (fill_new, b"a"), (tmp_path / "0002", b"b")):
        folder.mkdir()
        fill(value)(folder)
    assert ck.list_checkpoints(tmp_path) == [2]
    ck.recover(tmp_path)
    assert ck.list_checkpoints(tmp_path) == [1, 2]
    assert content(tmp_path / "0001") == b"a" and content(tmp_path / "0002") == b"b"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0001", "0002"]


def test_a_process_is_looked_up_without_ending_it(windows, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (tmp_path / f".tmp-{process.pid}-00c0ffee").mkdir()
    ck.recover(tmp_path)
    assert process.poll() is None and len(list(tmp_path.iterdir())) == 1
    process.communicate(b"\n")
    ck.recover(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_open_file_is_replaced_once_it_is_closed(windows, tmp_path):
    ck.write_folder(tmp_path / "0001", fill(b"a"))
    ck.write_file(tmp_path / "state.json", b"old")
    readers = [(tmp_path / "0001/adapter.bin").open("rb"), (tmp_path / "state.json").open("rb")]
    threading.Timer(0.3, lambda: [reader.close() for reader in readers]).start()
    ck.write_file(tmp_path / "state.json", b"new")
    ck.write_folder(tmp_path / "0001", fill(b"b"))
    assert content(tmp_path / "0001") == b"b" and (tmp_path / "state.json").read_bytes() == b"new"


def test_a_file_that_stays_open_is_unchanged_and_the_error_explains_it(windows, tmp_path, monkeypatch):
    monkeypatch.setattr(ck, "RETRY_S", 0.1)
    ck.write_folder(tmp_path / "0001", fill(b"a"))
    with (tmp_path / "0001/adapter.bin").open("rb"):
        for change in (lambda: ck.write_folder(tmp_path / "0001", fill(b"b")), lambda: ck.prune(tmp_path, keep=set())):
            with pytest.raises(PermissionError) as caught:
                change()
            assert "Another program has it open" in caught.value.__notes__[0]
    assert [path.name for path in tmp_path.iterdir()] == ["0001"] and content(tmp_path / "0001") == b"a"


BUSY = """
import sys
from pathlib import Path
from art_nb.storage import checkpoints as ck

runs, log, start = Path(sys.argv[1]), Path(sys.argv[1]) / "history.jsonl", int(sys.argv[2])
def fill(folder):
    for name in "abc":
        (folder / name).write_bytes(bytes([n % 256]) * 5000)
ck.recover(runs)
for n in range(start, 1_000_000):
    print(n, flush=True)
    ck.write_folder(ck.step_folder(runs, 0), fill)
    ck.write_folder(ck.step_folder(runs, n + 1), fill)
    ck.append_jsonl(log, [{"n": n, "text": "x" * 20_000}])
    ck.prune(runs, keep={0, n, n + 1})
"""


def test_a_killed_writer_leaves_complete_files_on_every_system(tmp_path):
    """tests/storage/test_checkpoints.py kills before every single call, but needs a system that can fork."""
    done, dice = 0, random.Random(0)
    for _ in range(4):
        command = [sys.executable, "-c", BUSY, str(tmp_path), str(done)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            begun = [int(process.stdout.readline()) for _ in range(2)]
            time.sleep(dice.uniform(0, 0.05))
            process.kill()
        ck.recover(tmp_path)
        rows, steps = ck.read_jsonl(tmp_path / "history.jsonl"), ck.list_checkpoints(tmp_path)
        assert [row["n"] for row in rows] == list(range(len(rows))) and len(rows) >= begun[-1] > done - 1
        assert {0, len(rows)} <= set(steps)
        for step in steps:
            files = [(ck.step_folder(tmp_path, step) / name).read_bytes() for name in "abc"]
            assert files[0] == files[1] == files[2] and len(files[0]) == 5000
        done = len(rows)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".tmp", ".old"))]


OPEN_NO_TEXT = {"Image", "os", "webbrowser", "archive", "customer", "served.news"}  # what they open is not a text file


def unportable(call: ast.Call, is_hashed: bool) -> str | None:
    """Return which default of a call depends on the system, if any."""
    name, told = ast.unparse(call.func), {keyword.arg for keyword in call.keywords}
    first, _, last = name.rpartition(".")
    words = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
    is_binary = any("b" in word for word in words if isinstance(word, str) and set(word) <= set("rwaxbt+"))
    if first == "os" and last in NOT_ON_WINDOWS | {"symlink", "link"} or last in ("symlink_to", "hardlink_to"):
        return f"{name} is not for every system"
    opens_text = last == "open" and first not in OPEN_NO_TEXT and not is_binary
    if "encoding" not in told and (opens_text or last == "read_text" and not words or last == "write_text" and first):
        return f"{name} without an encoding"
    return f"{name} without newline" if is_hashed and last == "write_text" and first and "newline" not in told else None


def test_files_are_utf_8_and_no_call_is_posix_only():
    """By default Windows reads text in its code page and writes CRLF, which would change the hashes in data/."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            faults = [f"imports {name}" for name in names if name.split(".")[0] in ONLY_POSIX]
            if isinstance(node, ast.Call):
                faults += filter(None, [unportable(node, is_hashed="data" in path.relative_to(ROOT).parts)])
            found += [f"{path.relative_to(ROOT)}:{node.lineno}: {fault}" for fault in faults]
    assert found == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("open(path)", "open without an encoding"),
        ("gzip.open(path, 'rt')", "gzip.open without an encoding"),
        ("path.write_text(text, encoding='utf-8')", "path.write_text without newline"),
        ("Path(x).read_text()", "Path(x).read_text without an encoding"),
        ("os.fork()", "os.fork is not for every system"),
        ("a.symlink_to(b)", "a.symlink_to is not for every system"),
        ("open(path, 'rb'), os.open(path, 0), path.read_text('utf-8')", None),
    ],
)
def test_the_check_for_unportable_calls_finds_them(source, fault):
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    assert {unportable(call, is_hashed=True) for call in calls} - {None} == ({fault} if fault else set())


LAPTOP = """
import builtins, io, os, pkgutil, sys
assert sys.stdout.encoding == "cp1252" and not sys.flags.utf8_mode

real_open = io.open
def open_as_windows_does(file, mode="r", buffering=-1, encoding=None, *rest, **options):
    if "b" not in mode and encoding in (None, "locale"):
        encoding = "cp1252"
    return real_open(file, mode, buffering, encoding, *rest, **options)
builtins.open = io.open = open_as_windows_does

wanted = builtins.__import__
def without_posix(name, globals=None, *rest, **options):
    ours = str((globals or {}).get("__name__")).split(".")[0] in ("art_nb", "__main__")
    if ours and name in ONLY_POSIX:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return wanted(name, globals, *rest, **options)
builtins.__import__ = without_posix
def no_rights(*arguments, **options):
    raise OSError("A required privilege is not held by the client")
os.symlink = no_rights

import asyncio, importlib
import psutil
import art_nb as art
OPTIONAL = ("verifiers", "openenv")  # of adapters; the extra `dev` does not install them
for module in pkgutil.walk_packages(art.__path__, "art_nb."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if not (module.name.startswith("art_nb.environments.adapters.") and error.name in OPTIONAL):
                raise

from course import demo, doctor, exercises
from course.exercises.start_here import check
from pathlib import Path
assert "Ã¼" in Path("laptop.py").read_text()  # so it is cp1252
doctor.UNSLOTH_PROBE = "import not_here_at_all"
assert doctor.can_run(doctor.doctor())
print(check("has_signal", lambda rewards: len(set(rewards)) > 1), "/", check("has_signal", None))
os.chdir(demo.working_folder(Path.cwd()))

async def rollout(model, reward):
    question = [{"role": "user", "content": "⊕ ü"}]
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=question, max_tokens=2)
    return art.Trajectory(messages_and_choices=[*question, answer.choices[0]], reward=reward)

async def main():
    from art_nb.local import LocalBackend
    for step in range(2):
        model = art.TrainableModel(name="ü 1", project="Übung", base_model="../data/nano")
        await model.register(LocalBackend(path=".art", engine="transformers"))
        groups = await art.gather_trajectory_groups([art.TrajectoryGroup(rollout(model, r) for r in (0.0, 1.0))], pbar_desc=None)
        await model.train(groups, art.TrainConfig())
        await model.log(groups, split="val")
    if sys.platform != "darwin":  # which asks for more rights
        mapped = [each.path for each in psutil.Process().memory_maps() if ".art" in each.path]
        assert not mapped, f"Windows could not delete {mapped}"
    await model.delete_checkpoints()
    assert await model.get_step() == 2 and len(model.history()) == 4
    assert model.records(split="val")[0]["turns"]
asyncio.run(main())

from email_search import course_mailbox, scenarios
course_mailbox(), scenarios("val", 3)
from course.judged_groups import judged_groups
judged_groups()
print("done")
"""


def test_the_course_runs_with_windows_code_page_without_posix_in_a_folder_with_umlauts(tmp_path):
    """Files and pipes default to cp1252, symbolic links are forbidden, and the names in ONLY_POSIX do not exist."""
    folder = tmp_path / "Jörg's Kurs & mehr"
    folder.mkdir()
    told = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252", "PYTHONPATH": str(ROOT)}
    environment = os.environ | told | {"XDG_CACHE_HOME": str(folder / "Zwischenspeicher")}
    (folder / "laptop.py").write_text(LAPTOP.replace("ONLY_POSIX", repr(ONLY_POSIX)), encoding="utf-8")
    run = subprocess.run([sys.executable, "laptop.py"], cwd=folder, env=environment, capture_output=True)
    output = run.stdout.decode("cp1252")
    assert run.returncode == 0 and output.endswith("done" + os.linesep), output + run.stderr.decode("utf-8", "replace")[-3000:]
    assert "? Right. / ? Not attempted yet." in output and "MISSING" not in output


def test_a_command_replaces_characters_that_its_pipe_cannot_encode(tmp_path):
    code = "from art_nb import __main__ as m; m.COMMANDS['demo'] = lambda: print('[✓] → ü') or 0; m.main(['demo'])"
    told = os.environ | {"PYTHONIOENCODING": "cp1252"}
    assert subprocess.check_output([sys.executable, "-c", code], env=told, cwd=ROOT).split() == [b"[?]", b"?", b"\xfc"]


def test_a_checkout_with_windows_line_ends_has_the_same_bytes(tmp_path):
    """With git's default on Windows (core.autocrlf), .gitattributes keeps data and text unchanged."""
    folder = tmp_path / "a clone"
    names = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT).decode().split("\0")
    for name in [name for name in names if name.startswith(("data/", ".gitattributes", "Makefile", "tests/"))]:
        if (ROOT / name).is_file():
            (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "here" / name)
    git = ["git", "-c", "core.autocrlf=true", "-c", "user.name=x", "-c", "user.email=x@y"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], cwd=tmp_path / "here", check=True, capture_output=True)
    subprocess.run([*git, "clone", "-q", str(tmp_path / "here"), str(folder)], check=True, capture_output=True)
    for sums in (folder / "data").rglob("SHA256SUMS"):
        assert doctor.nano_model(sums.parent).ok
    for path in filter(Path.is_file, folder.rglob("*")):
        if ".git" not in path.relative_to(folder).parts:
            here = (ROOT / path.relative_to(folder)).read_bytes()
            assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(here).digest(), path


def test_the_demo_needs_no_symbolic_link(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "symlink", lambda *a, **k: pytest.fail("links need rights on Windows"))
    notebooks = working_folder(tmp_path)
    assert doctor.nano_model(notebooks / "../data/nano").ok and json.loads((notebooks / "../data/nano/config.json").read_text("utf-8"))
