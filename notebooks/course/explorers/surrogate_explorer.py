"""SurrogateExplorer: drag the ratio, the clip bounds and the advantage; see the clipped surrogate and its gradient."""

from __future__ import annotations

from numbers import Real
from pathlib import Path

import traitlets as t

from art_nb.widgets.view import BLUE, GREY, ORANGE, View, figure, module, number, png, style_axes, stylesheet, table

RANGES = {"ratio": (0.0, 2.0), "epsilon_low": (0.0, 1.0), "epsilon_high": (0.0, 1.0), "advantage": (-2.0, 2.0)}

HERE = Path(__file__).parent


class SurrogateExplorer(View):
    """The clipped surrogate of one token against its ratio, and its gradient with respect to that ratio.

    ratio: pi(token) / pi_old(token), 0 to 2. epsilon_low, epsilon_high: the bounds are 1 - epsilon_low and
    1 + epsilon_high, each epsilon 0 to 1. advantage: -2 to 2. Dragging changes them.

    Raises: ValueError when one is not finite or out of range. Source: `course.grpo.clipped_surrogate`.
    """

    _esm = (HERE / "handle.js").read_text("utf-8") + module("surrogate_explorer", HERE)
    _css = stylesheet(HERE / "group_explorers.css")
    ratio = t.Any(1.0).tag(sync=True)
    epsilon_low = t.Any(0.2).tag(sync=True)
    epsilon_high = t.Any(0.2).tag(sync=True)
    advantage = t.Any(1.0).tag(sync=True)

    def __init__(
        self, ratio: float = 1.0, epsilon_low: float = 0.2, epsilon_high: float = 0.2, advantage: float = 1.0
    ) -> None:
        super().__init__(ratio=ratio, epsilon_low=epsilon_low, epsilon_high=epsilon_high, advantage=advantage)

    @t.validate(*RANGES)
    def _check(self, proposal) -> float:
        name, value = proposal["trait"].name, proposal["value"]
        low, high = RANGES[name]
        if not isinstance(value, Real) or value < low or not value <= high:  # also refuses NaN
            raise ValueError(f"{name} is {value!r}; expected a number from {low:g} to {high:g}.")
        return float(value)

    def curve(self, ratios: list[float]) -> tuple[list[float], list[float]]:
        """Return the surrogate and its gradient with respect to the ratio, at each of these ratios."""
        import torch

        from course.grpo import clipped_surrogate

        at = torch.tensor(ratios, dtype=torch.float64, requires_grad=True)
        advantage = torch.tensor(self.advantage, dtype=torch.float64)
        values = clipped_surrogate(at, advantage, self.epsilon_low, self.epsilon_high)
        (gradient,) = torch.autograd.grad(values.sum(), at)
        return values.tolist(), gradient.tolist()

    def summary(self) -> str:
        (value,), (gradient,) = self.curve([self.ratio])
        return (f"Ratio {number(self.ratio)}, advantage {number(self.advantage)}, bounds {number(1 - self.epsilon_low)} and "
                f"{number(1 + self.epsilon_high)}: surrogate {number(value)}, gradient {number(gradient)}")  # fmt: skip

    def static_png(self) -> bytes:
        ratios = [i / 200 for i in range(401)]
        curves, points = self.curve(ratios), self.curve([self.ratio])
        fig = figure(8, 3)
        panels = fig.subplots(1, 2)
        panels[0].plot(ratios, [ratio * self.advantage for ratio in ratios], color=GREY, linewidth=1, linestyle="--")
        for axes, title, values, point in zip(panels, ("Surrogate", "Gradient"), curves, points, strict=True):
            style_axes(axes, f"{title} against the ratio")
            for bound in (1 - self.epsilon_low, 1 + self.epsilon_high):
                axes.axvline(bound, color=ORANGE, linewidth=1)
            axes.plot(ratios, values, color=BLUE, linewidth=2)
            axes.plot([self.ratio], point, "o", color="#1f2328", markersize=7)
        fig.suptitle(self.summary(), fontsize=10, x=0.01, ha="left")
        return png(fig)

    def static_html(self) -> str:
        ratios = sorted({0.0, 0.5, 1 - self.epsilon_low, 1.0, 1 + self.epsilon_high, 1.5, 2.0, self.ratio})
        values, gradients = self.curve(ratios)
        rows = [[number(x) for x in row] for row in zip(ratios, values, gradients, strict=True)]
        return table(["ratio", "surrogate", "gradient"], rows)
