"""KLExplorer: move a policy relative to its reference and see how k1, k2 and k3 estimate the divergence."""

from __future__ import annotations

from pathlib import Path

import traitlets as t

from art_nb.widgets.view import BLUE, GREY, ORANGE, View, figure, module, number, png, style_axes, stylesheet, table

TOKENS = "abcdefghi"
REFERENCE = {"centre": 4.0, "width": 1.5}
LIMITS = {"shift": (-3.0, 3.0), "width": (0.5, 4.0)}
# k3 of two equal probabilities may come out as -1e-17: that is rounding, not an estimate below zero.
BELOW_ZERO = -1e-12

HERE = Path(__file__).parent


class KLExplorer(View):
    """Two distributions over nine tokens; drag the policy's peak and watch three estimators of KL(policy, reference).

    The reference is a Gaussian bump on token e of width 1.5 (tokens); the policy's is `shift` tokens to its right
    (-3 to 3) and has `width` (0.5 to 4). Dragging in the view changes both traits. For each estimator the view shows how
    its value is distributed over samples of the policy, its mean, bias, standard deviation and how often it is negative.

    Raises: ValueError when shift or width is out of its range. Source: Schulman, "Approximating KL Divergence".
    """

    _esm = module("kl_explorer", HERE)
    _css = stylesheet(HERE / "kl_explorer.css")
    shift = t.Float(1.0).tag(sync=True)
    width = t.Float(1.5).tag(sync=True)

    def __init__(self, shift: float = 1.0, width: float = 1.5) -> None:
        super().__init__(shift=shift, width=width)

    @t.validate("shift", "width")
    def _within_limits(self, proposal) -> float:
        (low, high), value = LIMITS[proposal["trait"].name], proposal["value"]
        if not low <= value <= high:
            raise ValueError(f"{proposal['trait'].name} is {value}; expected {low:g} to {high:g} tokens.")
        return value

    def _logprobs(self):
        """Return (policy, reference): two tensors (9,) of log-probabilities, float64."""
        return bump(REFERENCE["centre"] + self.shift, self.width), bump(**REFERENCE)

    def _values(self) -> dict:
        """Return each estimator's value for each sampled token: {name: (9,) tensor}, in nats."""
        from course.grpo import kl_k1, kl_k2, kl_k3

        policy, reference = self._logprobs()
        return {"k1": kl_k1(policy, reference), "k2": kl_k2(policy, reference), "k3": kl_k3(policy, reference)}

    def divergences(self) -> tuple[float, float]:
        """Return the exact KL(policy, reference) and KL(reference, policy), in nats."""
        policy, reference = self._logprobs()
        return (policy.exp() @ (policy - reference)).item(), (reference.exp() @ (reference - policy)).item()

    def estimates(self) -> dict[str, dict[str, float]]:
        """Return, for one sample of k1, k2 and k3, the exact mean, bias and std (nats) and the share below_zero (0 to 1)."""
        chance, kl = self._logprobs()[0].exp(), self.divergences()[0]
        found = {}
        for name, value in self._values().items():
            mean = (chance @ value).item()
            std = (chance @ (value - mean).square()).sqrt().item()
            below = chance[value < BELOW_ZERO].sum().item()
            found[name] = {"mean": mean, "bias": mean - kl, "std": std, "below_zero": below}
        return found

    def summary(self) -> str:
        kl, other_way = self.divergences()
        return (f"Policy shifted by {self.shift:g}, width {self.width:g}: KL(policy, reference) {kl:.3f}, "
                f"KL(reference, policy) {other_way:.3f}")  # fmt: skip

    def static_png(self) -> bytes:
        fig = figure(8, 3.6)
        grid = fig.add_gridspec(3, 2)
        left = fig.add_subplot(grid[:, 0])
        style_axes(left, "Probability of each token")
        policy, reference = (logp.exp().tolist() for logp in self._logprobs())
        places = range(len(TOKENS))
        left.bar([i - 0.2 for i in places], reference, width=0.38, color=GREY, label="reference")
        left.bar([i + 0.2 for i in places], policy, width=0.38, color=BLUE, label="policy")
        left.set_xticks(places, list(TOKENS))
        left.legend(fontsize=7.5, frameon=False)
        for row, (name, value) in enumerate(self._values().items()):
            self._draw_estimator(fig.add_subplot(grid[row, 1]), name, value.tolist(), policy)
        fig.suptitle(self.summary(), fontsize=10, x=0.01, ha="left")
        return png(fig)

    def _draw_estimator(self, axes, name: str, values: list[float], chance: list[float]) -> None:
        """Draw a stem per token at its value, as high as its probability. Values rarer than 0.1% are omitted."""
        style_axes(axes, f"{name} of one sample (dashed: the true KL)")
        likely = [(value, p) for value, p in zip(values, chance, strict=True) if p >= 1e-3]
        colours = [ORANGE if value < BELOW_ZERO else BLUE for value, _ in likely]
        axes.vlines([value for value, _ in likely], 0, [p for _, p in likely], colors=colours, linewidth=4)
        axes.axvline(self.divergences()[0], color=GREY, linewidth=1, linestyle="--")
        axes.set_ylim(bottom=0)

    def static_html(self) -> str:
        rows = [[name, *map(number, (found["mean"], found["bias"], found["std"])), f"{found['below_zero']:.1%}"]
                for name, found in self.estimates().items()]  # fmt: skip
        return table(["estimator", "mean", "bias", "standard deviation", "below zero"], rows)


def bump(centre: float, width: float):
    """Return log-probabilities (9,) of a Gaussian with this centre and width (in tokens), normalised over the tokens."""
    import torch

    return (-((torch.arange(len(TOKENS), dtype=torch.float64) - centre) ** 2) / (2 * width**2)).log_softmax(-1)
