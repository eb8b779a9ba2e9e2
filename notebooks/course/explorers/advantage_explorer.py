"""AdvantageExplorer: drag the rewards of one group and see their advantages under each normalisation."""

from __future__ import annotations

import math
import statistics
from numbers import Real
from pathlib import Path

import traitlets as t

from art_nb.widgets.view import BLUE, GREY, ORANGE, View, figure, module, number, png, style_axes, stylesheet, table

SMALLEST, LARGEST, LIMIT = 2, 16, 10.0
TITLES = {
    "none": "Advantage, not divided (Dr. GRPO)",
    "group": "Advantage over the group's std (GRPO)",
    "batch": "Advantage over the batch's std",
}

HERE = Path(__file__).parent


class AdvantageExplorer(View):
    """One group whose rewards can be dragged: mean, std (n - 1) and the advantages under three normalisations.

    rewards: 2 to 16 numbers from -10 to 10; dragging changes them. batch_std: the standard deviation of all
    rewards of an imagined batch that contains this group, above 0 and at most 100; the reader can change it.

    Raises: ValueError when a number is missing, not finite or out of range. Source: `art_nb.training.grpo.group_advantages`.
    """

    _esm = (HERE / "handle.js").read_text("utf-8") + module("advantage_explorer", HERE)
    _css = stylesheet(HERE / "group_explorers.css")
    rewards = t.List().tag(sync=True)
    batch_std = t.Any(1.0).tag(sync=True)

    def __init__(self, rewards=(0.0, 0.2, 0.3, 0.5, 0.5, 0.6, 0.8, 1.0), batch_std: float = 1.0) -> None:
        super().__init__(rewards=_group(rewards), batch_std=batch_std)

    @t.validate("rewards")
    def _check_rewards(self, proposal) -> list[float]:
        return _group(proposal["value"])

    @t.validate("batch_std")
    def _check_batch_std(self, proposal) -> float:
        if not _is_number(proposal["value"]) or not 0 < proposal["value"] <= 100:
            raise ValueError(f"batch_std is {proposal['value']!r}; expected a number above 0 and at most 100, e.g. 1.0.")
        return float(proposal["value"])

    def advantages(self) -> dict[str, list[float]]:
        """Return one list per normalisation ("none", "group", "batch"), in the order of the rewards."""
        import torch

        from art_nb.training.grpo import STD_EPSILON, group_advantages

        if len(set(self.rewards)) == 1:  # without the rounding error of their mean, as in the browser
            return {name: [0.0] * len(self.rewards) for name in TITLES}
        rewards = torch.tensor(self.rewards, dtype=torch.float64)
        one_group = torch.zeros(len(rewards), dtype=torch.long)
        centred = group_advantages(rewards, one_group, "none")
        scaled = group_advantages(rewards, one_group, "group")
        batch = centred / (self.batch_std + STD_EPSILON)
        return {"none": centred.tolist(), "group": scaled.tolist(), "batch": batch.tolist()}

    def summary(self) -> str:
        mean, std = statistics.fmean(self.rewards), statistics.stdev(self.rewards)
        signal = "" if len(set(self.rewards)) > 1 else "; no signal: all rewards are equal"
        return f"{len(self.rewards)} rewards, mean {number(mean)}, std {number(std)}{signal}"

    def static_png(self) -> bytes:
        names = [str(i + 1) for i in range(len(self.rewards))]
        mean, std = statistics.fmean(self.rewards), statistics.stdev(self.rewards)
        fig = figure(8, 5)
        top, *rows = fig.subplots(4, 1, sharex=True, height_ratios=[2, 1, 1, 1])
        style_axes(top, "Reward (line and band: mean ± std)")
        top.axhspan(mean - std, mean + std, color=GREY, alpha=0.1, linewidth=0)
        top.axhline(mean, color=GREY, linewidth=1, linestyle="--")
        top.plot(names, self.rewards, "o", color="#1f2328", markersize=6)
        advantages = self.advantages()
        reach = 1.15 * max(1.0, *(abs(a) for row in advantages.values() for a in row))
        for axes, (name, row) in zip(rows, advantages.items(), strict=True):
            style_axes(axes, TITLES[name] + (f" of {number(self.batch_std)}" if name == "batch" else ""))
            axes.bar(names, row, color=[ORANGE if a < 0 else BLUE for a in row], width=0.5)
            axes.axhline(0, color=GREY, linewidth=0.8)
            axes.set_ylim(-reach, reach)
        fig.suptitle(self.summary(), fontsize=10, x=0.01, ha="left")
        return png(fig)

    def static_html(self) -> str:
        columns = [range(1, len(self.rewards) + 1), self.rewards, *self.advantages().values()]
        rows = [[place, *map(number, values)] for place, *values in zip(*columns, strict=True)]
        batch = f"over a batch std of {number(self.batch_std)}"
        return table(["trajectory", "reward", "not divided", "over the group's std", batch], rows)


def _is_number(value) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _group(rewards) -> list[float]:
    rewards = rewards.tolist() if hasattr(rewards, "tolist") else list(rewards)
    if not SMALLEST <= len(rewards) <= LARGEST:
        raise ValueError(f"A group of {len(rewards)} rewards; expected {SMALLEST} to {LARGEST}.")
    for place, reward in enumerate(rewards):
        if not _is_number(reward) or abs(reward) > LIMIT:
            raise ValueError(f"Reward {place} is {reward!r}; expected a finite number from {-LIMIT:g} to {LIMIT:g}.")
    return [float(reward) for reward in rewards]
