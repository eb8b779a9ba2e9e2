"""RemoteBackend: sample and train on a server (`art-nb serve`); logs are written on this machine."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

from openai import AsyncOpenAI, NotGiven, Omit, not_given
from openai.types.chat import ChatCompletion

from art_nb.backends.base import FileBackend, RegisteredModel
from art_nb.backends.connection import Connection, RequestRefused, digest, encoded
from art_nb.backends.lockstep import LockstepClient
from art_nb.backends.steps import StepRequest, set_advantages
from art_nb.inference.client import create_recorded
from art_nb.inference.http_client import http_client
from art_nb.model import Model, TrainableModel
from art_nb.storage import checkpoints
from art_nb.storage.checkpoints import write_file
from art_nb.training.names import PolicyNames
from art_nb.trajectories import PydanticException, Trajectory, TrajectoryGroup
from art_nb.trajectories.usage import count_tokens
from art_nb.types import TrainConfig, TrainResult, TrainSFTConfig

if TYPE_CHECKING:
    from art_nb.widgets import LivePage

LOAD_TIMEOUT = 600.0  # seconds that the server may take to load a model


class RemoteModel(RegisteredModel):
    """A model on the server. path: the prefix of its routes. clients: for lockstep sampling, by event loop."""

    def __init__(self, names: PolicyNames, folder: Path, path: str):
        super().__init__(names, folder)
        self.path = path
        self.clients: WeakKeyDictionary[asyncio.AbstractEventLoop, LockstepClient] = WeakKeyDictionary()


class RemoteBackend(FileBackend[RemoteModel, TrainResult]):
    """Trains and samples on a server. A notebook that uses it in place of `LocalBackend()` gives the same results.

    Rollouts run in this process. Their requests are sampled in lockstep (see `lockstep`), so that the same seed gives the
    same tokens as a `LocalBackend`. Metrics and trajectories are written on this machine; checkpoints stay on the server.

    `train` writes its data to outbox/ in the model's folder before its first request. `send_again` trains on the data that
    an interrupted run left there. A step is taken once, however often its request is sent.

    Args:
        url: the server's address, e.g. "http://127.0.0.1:8000".
        api_key: its token; None takes ART_NB_TOKEN from the environment.
        path: folder for logs, the outbox and downloaded checkpoints; None: ".art".
        patience: seconds to retry while the server cannot be reached.
        progress: called with a short text when a model is loaded, and while a step is trained or workers run episodes.

    Raises: ValueError without a token or for an invalid argument. `train`: ConnectionError if the server is unreachable.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        path: str | os.PathLike | None = None,
        patience: float = 120.0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(path, progress)
        key = api_key or os.environ.get("ART_NB_TOKEN")
        if not key:
            raise ValueError("no api_key: give the token that `art-nb serve` showed at its first start, or set ART_NB_TOKEN")
        self.connection = Connection(url, key, patience)

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await super().close()
        await self.connection.close()

    async def load(self, model: TrainableModel) -> RemoteModel:
        """Load the model on the server."""
        self.progress(f"loading {model.base_model} on the server")
        internal = {name: part for name, part in model.internal_config.items() if name != "engine_args"}
        spec = {"project": model.project, "name": model.name, "base_model": model.base_model, "config": internal}
        known = await self.connection.ask("POST", "/api/models", spec, timeout=LOAD_TIMEOUT)
        folder = self.output_dir(model)
        path = f"/api/models/{quote(model.project, safe='')}/{quote(model.name, safe='')}"
        names = PolicyNames(model.name, model.base_model, folder / "checkpoints")
        loaded = self.models.get((model.project, model.name)) or RemoteModel(names, folder, path)
        loaded.names.step = known["step"]
        return loaded

    async def _prepare_backend_for_training(
        self, model: TrainableModel, config: dict[str, Any] | None = None
    ) -> tuple[str | None, str | None]:
        """Load the model on the server. Returns base url and api key for any OpenAI client."""
        self.models[model.project, model.name] = await self.load(model)
        return openai_url(self.connection, model.project), self.connection.api_key

    def client(self, model: TrainableModel) -> AsyncOpenAI:
        """Return an OpenAI client that samples on the server, from any policy that has a checkpoint or the base model."""
        return remote_client(lambda **request: self.lockstep_client(model).create(**request), self.connection, model.project)

    def lockstep_client(self, model: TrainableModel) -> LockstepClient:
        """Return the running event loop's client for lockstep sampling."""
        loaded, loop = self.loaded(model), asyncio.get_running_loop()
        if loop not in loaded.clients:
            loaded.clients[loop] = lockstep_client(self.connection, loaded.path)
        return loaded.clients[loop]

    async def _get_step(self, model: Model[Any, Any]) -> int:
        loaded = self.loaded(model)
        loaded.names.step = step = (await self.connection.ask("GET", loaded.path))["step"]
        return step

    async def take_step(self, model: TrainableModel, request: StepRequest) -> TrainResult:
        """Write the data to the outbox, then train on the server. Raises: as `Connection.ask`, not as `train`."""
        message = {
            "key": request.key,
            "from_step": self.loaded(model).names.step,
            "groups" if isinstance(request.config, TrainConfig) else "trajectories": [
                each.model_dump(mode="json") for each in request.data
            ],
            "config": request.config.model_dump(exclude_unset=True),
        }
        outbox = self.output_dir(model) / "outbox" / f"{request.key}.json"
        write_file(outbox, encoded({**message, "log": request.log}))
        if (step := await self._get_step(model)) != message["from_step"]:  # another client has trained the model
            message["from_step"] = step
            write_file(outbox, encoded({**message, "log": request.log}))
        return await self._send(model, request, message, outbox)

    async def send_again(self, model: TrainableModel) -> TrainResult | None:
        """Train on the data in the outbox, oldest first; return the last result, None if the outbox is empty.

        Raises: as `take_step`.
        """
        result = None
        for outbox in sorted((self.output_dir(model) / "outbox").glob("*.json"), key=lambda path: path.stat().st_mtime):
            message = json.loads(outbox.read_bytes())
            log, key = message.pop("log"), message["key"]
            if "groups" in message:
                groups = [TrajectoryGroup.model_validate(group) for group in message["groups"]]
                request = StepRequest(groups, TrainConfig(**message["config"]), log, key)
            else:
                request = StepRequest(message["trajectories"], TrainSFTConfig(**message["config"]), log, key)
            result = await self._send(model, request, message, outbox, again=True)
        return result

    async def _send(
        self, model: TrainableModel, request: StepRequest, message: dict[str, Any], outbox: Path, again: bool = False
    ) -> TrainResult:
        loaded = self.loaded(model)
        answer: dict[str, Any] = {}
        route, split = ("train", "train") if isinstance(request.config, TrainConfig) else ("train_sft", "sft")
        try:
            async for line in self.connection.lines(f"{loaded.path}/{route}", message):
                if line.get("progress"):
                    self.progress(line["progress"])
                answer = line.get("result", answer)
        except RequestRefused as refusal:
            if refusal.final:
                outbox.unlink()
            raise
        result = TrainResult(answer["step"], {name: float(value) for name, value in answer["metrics"].items()})
        loaded.names.step = result.step
        set_advantages(request.groups, answer["advantages"])
        if request.log:
            if request.groups:
                model.run_log.write_trajectories(request.groups, "train", result.step)
            # The row may be logged already, if an interrupt came before the data left the outbox.
            if not again or not any((row["step"], row["split"]) == (result.step, split) for row in model.run_log.rows()):
                # `log_step` computes the groups' metrics and the costs again, so leave out the server's values.
                added = {name for group in request.groups for each in (group, *group) for name in each.metrics}
                own = {
                    name: value
                    for name, value in result.metrics.items()
                    if not (name in added or name.startswith("costs/") or "/cum/" in name)
                }
                await self.log_step(model, request, TrainResult(result.step, own))
        outbox.unlink()
        return result

    async def gather_by_workers(
        self, model: TrainableModel, scenarios: Iterable[Any], group_size: int, *, seed: int = 0, every: float = 1.0
    ) -> list[TrajectoryGroup]:
        """Have workers (`art-nb worker`) run `group_size` episodes of each scenario with the latest policy.

        Returns one group per scenario; its `exceptions` are those of its rollouts. The server stores the batch, so that a
        repeated call, for example after a kill, reuses the episodes that have already run. A batch of a later step
        replaces this one; this call then raises ValueError.

        Args:
            scenarios: JSON-serialisable arguments of the workers' rollout.
            seed: for all sampling, combined with the step, the scenario's index and the episode's index in its group.
            every: seconds between two polls.
        """
        loaded, step, scenarios = self.loaded(model), await self._get_step(model), list(scenarios)
        work = {"step": step, "scenarios": scenarios, "group_size": group_size, "seed": seed}
        batch = digest([loaded.path, work])
        body = {"batch": batch, "project": model.project, "name": model.name, **work}
        counts = await self.connection.ask("POST", "/api/work", body)
        while counts["open"] or counts["leased"]:
            self.progress(f"workers: {counts['done']} episodes done, {counts['leased']} running, {counts['open']} open")
            await asyncio.sleep(every)
            counts = await self.connection.ask("GET", f"/api/work/{batch}")
        if not (results := await self.connection.ask("GET", f"/api/work/{batch}/results")):
            raise ValueError(f"the batch of step {step} is gone: a later one has replaced it; gather one batch at a time")
        return [_group(results[i : i + group_size]) for i in range(0, len(results), group_size)]

    async def download_checkpoint(self, model: TrainableModel, step: int | None = None) -> Path:
        """Download a checkpoint, by default the latest, into the model's folder; return the checkpoint's folder.

        Raises: ValueError when the server has no such checkpoint.
        """
        loaded = self.loaded(model)
        kept = {each["step"]: each["files"] for each in await self.connection.ask("GET", f"{loaded.path}/checkpoints")}
        step = max(kept, default=0) if step is None else step
        if step not in kept:
            raise ValueError(f"step is {step}: the server has checkpoints of steps {sorted(kept) or 'none'} only")
        source = f"{loaded.path}/checkpoints/{step}"
        files = {name: await self.connection.fetch("GET", f"{source}/{name}") for name in kept[step]}

        def fill(folder: Path) -> None:
            for name, data in files.items():
                (folder / Path(name).name).write_bytes(data)

        checkpoints.write_folder(loaded.names.checkpoint(step), fill)
        return loaded.names.checkpoint(step)

    async def live_page(self) -> LivePage:
        """Return the server's live page, for display in JupyterLab. It contains a one-time login code, not the token."""
        from art_nb.widgets import LivePage

        return LivePage(self.connection.url, (await self.connection.ask("POST", "/codes"))["code"])

    async def fork(self, model: Model, from_model: str, from_project: str, **options: Any) -> int:
        """Copy a checkpoint of another model to this registered model, on the server; return this model's step."""
        loaded, request = self.loaded(model), {"from_project": from_project, "from_model": from_model, **options}
        forked = await self.connection.ask("POST", f"{loaded.path}/fork", request, timeout=LOAD_TIMEOUT)
        loaded.names.step = forked["step"]
        return forked["step"]

    async def kept_steps(self, model: TrainableModel) -> list[int]:
        """Return the steps that have a checkpoint on the server, ascending."""
        return (await self.connection.ask("GET", self.loaded(model).path))["checkpoints"]

    async def _delete_checkpoint_files(self, model: TrainableModel, steps_to_keep: list[int]) -> None:
        path = self.loaded(model).path
        known = await self.connection.ask("GET", path)
        for step in set(known["checkpoints"]) - {*steps_to_keep, known["step"]}:
            await self.connection.ask("DELETE", f"{path}/checkpoints/{step}")


