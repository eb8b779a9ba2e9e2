"""Cost of a client without the token to the owner: `python -m benchmarks.stranger [seconds]` prints one JSON line.

The owner requests /status, each time over a new connection, first alone, then alongside a stranger, for `seconds` (10) each.
The stranger holds 300 connections with half a header and 300 with half a body of /login, keeps replacing the oldest with
new ones, and sends requests without the token and bytes that are not HTTP. The server (`art-nb serve`) may open 256 files.

`slowdown`: the owner's requests per second alone over those alongside the stranger. `failed`: requests of the owner without
a successful answer. `held`: the server's maximum number of open connections. `cpu_s`, `logged_bytes`: the server's CPU time
and log during the attack. `stranger_requests`: those that were answered.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from benchmarks.gathering import BASE
from benchmarks.result import print_result
from benchmarks.server import KEY, PORT, TOKEN, URL

FILES, SOCKETS = 256, 300
HALF_A_HEADER = b"GET /status HTTP/1.1\r\nhost: x\r\nx-slow: "
HALF_A_BODY = b"POST /login HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\ntoken="


class Stranger:
    """Attacks the server in two threads until `stop` is called. answered: responses to complete requests."""

    def __init__(self) -> None:
        self.answered = 0
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._hold, self._flood)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _hold(self) -> None:
        """Keep connections open that never complete a request."""
        held: list[socket.socket] = []
        while not self._stopped.is_set():
            for sent in (HALF_A_HEADER, HALF_A_BODY)[: 2 if len(held) < 2 * SOCKETS else 0]:
                with suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", PORT), timeout=1))
                    held[-1].sendall(sent)
            if len(held) >= 2 * SOCKETS:
                held.pop(0).close()
        for each in held:
            each.close()

    def _flood(self) -> None:
        """Send requests without the token, and bytes that are not a request."""
        with httpx.Client(base_url=URL, timeout=1) as client:
            while not self._stopped.is_set():
                with suppress(httpx.HTTPError):
                    client.get("/status", headers={"x-forwarded-for": f"10.0.0.{self.answered % 256}"})
                    self.answered += 1
                with suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=1) as other:
                    other.sendall(b"\x00\x01\r\n\r\n")


def send_owner_requests(seconds: float) -> tuple[int, int]:
    """Send requests with the token, each over a new connection. Returns the numbers of answered and of failed requests."""
    answered = failed = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            httpx.get(f"{URL}/status", headers=KEY, timeout=30).raise_for_status()
            answered += 1
        except httpx.HTTPError:
            failed += 1
    return answered, failed


def measure(seconds: float) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "art_nb", "serve", f"--port={PORT}", f"--path={folder}/served", "--rate=100000"]
        with log.open("wb") as file:
            environment = {**os.environ, "ART_NB_TOKEN": TOKEN}
            command += ["--base-models", f"nano={BASE}"]
            server = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        try:
            process = psutil.Process(server.pid)
            while True:
                if server.poll() is not None:
                    raise SystemExit(f"the server ended with status {server.returncode}")
                with suppress(httpx.TransportError):
                    httpx.get(f"{URL}/healthz", timeout=1)
                    break
                time.sleep(0.1)
            process.rlimit(psutil.RLIMIT_NOFILE, (FILES, FILES))
            alone, _ = send_owner_requests(seconds)
            logged, cpu, held = log.stat().st_size, sum(process.cpu_times()[:2]), 0
            stranger, began = Stranger(), time.perf_counter()
            answered = failed = 0
            for _ in range(max(1, round(seconds))):
                new_answers, new_failures = send_owner_requests(1.0)
                answered, failed = answered + new_answers, failed + new_failures
                established = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
                held = max(held, len(established))
            took = time.perf_counter() - began
            stranger.stop()
            return {
                "slowdown": alone / seconds / (max(answered, 1) / took), "failed": failed, "held": held, "files": FILES,
                "cpu_s": sum(process.cpu_times()[:2]) - cpu, "logged_bytes": log.stat().st_size - logged,
                "stranger_requests": stranger.answered, "owner_requests": {"alone": alone, "beside": answered},
                "seconds": seconds,
            }  # fmt: skip
        finally:
            server.terminate()
            server.wait(20)


if __name__ == "__main__":
    print_result("stranger", lambda: measure(float(sys.argv[1]) if len(sys.argv) > 1 else 10))
