"""The sandbox: hostile programs do no harm, limits hold, the next run is unaffected; containers where they are available."""

import ast
import gc
import shutil
import sys
import threading
import time
from dataclasses import replace

import pytest

from benchmarks.hostile import LIMITS, programs, trial
from code_repair.problems import Check, same_value
from code_repair.sandbox import CRASHED, OUT_OF_TIME, Answer, ContainerSandbox, Limits, MontySandbox, _answer_of
from code_repair.trials import judge


@pytest.fixture(scope="module")
def sandbox():
    with MontySandbox() as box:
        yield box


LONG = 15  # seconds; every run that ends takes a fraction of it, even on a busy machine


def test_a_thousand_hostile_programs_harm_nothing(monkeypatch):
    """`python -m benchmarks.hostile 10000` runs ten times as many, with a limit of a second; endless loops take most of the time."""
    monkeypatch.setattr("benchmarks.hostile.GRACE", LONG)
    found = trial(1005, seed=1, limits=replace(LIMITS, seconds=0.1))
    assert found["harm"] == {} and found["programs"] == 1005
    assert set(found["kinds"].values()) == {67}
    assert found["memory_grown_mb"] < 300


def test_the_programs_are_the_same_from_the_same_seed():
    places = {"read": "r", "write": "w", "folder": "f", "port": 1}
    assert list(programs(90, 3, places)) == list(programs(90, 3, places)) != list(programs(90, 4, places))


def test_the_trial_detects_a_faulty_sandbox(monkeypatch):
    """It detects a sandbox that keeps names, one that reads a file, and one that is too slow."""

    def leaky(self, source, snippets):
        if source.startswith("def after"):
            return [Answer("2"), Answer("4")]
        with open(places["read"], encoding="utf-8") as file:
            return [Answer(file.read())] * len(snippets)

    places = {}
    monkeypatch.setattr("benchmarks.hostile.programs", lambda count, seed, where: places.update(where) or [("files", "x")])
    monkeypatch.setattr(MontySandbox, "run", leaky)
    monkeypatch.setattr("benchmarks.hostile.GRACE", -10)
    harm = trial(1)["harm"]
    assert harm == {"read a file": 1, "affected the next run": 1, "exceeded its limit": 1}


def test_answers_are_text_and_errors_have_names(sandbox):
    source = "def half(n):\n    return n // 2"
    right, wrong, statement = sandbox.run(source, ["repr(half(9))", "repr(half('9'))", "x = half(2)\nassert x == 1"])
    assert right == Answer("4") and statement == Answer()
    assert wrong.text is None and wrong.error.startswith("TypeError: ")
    assert sandbox.run(source, ["half(9)"]) == [Answer()]  # not text: only values requested as text are returned
    (failed,) = sandbox.run("def half(n:", ["repr(half(9))"])
    assert failed.error.startswith("SyntaxError")


@pytest.mark.parametrize(
    ("source", "snippet"),
    [("while True:\n    pass", "1"), ("def f():\n    while True:\n        pass", "f()"), ("import time\ntime.sleep(60)", "repr(1)")],
)
def test_time_is_limited(source, snippet):
    with MontySandbox(Limits(seconds=0.2)) as box:
        started = time.monotonic()
        answers = box.run(source, [snippet, "repr(1)"])
        assert time.monotonic() - started < LONG
        assert answers == [Answer("1") if "sleep" in source else Answer(error=OUT_OF_TIME)] * 2  # sleeping takes no time


def test_many_slow_snippets_together_exceed_the_time_limit():
    with MontySandbox(Limits(seconds=0.2)) as box:
        slow = "def f():\n    n = 0\n    for i in range(400000):\n        n += i\n    return n"
        started = time.monotonic()
        answers = box.run(slow, ["repr(f())"] * 200)
        assert time.monotonic() - started < LONG
        assert answers[-1].out_of_time and len(answers) == 200


def test_memory_recursion_and_length_are_limited(sandbox):
    assert "MemoryError" in sandbox.run("x = [0] * 10 ** 10", ["1"])[0].error
    assert "RecursionError" in sandbox.run("def f(n):\n    return f(n)", ["f(1)"])[0].error
    assert "longer than" in sandbox.run("x = 1\n" * 100_000, ["1"])[0].error
    assert len(sandbox.run("", ["'x' * 10 ** 6"])[0].text) == sandbox.limits.answer


def test_a_worker_that_dies_is_replaced():
    """Its process is killed; the interrupted run reports it, and the next one gets a new worker."""
    import psutil

    others = psutil.Process().children(recursive=True)
    with MontySandbox(Limits(seconds=60)) as box:
        box.run("", ["1"])
        workers = [child for child in psutil.Process().children(recursive=True) if "monty" in child.name() and child not in others]
        assert workers
        timer = threading.Timer(0.5, lambda: [worker.kill() for worker in workers])
        timer.start()
        assert box.run("while True:\n    pass", ["1", "2"]) == [Answer(error=CRASHED)] * 2
        timer.join()
        assert box.run("", ["repr(1)"]) == [Answer("1")]


def test_threads_share_a_sandbox(sandbox):
    found = {}

    def ask(n):
        found[n] = sandbox.run(f"x = {n}", ["repr(x)"])[0].text

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: str(n) for n in range(16)}


def test_expected_values_never_enter_the_sandbox(sandbox):
    seen = []

    class RecordingSandbox:
        limits = sandbox.limits

        def run(self, source, snippets):
            seen.append(source + "".join(snippets))
            return sandbox.run(source, snippets)

    tests = [Check("f(1)", "'swordfish'"), Check("f(2)", "3")]
    files = {"f.py": "class Always:\n    def __eq__(self, other):\n        return True\ndef f(n):\n    return Always()\n"}
    verdict = judge(RecordingSandbox(), files, tests)
    assert verdict.passes == [False, False] and "swordfish" not in "".join(seen)


