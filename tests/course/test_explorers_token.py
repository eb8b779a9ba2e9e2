"""KLExplorer and TokenLens in Python: their numbers compared with plain sums, static renderings and errors."""

import html
import math
import re
import subprocess
import sys

import pytest

from course.explorers import KLExplorer, TokenLens

PNG = b"\x89PNG\r\n\x1a\n"
HOSTILE = ["<img src=x onerror=alert(1)>", "</script>", "$\\frac{", "\n", " a b", ""]


def bump(centre, width):
    weights = [math.exp(-((i - centre) ** 2) / (2 * width**2)) for i in range(9)]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize(("shift", "width"), [(1, 1.5), (0, 1.5), (-2.5, 0.8), (3, 4), (0.3, 3)])
def test_the_estimators_agree_with_plain_sums(shift, width):
    p, q = bump(4 + shift, width), bump(4, 1.5)
    view = KLExplorer(shift, width)
    forward = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    backward = sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert view.divergences() == pytest.approx((forward, backward), abs=1e-9)
    values = {
        "k1": [math.log(a / b) for a, b in zip(p, q, strict=True)],
        "k2": [math.log(a / b) ** 2 / 2 for a, b in zip(p, q, strict=True)],
        "k3": [b / a - 1 - math.log(b / a) for a, b in zip(p, q, strict=True)],
    }
    for name, found in view.estimates().items():
        mean = sum(a * v for a, v in zip(p, values[name], strict=True))
        std = math.sqrt(sum(a * (v - mean) ** 2 for a, v in zip(p, values[name], strict=True)))
        below = sum(a for a, v in zip(p, values[name], strict=True) if v < -1e-12)
        assert found == pytest.approx({"mean": mean, "bias": mean - forward, "std": std, "below_zero": below}, rel=1e-6, abs=1e-9)


def test_k1_and_k3_are_unbiased_and_only_k1_is_ever_negative():
    for shift, width in [(1, 1.5), (-3, 0.5), (2, 4), (0, 1.5)]:
        found = KLExplorer(shift, width).estimates()
        assert abs(found["k1"]["bias"]) < 1e-9 and abs(found["k3"]["bias"]) < 1e-9
        assert found["k2"]["below_zero"] == found["k3"]["below_zero"] == 0
    assert KLExplorer(1, 1.5).estimates()["k1"]["below_zero"] > 0.2 and KLExplorer(2, 1.5).estimates()["k2"]["bias"] > 0.05


@pytest.mark.parametrize(("shift", "width"), [(3.1, 1), (math.nan, 1), (0, 0.4), (0, math.inf)])
def test_a_policy_out_of_range_raises(shift, width):
    with pytest.raises(ValueError, match="(shift|width) is .*expected"):
        KLExplorer(shift, width)
    view = KLExplorer()
    with pytest.raises(ValueError, match="expected"):
        view.shift, view.width = shift, width


def test_the_static_kl_rendering_follows_the_traits():
    view = KLExplorer()
    before = view.static_png()
    assert before.startswith(PNG) and len(before) < 90_000
    view.shift = -2
    assert view.static_png() != before and "shifted by -2" in view.summary()
    assert view.static_html().count("<tr>") == 4
    assert KLExplorer(3, 0.5).static_png().startswith(PNG), "k3 is 1e30 somewhere"


def lens(**fields):
    given = {"tokens": ["a", "b", "c", "d"], "logprobs": [-0.1, -0.5, -2.0, -1.0], "ref_logprobs": [-0.1, -1.0, -1.0, -1.0],
             "old_logprobs": [-0.5, -0.5, -1.0, -0.5], "advantages": [1, 1, -1, 1]}  # fmt: skip
    return TokenLens(**{**given, **fields})


