"""The routes for episodes: clients add batches and collect results, workers lease episodes and submit results."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Response
from pydantic import BaseModel, Field, ValidationError

from art_nb.backends.errors import StatusError
from art_nb.serving.specs import Name, Strict
from art_nb.serving.state import ServerState
from art_nb.trajectories import PydanticException, Trajectory

BatchName = Annotated[str, Field(pattern=r"^[\w-]{1,100}$")]
WorkerName = Annotated[str, Field(pattern=r"^[\w.-]{1,100}$")]
LeaseKey = Annotated[str, Field(max_length=32)]


class EpisodeBatch(Strict):
    """A batch of episodes: `group_size` for each scenario, by the policy of `step`. seed: for all sampling."""

    batch: BatchName
    project: Name
    name: Name
    step: int = Field(ge=0, le=10**9)
    scenarios: list[Any] = Field(min_length=1, max_length=10_000)
    group_size: int = Field(ge=1, le=1024)
    seed: int = Field(0, ge=0, lt=2**53)


class EpisodeResult(BaseModel):
    """The result of the episode at index `place` of a batch: a trajectory or an exception."""

    batch: BatchName
    place: int = Field(ge=0, le=10**9)
    trajectory: dict[str, Any] | None = Field(None, description="Trajectory.model_dump(mode='json')")
    exception: PydanticException | None = None


def routes(state: ServerState) -> APIRouter:
    """Return all routes under /api/work."""
    router = APIRouter(prefix="/api/work", tags=["work"], responses={400: {}, 404: {}})
    work, seconds = state.work, state.settings.lease

    @router.post("")
    def add_batch(given: EpisodeBatch) -> dict[str, int]:
        """Add a batch, unless one of this name exists. Returns how many of its episodes are open, leased and done."""
        if given.step not in state.models.steps(given.project, given.name):
            raise StatusError(404, f"model {given.name!r} has no checkpoint of step {given.step}")
        model = f"{given.project}/{given.name}"
        work.add(given.batch, model, given.step, given.scenarios, given.group_size, given.seed)
        return work.counts(given.batch)

    @router.post("/leases")
    def lease(worker: Annotated[WorkerName, Body()], most: Annotated[int, Body(ge=1, le=1024)]) -> Response:
        """Lease up to `most` episodes. One that is neither renewed nor finished within `seconds` is leased again."""
        return _json({"episodes": work.lease(worker, most, seconds), "seconds": seconds})

    @router.post("/leases/renewed")
    def renew(leases: Annotated[list[LeaseKey], Body(embed=True, max_length=1024)]) -> dict[str, int]:
        """Extend leases. Returns the number of episodes that they still cover."""
        return {"episodes": work.renew(leases, seconds)}

    @router.post("/results")
    def submit(given: EpisodeResult) -> dict[str, bool]:
        """Submit a result. Only the first one of an episode counts: {"counted": true}."""
        if (given.trajectory is None) == (given.exception is None):
            raise StatusError(400, "trajectory, exception: expected exactly one of them")
        try:
            Trajectory.model_validate(given.trajectory or {})
        except (ValidationError, TypeError, AttributeError, KeyError) as error:
            raise StatusError(400, f"trajectory: expected Trajectory.model_dump(mode='json') ({error})") from error
        result = {"trajectory": given.trajectory} if given.exception is None else {"exception": given.exception.model_dump()}
        counted = work.finish(given.batch, given.place, result)
        if counted is None:
            raise StatusError(404, "no such episode: its batch never existed, or a later step's batch has replaced it")
        return {"counted": counted}

    @router.get("/{batch}")
    def counts(batch: Annotated[BatchName, Path()]) -> dict[str, int]:
        """Return how many episodes of a batch are open, leased and done."""
        return work.counts(batch)

    @router.get("/{batch}/results")
    def results(batch: Annotated[BatchName, Path()]) -> Response:
        """Return the results of a batch in its order; null for episodes that are not done."""
        return _json(work.results(batch))

    return router


def _json(content: Any) -> Response:
    """Return JSON as `json.dumps` writes it: FastAPI turns NaN into null and cannot encode a lone surrogate."""
    return Response(json.dumps(content), media_type="application/json")
