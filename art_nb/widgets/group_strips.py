"""A static plot of one step's groups: a dot per trajectory, on a strip with the group's mean and interquartile range."""

from __future__ import annotations

from collections import defaultdict

from .view import BLUE, GREY, ORANGE, style_axes

ROWS = 36  # rows of dots
LIGHT, DARK = "#eceff2", "#cfd5db"


def draw_strips(axes, train: list[dict]) -> None:
    """Plot the group_rewards of the last history row in `train` that has them, as group_strips.js does in the browser."""
    row: dict = next((row for row in reversed(train) if row.get("group_rewards")), {})
    groups = [[reward for reward in group if reward is not None] for group in row.get("group_rewards", [])]
    style_axes(axes, f"Groups of step {row['step']} (dot: a trajectory)" if groups else "Groups: no rewards by group")
    axes.set_xticks([])
    if not any(groups):
        return
    every = [reward for group in groups for reward in group]
    size = (max(every) - min(every)) / ROWS or 1.0
    placed = [side_by_side(group, size) for group in groups]
    most = max(0.5, *(away for group in placed for away, _ in group))
    radius = min(2.2, max(0.8, 40 / len(groups)))
    step = min(0.38 / most, 0.03 * radius * len(groups) / 2.2)
    silent = [len(group) > 0 and all_equal(group) for group in groups]
    for i, group in enumerate(groups):
        if group:
            _draw_group(axes, i, group, placed[i], step, radius, silent[i])
    axes.set_xlim(-0.6, len(groups) - 0.4)
    legend = f"blue above the mean, orange below\n{sum(silent) or 'none'} of {len(groups)} groups all equal (ring)"
    axes.set_xlabel(legend, fontsize=7.5, color=GREY)


def side_by_side(rewards: list[float], size: float) -> list[tuple[float, float]]:
    """Return (offset from the centre in dots, reward) per trajectory, row by row. Rewards are binned to rows of `size`."""
    rows = defaultdict(list)
    for reward in rewards:
        rows[round(reward / size)].append(reward)
    return [(k - (len(row) - 1) / 2, reward) for row in rows.values() for k, reward in enumerate(row)]


def all_equal(rewards: list[float]) -> bool:
    """Return whether all rewards (at least one) are equal, with the tolerance of `training.sequences.has_signal`."""
    low, high = min(rewards), max(rewards)
    return high - low <= 1e-9 * max(abs(low), abs(high))


def _draw_group(axes, i: int, rewards: list[float], placed: list, step: float, radius: float, silent: bool) -> None:
    import numpy

    mean = sum(rewards) / len(rewards)
    if silent:
        axes.plot(i, mean, "o", markersize=2 * radius + 1, markerfacecolor="none", markeredgecolor=GREY, markeredgewidth=1)
        return
    for low, high, color in ((0, 100, LIGHT), (25, 75, DARK)):
        bottom, top = numpy.percentile(rewards, [low, high])
        axes.bar(i, top - bottom, bottom=bottom, width=0.82, color=color)
    axes.plot([i - 0.41, i + 0.41], [mean, mean], color="#333", linewidth=1)
    for reward_side, color in ((1, BLUE), (-1, ORANGE), (0, GREY)):
        dots = [(i + away * step, r) for away, r in placed if (r > mean) - (r < mean) == reward_side]
        if dots:
            axes.plot(*zip(*dots, strict=True), "o", color=color, markersize=2 * radius, markeredgewidth=0)
