"""ART's `art.utils.benchmarking.charts`: plots of a metric over training steps, and from the first step to the last."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from art_nb.utils.benchmarking.comparison import comparison_table
from art_nb.utils.benchmarking.types import BenchmarkModelKey

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["percentage_comparison_bar_chart", "training_progress_chart"]


def training_progress_chart(
    df: "pandas.DataFrame",
    metric_name: str,
    models: Sequence[str | BenchmarkModelKey] | None = None,
    title: str | None = None,
    x_label: str | None = None,
    y_label: str | None = None,
    perfect_score: float | None = None,
    legend_loc: str | None = "lower right",
) -> "Figure":
    """Plot each model's mean over its steps with a 95% band; a model with one step as a horizontal line.

    Args:
        df, metric_name, models: as in `comparison_table`.
        title, x_label, y_label: by default the metric's name, "step", and none.
        perfect_score: draw a horizontal line at this value.
    """
    figure, axes = _axes(title or metric_name, perfect_score)
    table = comparison_table(df, metric_name, models)
    first, last = table["step"].min(), table["step"].max()
    for name, rows in table.groupby("model", sort=False):
        if len(rows) > 1:
            (line,) = axes.plot(rows["step"], rows["mean"], marker="o", markersize=3, label=name)
            axes.fill_between(rows["step"], rows["low"], rows["high"], color=line.get_color(), alpha=0.15, linewidth=0)
        else:
            axes.plot([first, max(last, first + 1)], [rows["mean"].iloc[0]] * 2, linestyle="--", label=name)
    axes.set_xlabel("step" if x_label is None else x_label)
    axes.set_ylabel(y_label or "")
    axes.legend(loc=legend_loc, frameon=False)
    return figure


def percentage_comparison_bar_chart(
    df: "pandas.DataFrame",
    metric_name: str,
    models: Sequence[str | BenchmarkModelKey] | None = None,
    title: str | None = None,
    y_label: str | None = None,
    perfect_score: float | None = None,
    num_decimals: int = 0,
) -> "Figure":
    """Plot each model's first mean as a bar, and the change to its last mean hatched; values from 0 to 1 as percentages.

    Arguments as in `training_progress_chart`; num_decimals: of the labels on the bars.
    """
    figure, axes = _axes(title or metric_name, perfect_score)
    table = comparison_table(df, metric_name, models)
    share = table["mean"].between(0, 1).all()
    for i, (_, rows) in enumerate(table.groupby("model", sort=False)):
        start, end = rows["mean"].iloc[0], rows["mean"].iloc[-1]
        (bar,) = axes.bar([i], [start])
        if len(rows) > 1:
            axes.bar([i], [end - start], bottom=start, facecolor="none", edgecolor=bar.get_facecolor(), hatch="//")
        number = f"{end:.{num_decimals}%}" if share else f"{end:.{num_decimals}f}"
        axes.text(i, max(start, end), number, ha="center", va="bottom")
    axes.set_xticks(range(table["model"].nunique()), list(dict.fromkeys(table["model"])))
    axes.set_ylabel(y_label or "")
    return figure


def _axes(title: str, perfect_score: float | None) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")  # without pyplot, which would keep a reference
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    if perfect_score is not None:
        axes.axhline(perfect_score, color="dimgray", linewidth=1)
        axes.text(0, perfect_score, "perfect", transform=axes.get_yaxis_transform(), va="bottom", color="dimgray")
    return figure, axes
