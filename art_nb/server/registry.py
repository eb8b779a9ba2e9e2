"""The models of a server: registered by clients, found again after a restart, asked by name, trained once per request.

Everything here runs in the engine's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from art_nb.backend import LocalBackend
from art_nb.model import TrainableModel
from art_nb.server.errors import Refused
from art_nb.server.specs import ForkRequest, ModelSpec, TrainRequest, read_groups
from art_nb.storage import checkpoints, logbook
from art_nb.storage.checkpoints import write_file
from art_nb.trajectories import Trajectory
from art_nb.types import LocalTrainResult

FILE = "model.json"
BASES = "base-models"  # the project of those that are only asked, by the name of their base model
OURS = {"self", "to", "policy", "times", "asked_before"}  # arguments of the backend that no client gives
FILES = ("adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "state.json")  # of a checkpoint


class Registry:
    """Models by project and name.

    backend: keeps their files, samples and trains. settle: what its samplers await between two forwards.
    news: called with (spec, text) while something long goes on.
    """

    def __init__(
        self,
        backend: LocalBackend,
        settle: Callable[[], Coroutine[Any, Any, None]],
        news: Callable[[ModelSpec | None, str], None],
    ) -> None:
        self.backend, self._settle, self._news = backend, settle, news
        self.specs: dict[tuple[str, str], ModelSpec] = {}
        self._loaded: dict[tuple[str, str], TrainableModel] = {}
        self._training: dict[str, asyncio.Task] = {}
        self._busy: ModelSpec | None = None
        backend.progress = lambda text: news(self._busy, text)
        for path in backend.path.glob(f"*/models/*/{FILE}"):
            spec = ModelSpec.model_validate_json(path.read_text(encoding="utf-8"))
            self.specs[spec.project, spec.name] = spec

    async def register(self, spec: ModelSpec) -> TrainableModel:
        """Load a model at its latest checkpoint; a new one is made.

        Raises: Refused when its base model is not served, or another model has its name.
        """
        key = spec.project, spec.name
        spec = spec.model_copy(update={"base_model": self.base_of(spec.base_model)})
        if self.specs.get(key, spec) != spec:
            raise Refused(409, f"model {spec.name!r} exists, on another base or with other settings: take another name")
        if key not in self._loaded:
            model: TrainableModel = TrainableModel(
                name=spec.name, project=spec.project, base_model=spec.base_model, _internal_config=spec.internal()
            )
            await model.register(self.backend)
            self.backend._of(model).sampler.settle = self._settle
            write_file(self.backend.output_dir(model) / FILE, spec.model_dump_json().encode())
            self.specs[key], self._loaded[key] = spec, model
        return self._loaded[key]

    def base_of(self, given: str) -> str:
        """The name that a base model has here; a client may give its own folder. A name is looked up, no more."""
        last = PurePosixPath(given.replace("\\", "/")).name
        found = next((name for name in (given, last) if name in self.backend.base_models), None)
        if found is None:
            raise Refused(404, f"base model {given!r:.200} is not here, only {self._listed(self.backend.base_models)}")
        return found

    async def model(self, project: str, name: str) -> TrainableModel:
        """A registered model. Raises: Refused when there is none."""
        spec = self.specs.get((project, name))
        if spec is None:
            raise Refused(404, f"model {name!r:.200} of project {project!r:.200} is not registered here")
        return await self.register(spec)

    async def asked(self, name: str) -> tuple[TrainableModel, str]:
        """Which model a name of a policy means, and what that model calls it.

        A policy is "model" or "model@step", with "project/" before it where two projects have such a model; or a base model.

        Raises: Refused when there is none, or it is not clear which.
        """
        own, at, step = name.rpartition("@") if "@" in name else (name, "", "")
        project, slash, own = own.rpartition("/")
        fitting = [key for key in self.specs if key[1] == own and key[0] in ((project,) if slash else self._projects())]
        if len(fitting) > 1:
            raise Refused(400, f"model {name!r:.200} could be {self._listed('/'.join(key) for key in fitting)}")
        if fitting:
            return await self.model(*fitting[0]), own + at + step
        base = self.base_of_any(name)
        spec = next((spec for spec in self.specs.values() if spec.base_model == base), None)
        return await self.register(spec or untrained(base)), base

    async def answer(self, model: TrainableModel, name: str | None, request: dict[str, Any], asked_before: int = 0) -> Any:
        """Answer a request by the policy that `model` calls `name`. Raises: RequestError; Refused for what is no request.

        asked_before: as of `Sampler.create`.
        """
        if odd := OURS & request.keys():
            raise Refused(400, f"{self._listed(sorted(odd))}: unknown here")
        messages = request.pop("messages", None)
        if not isinstance(messages, list):
            raise Refused(400, f"messages is {messages!r:.200}: expected a list with at least one message")
        return await self.backend.answer(model, messages=messages, model=name, asked_before=asked_before, **request)

    def base_of_any(self, name: str) -> str:
        """The base model of that name. Raises: Refused, which says what there is."""
        try:
            return self.base_of(name)
        except Refused:
            raise Refused(404, f"model {name!r:.200} is not here, only {self._listed(self.names())}") from None

    def names(self) -> Iterator[str]:
        """Everything that can be asked."""
        specs = [(key, spec) for key, spec in list(self.specs.items()) if key[0] != BASES]
        own = [name for (_, name), _ in specs]
        for (project, name), spec in specs:
            shown = name if own.count(name) == 1 else f"{project}/{name}"
            yield shown
            for step in checkpoints.list_checkpoints(self.folder(spec) / "checkpoints"):
                yield f"{shown}@{step}"
        yield from self.backend.base_models

    def _projects(self) -> set[str]:
        return {project for project, _ in self.specs} - {BASES}

    def folder(self, spec: ModelSpec) -> Path:
        """Of a model's files; its names were checked when the spec was made."""
        return self.backend.path / spec.project / "models" / spec.name

    async def train(self, project: str, name: str, request: TrainRequest) -> dict[str, Any]:
        """One step for one request: {"step", "metrics", "advantages"}. The same request again gets the same.

        advantages: by group, trajectory and choice, None where a choice was not trained on; after a restart to six places.

        Raises: Refused when the model is at another step; ValueError when the groups can't be trained on.
        """
        model = await self.model(project, name)
        key = f"{project}/{name}/{request.key}"
        if key not in self._training:
            self._training[key] = asyncio.create_task(self._train(model, request))
            while len(self._training) > 64:
                self._training.pop(next(iter(self._training)))
        return await asyncio.shield(self._training[key])

    async def _train(self, model: TrainableModel, request: TrainRequest) -> dict[str, Any]:
        last, result = self.backend.last_request(model)
        if last == request.key:
            return _answer(result, self._logged_advantages(model, result.step, len(request.groups)))
        if result.step != request.from_step:
            raise Refused(409, f"model {model.name!r} is at step {result.step}, the groups are for step {request.from_step}")
        running = self.backend._of(model)
        config = running.policy.model.config
        groups = read_groups(request.groups, config.get_text_config().vocab_size, running.sampler.context)
        self._busy = self.specs[model.project, model.name]
        try:
            result = await self.backend.train(model, groups, config=request.config, _log=True, _key=request.key)
            self._news(self._busy, f"step {result.step} is saved")
        finally:
            self._busy = None
        return _answer(result, [[advantages_of(trajectory) for trajectory in group] for group in groups])

    def _logged_advantages(self, model: TrainableModel, step: int, groups: int) -> list[list[list[float | None]]]:
        """As `train` gives them, of a step that was taken before a restart."""
        advantages: list[list[list[float | None]]] = [[] for _ in range(groups)]
        for record in self.records(model.project, model.name, step):
            turns = [turn for history in (record["turns"], *record.get("additional_turns", [])) for turn in history]
            of_turns = [next(iter(turn.get("advantages", [])), None) for turn in turns if turn["trainable"]]
            advantages[record["group"]].append(of_turns)
        return advantages

    async def fork(self, project: str, name: str, request: ForkRequest) -> int:
        """Let a model start where another one was; its step then. Raises: as the backend."""
        model = await self.model(project, name)
        await self.backend._experimental_fork_checkpoint(
            model, request.from_model, request.from_project, not_after_step=request.not_after_step,
            best_metric=request.best_metric, optimizer=request.optimizer,
        )  # fmt: skip
        return await model.get_step()

    async def delete(self, project: str, name: str, step: int) -> None:
        """Delete one checkpoint. Raises: Refused when there is none, or it is the latest."""
        model = await self.model(project, name)
        kept = self.steps(project, name)
        if step not in kept:
            raise Refused(404, f"model {name!r} has checkpoints of steps {kept} only")
        if step == kept[-1]:
            raise Refused(409, f"step {step} is the latest: training goes on from it")
        await self.backend._delete_checkpoint_files(model, [each for each in kept if each != step])

    def steps(self, project: str, name: str) -> list[int]:
        """The steps of a registered model that have a checkpoint. Raises: Refused."""
        spec = self.specs.get((project, name))
        if spec is None:
            raise Refused(404, f"model {name!r:.200} of project {project!r:.200} is not registered here")
        return checkpoints.list_checkpoints(self.folder(spec) / "checkpoints")

    def file(self, project: str, name: str, step: int, file: str) -> Path:
        """A file of a checkpoint. Raises: Refused when there is none."""
        if step not in self.steps(project, name) or file not in FILES:
            raise Refused(404, f"there is no such checkpoint, or it has no such file; its files are {self._listed(FILES)}")
        path = checkpoints.step_folder(self.folder(self.specs[project, name]) / "checkpoints", step) / file
        if not path.is_file():
            raise Refused(404, f"the checkpoint of step {step} has no {file}")
        return path

    def sizes(self, project: str, name: str, step: int) -> dict[str, int]:
        """Bytes of each file of a checkpoint."""
        folder = checkpoints.step_folder(self.folder(self.specs[project, name]) / "checkpoints", step)
        return {file: (folder / file).stat().st_size for file in FILES if (folder / file).is_file()}

    def history(self, project: str, name: str) -> list[dict[str, Any]]:
        """The rows of metrics of a registered model. Raises: Refused."""
        self.steps(project, name)
        return logbook.rows(self.folder(self.specs[project, name]))

    def records(self, project: str, name: str, step: int) -> list[dict[str, Any]]:
        """The trajectories that a step was trained on. Raises: Refused."""
        self.steps(project, name)
        return logbook.records(self.folder(self.specs[project, name]), "train", step)

    @staticmethod
    def _listed(names: Any) -> str:
        return ", ".join(map(repr, names)) or "none"


def untrained(base: str) -> ModelSpec:
    """What a base model is loaded for when no model is trained on it."""
    name = "of-" + "".join(letter if letter.isalnum() else "-" for letter in base)
    return ModelSpec(project=BASES, name=name, base_model=base)


def advantages_of(trajectory: Trajectory) -> list[float | None]:
    """Of each choice, which all of its tokens share."""
    choices = [choice for history in (trajectory, *trajectory.additional_histories) for choice in history.choices()]
    return [next(iter(getattr(choice, "token_advantages", None) or [None])) for choice in choices]


def _answer(result: LocalTrainResult, advantages: Any) -> dict[str, Any]:
    return {"step": result.step, "metrics": logbook.plain_numbers(result.metrics), "advantages": advantages}
