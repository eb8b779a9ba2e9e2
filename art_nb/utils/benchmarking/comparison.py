"""A metric of each model at each step: its mean over trajectories with a 95% confidence interval."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from art_nb.utils.benchmarking.types import BenchmarkModelKey

if TYPE_CHECKING:
    import pandas

Z = 1.96  # standard errors on each side of the mean that cover 95% of a normal distribution


def comparison_table(
    df: "pandas.DataFrame", metric_name: str, models: Sequence[str | BenchmarkModelKey] | None = None
) -> "pandas.DataFrame":
    """Return one row per model and step: trajectories (their number), mean, low and high (its 95% confidence interval).

    The interval assumes independent trajectories and a normally distributed mean. For a single trajectory it is NaN.

    Args:
        df: as returned by `load_trajectories`. metric_name: with or without "metric_".
        models: names (of split "val") or keys, in the order to show. None: every model over all splits, those with several
            steps first.

    Raises: ValueError for an unknown metric, a repeated display name, or a model without trajectories that have the metric.
    """
    import pandas

    column = metric_name if metric_name in df.columns else f"metric_{metric_name}"
    if column not in df.columns:
        known = ", ".join(name for name in df.columns if name.startswith("metric_")) or "none"
        raise ValueError(f"metric {metric_name!r} is not in the table; it has {known}")
    rows = df.assign(value=df[column].astype(float)).dropna(subset=["value"])
    if models is None:
        several = rows.groupby("model")["step"].nunique() > 1
        order = sorted(several.index, key=lambda name: (not several[name], name))
    else:
        keys = [key if isinstance(key, BenchmarkModelKey) else BenchmarkModelKey(key) for key in models]
        order = [str(key) for key in keys]
        if len(set(order)) < len(order):
            raise ValueError(f"models {order} repeat a name: give each BenchmarkModelKey its own display_name")
        parts = [rows[(rows["model"] == key.name) & (rows["split"] == key.split)].assign(model=str(key)) for key in keys]
        if missing := [f"{key.name!r} ({key.split})" for key, part in zip(keys, parts, strict=True) if part.empty]:
            raise ValueError(f"no trajectories of {', '.join(missing)} with {metric_name!r} were logged")
        rows = pandas.concat([rows.iloc[:0], *parts])
    if rows.empty:
        raise ValueError(f"no trajectories with {metric_name!r} were logged")
    groups = rows.assign(model=pandas.Categorical(rows["model"], order)).groupby(["model", "step"], observed=True)["value"]
    table = groups.agg(trajectories="count", mean="mean", error="sem").reset_index().astype({"model": object})
    half = Z * table.pop("error")
    return table.assign(low=table["mean"] - half, high=table["mean"] + half)
