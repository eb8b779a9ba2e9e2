"""Sandboxes for code that a model wrote.

`MontySandbox`, the default, guarantees: Python is interpreted by pydantic-monty (https://github.com/pydantic/monty), a Rust
program without access to files, network, processes or imports other than a few harmless ones, in a worker process. Time,
memory, recursion and output are limited; a worker that crashes or does not stop is killed and replaced; runs share no state.
Not guaranteed: all of Python (no inheritance, no `yield`, only parts of the standard library), and protection against a
vulnerability of the interpreter, whose workers have the permissions of this process.

`ContainerSandbox` guarantees: CPython in separate namespaces, by bubblewrap or Docker, without a network, with a file system
that is read-only except for a temporary /tmp. It is used only on request. Not guaranteed: protection against a vulnerability
of the shared kernel and, if root starts bubblewrap, the limit on the number of processes. A run takes a few hundred
milliseconds.

Neither makes code honest: code may stop early or return anything. The expected values therefore stay outside the sandbox,
and its answers are text that is compared and never evaluated.
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
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol


@dataclass(frozen=True)
class Limits:
    """Resources of one run, for all sandboxes.

    seconds: wall-clock time. memory: bytes. recursion: depth of calls. answer: characters of a snippet's value or error.
    source: characters of source and snippets together.
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
    """The result of a snippet. text: its value if that is a string, at most `Limits.answer` characters; else None.

    error: None, or `NameOfError: message`. An error of the source is the error of every snippet.
    """

    text: str | None = None
    error: str | None = None

    @property
    def out_of_time(self) -> bool:
        return self.error == OUT_OF_TIME


class Sandbox(Protocol):
    """Runs untrusted code."""

    limits: Limits

    def __hash__(self) -> int: ...

    def run(self, source: str, snippets: Sequence[str]) -> list[Answer]:
        """Run the source, then each snippet (an expression or statements) in its namespace. Returns an answer per snippet.

        Never raises because of the code. After a timeout or a crash of the interpreter, all further answers are that error.
        Output is discarded.
        """
        ...


class MontySandbox:
    """Python in workers of pydantic-monty; about a millisecond per run. Thread-safe; `with` or `close` ends the workers.

    `Limits.seconds` applies to the source and to each snippet, and no snippet is started once all together have taken that
    long. A worker that does not stop by itself is killed 0.25 seconds later. The clock is frozen and random numbers are
    seeded, so equal runs have equal results.
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
        try:
            with self._workers().checkout(limits=limits, os_policy=_FROZEN) as session:
                started = time.monotonic()  # after the checkout: the start of a worker does not count
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
        """Run one piece of code. Raises: MontyCrashedError if the worker has ended."""
        import pydantic_monty

        try:
            value = session.feed_run(code.encode("utf-8", "replace").decode(), print_callback=_drop)
        except pydantic_monty.MontyCrashedError:
            raise
        except pydantic_monty.MontyError as error:
            message = error.display("type-msg") if hasattr(error, "display") else str(error)
            return Answer(error=OUT_OF_TIME if "time limit exceeded" in message else message[: self.limits.answer])
        except Exception as error:  # a value that the worker cannot send, such as one that contains itself
            return Answer(error=f"{type(error).__name__}: {error}"[: self.limits.answer])
        return Answer(text=value[: self.limits.answer] if isinstance(value, str) else None)

    def _workers(self) -> Any:
        with self._opening:
            if self._pool is None:
                import pydantic_monty

                self._pool = pydantic_monty.Monty(feed_duration_limit_grace=0.25).__enter__()
                with self._pool.checkout() as session:
                    session.feed_run("0")  # the first run of a worker may take longer than a whole limit
                atexit.register(self.close)
            return self._pool

    def close(self) -> None:
        """End the workers; the next run starts new ones."""
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            atexit.unregister(self.close)
            pool.__exit__(None, None, None)

    def __enter__(self) -> MontySandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_FROZEN = {"sleep": "zero", "datetime": datetime(2024, 1, 1, tzinfo=UTC), "random_start": {"seed": 0}}


def _drop(stream: str, text: str) -> None:
    """Discard output."""


class ContainerSandbox:
    """CPython in bubblewrap (Linux, with the host's `python3`) or Docker (a local image with Python).

    Every run has its own process and container. `Limits.seconds` applies to the whole run, from the start of Python in the
    container. Standard output and error are discarded.

    Raises: ValueError for another engine; FileNotFoundError if it is not installed.
    """

    def __init__(
        self, engine: str, limits: Limits = Limits(seconds=5.0, memory=512_000_000), image: str = "python:3.13-slim"
    ):
        if engine not in _COMMANDS:
            raise ValueError(f"engine must be {' or '.join(_COMMANDS)}, not {engine!r}")
        program = _COMMANDS[engine][0]
        if shutil.which(program) is None:
            raise FileNotFoundError(
                f"{program} is not installed; install {engine}, or use MontySandbox, which needs no installation"
            )
        self.engine, self.limits, self.image = engine, limits, image

    def run(self, source: str, snippets: Sequence[str]) -> list[Answer]:
        """See `Sandbox.run`. Raises: RuntimeError with the engine's message if the container cannot be started."""
        if len(source) + sum(map(len, snippets)) > self.limits.source:
            return [Answer(error=f"ValueError: the code is longer than {self.limits.source:,} characters")] * len(snippets)
        name = f"art-nb-{uuid.uuid4().hex}"
        given = json.dumps([source, list(snippets), self.limits.memory, self.limits.recursion, self.limits.answer]).encode()
        most = 1_000 + (self.limits.answer * 12 + 100) * len(snippets)
        process = subprocess.Popen(
            self.command(name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin and process.stdout and process.stderr
        started = threading.Timer(START_SECONDS, self._kill, (process, name))
        started.start()
        with suppress(BrokenPipeError):  # the container has ended; its message follows
            process.stdin.write(given)
        with suppress(BrokenPipeError):
            process.stdin.close()
        first = process.stdout.readline(len(b"started\n"))
        started.cancel()
        begun = time.monotonic()  # before the timer starts, so that a run which it ends has taken `seconds`
        stop = threading.Timer(self.limits.seconds, self._kill, (process, name))
        stop.start()
        lines = process.stdout.read(most).splitlines() if first == b"started\n" else []
        late = time.monotonic() - begun >= self.limits.seconds
        stop.cancel()
        self._kill(process, name)
        message = process.stderr.read(2_000).decode("utf-8", "replace").strip()
        process.wait()
        if first != b"started\n":
            raise RuntimeError(f"{self.engine} did not start Python (limit {START_SECONDS:.0f} s): {message}")
        answers = [answer for answer in map(_answer_of, lines[: len(snippets)]) if answer]
        return answers + [Answer(error=OUT_OF_TIME if late else CRASHED)] * (len(snippets) - len(answers))

    def command(self, name: str) -> list[str]:
        """Return the command that starts the container. name: of the container, for Docker."""
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
        process.kill()  # bubblewrap's children end with it


START_SECONDS = 20.0  # allowed for the start of a container

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

# The program in the container. It writes answers to the original standard output; the code's own output is /dev/null.
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
    """Parse a line of the container's output. It is untrusted: the code could have written it. Surrogates become "?"."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, list) or len(fields) != 2 or not all(isinstance(part, str | None) for part in fields):
        return None
    return Answer(*(part and part.encode("utf-8", "replace").decode() for part in fields))
