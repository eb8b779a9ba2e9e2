"""Overhead of serving: 64 clients that stream over HTTP, compared with the same requests in process.

`python -m benchmarks.server [seconds]` prints one JSON line. Each client sends a board to the course's nano
model, reads the stream to its end and repeats, by default for 60 seconds in each mode. The temperature is so
high that an answer has about 64 tokens instead of the two of a move. Three modes alternate in rounds of 15
seconds, so that other work on the machine affects all: in process, in process with streaming, and over HTTP.

The server is a separate process, as started by `art-nb serve`, and the 64 `openai` clients are another. They share the
machine, while a sampler in process has it alone. `ratio`: sampled tokens per second over HTTP over those in process,
with the same model, number of clients, prompts, token limit and setting of torch's threads, of which the server leaves
one to its event loop and its clients. `cpu_us_per_token`: CPU time per token, by process. `tokens_per_chunk`: mean
number of tokens per streamed chunk. `first_token_ms`: median time from the request to the first text. `errors`: failed
requests. `server_mib`: the server's memory after the first and the last round. `left`: conversations still active on the
server after all clients are done.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import httpx
import psutil
from openai import AsyncOpenAI

import art_nb as art
from benchmarks.gathering import BASE
from benchmarks.result import print_result, say
from game_2048 import Game

CLIENTS, TOKENS, PORT, TOKEN = 64, 64, 8765, "a-token-of-the-benchmark"
ROUND, BEGIN = 15.0, 2.0  # seconds of a round, and of its warm-up
TEMPERATURE = 20.0
URL, KEY = f"http://127.0.0.1:{PORT}", {"authorization": f"Bearer {TOKEN}"}
SendRequest = Callable[[str], Awaitable[None]]


async def send_requests(send_request: SendRequest, seconds: float) -> None:
    """Run 64 concurrent clients, each with its own boards, until the time is up."""
    until = time.monotonic() + seconds

    async def one(seed: int) -> None:
        game = Game(seed, winning_tile=2048)
        while time.monotonic() < until:
            await send_request(game.render())
            game = Game(seed, winning_tile=2048) if game.over else game
            game.move(game.legal_moves()[0])

    await asyncio.gather(*(one(seed) for seed in range(CLIENTS)))


async def measure_round(
    send_request: SendRequest, sampled: Callable[[], Awaitable[int]], processes: list[psutil.Process]
) -> list[float]:
    """Measure one round. Returns sampled tokens, seconds, and CPU seconds of each process."""

    async def now() -> list[float]:
        return [await sampled(), time.monotonic(), *(sum(each.cpu_times()[:2]) for each in processes)]

    requests = asyncio.create_task(send_requests(send_request, ROUND))
    await asyncio.sleep(BEGIN)
    before = await now()
    await asyncio.sleep(ROUND - BEGIN)
    after = await now()
    await requests
    return [b - a for a, b in zip(before, after, strict=True)]


class InProcess:
    """The sampler in the process of the clients."""

    def __init__(self, folder: str):
        self.backend = art.LocalBackend(path=folder, engine="transformers")
        self.model = art.TrainableModel(name="m", project="p", base_model=str(BASE))

    async def round(self, stream: bool) -> list[float]:
        if not self.model._backend:
            await self.model.register(self.backend)
        client, sampler = self.model.openai_client(), self.backend.loaded(self.model).sampler

        async def send_request(board: str) -> None:
            answer = await client.chat.completions.create(
                model=self.model.get_inference_name(), messages=[{"role": "user", "content": board}], max_tokens=TOKENS,
                temperature=TEMPERATURE, stream=stream,
            )  # fmt: skip
            if stream:
                async for _ in answer:
                    pass

        async def sampled() -> int:
            return sampler.decoder.tokens_sampled

        return await measure_round(send_request, sampled, [psutil.Process()])


def clients(orders: Connection) -> None:
    """Run the process of the 64 clients: one round for each received process id of the server, until None."""
    while (server := orders.recv()) is not None:
        orders.send(asyncio.run(over_http(psutil.Process(server))))


async def over_http(server: psutil.Process) -> tuple[list[float], list[float], list[float], list[str]]:
    """Run one round. Returns (the numbers of `measure_round`, tokens per chunk, seconds to the first text, errors)."""
    sizes: list[float] = []
    waits: list[float] = []
    errors: list[str] = []
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60) as http:
        client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=TOKEN, http_client=http, max_retries=0)

        async def send_request(board: str) -> None:
            nonlocal waits
            started, texts = time.monotonic(), 0
            try:
                stream = await client.chat.completions.create(
                    model="nano", messages=[{"role": "user", "content": board}], max_tokens=TOKENS, stream=True,
                    temperature=TEMPERATURE,
                )  # fmt: skip
                async for chunk in stream:
                    if chunk.choices[0].delta.content:
                        waits += [] if texts else [time.monotonic() - started]
                        texts += 1
                    if texts and chunk.choices[0].finish_reason:
                        sizes.append(len(chunk.choices[0].token_ids) / texts)
            except Exception as error:
                errors.append(repr(error))

        async def sampled() -> int:
            return (await sampling(http))["tokens"]

        return await measure_round(send_request, sampled, [server, psutil.Process()]), sizes, waits, errors


async def sampling(http: httpx.AsyncClient) -> dict:
    return (await http.get(f"{URL}/status", headers=KEY)).json()["sampling"]


def measure(seconds: float) -> dict:
    """Start server and clients, and measure the three modes."""
    spawn = multiprocessing.get_context("spawn")
    orders, theirs = spawn.Pipe()
    client_process = spawn.Process(target=clients, args=[theirs], daemon=True)
    client_process.start()
    theirs.close()  # so that `orders` ends with the process
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "art_nb", "serve", f"--port={PORT}", f"--path={folder}", "--engine=transformers"]
        command += ["--base-models", f"nano={BASE}"]
        server = subprocess.Popen(
            [*command, "--rate=100000"], env={**os.environ, "ART_NB_TOKEN": TOKEN}, stdout=sys.stderr.fileno()
        )
        try:
            wait_for_server(server)
            return rounds(seconds, InProcess(kept), orders, psutil.Process(server.pid))
        finally:
            server.terminate()
            server.wait(20)
            orders.send(None)
            client_process.join()


def wait_for_server(server: subprocess.Popen) -> None:
    """Wait until the server runs and has loaded the model. Raises: SystemExit when it has ended."""
    while True:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with status {server.returncode}")
        try:
            body = {"model": "nano", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
            httpx.post(f"{URL}/v1/chat/completions", headers=KEY, json=body, timeout=60).raise_for_status()
            return
        except httpx.TransportError:
            time.sleep(0.1)


def rounds(seconds: float, in_process: InProcess, orders: Connection, server: psutil.Process) -> dict:
    ways: dict[str, list[list[float]]] = {"in_process": [], "in_process_streamed": [], "over_http": []}
    sizes, waits, errors, memory = [], [], [], []
    with asyncio.Runner() as runner:
        while len(ways["over_http"]) * ROUND < seconds:
            ways["in_process"].append(runner.run(in_process.round(stream=False)))
            ways["in_process_streamed"].append(runner.run(in_process.round(stream=True)))
            orders.send(server.pid)
            numbers, *more = orders.recv()
            ways["over_http"].append(numbers)
            for kept, new in zip((sizes, waits, errors, memory), (*more, [server.memory_info().rss / 2**20]), strict=True):
                kept += new
            say(" ".join(f"{way}: {each[-1][0] / each[-1][1]:.0f} tokens/s" for way, each in ways.items()))
        status = httpx.get(f"{URL}/status", headers=KEY).json()["sampling"]
    for error in errors[:5]:
        say(error)
    totals = {way: [sum(column) for column in zip(*each, strict=True)] for way, each in ways.items()}
    rates = {way: tokens / took for way, (tokens, took, *_) in totals.items()}
    used = {way: [1e6 * each / total[0] for each in total[2:]] for way, total in totals.items()}
    return {
        "ratio": rates["over_http"] / rates["in_process"],
        "ratio_in_process_streamed": rates["in_process_streamed"] / rates["in_process"],
        "tokens_per_s": rates,
        "cpu_us_per_token": {
            "in_process": used["in_process"][0], "in_process_streamed": used["in_process_streamed"][0],
            "server": used["over_http"][0], "clients": used["over_http"][1],
        },
        "tokens_per_chunk": statistics.mean(sizes), "first_token_ms": 1000 * statistics.median(waits), "answers": len(sizes),
        "errors": len(errors), "server_mib": [memory[0], memory[-1]], "left": status["active"] + status["waiting"],
        "clients": CLIENTS, "seconds": seconds,
    }  # fmt: skip


if __name__ == "__main__":
    print_result("server", lambda: measure(float(sys.argv[1]) if len(sys.argv) > 1 else 60))
