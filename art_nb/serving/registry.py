"""The models of a server: registered by clients, found again after a restart, loaded at their first use.

Call methods that load or sample in the backend's event loop; the others may be called from any thread.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from art_nb.backends.errors import StatusError
from art_nb.backends.local import LocalBackend
from art_nb.model import TrainableModel
from art_nb.serving.specs import ModelSpec
from art_nb.storage.checkpoints import list_checkpoints, write_file
from art_nb.types import PolicyName

if TYPE_CHECKING:
    from art_nb.backends.loaded_model import LoadedModel

log = logging.getLogger("art_nb.serving")
FILE = "model.json"
BASE_MODELS = "base-models"  # the project of models that were never registered: untrained base models
RESERVED = {"self", "to", "policy", "occurrence", "min_occurrence", "client"}  # arguments that a client must not set


class ModelRegistry:
    """Models by project and name.

    backend: stores, samples and trains them. on_load: called with each model after it is loaded.
    max_loaded: maximum number of loaded models; none is ever unloaded.
    """

    def __init__(self, backend: LocalBackend, on_load: Callable[[LoadedModel], None], max_loaded: int = 32) -> None:
        self.backend, self._on_load, self.max_loaded = backend, on_load, max_loaded
        self.specs: dict[tuple[str, str], ModelSpec] = {}
        self._loaded: dict[tuple[str, str], TrainableModel] = {}
        for path in backend.path.glob(f"*/models/*/{FILE}"):
            try:
                spec = ModelSpec.model_validate_json(path.read_bytes())
            except ValueError as error:
                log.error("%s is damaged, so its model is not served: restore it or register the model (%s)", path, error)
            else:
                self.specs[spec.key] = spec

    def registered(self, project: str = "") -> list[ModelSpec]:
        """Return the specs of the models that clients registered, in one project or in all."""
        return [spec for spec in list(self.specs.values()) if spec.project != BASE_MODELS and project in ("", spec.project)]

    def spec(self, project: str, name: str) -> ModelSpec:
        """Return the spec of a model. Raises: StatusError 404 if it is not registered."""
        if (project, name) not in self.specs:
            raise StatusError(404, f"no model {name!r:.200} is registered in project {project!r:.200}")
        return self.specs[project, name]

    def folder(self, project: str, name: str) -> Path:
        """Return the folder of a model's files. Raises: StatusError 404 if it is not registered."""
        spec = self.spec(project, name)
        return self.backend.path / spec.project / "models" / spec.name

    def steps(self, project: str, name: str) -> list[int]:
        """Return the steps that have a checkpoint, ascending. Raises: as `folder`."""
        return list_checkpoints(self.folder(project, name) / "checkpoints")

    def describe(self, spec: ModelSpec) -> dict[str, Any]:
        """Return project, name, base_model, step (the latest, or 0) and checkpoints (the steps that have one)."""
        steps = self.steps(*spec.key)
        fields = spec.model_dump(include={"project", "name", "base_model"})
        return {**fields, "step": max(steps, default=0), "checkpoints": steps}

    async def register(self, spec: ModelSpec) -> TrainableModel:
        """Load a model at its latest checkpoint, or create it.

        Raises: StatusError if its base model is not served (404), a model of this name has another base model or config, or
            too many are loaded (409); as `LocalBackend.load`.
        """
        spec = spec.model_copy(update={"base_model": self.base_model(spec.base_model)})
        if self.specs.get(spec.key, spec) != spec:
            raise StatusError(409, f"model {spec.name!r} exists with another base model or config: choose another name")
        if spec.key not in self._loaded:
            if len(self._loaded) >= self.max_loaded:
                raise StatusError(409, f"{self.max_loaded} models are loaded: raise --models, or restart the server")
            fields = spec.model_dump(exclude_none=True)
            model: TrainableModel = TrainableModel(_internal_config=fields.pop("config"), **fields)
            await model.register(self.backend)
            self._on_load(self.backend.loaded(model))
            write_file(self.backend.output_dir(model) / FILE, spec.model_dump_json().encode())
            self.specs[spec.key], self._loaded[spec.key] = spec, model
        return self._loaded[spec.key]

    async def load(self, project: str, name: str) -> TrainableModel:
        """Load a registered model, if it is not loaded yet. Raises: StatusError: 404 if not registered; as `register`."""
        return await self.register(self.spec(project, name))

    def base_model(self, given: str) -> str:
        """Return the server's name for a base model. Raises: StatusError 404 if the server does not have it.

        given: that name, the hub name or folder that the server loads it from, or a path whose last part is that name.
        """
        sources = self.backend.base_models
        last_part = PurePosixPath(given.replace("\\", "/")).name
        for name in (given, *(name for name, source in sources.items() if source == given), last_part):
            if name in sources:
                return name
        message = f"no model {given!r:.200} on this server; its base models are {_quoted(sources)}"
        raise StatusError(404, f"{message}, and GET /v1/models lists all models")

    async def resolve(self, name: str, project: str = "") -> tuple[TrainableModel, str]:
        """Load the model of a policy; return it and its own name for the policy.

        name: "model" or "model@step", after "project/" if several projects have such a model; or the name of a base model.
        project: where to look up a name without a prefix; "": all. Raises: StatusError 400 if ambiguous; as `register`.
        """
        policy = PolicyName.parse(name)
        prefix, _, own = (policy.model if policy else name).rpartition("/")
        matches = [spec.key for spec in self.registered(prefix or project) if spec.name == own]
        if len(matches) > 1:
            raise StatusError(400, f"model {name!r:.200} is ambiguous: choose from {_quoted(map('/'.join, matches))}")
        if matches:
            return await self.load(*matches[0]), str(PolicyName(own, policy.step)) if policy else own
        base = self.base_model(name)
        untrained = ModelSpec(project=BASE_MODELS, name="of-" + re.sub(r"[\W_]", "-", base), base_model=base)
        return await self.register(next((spec for spec in self.specs.values() if spec.base_model == base), untrained)), base

    def policy_names(self, project: str = "") -> Iterator[str]:
        """Yield the names of all policies as `resolve` accepts them: models, their checkpoints, base models."""
        names = [spec.name for spec in self.registered(project)]
        for spec in self.registered():
            is_plain = names.count(spec.name) == 1 and project in ("", spec.project)
            shown = spec.name if is_plain else "/".join(spec.key)
            yield shown
            for step in self.steps(*spec.key):
                yield str(PolicyName(shown, step))
        yield from self.backend.base_models

    async def complete(
        self, trained: TrainableModel, request: dict[str, Any], client: str | None, min_occurrence: int = 0
    ) -> Any:
        """Answer a chat completion with a policy of `trained`, as `Sampler.create`. Raises: RequestError, StatusError."""
        if reserved := RESERVED & request.keys():
            raise StatusError(400, f"unknown parameters: {_quoted(sorted(reserved))}")
        if not isinstance(messages := request.get("messages"), list):
            raise StatusError(400, f"messages is {messages!r:.200}: expected a list with at least one message")
        return await self.backend.answer(trained, min_occurrence=min_occurrence, client=client, **request)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
