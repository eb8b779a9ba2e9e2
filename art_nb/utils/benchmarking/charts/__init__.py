"""`art.utils.benchmarking.charts`: pictures of a metric, over the steps of training and from its first step to its last."""

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
    """A line for each model over its steps, its 95% interval as a band; a level line for a model with one step.

    Args:
        df: of `load_trajectories`; metric_name: with or without "metric_".
        models: as of `comparison.chosen`.
        title, x_label, y_label: None: the metric's name, "step", none.
        perfect_score: draws a line at this height.
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
    """A bar for each model at its last step, hatched from its first step on; numbers from 0 to 1 in percent.

    Arguments: as of `training_progress_chart`; num_decimals: of the numbers on the bars.
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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)  # so that it can be drawn without pyplot keeping it
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    if perfect_score is not None:
        axes.axhline(perfect_score, color="dimgray", linewidth=1)
        axes.text(0, perfect_score, "perfect", transform=axes.get_yaxis_transform(), va="bottom", color="dimgray")
    return figure, axes
