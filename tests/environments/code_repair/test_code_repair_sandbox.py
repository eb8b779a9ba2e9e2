"""The sandbox: hostile programs harm nothing, limits hold, the next run is as it should be; a container where there is one."""

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


LONG = 15  # seconds: what ends at all ends in a fraction of that, on a machine however busy


def test_a_thousand_hostile_programs_harm_nothing(monkeypatch):
    """`python -m benchmarks.hostile 10000` runs ten times as many, and gives them a second; most of the time goes to loops."""
    monkeypatch.setattr("benchmarks.hostile.GRACE", LONG)
    found = trial(1005, seed=1, limits=replace(LIMITS, seconds=0.1))
    assert found["harm"] == {} and found["programs"] == 1005
    assert set(found["kinds"].values()) == {67}
    assert found["memory_grown_mb"] < 300


def test_the_programs_are_the_same_from_the_same_seed():
    places = {"read": "r", "write": "w", "folder": "f", "port": 1}
    assert list(programs(90, 3, places)) == list(programs(90, 3, places)) != list(programs(90, 4, places))


def test_a_trial_would_notice_harm(monkeypatch):
    """A sandbox that keeps names, one that reads a file and one that is too slow are all found out."""

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
    assert sandbox.run(source, ["half(9)"]) == [Answer()]  # not text: only what is asked for as text comes back
    (failed,) = sandbox.run("def half(n:", ["repr(half(9))"])
    assert failed.error.startswith("SyntaxError")


@pytest.mark.parametrize(
    ("source", "snippet"),
    [("while True:\n    pass", "1"), ("def f():\n    while True:\n        pass", "f()"), ("import time\ntime.sleep(60)", "repr(1)")],
)
def test_time_ends(source, snippet):
    with MontySandbox(Limits(seconds=0.2)) as box:
        started = time.monotonic()
        answers = box.run(source, [snippet, "repr(1)"])
        assert time.monotonic() - started < LONG
        if "sleep" in source:  # sleeping takes no time
            assert answers[0].text == "1" or "sleep" in answers[0].error or answers[0].out_of_time
        else:
            assert answers == [Answer(error=OUT_OF_TIME)] * 2


def test_many_slow_snippets_together_are_out_of_time():
    with MontySandbox(Limits(seconds=0.2)) as box:
        slow = "def f():\n    n = 0\n    for i in range(400000):\n        n += i\n    return n"
        started = time.monotonic()
        answers = box.run(slow, ["repr(f())"] * 200)
        assert time.monotonic() - started < LONG
        assert answers[-1].out_of_time and len(answers) == 200


def test_memory_depth_and_length_end(sandbox):
    assert "MemoryError" in sandbox.run("x = [0] * 10 ** 10", ["1"])[0].error
    assert "RecursionError" in sandbox.run("def f(n):\n    return f(n)", ["f(1)"])[0].error
    assert "longer than" in sandbox.run("x = 1\n" * 100_000, ["1"])[0].error
    assert len(sandbox.run("", ["'x' * 10 ** 6"])[0].text) == sandbox.limits.answer


def test_a_worker_that_dies_is_replaced(sandbox):
    """Its process is ended from outside, as a crash would; the run that was cut short says so."""
    import psutil

    sandbox.run("", ["1"])
    workers = [child for child in psutil.Process().children(recursive=True) if "monty" in child.name()]
    assert workers
    timer = threading.Timer(0.1, lambda: [worker.kill() for worker in workers])
    timer.start()
    answers = sandbox.run("while True:\n    pass", ["1", "2"])
    timer.join()
    assert answers in ([Answer(error=CRASHED)] * 2, [Answer(error=OUT_OF_TIME)] * 2)
    assert sandbox.run("", ["repr(1)"]) == [Answer("1")]


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


def test_what_a_call_should_give_never_goes_in(sandbox):
    seen = []

    class Watched:
        limits = sandbox.limits

        def run(self, source, snippets):
            seen.append(source + "".join(snippets))
            return sandbox.run(source, snippets)

    tests = [Check("f(1)", "'swordfish'"), Check("f(2)", "3")]
    files = {"f.py": "class Always:\n    def __eq__(self, other):\n        return True\ndef f(n):\n    return Always()\n"}
    verdict = judge(Watched(), files, tests)
    assert verdict.passes == [False, False] and "swordfish" not in "".join(seen)


@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("1", "1", True), ("True", "1", False), ("1.0", "1", False), ("[1, 2]", "[1, 2]", True), ("(1, 2)", "[1, 2]", False),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", True), ("{'a': True}", "{'a': 1}", False), ("{1, 2}", "{2, 1}", True), ("None", "None", True),
        ("<object>", "<object>", False), ("__import__('os')", "1", False), ("(" * 300, "1", False), ("-" * 9000 + "1", "1", False),
    ],
)  # fmt: skip
def test_values_are_the_same_if_their_types_are(answer, truth, same):
    assert same_value(answer, truth) is same


def test_a_container_that_is_not_there_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(FileNotFoundError, match="bwrap is not installed"):
        ContainerSandbox("bubblewrap")
    with pytest.raises(ValueError, match="bubblewrap or docker"):
        ContainerSandbox("chroot")


def test_a_container_has_no_network_no_rights_and_no_files_of_ours(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    bubblewrap = ContainerSandbox("bubblewrap").command("n")
    assert {"--unshare-all", "--clearenv", "--die-with-parent"} <= set(bubblewrap) and "--bind" not in bubblewrap
    docker = ContainerSandbox("docker").command("n")
    assert {"--network=none", "--read-only", "--cap-drop=ALL", "--pull=never", "--name=n", "python:3.13-slim"} <= set(docker)
    assert not [word for word in docker if word.startswith(("-v", "--volume", "--mount", "--privileged"))]


@pytest.mark.parametrize("line", [b"", b"1", b"[1, 2]", b"[null]", b'{"a": 1, "b": 2}', b"\xff", b"[" * 100_000])
def test_a_container_may_say_anything(line):
    assert _answer_of(line) is None


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_cpython_in_bubblewrap():
    box = ContainerSandbox("bubblewrap", Limits(seconds=2.0, memory=512_000_000))
    source = "import os\nclass Base:\n    pass\nclass A(Base):\n    def numbers(self):\n        yield 1"
    assert box.run(source, ["repr(list(A().numbers()))", "1 / 0"]) == [Answer("[1]"), Answer(error="ZeroDivisionError: division by zero")]
    assert int(box.run(source, ["repr(os.getpid())"])[0].text) < 9  # it sees no process but its own
    for bad in ("open('/etc/passwd')", "open('/usr/x', 'w')", "__import__('socket').create_connection(('127.0.0.1', 80), 1)"):
        assert box.run("", [bad])[0].error.startswith(("FileNotFoundError", "OSError", "ConnectionRefusedError"))
    started = time.monotonic()
    assert box.run("while True:\n    pass", ["1"]) == [Answer(error=OUT_OF_TIME)] and time.monotonic() - started < LONG
    assert box.run("import os\nos._exit(0)", ["1"]) == [Answer(error=CRASHED)]


def test_a_container_that_does_not_start_is_reported_by_its_own_message(monkeypatch):
    """It ends before it has read the code, which is longer than a pipe holds."""
    monkeypatch.setattr("code_repair.sandbox.shutil.which", lambda name: name)
    box = ContainerSandbox("bubblewrap")
    monkeypatch.setattr(box, "command", lambda name: [sys.executable, "-c", "raise SystemExit('no such image')"])
    with pytest.raises(RuntimeError, match="no such image"):
        box.run("#" * 190_000, ["1"])
