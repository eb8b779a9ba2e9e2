"""What serving costs: 64 clients that stream over HTTP, against the same questions asked in process.

`python -m benchmarks.server [seconds]` prints one JSON line. Each client shows the nano model of the course a board, reads
the stream to its end and asks anew, for so many seconds (20). The temperature is so high that it rambles: an answer has
about 64 tokens, not the two of a move. `ratio`: sampled tokens a second over HTTP over those in process, same model, same
number of askers, same prompts and limit of tokens; clients and server share the processors. `first_token_ms`: median time
from asking to the first text. `errors`: requests that failed.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

import httpx
from openai import AsyncOpenAI

import art_nb as art
from art_nb.tasks.game_2048 import Game
from benchmarks.gathering import BASE
from benchmarks.result import print_result

CLIENTS, TOKENS, PORT, TOKEN = 64, 64, 8765, "a-token-of-the-benchmark"
HOT = 20.0  # temperature
Ask = Callable[[str], Awaitable[None]]


async def keep_asking(ask: Ask, seconds: float) -> None:
    """64 askers at once, each with boards of its own, until the time is over."""
    until = time.monotonic() + seconds

    async def one(seed: int) -> None:
        game = Game(seed, winning_tile=2048)
        while time.monotonic() < until:
            await ask(game.render())
            game = Game(seed, winning_tile=2048) if game.over else game
            game.move(game.legal_moves()[0])

    await asyncio.gather(*(one(seed) for seed in range(CLIENTS)))


async def in_process(seconds: float) -> float:
    """Tokens a second."""
    with tempfile.TemporaryDirectory() as folder:
        backend = art.LocalBackend(path=folder, engine="transformers")
        model = art.TrainableModel(name="m", project="p", base_model=str(BASE))
        await model.register(backend)
        client, sampler = model.openai_client(), backend._of(model).sampler

        async def ask(board: str) -> None:
            await client.chat.completions.create(
                model=model.get_inference_name(), messages=[{"role": "user", "content": board}], max_tokens=TOKENS,
                temperature=HOT,
            )

        await keep_asking(ask, 2)
        before, started = sampler.tokens_sampled, time.monotonic()
        await keep_asking(ask, seconds)
        return (sampler.tokens_sampled - before) / (time.monotonic() - started)


async def over_http(seconds: float) -> tuple[float, list[float], int]:
    """Tokens a second, seconds to each first text, errors."""
    waits: list[float] = []
    errors = 0
    url = f"http://127.0.0.1:{PORT}"
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60) as http:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=TOKEN, http_client=http, max_retries=0)

        async def ask(board: str) -> None:
            nonlocal errors
            started, first = time.monotonic(), None
            try:
                stream = await client.chat.completions.create(
                    model="nano", messages=[{"role": "user", "content": board}], max_tokens=TOKENS, stream=True,
                    temperature=HOT,
                )  # fmt: skip
                async for chunk in stream:
                    if first is None and chunk.choices[0].delta.content:
                        first = time.monotonic()
                        waits.append(first - started)
            except Exception as error:
                errors += 1
                print(error, file=sys.stderr)

        async def sampled() -> int:
            status = await http.get(f"{url}/status", headers={"authorization": f"Bearer {TOKEN}"})
            return status.json()["sampling"]["tokens"]

        await keep_asking(ask, 2)
        waits.clear()
        before, started = await sampled(), time.monotonic()
        await keep_asking(ask, seconds)
        return (await sampled() - before) / (time.monotonic() - started), waits, errors


def measure(seconds: float) -> dict:
    here = asyncio.run(in_process(seconds))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "art_nb", "serve", f"--port={PORT}", f"--path={folder}", "--engine=transformers"]
        server = subprocess.Popen([*command, "--rate=100000"], env={**os.environ, "ART_NB_TOKEN": TOKEN})
        try:
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{PORT}/healthz")
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            there, waits, errors = asyncio.run(over_http(seconds))
        finally:
            server.terminate()
            server.wait(20)
    return {
        "ratio": there / here, "tokens_per_s_in_process": here, "tokens_per_s_over_http": there,
        "first_token_ms": 1000 * statistics.median(waits), "answers": len(waits), "errors": errors,
        "clients": CLIENTS, "seconds": seconds,
    }  # fmt: skip


if __name__ == "__main__":
    print_result("server", lambda: measure(float(sys.argv[1]) if len(sys.argv) > 1 else 20))
