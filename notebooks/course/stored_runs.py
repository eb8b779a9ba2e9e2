"""The runs of a benchmark from several seeds, as stored in data/results: read, draw, tabulate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from course.comparison import COLOURS
from course.setup_venv import ROOT

if TYPE_CHECKING:
    import pandas as pd

RESULTS = ROOT / "data" / "results"


def read_runs(name: str) -> pd.DataFrame:
    """Return one row per run with its numbers and settings, by seed, in the order of the file.

    name: of a file in data/results; each line is a benchmark's JSON output (`benchmarks.result`) with its `runs`.
    """
    import pandas as pd

    printed = map(json.loads, (RESULTS / name).read_text("utf-8").splitlines())
    rows = [
        {key: line[key] for key in ("task", "examples") if key in line} | line.get("settings", {}) | run
        for line in printed
        for run in line["runs"]
    ]
    return pd.DataFrame(rows).set_index("seed")


def plot_runs(runs: pd.DataFrame, rule: str, measured: str) -> None:
    """Draw each run from the untrained to the trained policy, both at their best temperature, with pass@8 and the rule.

    runs: with the columns of `Comparison.summary`. rule: its name. measured: the label of the axis in percent.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.8 + 0.35 * len(runs)), layout="constrained")
    places = range(len(runs))
    axes.hlines(places, runs.untrained_best, runs.trained_best, color="#c3cad2")
    axes.plot(runs.untrained_best, places, "o", color=COLOURS["untrained"], label="untrained")
    axes.plot(runs.pass_at_8_untrained, places, "o", mfc="none", color=COLOURS["untrained"], label="untrained, pass@8")
    axes.plot(runs.rule, places, "|", ms=14, mew=2, color=COLOURS["rule"], label=rule)
    axes.plot(runs.trained_best, places, "o", color=COLOURS["trained"], label="trained")
    axes.set(yticks=places, yticklabels=[f"seed {seed}" for seed in runs.index], xlim=(-2, 102), xlabel=measured)
    axes.set_ylim(len(runs) - 0.5, -0.5)  # the first seed on top
    figure.legend(loc="outside right center", frameon=False)
    plt.show()


def tabulate(runs: pd.DataFrame, rule: str) -> pd.DataFrame:
    """Return the percentage of held-out scenarios solved, by seed, and the differences in points with 95% intervals."""
    import pandas as pd

    def points(of: str) -> list[str]:
        bounds = runs[[f"{of}_value", f"{of}_low", f"{of}_high"]].itertuples(index=False)
        return [f"{value:+.1f} ({low:.1f} to {high:.1f})" for value, low, high in bounds]

    policies = {"untrained": runs.untrained_best, "its pass@8": runs.pass_at_8_untrained, rule: runs.rule}
    table = pd.DataFrame({**policies, "trained": runs.trained_best}, index=runs.index).round(1)
    return table.assign(**{"rise": points("rise"), f"above the {rule}": points("over_rule")})
