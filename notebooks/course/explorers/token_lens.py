"""TokenLens: one completion token by token, with the quantities in each token's loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import traitlets as t

from art_nb.widgets.view import BLUE, GREY, ORANGE, View, figure, module, number, plain, png, style_axes, stylesheet, table

DRAWN = ("logprob", "ratio", "KL", "advantage")
NAMED = 40  # tokens; the static picture of a longer completion does not show their texts

HERE = Path(__file__).parent


class TokenLens(View):
    """The tokens of one completion, coloured by a quantity of your choice, above a sortable table.

    tokens: n texts. logprobs: (n,) log-probabilities under the policy, in nats. ref_logprobs: (n,) under the reference, for
    the KL (k3). old_logprobs: (n,) under the policy that sampled, for the ratio. advantages: (n,), or one number for all.
    A token is clipped (no gradient from the policy loss) if its ratio is above 1 + epsilon_high and its advantage positive,
    or its ratio below 1 - epsilon_low and its advantage negative. Missing quantities are omitted. title: shown above.

    Raises: ValueError when there is no token, a length differs, a value is not finite or an epsilon is out of range.
    Source: DeepSeekMath, equations 3 and 4; separate bounds: DAPO, equation 10.
    """

    _esm = module("token_lens", HERE)
    _css = stylesheet(HERE / "token_lens.css")
    title = t.Unicode().tag(sync=True)
    tokens = t.List(t.Unicode()).tag(sync=True)
    columns = t.Dict().tag(sync=True)

    def __init__(
        self,
        tokens: Sequence[str],
        logprobs: Sequence[float],
        ref_logprobs: Sequence[float] | None = None,
        old_logprobs: Sequence[float] | None = None,
        advantages: Sequence[float] | float | None = None,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        title: str = "",
    ) -> None:
        tokens = list(tokens)
        if not tokens:
            raise ValueError("`tokens` is empty; expected at least one token.")
        if not (0 <= epsilon_low <= 1 and 0 <= epsilon_high < math.inf):
            raise ValueError(f"epsilon_low is {epsilon_low} and epsilon_high {epsilon_high}; expected 0 to 1 and 0 or more.")
        given = {"logprob": _floats("logprobs", logprobs, tokens)}
        if ref_logprobs is not None:
            given["reference"] = _floats("ref_logprobs", ref_logprobs, tokens)
        if old_logprobs is not None:
            given["old"] = _floats("old_logprobs", old_logprobs, tokens)
        if advantages is not None:
            repeated = advantages if isinstance(plain(advantages), list) else [advantages] * len(tokens)
            given["advantage"] = _floats("advantages", repeated, tokens)
        super().__init__(title=title, tokens=tokens, columns=_columns(given, epsilon_low, epsilon_high))

    def summary(self) -> str:
        clipped = f", {sum(self.columns['clipped?'])} clipped" if "clipped?" in self.columns else ""
        return f"{self.title or 'One completion'}: {len(self.tokens)} tokens{clipped}"

    def static_png(self) -> bytes:
        drawn = [name for name in DRAWN if name in self.columns]
        fig = figure(8, 0.9 + 1.1 * len(drawn))
        clipped = self.columns.get("clipped?", [False] * len(self.tokens))
        for axes, name in zip(fig.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0], drawn, strict=True):
            rest = 1 if name == "ratio" else 0
            style_axes(axes, f"{name} (orange: clipped)" if name == "ratio" and any(clipped) else name)
            values = [rest if value is None else value for value in self.columns[name]]
            colours = [ORANGE if cut else BLUE for cut in clipped]
            axes.vlines(range(len(values)), rest, values, colors=colours, linewidth=max(0.6, min(9, 360 / len(values))))
            axes.axhline(rest, color=GREY, linewidth=0.8)
        if len(self.tokens) <= NAMED:
            names = [visible(token)[:12] for token in self.tokens]
            axes.set_xticks(range(len(names)), names, rotation=90, parse_math=False)
        fig.suptitle(self.summary()[:100], fontsize=10, x=0.01, ha="left", parse_math=False)
        return png(fig)

    def static_html(self) -> str:
        formats = {"clipped?": lambda clipped: "yes" if clipped else "no"}
        shown = [map(formats.get(name, number), column) for name, column in self.columns.items()]
        rows = [[i, visible(token), *cells] for i, (token, *cells) in enumerate(zip(self.tokens, *shown, strict=True))]
        return table(["#", "token", *self.columns], rows)


def visible(token: str) -> str:
    """Return the token with its line breaks, tabs and spaces made visible."""
    return token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") or "∅"


def _floats(name: str, values, tokens: list[str]) -> list[float]:
    values = plain(values if hasattr(values, "tolist") else list(values))
    if len(values) != len(tokens):
        raise ValueError(f"`{name}` has {len(values)} values for {len(tokens)} tokens; expected one for each token.")
    for i, value in enumerate(values):
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"`{name}`[{i}], of token {tokens[i]!r}, is not a finite number. Leave such tokens out.")
    return [float(value) for value in values]


def _columns(given: dict[str, list[float]], epsilon_low: float, epsilon_high: float) -> dict[str, list]:
    """Return the table's columns, in order: those that can be computed from the given values."""
    import torch

    from art_nb.training.grpo import kl_k3, ratio

    have = {name: torch.tensor(values, dtype=torch.float64) for name, values in given.items()}
    if "old" in have:
        have["ratio"] = ratio(have["logprob"], have["old"])
    if "ratio" in have and "advantage" in have:
        too_high = (have["ratio"] > 1 + epsilon_high) & (have["advantage"] > 0)
        too_low = (have["ratio"] < 1 - epsilon_low) & (have["advantage"] < 0)
        have["clipped?"] = too_high | too_low
    if "reference" in have:
        have["KL"] = kl_k3(have["logprob"], have["reference"])
    order = ["logprob", "reference", "old", "ratio", "clipped?", "KL", "advantage"]
    return {name: plain(have[name]) for name in order if name in have}