def test_the_columns_equal_the_formulas():
    columns = lens().columns
    assert list(columns) == ["logprob", "reference", "old", "ratio", "clipped?", "KL", "advantage"]
    ratios = [math.exp(0.4), 1, math.exp(-1.0), math.exp(-0.5)]
    assert columns["ratio"] == pytest.approx(ratios)
    assert columns["clipped?"] == [True, False, True, False], "a low ratio with a positive advantage is not clipped"
    assert columns["KL"] == pytest.approx([0, math.exp(-0.5) - 0.5, math.exp(1) - 2, 0])
    assert lens(epsilon_high=0.6, epsilon_low=0.7).columns["clipped?"] == [False] * 4
    assert lens(advantages=-1.0).columns["clipped?"] == [False, False, True, True]
    assert "2 clipped" in lens().summary()


def test_a_clipped_token_has_no_gradient_and_no_other_lacks_one():
    import torch

    from course.grpo import clipped_surrogate, ratio

    generator = torch.Generator().manual_seed(0)
    logp, old, advantages = torch.randn(3, 200, dtype=torch.float64, generator=generator)
    leaf = logp.clone().requires_grad_()
    clipped_surrogate(ratio(leaf, old), advantages, 0.1, 0.3).sum().backward()
    shown = TokenLens(["t"] * 200, logp, old_logprobs=old, advantages=advantages, epsilon_low=0.1, epsilon_high=0.3)
    assert shown.columns["clipped?"] == (leaf.grad == 0).tolist() and 20 < sum(shown.columns["clipped?"]) < 180


def test_columns_without_data_are_left_out():
    assert list(TokenLens(["a"], [-1.0]).columns) == ["logprob"]
    assert list(lens(advantages=None).columns) == ["logprob", "reference", "old", "ratio", "KL"]
    assert list(lens(ref_logprobs=None, old_logprobs=None).columns) == ["logprob", "advantage"]


@pytest.mark.parametrize(
    ("fields", "match"),
    [({"tokens": [], "logprobs": []}, "`tokens` is empty"), ({"logprobs": [-1.0]}, "`logprobs` has 1 values for 4"),
     ({"ref_logprobs": [-1.0] * 5}, "`ref_logprobs` has 5"), ({"old_logprobs": [-1, -1, math.nan, -1]}, r"`old_logprobs`\[2\]"),
     ({"logprobs": [-1, -math.inf, -1, -1]}, r"`logprobs`\[1\]"), ({"advantages": [1, 2]}, "`advantages` has 2"),
     ({"advantages": math.inf}, r"`advantages`\[0\]"), ({"advantages": [1, 1, 1, math.nan]}, r"`advantages`\[3\]"),
     ({"epsilon_low": 1.5}, "epsilon_low is 1.5"), ({"epsilon_high": math.nan}, "epsilon_high nan")],
)  # fmt: skip
def test_invalid_input_of_the_lens_raises(fields, match):
    with pytest.raises(ValueError, match=match):
        lens(**fields)


def test_hostile_and_blank_tokens_in_the_static_rendering():
    view = TokenLens(HOSTILE, [-1.0] * len(HOSTILE), title="<script>alert(1)</script> $\\frac{", advantages=0.5)
    assert view.static_png().startswith(PNG)
    shown = view.static_html()
    assert "<img" not in shown and "</script" not in shown
    cells = [html.unescape(cell) for cell in re.findall(r"<tr><td>\d+</td><td>(.*?)</td>", shown)]
    assert cells == ["<img·src=x·onerror=alert(1)>", "</script>", "$\\frac{", "⏎", "·a·b", "∅"]


def test_two_thousand_tokens_make_a_small_picture():
    view = TokenLens([f" t{i}" for i in range(2000)], [-(i % 7) / 2 for i in range(2000)], old_logprobs=[-1.0] * 2000, advantages=1.0)
    assert len(view.static_png()) < 120_000


def test_neither_loads_torch_before_it_is_made():
    check = "import sys; from course.explorers import KLExplorer, TokenLens; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
