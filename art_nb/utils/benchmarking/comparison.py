"""A metric of each model at each step: means over trajectories, and how sure they are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from art_nb.utils.benchmarking.types import BenchmarkModelKey

if TYPE_CHECKING:
    import pandas

SURE = 1.96  # standard errors on each side of a mean: 95% of a normal distribution


def chosen(df: "pandas.DataFrame", metric_name: str, models: Sequence[str | BenchmarkModelKey] | None) -> "pandas.DataFrame":
    """The rows of `load_trajectories` to compare, as columns model (its display name), step and value.

    models: names, of split "val", or keys; in the order in which to show them. None: every model, over all its splits;
    those with several steps first.

    Raises: ValueError when there is no such metric, or nothing is left.
    """
    column = metric_name if metric_name in df.columns else f"metric_{metric_name}"
    if column not in df.columns:
        known = ", ".join(name for name in df.columns if name.startswith("metric_")) or "none: nothing was logged"
        raise ValueError(f"metric {metric_name!r} is not in the table; it has {known}")
    table = df.assign(value=df[column].astype(float)).dropna(subset=["value"])
    if models is None:
        several = table.groupby("model")["step"].nunique() > 1
        order = sorted(several.index, key=lambda name: (not several[name], name))
    else:
        keys = [key if isinstance(key, BenchmarkModelKey) else BenchmarkModelKey(key) for key in models]
        order = [str(key) for key in keys]
        parts = [table[(table["model"] == key.name) & (table["split"] == key.split)].assign(model=str(key)) for key in keys]
        if missing := [f"{key.name!r} ({key.split})" for key, part in zip(keys, parts, strict=True) if part.empty]:
            raise ValueError(f"nothing was logged of {', '.join(missing)} with {metric_name!r}")
        table = table.iloc[:0] if not parts else _stacked(parts)
    if table.empty:
        raise ValueError(f"nothing was logged with {metric_name!r}")
    position = {name: i for i, name in enumerate(order)}
    return table.sort_values(["model", "step"], key=lambda c: c.map(position) if c.name == "model" else c, kind="stable")[
        ["model", "step", "value"]
    ]


def comparison_table(
    df: "pandas.DataFrame", metric_name: str, models: Sequence[str | BenchmarkModelKey] | None = None
) -> "pandas.DataFrame":
    """One row per model and step: trajectories, mean, and the bounds low and high of a 95% interval for the mean.

    The interval takes trajectories as independent and their mean as normal; of one trajectory there is none. Arguments and
    errors: as of `chosen`.
    """
    groups = chosen(df, metric_name, models).groupby(["model", "step"], sort=False)["value"]
    table = groups.agg(trajectories="count", mean="mean", spread="sem").reset_index()
    half = SURE * table.pop("spread")
    return table.assign(low=table["mean"] - half, high=table["mean"] + half)


def _stacked(parts: list["pandas.DataFrame"]) -> "pandas.DataFrame":
    import pandas

    return pandas.concat(parts)
