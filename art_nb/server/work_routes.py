"""What workers and those who wait for them ask."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art_nb.server.errors import Refused
from art_nb.server.served import Served
from art_nb.server.specs import Name
from art_nb.trajectories import PydanticException, Trajectory

Batch = Annotated[str, Field(pattern=r"^[\w-]{1,100}$")]
Worker = Annotated[str, Field(pattern=r"^[\w.-]{1,100}$")]


class Work(BaseModel):
    """A batch of episodes: `group_size` of each scenario, all by the policy of `step`. seed: of all that is sampled."""

    model_config = ConfigDict(extra="forbid")

    batch: Batch
    project: Name
    name: Name
    step: int = Field(ge=0, le=10**9)
    scenarios: list[Any] = Field(min_length=1, max_length=10_000)
    group_size: int = Field(ge=1, le=1024)
    seed: int = Field(0, ge=0, lt=2**53)


class Wanted(BaseModel):
    """A worker asks for episodes."""

    worker: Worker
    most: int = Field(ge=1, le=1024)


class Held(BaseModel):
    """The leases that a worker still works on."""

    leases: list[Annotated[str, Field(max_length=32)]] = Field(max_length=1024)


class Result(BaseModel):
    """How an episode ended: a trajectory, or what was raised."""

    batch: Batch
    place: int = Field(ge=0, le=10**9)
    trajectory: dict[str, Any] | None = Field(None, description="Trajectory.model_dump(mode='json')")
    exception: PydanticException | None = None


def routes(served: Served) -> APIRouter:
    """Everything under /api/work."""
    router = APIRouter(prefix="/api/work", tags=["work"], responses={400: {}, 404: {}})
    work, seconds = served.work, served.settings.lease

    @router.post("")
    def add(given: Work) -> dict[str, int]:
        """Add a batch. The same batch again changes nothing. Gives how many episodes are open, leased and done."""
        if given.step not in served.registry.steps(given.project, given.name):
            raise Refused(404, f"model {given.name!r} has no checkpoint of step {given.step}")
        tasks = [
            {"scenario": scenario, "seed": f"{given.seed} {given.step} {group} {member}"}
            for group, scenario in enumerate(given.scenarios)
            for member in range(given.group_size)
        ]
        work.add(given.batch, f"{given.project}/{given.name}", given.step, tasks)
        return work.counts(given.batch)

    @router.post("/leases")
    def lease(wanted: Wanted) -> dict[str, Any]:
        """Episodes to play, and the seconds after which they are given to another unless they are renewed."""
        return {"episodes": work.lease(wanted.worker, wanted.most, seconds), "seconds": seconds}

    @router.post("/leases/renewed")
    def renewed(held: Held) -> dict[str, int]:
        """Keep leases alive."""
        return {"episodes": work.renew(held.leases, seconds)}

    @router.post("/results")
    def result(given: Result) -> dict[str, bool]:
        """Hand in an episode. Only the first result counts: {"counted": true}."""
        if (given.trajectory is None) == (given.exception is None):
            raise Refused(400, "a result has either a trajectory or an exception")
        try:
            Trajectory.model_validate(given.trajectory or {})
        except (ValidationError, TypeError, AttributeError, KeyError) as error:
            raise Refused(400, f"trajectory: expected what Trajectory.model_dump(mode='json') gives ({error})") from error
        ended = {"trajectory": given.trajectory} if given.exception is None else {"exception": given.exception.model_dump()}
        counted = work.finish(given.batch, given.place, ended)
        if counted is None:
            raise Refused(404, "there is no such episode: its batch is over")
        return {"counted": counted}

    @router.get("/{batch}")
    def batch(batch: Annotated[Batch, Path()]) -> dict[str, int]:
        """How many episodes of a batch are open, leased and done."""
        return work.counts(batch)

    @router.get("/{batch}/results")
    def results(batch: Annotated[Batch, Path()]) -> list[Any]:
        """What came of a batch, in its order; null for what is not done."""
        return work.results(batch)

    return router
