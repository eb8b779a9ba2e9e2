"""SkyPilotBackend: rents a machine through SkyPilot, starts `art-nb serve` on it, and trains there as a RemoteBackend does.

SkyPilot is asked by its command `sky`, so it may lie in an environment of its own, where its makers want it
(`uv tool install skypilot`, or pipx): it and this course ask for other versions of the same packages.

What it rents from is SkyPilot's matter: `resources={"infra": "k8s"}` is a Kubernetes cluster, "slurm" one of Slurm, "aws"
a cloud, each with what SkyPilot's own documentation says about access.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import httpx

from art_nb.remote import RemoteBackend
from art_nb.storage.checkpoints import write_file

PORT = 8000  # of the server, on the cluster's own loopback: only the tunnel reaches it
READY = 600.0  # seconds that the server may take to answer once its job runs


def server_task(
    gpu: str | None = None,
    resources: Mapping[str, Any] | None = None,
    art_version: str | None = None,
    envs: Sequence[str] = (),
) -> dict[str, Any]:
    """The task, as SkyPilot's YAML has it: install this package, serve models.

    Args: as those of `SkyPilotBackend.initialize_cluster`; envs: names of secrets besides the server's token. Their values
    are not in the task: `sky` takes them from the environment.

    Raises: ValueError when neither `gpu` nor `resources` is given, or `art_version` is neither a version nor a folder.
    """
    if gpu is None and resources is None:
        raise ValueError('gpu or resources: say what to rent, as gpu="H100" or resources={"cpus": "8+"}')
    wanted = dict(resources or {}) | ({"accelerators": gpu if ":" in gpu else f"{gpu}:1"} if gpu else {})
    local = art_version is not None and Path(art_version).is_dir()
    if art_version is not None and not local and not art_version.replace(".", "").isalnum():
        raise ValueError(f"art_version is {art_version!r}: expected a tag, branch or commit of {_source()}, or a folder")
    what = ".[server]" if local else f"art-nb[server] @ git+{_source()}" + (f"@{art_version}" if art_version else "")
    return {
        "name": "art-nb",
        **({"workdir": str(Path(str(art_version)).resolve())} if local else {}),
        "resources": wanted,
        "secrets": dict.fromkeys(["ART_NB_TOKEN", *envs]),
        "setup": f"python3 -m venv ~/art_nb\n~/art_nb/bin/python -m pip install --quiet '{what}'\n",
        "run": f"~/art_nb/bin/art-nb serve --host 127.0.0.1 --port {PORT} --path ~/art_nb_server\n",
    }


class SkyPilotBackend(RemoteBackend):
    """A RemoteBackend on a rented machine. Make it by `initialize_cluster`; `down` gives the machine back.

    Closing the backend, or the notebook, leaves the machine running, and costing: the server is a job that does not end.
    """

    cluster_name: str
    _sky: str
    _tunnel: subprocess.Popen
    _kept: Path

    @classmethod
    async def initialize_cluster(
        cls,
        *,
        cluster_name: str = "art",
        gpu: str | None = None,
        resources: Mapping[str, Any] | None = None,
        art_version: str | None = None,
        env_path: str | None = None,
        force_restart: bool = False,
        tail_logs: bool = True,
        idle_minutes: int = 60,
        path: str | os.PathLike | None = None,
        sky: str | None = None,
        ssh: Sequence[str] = ("ssh",),
    ) -> SkyPilotBackend:
        """Rent a machine, start the server there and connect to it; or connect to the one that this made earlier.

        Args:
            gpu: "H100", or "A100:4" for four; resources: further fields of SkyPilot's `resources`, as a dict.
            art_version: a tag, branch or commit of this repository, or a folder here, which is sent; None: the newest.
            env_path: a file of NAME=VALUE lines for the machine, as a key of the Hugging Face hub.
            force_restart: stop a server that runs there and start anew.
            tail_logs: show what SkyPilot says while it rents and installs.
            idle_minutes: so long after the server has ended, by itself or by `force_restart`, the machine goes back.
            path: folder of what is logged here, and of the server's token.
            sky, ssh: the commands; None takes `sky` of the PATH.

        Raises: FileNotFoundError: there is no command `sky`. ValueError: nothing to rent was named. RuntimeError: SkyPilot
        refused, or the server did not start; it says what was printed. A machine that it rented is then still there.
        """
        found = sky or shutil.which("sky")
        if found is None:
            raise FileNotFoundError("the command `sky` is missing: uv tool install skypilot (or pipx install skypilot)")
        variables = _variables(env_path) if env_path else {}
        task = server_task(gpu, resources, art_version, list(variables))
        kept = Path(path or ".art") / f".{cluster_name}.token"
        if force_restart:
            await _run([found, "cancel", "--all", "--yes", cluster_name], {}, tail_logs)
            kept.unlink(missing_ok=True)
        if kept.exists():
            token = kept.read_text(encoding="utf-8")
        else:
            token = secrets.token_urlsafe(32)
            values = variables | {"ART_NB_TOKEN": token}
            await _launch(found, cluster_name, task, values, idle_minutes, tail_logs)
            write_file(kept, token.encode())
            kept.chmod(0o600)
        tunnel, port = open_tunnel(cluster_name, ssh)
        try:
            await _answers(port, tunnel)
        except BaseException:
            _end(tunnel)
            raise
        backend = cls(f"http://127.0.0.1:{port}", token, path=path)
        backend.cluster_name, backend._sky, backend._tunnel, backend._kept = cluster_name, found, tunnel, kept
        return backend

    async def close(self) -> None:
        """Close connections and tunnel. The machine goes on."""
        await super().close()
        _end(self._tunnel)

    async def down(self) -> None:
        """Give the machine back, with all that lies on it: checkpoints that are to stay are downloaded before."""
        await self.close()
        await _run([self._sky, "down", "--yes", self.cluster_name], {}, show=False)
        self._kept.unlink(missing_ok=True)


def _source() -> str:
    """The repository's address."""
    urls = dict(url.split(", ") for url in metadata("art-nb").get_all("Project-URL") or [])
    return urls["Repository"]


