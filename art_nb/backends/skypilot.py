"""SkyPilotBackend: rents a machine through SkyPilot, starts `art-nb serve` on it, and trains there as a RemoteBackend.

SkyPilot is called through its command `sky`, so it can be installed in an environment of its own, as its documentation
recommends (`uv tool install skypilot`, or pipx): it needs other versions of some packages than this library.

`resources={"infra": ...}` selects where SkyPilot rents: "k8s", "slurm", "aws", ...; its documentation describes access.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import metadata, version
from pathlib import Path
from typing import Any

import httpx

from art_nb.backends.remote import RemoteBackend
from art_nb.storage.checkpoints import write_file

PORT = 8000  # of the server, on the machine's loopback interface: only the tunnel reaches it
READY_TIMEOUT = 600.0  # seconds until the server must answer once its job runs


def server_task(
    gpu: str | None = None,
    resources: Mapping[str, Any] | None = None,
    art_version: str | None = None,
    envs: Sequence[str] = (),
    *,
    base_models: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a task in SkyPilot's YAML form that installs this package and serves models. It names secrets without values.

    Arguments: as in `SkyPilotBackend.initialize_cluster`. envs: names of further secrets.

    Raises: ValueError when `gpu` and `resources`, or `base_models`, are missing, or `art_version` is invalid.
    """
    if gpu is None and resources is None:
        raise ValueError('gpu and resources are missing: pass one of them, e.g. gpu="H100" or resources={"cpus": "8+"}')
    if not base_models:
        raise ValueError('base_models is empty: name the models that the server may train, e.g. {"qwen": "Qwen/Qwen3-0.6B"}')
    served = " ".join(shlex.quote(f"{name}={source}") for name, source in base_models.items())
    wanted = dict(resources or {}) | ({"accelerators": gpu if ":" in gpu else f"{gpu}:1"} if gpu else {})
    sent, package = _package(art_version)
    return {
        "name": "art-nb",
        **sent,
        "resources": wanted,
        "secrets": dict.fromkeys(["ART_NB_TOKEN", *envs]),
        "setup": f'python3 -m venv ~/art_nb\n~/art_nb/bin/python -m pip install --quiet "{package}"\n',
        "run": f"~/art_nb/bin/art-nb serve --host 127.0.0.1 --port {PORT} --path ~/art_nb_server --base-models {served}\n",
    }


def _package(art_version: str | None) -> tuple[dict[str, Any], str]:
    """Return the task's fields that send the package to the machine, and pip's requirement there."""
    local = Path(art_version or "")
    if art_version and local.is_dir():
        return {"workdir": str(local.resolve())}, ".[train,server]"
    if local.suffix == ".whl" and local.is_file():
        return {"file_mounts": {f"~/{local.name}": str(local.resolve())}}, f"$HOME/{local.name}[train,server]"
    if art_version is not None and (not re.fullmatch(r"\w[\w./-]*", art_version) or local.suffix == ".whl"):
        expected = "expected a tag, branch or commit of the repository, a folder or a wheel"
        raise ValueError(f"art_version is {art_version!r}: {expected}")
    return {}, f"art-nb[train,server] @ git+{_source()}@{art_version or 'v' + version('art-nb')}"


