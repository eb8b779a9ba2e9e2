"""Cost of a slow and of a greedy client to another client: `python -m benchmarks.neighbour [seconds]` prints one JSON line.

All have the token. One client requests one token at a time from the nano model over /v1, for `seconds` (10) in each
case: alone; alongside a slow client, which samples in lockstep, has one long answer in progress and waits 1.8 seconds
after each short one; alongside a greedy client, which repeatedly samples 512 answers of 64 tokens at once in lockstep.

`slow`, `greedy`: the client's answers alone over those alongside that neighbour, 1 if it costs nothing. A greedy one
costs the time that the server spends on it. `answers`: numbers of answers. `neighbour_answers`: those of the neighbours.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

import httpx

from art_nb.backends.connection import Connection
from art_nb.backends.remote import lockstep_client
from benchmarks.gathering import BASE
from benchmarks.result import print_result, say
from benchmarks.server import KEY, PORT, TOKEN, URL, wait_for_server

PAUSE, AT_ONCE = 1.8, 512
MODEL = {"project": "p", "name": "m", "base_model": "nano"}


async def answers_in(seconds: float, ask: Callable[[], Awaitable[object]]) -> int:
    """Await `ask()` repeatedly; return the number of answers in time."""
    until, answered = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        await ask()
        answered += time.monotonic() < until
    return answered


class Neighbour:
    """A client that samples from the same model in lockstep."""

    def __init__(self) -> None:
        self.answered = 0
        self._client = lockstep_client(Connection(URL, TOKEN, 60.0), "/api/models/p/m")

    async def _ask(self, tokens: int) -> None:
        messages = [{"role": "user", "content": f"{self.answered}"}]
        await self._client.create(model="m", messages=messages, max_tokens=tokens, temperature=20.0)
        self.answered += 1

    async def slow(self) -> None:
        """Have a long answer in progress, and pause after each short one."""

        async def long() -> None:
            while True:
                await self._ask(400)

        async def short() -> None:
            while True:
                await self._ask(1)
                time.sleep(PAUSE)  # blocks its event loop: it sends nothing

        await asyncio.gather(long(), short())

    async def greedy(self) -> None:
        """Sample many answers at once."""
        while True:
            await asyncio.gather(*(self._ask(64) for _ in range(AT_ONCE)))


def run_neighbour(kind: str) -> None:
    """Run a neighbour until this process is terminated; print its number of answers once a second."""

    async def main() -> None:
        neighbour = Neighbour()
        running = asyncio.create_task(getattr(neighbour, kind)())
        while not running.done():
            await asyncio.sleep(1.0)
            print(neighbour.answered, flush=True)
        running.result()

    asyncio.run(main())


async def counted(seconds: float) -> int:
    async with httpx.AsyncClient(base_url=URL, headers=KEY, timeout=60) as http:
        body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}

        async def ask() -> None:
            (await http.post("/v1/chat/completions", json=body)).raise_for_status()

        await ask()
        return await answers_in(seconds, ask)


def measure(seconds: float) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "art_nb", "serve", f"--port={PORT}", f"--path={folder}", "--engine=transformers"]
        command += ["--rate=100000", "--base-models", f"nano={BASE}"]
        server = subprocess.Popen(command, env={**os.environ, "ART_NB_TOKEN": TOKEN}, stdout=sys.stderr.fileno())
        try:
            wait_for_server(server)
            httpx.post(f"{URL}/api/models", headers=KEY, json=MODEL, timeout=600).raise_for_status()
            answers, theirs = {"alone": asyncio.run(counted(seconds))}, {}
            for kind in ("slow", "greedy"):
                started = [sys.executable, "-m", "benchmarks.neighbour", kind]
                other = subprocess.Popen(started, stdout=subprocess.PIPE, text=True)
                assert other.stdout
                lines = other.stdout.readline()  # wait until it has started
                try:
                    answers[kind] = asyncio.run(counted(seconds))
                finally:
                    other.terminate()
                theirs[kind] = int((lines + other.stdout.read()).split()[-1])
                say(f"{kind}: {answers[kind]} answers, alone {answers['alone']}")
        finally:
            server.terminate()
            server.wait(20)
    ratios = {kind: answers["alone"] / max(answers[kind], 1) for kind in theirs}
    return {**ratios, "answers": answers, "neighbour_answers": theirs, "seconds": seconds}


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else "10"
    if given in ("slow", "greedy"):
        run_neighbour(given)
    else:
        print_result("neighbour", lambda: measure(float(given)))
