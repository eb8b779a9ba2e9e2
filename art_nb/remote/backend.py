"""RemoteBackend: samples and trains on a server (`art-nb serve`), and keeps what a run logs here."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

from openai import AsyncOpenAI

from art_nb.model import Model
from art_nb.remote.client import remote_client
from art_nb.remote.connection import Connection, RequestRefused, encoded
from art_nb.remote.line import Line
from art_nb.storage import checkpoints, logbook
from art_nb.storage.checkpoints import write_file
from art_nb.trajectories import PydanticException, Trajectory, TrajectoryGroup
from art_nb.trajectories.accounts import count_tokens
from art_nb.types import TrainConfig, TrainResult, TrainSFTConfig

if TYPE_CHECKING:
    from art_nb.model import TrainableModel
    from art_nb.widgets import LivePage

LONG = 600.0  # seconds that loading a model may take


class RemoteBackend:
    """Trains and samples on a server; a notebook that has it in the place of `LocalBackend()` runs the same.

    Rollouts run here. What they ask goes to the server many at a time, so that at the same seed the same is sampled, token
    for token, as in process. Metrics and trajectories are written here, as a `LocalBackend` writes them.

    Args:
        url: where the server is, e.g. "http://127.0.0.1:8000".
        api_key: its token; None takes ART_NB_TOKEN of the environment.
        path: folder of what is logged here.
        patience: seconds that the server may be out of reach before ConnectionError is raised.
        progress: called with a short text while the server trains.
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
        key = api_key or os.environ.get("ART_NB_TOKEN")
        if not key:
            raise ValueError("api_key: give the token that `art-nb serve` showed at its first start, or set ART_NB_TOKEN")
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url is {url!r}: expected something like http://127.0.0.1:8000")
        self.connection = Connection(url, key, patience)
        self.path = Path(path or ".art")
        self.progress = progress or (lambda text: None)
        self._steps: dict[str, int] = {}
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Line]] = WeakKeyDictionary()

    async def register(self, model: Model[Any, Any]) -> None:
        """Make the model's folder here."""
        self.output_dir(model).mkdir(parents=True, exist_ok=True)

    def output_dir(self, model: Model[Any, Any]) -> Path:
        """Where what is logged of the model lies here; its checkpoints are the server's."""
        return self.path / model.project / "models" / model.name

    async def close(self) -> None:
        """Close all connections."""
        await self.connection.close()

    async def __aenter__(self) -> RemoteBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _prepare_backend_for_training(
        self, model: TrainableModel, config: dict[str, Any] | None = None
    ) -> tuple[str | None, str | None]:
        """Let the server load the model. Returns base url and api key, for any OpenAI client."""
        self.progress(f"the server loads {model.base_model}")
        internal = {name: part for name, part in (model._internal_config or {}).items() if name != "engine_args"}
        spec = {"project": model.project, "name": model.name, "base_model": model.base_model, "config": internal}
        known = await self.connection.ask("POST", "/api/models", spec, timeout=LONG)
        self._steps[_path(model)] = known["step"]
        return f"{self.connection.url}/v1", self.connection.api_key

    def client(self, model: TrainableModel) -> AsyncOpenAI:
        """An OpenAI client that asks the model on the server, as it is now or was at any kept step, or its base model."""
        answer = lambda **request: self._line(model).create(**request)  # noqa: E731  # the line of the loop that asks
        return remote_client(answer, f"{self.connection.url}/v1", self.connection.api_key)

    def _line(self, model: TrainableModel) -> Line:
        lines = self._lines.setdefault(asyncio.get_running_loop(), {})
        if _path(model) not in lines:
            lines[_path(model)] = Line(self.connection, _path(model))
        return lines[_path(model)]

    async def _get_step(self, model: Model[Any, Any]) -> int:
        self._steps[_path(model)] = step = (await self.connection.ask("GET", _path(model)))["step"]
        return step

    def _model_inference_name(self, model: TrainableModel, step: int | None = None) -> str:
        return f"{model.name}@{self._steps.get(_path(model), 0) if step is None else step}"

    async def train(
        self,
        model: TrainableModel,
        trajectory_groups: Iterable[TrajectoryGroup],
        *,
        config: TrainConfig | None = None,
        _log: bool = False,
        **art_options: Any,
    ) -> TrainResult:
        """One training step on the groups, and a checkpoint, on the server.

        The groups are on the disk here before they are sent, in outbox/; `send_again` trains on what a run that was broken
        off has left there. A request is applied once, however often it has to be sent.

        art_options: learning_rate=..., kl_penalty_coef=... and other options of ART's `backend.train`.

        Raises:
            ValueError: the groups can't be trained on; it names the trajectory. Or the model was trained by somebody else.
            ConnectionError: the server was out of reach for too long; the groups stay in the outbox.
        """
        config = (config or TrainConfig()).with_art_options(art_options)
        groups = list(trajectory_groups)
        request = {
            "key": secrets.token_hex(16),
            "from_step": await self._get_step(model),
            "groups": [group.model_dump(mode="json") for group in groups],
            "config": config.model_dump(exclude_unset=True),
        }
        outbox = self.output_dir(model) / "outbox" / f"{request['key']}.json"
        write_file(outbox, encoded({**request, "log": _log}))
        return await self._train(model, groups, request, outbox, _log)

    async def train_sft(
        self,
        model: TrainableModel,
        trajectories: Iterable[Trajectory],
        *,
        config: TrainSFTConfig | None = None,
        _log: bool = False,
    ) -> TrainResult:
        """Raises: NotImplementedError. A server takes no demonstrations."""
        raise NotImplementedError("train_sft: a server takes no demonstrations; learn from them with a LocalBackend")

    async def send_again(self, model: TrainableModel) -> TrainResult | None:
        """Train on groups that were gathered and whose training was not heard of; None where there are none.

        Raises: as `train`.
        """
        result = None
        for outbox in sorted((self.output_dir(model) / "outbox").glob("*.json"), key=lambda path: path.stat().st_mtime):
            request = json.loads(outbox.read_bytes())
            groups = [TrajectoryGroup.model_validate(group) for group in request["groups"]]
            result = await self._train(model, groups, request, outbox, request.pop("log"))
        return result

    async def _train(
        self, model: TrainableModel, groups: list[TrajectoryGroup], request: dict[str, Any], outbox: Path, log: bool
    ) -> TrainResult:
        result: dict[str, Any] = {}
        try:
            async for line in self.connection.lines(f"{_path(model)}/train", request):
                if line.get("progress"):
                    self.progress(line["progress"])
                result = line.get("result", result)
        except RequestRefused:
            outbox.unlink()
            raise
        step, metrics = result["step"], {name: float(value) for name, value in result["metrics"].items()}
        self._steps[_path(model)] = step
        note_advantages(groups, result["advantages"])
        if log:
            logbook.write_trajectories(self.output_dir(model), groups, "train", step)
            row = await model._with_totals("train", logbook.summary(groups) | metrics, groups)
            model._append_row("train", step, row, groups)
        outbox.unlink()
        return TrainResult(step, metrics)

    async def gather_by_workers(
        self,
        model: TrainableModel,
        scenarios: Iterable[Any],
        group_size: int,
        *,
        seed: int = 0,
        every: float = 1.0,
    ) -> list[TrajectoryGroup]:
        """Let workers (`art-nb worker`) play `group_size` episodes of each scenario by the present policy; a group for each.

        The batch is the server's: whoever asks again for the same, after a kill say, gets what was played already. What a
        rollout raised is in its group's `exceptions`.

        Args:
            scenarios: what the workers' rollout takes; JSON must be able to hold it.
            seed: of all that is sampled, together with the step and the place in the batch.
            every: seconds between two looks.
        """
        step, scenarios = await self._get_step(model), list(scenarios)
        asked = {"step": step, "scenarios": scenarios, "group_size": group_size, "seed": seed}
        digest = hashlib.blake2b(encoded([_path(model), asked]), digest_size=12).hexdigest()
        batch = {"batch": digest, "project": model.project, "name": model.name, **asked}
        counts = await self.connection.ask("POST", "/api/work", batch)
        while counts["open"] or counts["leased"]:
            self.progress(f"workers play: {counts['done']} done, {counts['leased']} in hand, {counts['open']} open")
            await asyncio.sleep(every)
            counts = await self.connection.ask("GET", f"/api/work/{digest}")
        results = await self.connection.ask("GET", f"/api/work/{digest}/results")
        return [_group(results[i : i + group_size]) for i in range(0, len(results), group_size)]

    async def download_checkpoint(self, model: TrainableModel, step: int | None = None) -> Path:
        """Copy a checkpoint, the latest by default, into the model's folder here; returns where it lies.

        Raises: ValueError when the server has no such checkpoint.
        """
        kept = {each["step"]: each["files"] for each in await self.connection.ask("GET", f"{_path(model)}/checkpoints")}
        step = max(kept) if step is None else step
        if step not in kept:
            raise ValueError(f"the server has checkpoints of steps {sorted(kept)} only, not of {step}")
        there = f"{_path(model)}/checkpoints/{step}"
        files = {name: await self.connection.fetch("GET", f"{there}/{name}") for name in kept[step]}
        folder = checkpoints.step_folder(self.output_dir(model) / "checkpoints", step)

        def fill(new: Path) -> None:
            for name, data in files.items():
                (new / Path(name).name).write_bytes(data)

        checkpoints.write_folder(folder, fill)
        return folder

    async def live_page(self) -> LivePage:
        """The server's live page, shown in JupyterLab. It holds a code that is used up when it opens, not the token."""
        from art_nb.widgets import LivePage

        return LivePage(self.connection.url, (await self.connection.ask("POST", "/codes"))["code"])

    async def _experimental_fork_checkpoint(
        self,
        model: Model,
        from_model: str,
        from_project: str | None = None,
        from_s3_bucket: str | None = None,
        not_after_step: int | None = None,
        verbose: bool = False,
        prefix: str | None = None,
        *,
        best_metric: str | None = None,
        optimizer: bool = True,
    ) -> None:
        """As `LocalBackend` does it, between two models of the server; after `register`."""
        if from_s3_bucket is not None or prefix is not None:
            raise ValueError("from_s3_bucket, prefix: there is no S3 here")
        request = {
            "from_project": from_project or model.project, "from_model": from_model, "not_after_step": not_after_step,
            "best_metric": best_metric, "optimizer": optimizer,
        }  # fmt: skip
        forked = await self.connection.ask("POST", f"{_path(model)}/fork", request, timeout=LONG)
        self._steps[_path(model)] = forked["step"]
        if verbose:
            print(f"{model.name!r} starts from {from_model}@{forked['step']}")

    async def _delete_checkpoint_files(self, model: TrainableModel, steps_to_keep: list[int]) -> None:
        known = await self.connection.ask("GET", _path(model))
        for step in set(known["checkpoints"]) - {*steps_to_keep, known["step"]}:
            await self.connection.ask("DELETE", f"{_path(model)}/checkpoints/{step}")


