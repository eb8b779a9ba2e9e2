"""The routes that a `RemoteBackend` uses: models, lockstep sampling, training steps, checkpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, StreamingResponse

from art_nb.backends.errors import StatusError, logged_error, status_of
from art_nb.backends.lockstep import Exchange
from art_nb.model import TrainableModel
from art_nb.serving.connections import network
from art_nb.serving.registry import BASE_MODELS
from art_nb.serving.specs import ForkRequest, ModelSpec, Name, TrainRequest, TrainSFTRequest
from art_nb.serving.state import ServerState
from art_nb.storage import checkpoints

HEARTBEAT = 5.0  # seconds of a training step without progress after which a line is sent anyway
MAX_WAIT = 20.0  # seconds after which an exchange without answers returns null, for the client to repeat it
FILES = ("adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "state.json")  # of a checkpoint
Step = Annotated[int, PathParameter(ge=0, le=10**9)]
SessionKey = Annotated[str, PathParameter(pattern=r"^[\w-]{8,64}$")]


def routes(state: ServerState) -> APIRouter:
    """Return all routes under /api/models."""
    router = APIRouter(prefix="/api/models", tags=["training"], responses={404: {}, 409: {}})
    models, run = state.models, state.thread.run

    @router.get("")
    def list_models() -> list[dict[str, Any]]:
        """List the models: project, name, base_model, step, checkpoints."""
        return [models.describe(spec) for spec in list(models.specs.values())]

    @router.post("")
    async def register(spec: ModelSpec) -> dict[str, Any]:
        """Load a model at its latest checkpoint, or create it."""
        if spec.project == BASE_MODELS:
            raise StatusError(409, f"project {BASE_MODELS!r} is reserved for the server: choose another name")
        model = await run(models.register(spec))
        return models.describe(models.spec(model.project, model.name))

    @router.get("/{project}/{name}")
    def get_model(project: Name, name: Name) -> dict[str, Any]:
        """Return one registered model."""
        return models.describe(models.spec(project, name))

    @router.post("/{project}/{name}/lockstep/{session}", responses={400: {}, 410: {}, 429: {}})
    async def lockstep(project: Name, name: Name, session: SessionKey, exchange: Exchange, request: Request) -> Response:
        """Send requests together and receive the answers that are ready: {"answers": [...]}. `answers` is null if none is
        ready: repeat the exchange."""

        async def exchanged() -> list[dict]:
            answer = partial(_complete, state, await models.load(project, name))
            owner = network(request.client.host if request.client else "")
            found = state.sessions.session(f"{project}/{name}/{session}", exchange.number, answer, owner)
            return await found.exchange(exchange)

        try:
            answers = await asyncio.wait_for(run(exchanged()), MAX_WAIT)
        except TimeoutError:
            answers = None
        return Response(json.dumps({"answers": answers}), media_type="application/json")

    @router.post("/{project}/{name}/train", responses={400: {}}, response_model=None)
    async def train(project: Name, name: Name, request: TrainRequest) -> Response:
        """Train one step. Streams JSON lines: {"progress": text or null}, then {"result": {"step", "metrics", "advantages"}}
        or {"status": ..., "error": ...}. An error before the first line is a plain response."""
        return await _train(state, project, name, request)

    @router.post("/{project}/{name}/train_sft", responses={400: {}}, response_model=None)
    async def train_sft(project: Name, name: Name, request: TrainSFTRequest) -> Response:
        """Train one step on demonstrations. The response is that of train; "advantages" is []."""
        return await _train(state, project, name, request)

    @router.post("/{project}/{name}/fork", responses={400: {}})
    async def fork(project: Name, name: Name, request: ForkRequest) -> dict[str, int]:
        """Continue a registered model from a checkpoint of another one."""

        async def forked() -> int:
            model = await models.load(project, name)
            return await models.backend.fork(model, **request.model_dump())

        return {"step": await run(forked())}

    @router.get("/{project}/{name}/checkpoints")
    def list_checkpoints(project: Name, name: Name) -> list[dict[str, Any]]:
        """List the stored checkpoints: step, and size in bytes by file."""
        listed = []
        for step in models.steps(project, name):
            folder = checkpoints.step_folder(models.folder(project, name) / "checkpoints", step)
            files = {file: (folder / file).stat().st_size for file in FILES if (folder / file).is_file()}
            listed.append({"step": step, "files": files})
        return listed

    @router.get("/{project}/{name}/checkpoints/{step}/{file}", response_class=FileResponse)
    def get_checkpoint_file(project: Name, name: Name, step: Step, file: str) -> FileResponse:
        """Return one file of a checkpoint: safetensors or JSON."""
        folder, steps = models.folder(project, name), models.steps(project, name)
        path = checkpoints.step_folder(folder / "checkpoints", step) / file
        if step not in steps or file not in FILES:
            raise StatusError(404, f"no {file!r:.50} of step {step}: the files are {', '.join(FILES)}, the steps {steps}")
        if not path.is_file():
            raise StatusError(404, f"the checkpoint of step {step} has no {file}")
        return FileResponse(path, filename=file)

    @router.delete("/{project}/{name}/checkpoints/{step}", status_code=204)
    async def delete_checkpoint(project: Name, name: Name, step: Step) -> None:
        """Delete a checkpoint other than the latest."""

        async def delete() -> None:
            steps = models.steps(project, name)
            if step not in steps:
                raise StatusError(404, f"no checkpoint of step {step}: model {name!r} has steps {steps}")
            if step == steps[-1]:
                raise StatusError(409, f"cannot delete step {step}, the latest checkpoint: training continues from it")
            checkpoints.prune(models.folder(project, name) / "checkpoints", {*steps} - {step})

        await run(delete())

    return router


async def _complete(
    state: ServerState, trained: TrainableModel, /, client: str, min_occurrence: int = 0, **request: Any
) -> Any:
    """Answer a request for a policy of one model. A client may name the base model by the path of its own copy."""
    name = request.get("model")
    if not isinstance(name, str | None):
        raise StatusError(400, f"model is {name!r:.200}: expected a name")
    if name is not None and name.partition("@")[0] != trained.name:
        name = state.models.base_model(name)
    return await state.models.complete(trained, {**request, "model": name, "stream": False}, client, min_occurrence)


async def _train(state: ServerState, project: str, name: str, request: TrainRequest | TrainSFTRequest) -> Response:
    async def results() -> AsyncIterator[dict[str, Any]]:
        task = asyncio.create_task(state.thread.run(state.training.train(project, name, request)))
        message: asyncio.Task | None = None
        with state.progress.subscribe(f"{project}/{name}") as messages:
            try:
                while not task.done():
                    message = asyncio.create_task(messages.get())
                    await asyncio.wait({task, message}, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
                    if not message.done():
                        message.cancel()
                        if not task.done():
                            yield {"progress": None}
                    else:
                        yield {"progress": message.result()}
                yield {"result": task.result()}
            except Exception as error:
                yield {"status": status_of(error), **logged_error(error, f"training of {project}/{name}")}
            finally:
                task.cancel()  # the training step itself continues: repeating the request returns its result
                if message:
                    message.cancel()

    lines = results()
    first = await anext(lines)
    if "error" in first:
        return Response(json.dumps(first), first["status"], media_type="application/json")

    async def body() -> AsyncIterator[str]:
        yield json.dumps(first) + "\n"
        async for line in lines:
            yield json.dumps(line) + "\n"

    return StreamingResponse(body(), media_type="application/x-ndjson")