def _group(results: list[dict[str, Any]]) -> TrajectoryGroup:
    trajectories = [Trajectory.model_validate(each["trajectory"]) for each in results if "trajectory" in each]
    raised: list[Any] = [PydanticException.model_validate(each["exception"]) for each in results if "exception" in each]
    for trajectory in trajectories:
        count_tokens(trajectory)
    return TrajectoryGroup(trajectories, exceptions=raised)


def lockstep_client(connection: Connection, path: str) -> LockstepClient:
    """Return a `LockstepClient` over HTTP. path: the prefix of the model's routes."""

    async def send(key: str, exchange: dict[str, Any]) -> list[dict]:
        while (answers := (await connection.ask("POST", f"{path}/lockstep/{key}", exchange))["answers"]) is None:
            pass  # nothing is ready yet: send the same exchange again
        return answers

    return LockstepClient(send)


def openai_url(connection: Connection, project: str) -> str:
    """Return the base URL for OpenAI clients of one project: other projects may have models of the same names."""
    return f"{connection.url}/projects/{quote(project, safe='')}/v1"


def remote_client(answer: Callable[..., Awaitable[ChatCompletion]], connection: Connection, project: str) -> AsyncOpenAI:
    """Return a client. `answer` gets chat requests without streaming, extra headers or a timeout; all others use HTTP."""
    client = http_client(openai_url(connection, project), connection.api_key)
    over_http = client.chat.completions.create

    async def create(**request: Any) -> Any:
        timed = not isinstance(request.get("timeout", not_given), NotGiven | Omit)
        if request.get("stream") is True or request.get("extra_headers") or timed:
            return await over_http(**request)
        return await create_recorded(answer, request)

    client.chat.completions.create = create  # type: ignore[method-assign]
    return client
