"""Training requests of clients. A request that is repeated trains only once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from art_nb.backends.errors import StatusError
from art_nb.backends.steps import StepRequest, choice_advantages
from art_nb.inference.bounded import BoundedDict
from art_nb.model import TrainableModel
from art_nb.serving.registry import ModelRegistry
from art_nb.serving.specs import ModelSpec, TrainRequest, TrainSFTRequest, read_step_data
from art_nb.storage.run_log import RunLog, plain_numbers
from art_nb.trajectories.records import histories
from art_nb.types import LocalTrainResult

MAX_KEPT = 64  # requests whose results are kept in memory


class TrainingRequests:
    """Runs training steps in the backend's event loop. publish: called with a model's spec, or None, and a text."""

    def __init__(self, models: ModelRegistry, publish: Callable[[ModelSpec | None, str], None]) -> None:
        self.models, self._publish = models, publish
        self._tasks = BoundedDict[str, asyncio.Task](MAX_KEPT)  # by project, name and key
        self._in_training: ModelSpec | None = None
        models.backend.progress = lambda text: publish(self._in_training, text)

    async def train(self, project: str, name: str, request: TrainRequest | TrainSFTRequest) -> dict[str, Any]:
        """Train one step; return {"step", "metrics", "advantages"}. A repeated request returns the same result.

        advantages: by group, trajectory and choice; None for a choice that was not trained on. After a restart of the server
            they are rounded to six decimals.

        Raises: as `ModelRegistry.load`; StatusError 409 if the model is at another step; others as `LocalBackend.train`.
        """
        model = await self.models.load(project, name)
        key = f"{project}/{name}/{request.key}"
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._train(model, request))
        task = self._tasks[key]
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._tasks.get(key) is task:  # the cause, such as a full disk, may be gone when the request is repeated
                del self._tasks[key]
            raise

    async def _train(self, model: TrainableModel, request: TrainRequest | TrainSFTRequest) -> dict[str, Any]:
        backend = self.models.backend
        last_key, result = backend.last_request(model)
        if last_key == request.key:
            groups = len(request.groups) if isinstance(request, TrainRequest) else 0
            return _response(result, self._stored_advantages(model, result.step, groups) if groups else [])
        if result.step != request.from_step:
            raise StatusError(409, f"model {model.name!r} is at step {result.step}, not {request.from_step} as expected")
        loaded = backend.loaded(model)
        vocabulary = loaded.policy.model.config.get_text_config().vocab_size
        data = read_step_data(request, vocabulary, loaded.sampler.context)
        step = StepRequest(data, request.config, log=True, key=request.key)
        self._in_training = self.models.spec(model.project, model.name)
        try:
            result = await backend.take_step(model, step)
            self._publish(self._in_training, f"step {result.step} is saved")
        finally:
            self._in_training = None
        return _response(result, [[choice_advantages(trajectory) for trajectory in group] for group in step.groups])

    def _stored_advantages(self, model: TrainableModel, step: int, groups: int) -> list[list[list[float | None]]]:
        """Read the advantages of a step that was trained before a restart."""
        advantages: list[list[list[float | None]]] = [[] for _ in range(groups)]
        for record in RunLog(self.models.folder(model.project, model.name)).records("train", step):
            turns = [turn for history in histories(record) for turn in history]
            advantages[record["group"]].append(
                [next(iter(turn.get("advantages", [])), None) for turn in turns if turn["trainable"]]
            )
        return advantages


def _response(result: LocalTrainResult, advantages: Any) -> dict[str, Any]:
    return {"step": result.step, "metrics": plain_numbers(result.metrics), "advantages": advantages}
