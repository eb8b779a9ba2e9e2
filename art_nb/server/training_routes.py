"""What a `RemoteBackend` asks: models to train, exchanges of turns, training steps, checkpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.responses import FileResponse, StreamingResponse

from art_nb.model import TrainableModel
from art_nb.server.errors import Refused, error_body, status_of
from art_nb.server.lines import Exchange
from art_nb.server.registry import BASES
from art_nb.server.served import Served
from art_nb.server.specs import ForkRequest, ModelSpec, Name, TrainRequest
from art_nb.storage import checkpoints

HEARTBEAT = 5.0  # seconds after which a training step that has no news says that it goes on
HOLD = 20.0  # seconds after which an exchange is told that there is nothing yet, and to ask again
Step = Annotated[int, Path(ge=0, le=10**9)]
LineKey = Annotated[str, Path(pattern=r"^[\w-]{8,64}$")]
REFUSALS: dict[int | str, dict[str, Any]] = {404: {}, 409: {}}


def routes(served: Served) -> APIRouter:
    """Everything under /api/models."""
    router = APIRouter(prefix="/api/models", tags=["training"], responses=REFUSALS)
    registry, run = served.registry, served.engine.run

    def described(spec: ModelSpec) -> dict[str, Any]:
        steps = checkpoints.list_checkpoints(registry.folder(spec) / "checkpoints")
        named = spec.model_dump(include={"project", "name", "base_model"})
        return {**named, "step": max(steps, default=0), "checkpoints": steps}

    @router.get("")
    def models() -> list[dict[str, Any]]:
        """The registered models: project, name, base_model, step, checkpoints."""
        return [described(spec) for spec in list(registry.specs.values())]

    @router.post("")
    async def register(spec: ModelSpec) -> dict[str, Any]:
        """Load a model at its latest checkpoint; a new one is made."""
        if spec.project == BASES:
            raise Refused(409, f"project {BASES!r} is the server's own: take another name")
        model = await run(registry.register(spec))
        return described(registry.specs[model.project, model.name])

    @router.get("/{project}/{name}")
    def model(project: Name, name: Name) -> dict[str, Any]:
        """One registered model."""
        registry.steps(project, name)
        return described(registry.specs[project, name])

    @router.post("/{project}/{name}/lines/{line}", responses={400: {}, 410: {}, 429: {}})
    async def exchange(project: Name, name: Name, line: LineKey, said: Exchange) -> Response:
        """Ask many turns at once, hear what became ready: {"answers": [...]}, or null: nothing yet, ask the same again."""

        async def exchanged() -> list[dict]:
            model = await registry.model(project, name)
            answer = partial(_named, served, model)
            return await served.lines.line(f"{project}/{name}/{line}", said.number, answer).exchange(said)

        try:
            answers = await asyncio.wait_for(run(exchanged()), HOLD)
        except TimeoutError:
            answers = None
        return Response(json.dumps({"answers": answers}), media_type="application/json")

    @router.post("/{project}/{name}/train", responses={400: {}}, response_model=None)
    async def train(project: Name, name: Name, request: TrainRequest) -> Response:
        """Train one step. The answer is a stream of JSON lines: {"progress": text or null} while it goes on, then
        {"result": {"step", "metrics", "advantages"}}, or {"status": ..., "error": ...}."""
        lines = _train_lines(served, project, name, request)
        first = await anext(lines)
        if "error" in first:
            return Response(json.dumps(first), first["status"], media_type="application/json")

        async def all_of_them() -> AsyncIterator[str]:
            yield json.dumps(first) + "\n"
            async for line in lines:
                yield json.dumps(line) + "\n"

        return StreamingResponse(all_of_them(), media_type="application/x-ndjson")

    @router.post("/{project}/{name}/fork", responses={400: {}})
    async def fork(project: Name, name: Name, request: ForkRequest) -> dict[str, int]:
        """Start a registered model where another one was."""
        return {"step": await run(registry.fork(project, name, request))}

    @router.get("/{project}/{name}/checkpoints")
    def listed(project: Name, name: Name) -> list[dict[str, Any]]:
        """The kept checkpoints: step, and bytes by file."""
        return [{"step": step, "files": registry.sizes(project, name, step)} for step in registry.steps(project, name)]

    @router.get("/{project}/{name}/checkpoints/{step}/{file}", response_class=FileResponse)
    def fetched(project: Name, name: Name, step: Step, file: str) -> FileResponse:
        """One file of a checkpoint: safetensors or JSON."""
        return FileResponse(registry.file(project, name, step, file), filename=file)

    @router.delete("/{project}/{name}/checkpoints/{step}", status_code=204)
    async def deleted(project: Name, name: Name, step: Step) -> None:
        """Delete a checkpoint that is not the latest."""
        await run(registry.delete(project, name, step))

    @router.get("/{project}/{name}/history")
    def history(project: Name, name: Name) -> list[dict[str, Any]]:
        """The metrics of every step."""
        return registry.history(project, name)

    @router.get("/{project}/{name}/trajectories/{step}")
    def trajectories(project: Name, name: Name, step: Step) -> list[dict[str, Any]]:
        """What a step was trained on, as records (`art_nb.trajectories.records`)."""
        return registry.records(project, name, step)

    return router


async def _named(served: Served, to: TrainableModel, /, asked_before: int = 0, **request: Any) -> Any:
    """Answer a request for a policy of one model; it may call the base model as it is called where it comes from."""
    registry, name = served.registry, request.pop("model", None)
    if not isinstance(name, str | None):
        raise Refused(400, f"model is {name!r:.200}: expected a name")
    if name is not None and to.name not in (name, name.rpartition("@")[0]):
        name = registry.base_of_any(name)
    return await registry.answer(to, name, {**request, "stream": False}, asked_before)


async def _train_lines(served: Served, project: str, name: str, request: TrainRequest) -> AsyncIterator[dict[str, Any]]:
    news = served.news.listen()
    task = asyncio.create_task(served.engine.run(served.registry.train(project, name, request)))
    try:
        while not task.done():
            told = asyncio.create_task(news.get())
            await asyncio.wait({task, told}, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                told.cancel()
                if not task.done():
                    yield {"progress": None}
            elif told.result()[0] == f"{project}/{name}":
                yield {"progress": told.result()[1]}
        try:
            yield {"result": task.result()}
        except Exception as error:
            yield {"status": status_of(error), **error_body(error)}
    finally:
        served.news.leave(news)
        task.cancel()  # the step itself goes on: whoever asks again with the same key hears how it ended
