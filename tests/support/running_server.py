"""A server in a separate process, started by `art-nb serve`, for tests."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

NANO, NANO_EMAIL = (str(Path(__file__).parents[2] / "data" / name) for name in ("nano", "nano_email"))
TOKEN = "a-token-for-tests-only"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """Base models by name, a folder, a port: started, killed and started again."""

    def __init__(self, folder: Path, port: int | None = None, **bases: str):
        self.folder, self.port, self.bases = folder, port or free_port(), bases
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self, *options: str):
        # Without the .env of the working folder, and with as many threads as here, which affects the rounding of sums.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ART_NB_")}
        environment |= {"ART_NB_TOKEN": TOKEN, "PYTHONPATH": str(Path(__file__).parents[2])}
        bases = [f"--base-models={name}={path}" for name, path in self.bases.items()]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "art_nb", "serve", f"--port={self.port}", f"--path={self.folder}", "--engine=transformers",
             *bases, *options],
            env=environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        until = time.monotonic() + 60
        while time.monotonic() < until:
            assert self.process.poll() is None, self.process.stdout.read()
            try:
                urllib.request.urlopen(f"{self.url}/healthz", timeout=5)
                return self
            except OSError:
                time.sleep(0.05)
        self.kill()
        raise TimeoutError("the server does not answer")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@contextmanager
def serving(folder: Path, *options: str, **bases: str):
    server = Server(folder, **bases).start(*options)
    try:
        yield server
    finally:
        server.kill()