def _path(model: Model[Any, Any]) -> str:
    """Of the model on the server."""
    return f"/api/models/{quote(model.project, safe='')}/{quote(model.name, safe='')}"


def _group(results: list[dict[str, Any]]) -> TrajectoryGroup:
    trajectories = [Trajectory.model_validate(each["trajectory"]) for each in results if "trajectory" in each]
    raised: list[Any] = [PydanticException.model_validate(each["exception"]) for each in results if "exception" in each]
    for trajectory in trajectories:
        count_tokens(trajectory)
    return TrajectoryGroup(trajectories, exceptions=raised)


def note_advantages(groups: list[TrajectoryGroup], advantages: list[list[list[float | None]]] | None) -> None:
    """What each choice taught, as training in process notes it."""
    for group, of_group in zip(groups, advantages or [], strict=advantages is not None):
        for trajectory, of_trajectory in zip(group, of_group, strict=True):
            histories = (trajectory, *trajectory.additional_histories)
            choices = [choice for history in histories for choice in history.choices()]
            for choice, advantage in zip(choices, of_trajectory, strict=True):
                if advantage is not None:
                    tokens = len(getattr(choice, "token_ids", None) or [])
                    choice.token_advantages = [advantage] * tokens  # type: ignore[attr-defined]  # they take further fields
