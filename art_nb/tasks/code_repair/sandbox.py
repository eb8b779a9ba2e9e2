"""Where code runs that a model wrote: never in this process.

`MontySandbox`, the default, promises: Python is interpreted by pydantic-monty (https://github.com/pydantic/monty), a
program in Rust that has no files, no network, no processes and no imports but a few harmless ones, in a worker process of
its own. Time, memory, depth and output are limited; a worker that crashes or does not stop is killed and replaced; a run
finds nothing of an earlier one. It does not promise all of Python (no inheritance, no `yield`, a part of the standard
library), nor safety from a hole in the interpreter: a worker has the rights of this process.

`ContainerSandbox` promises: CPython in namespaces of its own, by bubblewrap or Docker, without a network, with a file
system of which nothing but /tmp can be written, which is gone afterwards. It is used only when it is asked for by name. It
does not promise safety from a hole in the kernel, which is shared, nor, where bubblewrap is started by root, that processes
are few; and it takes some hundred milliseconds a run.

Neither promises that code is honest: it can end a run early or answer anything. So what a call should give stays outside,
and what comes back is text, which is compared and never evaluated.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol


@dataclass(frozen=True)
class Limits:
    """What one run may use. All limits of all sandboxes are here.

    seconds: of the clock. memory: bytes. recursion: calls within calls. answer: characters of a snippet's value or error.
    source: characters of source and snippets.
    """

    seconds: float = 0.5
    memory: int = 64_000_000
    recursion: int = 200
    answer: int = 4_000
    source: int = 200_000


OUT_OF_TIME = "TimeoutError: out of time"
CRASHED = "SandboxError: the interpreter crashed"


@dataclass(frozen=True)
class Answer:
    """What a snippet gave. text: its value if that is text, at most `Limits.answer` characters; else None.

    error: None, or `NameOfError: what it says`, of the source where that failed, which then is every snippet's.
    """

    text: str | None = None
    error: str | None = None

    @property
    def out_of_time(self) -> bool:
        return self.error == OUT_OF_TIME


class Sandbox(Protocol):
    """A place where code can do no harm."""

    limits: Limits

    def __hash__(self) -> int: ...

    def run(self, source: str, snippets: Sequence[str]) -> list[Answer]:
        """Runs the source, then each snippet, an expression or statements, among what it defined; an answer for each
        snippet.

        Never raises for anything that source or snippets do. After one that runs out of time or crashes the interpreter all
        others are answered with that. What is printed is dropped.
        """
        ...


class MontySandbox:
    """Python in pydantic-monty's workers; a millisecond a run. May be used by several threads; `with` or `close` ends its
    workers.

    `Limits.seconds` holds for the source and for each snippet, and nothing more is begun once all together have taken as
    long; a worker that does not stop by itself is killed a quarter of a second later. Time does not pass and chance is the
    same in every run.
    """

    def __init__(self, limits: Limits = Limits()):
        self.limits = limits
        self._pool: Any = None
        self._opening = threading.Lock()

    def run(self, source: str, snippets: Sequence[str]) -> list[Answer]:
        """See `Sandbox.run`."""
        if len(source) + sum(map(len, snippets)) > self.limits.source:
            return [Answer(error=f"ValueError: the code is longer than {self.limits.source:,} characters")] * len(snippets)
        import pydantic_monty

        limits = {
            "max_feed_duration_secs": self.limits.seconds, "max_memory": self.limits.memory,
            "max_recursion_depth": self.limits.recursion, "max_suspensions": 100, "max_total_sleep_secs": 0.0,
        }  # fmt: skip
        answers: list[Answer] = []
        started = time.monotonic()
        try:
            with self._workers().checkout(limits=limits, os_policy=_STILL) as session:
                failed = self._feed(session, source).error
                for snippet in snippets:
                    if failed is None and time.monotonic() - started > self.limits.seconds:
                        failed = OUT_OF_TIME
                    answers.append(self._feed(session, snippet) if failed is None else Answer(error=failed))
                    failed = failed or (OUT_OF_TIME if answers[-1].out_of_time else None)
        except pydantic_monty.MontyCrashedError as error:
            failed = OUT_OF_TIME if error.timed_out else CRASHED
            answers += [Answer(error=failed)] * (len(snippets) - len(answers))
        return answers

    def _feed(self, session: Any, code: str) -> Answer:
        """Raises: MontyCrashedError when the worker is gone."""
        import pydantic_monty

        try:
            value = session.feed_run(code.encode("utf-8", "replace").decode(), print_callback=_drop)
        except pydantic_monty.MontyCrashedError:
            raise
        except pydantic_monty.MontyError as error:
            said = error.display("type-msg") if hasattr(error, "display") else str(error)
            return Answer(error=OUT_OF_TIME if "time limit exceeded" in said else said[: self.limits.answer])
        except Exception as error:  # a value that the worker can't send, such as one that holds itself
            return Answer(error=f"{type(error).__name__}: {error}"[: self.limits.answer])
        return Answer(text=value[: self.limits.answer] if isinstance(value, str) else None)

    def _workers(self) -> Any:
        with self._opening:
            if self._pool is None:
                import pydantic_monty

                self._pool = pydantic_monty.Monty(feed_duration_limit_grace=0.25).__enter__()
                atexit.register(self.close)
            return self._pool

    def close(self) -> None:
        """Ends the workers; the next run starts others."""
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            atexit.unregister(self.close)
            pool.__exit__(None, None, None)

    def __enter__(self) -> MontySandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_STILL = {"sleep": "zero", "datetime": datetime(2024, 1, 1, tzinfo=UTC), "random_start": {"seed": 0}}


def _drop(stream: str, text: str) -> None:
    """What is printed goes nowhere."""


class ContainerSandbox:
    """CPython in bubblewrap (Linux, its `python3`) or Docker (an image with Python that is on this machine already).

    Every run is a process of its own in a container of its own: `Limits.seconds` holds for all of it together, from when
    Python has started in there. Standard output and error go nowhere.

    Raises: ValueError for another engine; FileNotFoundError where it isn't installed.
    """

    def __init__(
        self, engine: str, limits: Limits = Limits(seconds=5.0, memory=512_000_000), image: str = "python:3.13-slim"
    ):
        if engine not in _COMMANDS:
            raise ValueError(f"engine must be {' or '.join(_COMMANDS)}, not {engine!r}")
        program = _COMMANDS[engine][0]
        if shutil.which(program) is None:
            raise FileNotFoundError(
                f"{program} is not installed; install {engine}, or use MontySandbox, which needs nothing"
            )
        self.engine, self.limits, self.image = engine, limits, image

    def run(self, source: str, snippets: Sequence[str]) -> list[Answer]:
        """See `Sandbox.run`. Raises: RuntimeError when the container can't be started, with what its engine says."""
        if len(source) + sum(map(len, snippets)) > self.limits.source:
            return [Answer(error=f"ValueError: the code is longer than {self.limits.source:,} characters")] * len(snippets)
        name = f"art-nb-{uuid.uuid4().hex}"
        given = json.dumps([source, list(snippets), self.limits.memory, self.limits.recursion, self.limits.answer]).encode()
        most = 1_000 + (self.limits.answer * 6 + 100) * len(snippets)
        process = subprocess.Popen(
            self.command(name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(given)
        process.stdin.close()
        started = threading.Timer(START_SECONDS, self._kill, (process, name))
        started.start()
        first = process.stdout.readline(len(b"started\n"))
        started.cancel()
        stop = threading.Timer(self.limits.seconds, self._kill, (process, name))
        stop.start()
        begun = time.monotonic()
        lines = process.stdout.read(most).splitlines() if first == b"started\n" else []
        late = time.monotonic() - begun >= self.limits.seconds
        stop.cancel()
        self._kill(process, name)
        said = process.stderr.read(2_000).decode("utf-8", "replace").strip()
        process.wait()
        if first != b"started\n":
            raise RuntimeError(f"{self.engine} did not start Python within {START_SECONDS:.0f} s: {said}")
        answers = [answer for answer in map(_answer_of, lines[: len(snippets)]) if answer]
        return answers + [Answer(error=OUT_OF_TIME if late else CRASHED)] * (len(snippets) - len(answers))

    def command(self, name: str) -> list[str]:
        """What starts the container; name: of the container, for Docker."""
        mounts = [option for path in _SYSTEM if os.path.exists(path) for option in ("--ro-bind", path, path)]
        filled = {
            "name": [f"--name={name}"],
            "memory": [f"--memory={self.limits.memory}"],
            "image": [self.image],
            "mounts": mounts,
        }
        parts = (filled.get(part[1:-1], [part]) if part.startswith("{") else [part] for part in _COMMANDS[self.engine])
        return [word for part in parts for word in part] + ["python3", "-I", "-S", "-c", _DRIVER]

    def _kill(self, process: subprocess.Popen, name: str) -> None:
        if self.engine == "docker":
            subprocess.run(["docker", "kill", name], capture_output=True)
        process.kill()  # bubblewrap takes all that it holds with it


START_SECONDS = 20.0  # a container may take to start

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives")
_COMMANDS = {
    "bubblewrap": [
        "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "{mounts}",
        "--proc", "/proc", "--dev", "/dev", "--size", "16000000", "--tmpfs", "/tmp", "--chdir", "/tmp",
    ],
    "docker": [
        "docker", "run", "--rm", "--interactive", "--pull=never", "{name}", "--network=none", "--read-only",
        "--tmpfs=/tmp:size=16m", "{memory}", "--memory-swap=-1", "--pids-limit=32", "--cpus=1", "--cap-drop=ALL",
        "--security-opt=no-new-privileges", "--user=65534", "--workdir=/tmp", "{image}",
    ],
}  # fmt: skip

# What runs in the container. Its answers go to the first standard output; code finds /dev/null there.
_DRIVER = """
import json, os, resource, sys
source, snippets, memory, recursion, longest = json.load(sys.stdin)
out = os.fdopen(os.dup(1), "w")
null = os.open(os.devnull, os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(null, number)
for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 16_000_000), (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(kind, (most, most))
resource.setrlimit(resource.RLIMIT_NPROC, (32, 32))
sys.setrecursionlimit(recursion)
print("started", file=out, flush=True)
names, failed = {"__name__": "solution"}, None
def feed(code):
    try:
        compiled = compile(code, "solution.py", "eval")
    except SyntaxError:
        compiled = compile(code, "solution.py", "exec")
    return eval(compiled, names)
def attempt(code):
    try:
        value = feed(code)
        return value[:longest] if isinstance(value, str) else None, None
    except BaseException as error:
        return None, f"{type(error).__name__}: {error}"[:longest]
_, failed = attempt(source)
for snippet in snippets:
    print(json.dumps((None, failed) if failed else attempt(snippet)), file=out, flush=True)
out.flush()
os._exit(0)
"""


def _answer_of(line: bytes) -> Answer | None:
    """What a line of the container's says. It may be anything: the code in there could have written it."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, list) or len(said) != 2 or not all(isinstance(part, str | None) for part in said):
        return None
    return Answer(*said)
