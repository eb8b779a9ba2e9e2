"""`TrajectoryGroup`: trajectories of one scenario, or rollouts that will produce them."""

import time
import traceback
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

import pydantic

from art_nb.metrics import collect_costs
from art_nb.rollouts.gathering import Gathering, current, discard, in_order
from art_nb.rollouts.tracebacks import ShortTraceback
from art_nb.trajectories.trajectory import MetadataValue, Trajectory
from art_nb.trajectories.usage import add_usage

T = TypeVar("T", bound=Trajectory | Iterable[Trajectory])


class PydanticException(pydantic.BaseModel):
    """A serializable exception: qualified class name, message and traceback as text."""

    type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> "PydanticException":
        """Return the serializable form of `error`."""
        text = "".join(traceback.format_exception(error))
        return cls(type=f"{type(error).__module__}.{type(error).__qualname__}", message=str(error), traceback=text)


class TrajectoryGroup(pydantic.BaseModel):
    """Trajectories of one scenario, given as trajectories or as awaitables of them:

        group = await TrajectoryGroup(rollout(model, scenario) for _ in range(8))

    With awaitables the result is a `PendingGroup`: await it, or pass it to `gather_trajectory_groups`, which runs many
    concurrently. Trajectories keep the order of the rollouts. A failed rollout that the gather call tolerates is omitted and
    described in `exceptions`.

    exceptions: further exceptions to store. metadata, metrics, logs: as in a Trajectory, for the group as a whole.
    """

    model_config = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    trajectories: list[Trajectory]
    exceptions: list[PydanticException] = []
    metadata: dict[str, MetadataValue] = {}
    metrics: dict[str, float | int | bool] = {}
    logs: list[str] = []

    def __new__(cls, trajectories: Iterable[Any] = (), **options: Any) -> Any:
        items = list(trajectories)
        if any(isinstance(item, Awaitable) for item in items):
            options["exceptions"] = list(options.get("exceptions", ()))
            cls((), **options)  # raises before the rollouts run, not after
            return PendingGroup(cls, items, options)
        group = super().__new__(cls)
        group.__dict__["_given"] = items  # for __init__: a generator is exhausted by now
        return group

    def __init__(
        self,
        trajectories: Iterable[Trajectory | BaseException] | Iterable[Awaitable[Trajectory]],
        *,
        exceptions: Iterable[BaseException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
    ) -> None:
        given = self.__dict__.pop("_given")
        raised = [*(item for item in given if isinstance(item, BaseException)), *exceptions]
        super().__init__(
            trajectories=[item for item in given if not isinstance(item, BaseException)],
            exceptions=[PydanticException.of(e) if isinstance(e, BaseException) else e for e in raised],
            metadata=metadata or {},
            metrics=metrics or {},
            logs=logs or [],
        )

    def log(self, message: str) -> None:
        """Add a line to `logs`."""
        self.logs.append(message)

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]  # pydantic's iterates over fields
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)


class PendingGroup:
    """A group whose rollouts have not run; awaiting it runs them and returns the TrajectoryGroup."""

    def __init__(self, group_class: type[TrajectoryGroup], items: list[Any], options: dict[str, Any]) -> None:
        self._group_class, self._items, self._options = group_class, items, options
        self.num_rollouts = len(items)

    def __await__(self) -> Generator[Any, None, TrajectoryGroup]:
        return self._run().__await__()

    async def _run(self) -> TrajectoryGroup:
        gathering = current(self)
        gathering.expect(self.num_rollouts)
        with ShortTraceback():
            results = await in_order(self._result(item, gathering) for item in self._items)
        return self._group_class(results, **self._options)

    async def _result(self, item: Any, gathering: Gathering) -> Any:
        return await attempt(item, gathering, one_trajectory) if isinstance(item, Awaitable) else item

    def close(self) -> None:
        """Discard the rollouts without running them."""
        discard(self._items)


async def attempt(awaitable: Awaitable[Any], gathering: Gathering, check: Callable[[Any], T]) -> T | Exception:
    """Await a rollout, add its usage, report it to `gathering`; return `check(result)`, or the exception if tolerated.

    Raises: an exception that is not tolerated, CancelledError and KeyboardInterrupt.
    """
    with gathering.running(), collect_costs() as costs:
        started = time.monotonic()
        try:
            result = check(await awaitable)
        except Exception as error:
            gathering.failed(error)
            return error
    trajectories = [result] if isinstance(result, Trajectory) else list(result)
    add_usage(trajectories, (started, time.monotonic()), costs)
    counted = [id(trajectory) in gathering.counted for trajectory in trajectories]  # True: counted by its own rollout
    gathering.finished(trajectories, steps=counted.count(False) if isinstance(result, TrajectoryGroup) else 1)
    return result


def one_trajectory(result: Any) -> Trajectory:
    """Return `result`. Raises: TypeError when it is not a Trajectory, or its reward or a metric is not a number."""
    if not isinstance(result, Trajectory):
        raise TypeError(
            f"a rollout returned {type(result).__name__}, expected a Trajectory; does it end with `return trajectory`?"
        )
    numbers = [("reward", result.reward), *result.metrics.items()]
    if wrong := [f"{name}={value!r:.40}" for name, value in numbers if not hasattr(value, "__float__")]:
        raise TypeError(f"a rollout's metrics contain {', '.join(wrong)}: expected numbers; put text in metadata or logs")
    return result