class SkyPilotBackend(RemoteBackend):
    """A RemoteBackend on a rented machine. `initialize_cluster` creates it.

    Call `down` to terminate the machine: it keeps running, and costs money, after the backend or the notebook is closed.
    """

    cluster_name: str
    _sky: str
    _tunnel: subprocess.Popen
    _token_file: Path

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
        base_models: Mapping[str, str] | None = None,
    ) -> SkyPilotBackend:
        """Rent a machine, start the server there and connect to it; or connect to the one rented by an earlier call.

        Args:
            gpu: "H100", or "A100:4" for four. resources: further fields of SkyPilot's `resources`.
            art_version: a tag, branch or commit of the repository, or a local folder or wheel; None: the tag of the version
                that is installed here.
            env_path: a file of NAME=VALUE lines with secrets for the machine, e.g. a token of the Hugging Face hub.
            force_restart: stop a running server and start a new one.
            tail_logs: print SkyPilot's output while it rents and installs.
            idle_minutes: minutes after the server has stopped until SkyPilot terminates the machine.
            path: folder for everything that is logged here, and for the server's token.
            sky, ssh: the commands; `sky` is looked up in PATH by default.
            base_models: required: the models that the server may train, by name: hub names, or folders on the machine,
                relative to `art_version` if that is a folder.

        Raises: FileNotFoundError: no command `sky` or `ssh`, or no `env_path`. ValueError: as `server_task`, or a line of
        `env_path`. RuntimeError: SkyPilot failed (the message has its output), the server did not start, or it has another
        token. A machine that was rented stays rented.
        """
        found = sky or shutil.which("sky")
        if found is None:
            raise FileNotFoundError("the command `sky` is missing: install it with `uv tool install skypilot` or pipx")
        variables = _variables(env_path) if env_path else {}
        task = server_task(gpu, resources, art_version, list(variables), base_models=base_models)
        token_file = Path(path or ".art") / f".{cluster_name}.token"
        if force_restart:
            try:
                await _run([found, "cancel", "--all", "--yes", cluster_name], {}, tail_logs)
            except RuntimeError as error:
                if not re.search("does not exist|not found on the cloud", str(error)):  # the machine was terminated
                    raise
            token_file.unlink(missing_ok=True)
        if token_file.exists():
            token = token_file.read_text(encoding="utf-8")
        else:
            token = secrets.token_urlsafe(32)
            values = variables | {"ART_NB_TOKEN": token}
            write_file(token_file, token.encode(), private=True)  # before the launch, which outlives an interrupt
            try:
                await _launch(found, cluster_name, task, values, idle_minutes, tail_logs)
            except Exception:
                token_file.unlink()
                raise
        tunnel, port = open_tunnel(cluster_name, ssh)
        try:
            await _wait_until_ready(port, tunnel, token)
        except BaseException:
            _end(tunnel)
            raise
        backend = cls(f"http://127.0.0.1:{port}", token, path=path)
        backend.cluster_name, backend._sky, backend._tunnel, backend._token_file = cluster_name, found, tunnel, token_file
        return backend

    async def close(self) -> None:
        """Close connections and tunnel. The machine keeps running."""
        await super().close()
        _end(self._tunnel)

    async def down(self) -> None:
        """Terminate the machine. Its files are lost: download checkpoints that you want to keep first."""
        await self.close()
        await _run([self._sky, "down", "--yes", self.cluster_name], {}, show=False)
        self._token_file.unlink(missing_ok=True)


def _source() -> str:
    """Return the repository's address. Raises: ValueError when pyproject.toml has none."""
    urls = dict(url.split(", ") for url in metadata("art-nb").get_all("Project-URL") or [])
    if "Repository" not in urls:
        raise ValueError("no repository address is set: pass a folder or wheel as art_version, or run art-nb address URL")
    return urls["Repository"]


def open_tunnel(cluster_name: str, ssh: Sequence[str] = ("ssh",)) -> tuple[subprocess.Popen, int]:
    """Forward a free local port to the server; return process and port. SkyPilot has added the host to ssh's config."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lasting = ["-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30"]
    options = ["-N", *lasting, "-L", f"127.0.0.1:{port}:127.0.0.1:{PORT}"]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # In a session of its own: an interrupt of this process does not end it.
    tunnel = subprocess.Popen([*ssh, *options, cluster_name], **quiet, start_new_session=True)
    atexit.register(tunnel.terminate)
    return tunnel, port


def _end(tunnel: subprocess.Popen) -> None:
    atexit.unregister(tunnel.terminate)
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
    """Run a command. Raises: RuntimeError with its last lines of output when it fails; secret values are masked."""
    environment = {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", **os.environ, **values}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout
    output: list[str] = []
    async for raw in process.stdout:
        line = raw.decode(errors="replace")
        for name, value in values.items():
            line = line.replace(value, f"<{name}>") if value else line
        output.append(line)
        if show:
            print(line, end="", flush=True)
    if await process.wait():
        raise RuntimeError(f"`sky {command[1]}` failed (exit code {process.returncode}):\n{''.join(output[-15:])}")


async def _wait_until_ready(port: int, tunnel: subprocess.Popen, token: str) -> None:
    until = time.monotonic() + READY_TIMEOUT
    async with httpx.AsyncClient(trust_env=False, headers={"authorization": f"Bearer {token}"}) as http:
        while True:
            if tunnel.poll() is not None:
                code = tunnel.returncode
                ended = f"ssh ended (exit code {code}) before the server answered"
                raise RuntimeError(f"{ended}: is the machine running? If not, pass force_restart=True.")
            try:
                answer = await http.get(f"http://127.0.0.1:{port}/status", timeout=5)
                if answer.is_success:
                    return
                if answer.status_code == 401:
                    raise RuntimeError("the server has another token: pass the `path` of its start, or force_restart=True")
            except httpx.TransportError:
                pass
            if time.monotonic() > until:
                raise RuntimeError(f"the server has not answered for {READY_TIMEOUT:g} s: see `sky logs CLUSTER`")
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