@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("1", "1", True), ("True", "1", False), ("1.0", "1", False), ("[1, 2]", "[1, 2]", True), ("(1, 2)", "[1, 2]", False),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", True), ("{'a': True}", "{'a': 1}", False), ("{1, 2}", "{2, 1}", True), ("None", "None", True),
        ("<object>", "<object>", False), ("__import__('os')", "1", False), ("(" * 300, "1", False), ("-" * 9000 + "1", "1", False),
    ],
)  # fmt: skip
def test_values_are_compared_with_their_types(answer, truth, same):
    assert same_value(answer, truth) is same


class Garbage:
    """An object that is only freed by a garbage collection, and then parses code."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        self.parse(40)

    def parse(self, depth):
        return self.parse(depth - 1) if depth else ast.parse("1")


def test_values_are_compared_while_garbage_parses_code():
    """In CPython 3.11 this fails `ast.literal_eval` with a SystemError, as a logged traceback of a lost task may."""
    usual = gc.get_threshold()
    try:
        for threshold in range(5, 25, 4):  # objects allocated until the collection
            gc.collect()
            Garbage()
            gc.set_threshold(threshold)
            assert same_value("(1, 2, [3, 4])", "(1, 2, [3, 4])")
            gc.set_threshold(*usual)
    finally:
        gc.set_threshold(*usual)


def test_a_missing_container_engine_raises(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(FileNotFoundError, match="bwrap is not installed"):
        ContainerSandbox("bubblewrap")
    with pytest.raises(ValueError, match="bubblewrap or docker"):
        ContainerSandbox("chroot")


def test_a_container_has_no_network_no_privileges_and_no_host_files(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    bubblewrap = ContainerSandbox("bubblewrap").command("n")
    assert {"--unshare-all", "--clearenv", "--die-with-parent"} <= set(bubblewrap) and "--bind" not in bubblewrap
    docker = ContainerSandbox("docker").command("n")
    assert {"--network=none", "--read-only", "--cap-drop=ALL", "--pull=never", "--name=n", "python:3.13-slim"} <= set(docker)
    assert not [word for word in docker if word.startswith(("-v", "--volume", "--mount", "--privileged"))]


@pytest.mark.parametrize("line", [b"", b"1", b"[1, 2]", b"[null]", b'{"a": 1, "b": 2}', b"\xff", b"[" * 100_000])
def test_a_containers_output_is_not_trusted(line):
    assert _answer_of(line) is None


def test_a_containers_surrogates_become_question_marks():
    assert _answer_of(b'[null, "ValueError: \\ud800"]') == Answer(error="ValueError: ?") and _answer_of(b'["", null]') == Answer("")


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_cpython_in_bubblewrap():
    box = ContainerSandbox("bubblewrap", Limits(seconds=2.0, memory=512_000_000))
    source = "import os\nclass Base:\n    pass\nclass A(Base):\n    def numbers(self):\n        yield 1"
    assert box.run(source, ["repr(list(A().numbers()))", "1 / 0"]) == [Answer("[1]"), Answer(error="ZeroDivisionError: division by zero")]
    assert int(box.run(source, ["repr(os.getpid())"])[0].text) < 9  # it sees its own processes only
    for bad in ("open('/etc/passwd')", "open('/usr/x', 'w')", "__import__('socket').create_connection(('127.0.0.1', 80), 1)"):
        assert box.run("", [bad])[0].error.startswith(("FileNotFoundError", "OSError", "ConnectionRefusedError"))
    started = time.monotonic()
    assert box.run("while True:\n    pass", ["1"]) == [Answer(error=OUT_OF_TIME)] and time.monotonic() - started < LONG
    assert box.run("import os\nos._exit(0)", ["1"]) == [Answer(error=CRASHED)]
    longest = "\U0001f600" * box.limits.answer  # each is written as 12 characters
    assert box.run("", [repr(longest)]) == [Answer(longest)]


class SlowTimer(threading.Timer):
    """A timer that counts while the thread that started it waits for the processor."""

    def start(self):
        super().start()
        time.sleep(0.02)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_run_that_the_limit_ends_is_no_crash(monkeypatch):
    monkeypatch.setattr("code_repair.sandbox.threading.Timer", SlowTimer)
    assert ContainerSandbox("bubblewrap", Limits(seconds=0.5)).run("while True:\n    pass", ["1"]) == [Answer(error=OUT_OF_TIME)]


def test_a_container_that_does_not_read_has_a_limit_of_time(monkeypatch):
    """The code is longer than a pipe holds, so that writing it waits for the container."""
    monkeypatch.setattr("code_repair.sandbox.shutil.which", lambda name: name)
    monkeypatch.setattr("code_repair.sandbox.START_SECONDS", 0.2)
    box = ContainerSandbox("bubblewrap")
    monkeypatch.setattr(box, "command", lambda name: [sys.executable, "-c", f"import time\ntime.sleep({2 * LONG})"])
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="did not start Python"):
        box.run("#" * 190_000, ["1"])
    assert time.monotonic() - started < LONG


def test_a_container_that_does_not_start_is_reported_by_its_own_message(monkeypatch):
    """It ends before it has read the code, which is longer than a pipe holds."""
    monkeypatch.setattr("code_repair.sandbox.shutil.which", lambda name: name)
    box = ContainerSandbox("bubblewrap")
    monkeypatch.setattr(box, "command", lambda name: [sys.executable, "-c", "raise SystemExit('no such image')"])
    with pytest.raises(RuntimeError, match="no such image"):
        box.run("#" * 190_000, ["1"])
