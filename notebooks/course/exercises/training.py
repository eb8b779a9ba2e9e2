"""Helpers for exercises that change one thing and train again: a new model, and a figure of the curves."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from course.comparison import COLOURS
from course.setup_venv import ROOT

if TYPE_CHECKING:
    from art_nb import TrainableModel, Trajectory, TrajectoryGroup

T = TypeVar("T")


def with_new_model(base: str, use: Callable[[TrainableModel], Awaitable[T]], seed: int = 0) -> T:
    """Return the result of `use` on a new model, whose files are then deleted.

    base: folder of the base model in `data`. seed: of the adapter's weights and of sampling.
    Runs in a background thread, as the notebook's event loop is busy with the cell that calls it; an interrupt cancels it.
    """
    import art_nb as art
    from art_nb.inference.client import run_blocking
    from art_nb.local import LocalBackend

    async def run() -> T:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            backend, place = LocalBackend(path=folder, seed=seed), str(ROOT / "data" / base)
            model: TrainableModel = art.TrainableModel(name="exercise", project="course", base_model=place)
            await model.register(backend)
            try:
                return await use(model)
            finally:
                await backend.close()

    return run_blocking(run(), None)


async def gather(groups: Iterable[Iterable[Awaitable[Trajectory]]]) -> list[TrajectoryGroup]:
    """Run the rollouts of all groups concurrently. Returns the groups."""
    import art_nb as art

    pending: list[Any] = [art.TrajectoryGroup(rollouts) for rollouts in groups]  # groups of coroutines are awaitable
    return await art.gather_trajectory_groups(pending, pbar_desc=None)


def draws() -> bool:
    """Return whether curves can be shown. Outside of a notebook, runs that are only drawn need not be trained."""
    from IPython import get_ipython

    return get_ipython() is not None


def draw(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], roles: Mapping[str, str], xlabel: str = "step"
) -> None:
    """Show one panel per measure in the notebook; outside of a notebook, do nothing.

    panels: title -> {condition: the curves of its runs}; the last panel has all conditions. A curve starts at step 1.
    roles: condition -> a key of `COLOURS`.
    """
    from IPython.display import Image, display
    from matplotlib.figure import Figure

    if not draws():
        return
    figure = Figure(figsize=(4 * len(panels), 2.4), layout="constrained")
    for axes, (title, conditions) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for condition, curves in conditions.items():
            for i, curve in enumerate(curves):
                label = condition if i == 0 else None
                axes.plot(range(1, len(curve) + 1), curve, marker=".", color=COLOURS[roles[condition]], label=label)
        axes.set(title=title, xlabel=xlabel)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80)
    display(Image(data=picture.getvalue(), alt=f"{', '.join(panels)}, by {xlabel}"))


def percents(values: Sequence[float]) -> str:
    """Format shares as a list of percentages."""
    return ", ".join(f"{value:.0%}" for value in values)