def open_tunnel(cluster_name: str, ssh: Sequence[str] = ("ssh",)) -> tuple[subprocess.Popen, int]:
    """A free port here that leads to the server. SkyPilot has written the host `cluster_name` into ssh's configuration."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lasting = ["-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30"]
    options = ["-N", *lasting, "-L", f"127.0.0.1:{port}:127.0.0.1:{PORT}"]
    tunnel = subprocess.Popen([*ssh, *options, cluster_name], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return tunnel, port


def _end(tunnel: subprocess.Popen) -> None:
    tunnel.terminate()
    tunnel.wait()


async def _launch(
    sky: str, cluster_name: str, task: dict[str, Any], values: dict[str, str], idle_minutes: int, show: bool
) -> None:
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.yaml"
        file.write_text(yaml.safe_dump(task, sort_keys=False), encoding="utf-8")
        options = ["--yes", "--detach-run", "--cluster", cluster_name]
        options += ["--down", "--idle-minutes-to-autostop", str(idle_minutes)]
        named = [option for name in task["secrets"] for option in ("--secret", name)]  # values come from the environment
        await _run([sky, "launch", *options, *named, str(file)], values, show)


async def _run(command: list[str], values: dict[str, str], show: bool) -> None:
    """Raises: RuntimeError when it fails, with its last lines, in which no value is to be read."""
    process = await asyncio.create_subprocess_exec(
        *command, env=os.environ | values, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout
    said: list[str] = []
    async for raw in process.stdout:
        line = raw.decode(errors="replace")
        for name, value in values.items():
            line = line.replace(value, f"<{name}>") if value else line
        said.append(line)
        if show:
            print(line, end="", flush=True)
    if await process.wait():
        raise RuntimeError(f"`sky {command[1]}` failed (exit code {process.returncode}):\n{''.join(said[-15:])}")


async def _answers(port: int, tunnel: subprocess.Popen) -> None:
    until = time.monotonic() + READY
    async with httpx.AsyncClient(trust_env=False) as http:
        while True:
            if tunnel.poll() is not None:
                raise RuntimeError(f"ssh ended (exit code {tunnel.returncode}) before the server answered: is it there?")
            try:
                if (await http.get(f"http://127.0.0.1:{port}/healthz", timeout=5)).is_success:
                    return
            except httpx.TransportError:
                pass
            if time.monotonic() > until:
                raise RuntimeError(f"the server has not answered for {READY:g} s: `sky logs CLUSTER` shows what it says")
            await asyncio.sleep(0.2)


def _variables(env_path: str) -> dict[str, str]:
    found = {}
    for number, line in enumerate(Path(env_path).read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, equals, value = line.partition("=")
            if not equals or not name.strip().isidentifier():
                raise ValueError(f"{env_path}, line {number}: expected NAME=VALUE")
            found[name.strip()] = value.strip().strip("\"'")
    return found
