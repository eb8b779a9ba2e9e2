"""AdvantageExplorer and SurrogateExplorer in Python: their numbers, static renderings and errors."""

import math
import statistics

import numpy
import pytest
import torch

from course.explorers import AdvantageExplorer, SurrogateExplorer

PNG = b"\x89PNG\r\n\x1a\n"


def test_advantages_equal_the_papers_formulas():
    rewards = [0.0, 0.1, 0.7, 1.0, -0.3]
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    found = AdvantageExplorer(rewards, batch_std=0.5).advantages()
    assert found["none"] == pytest.approx([r - mean for r in rewards])
    assert found["group"] == pytest.approx([(r - mean) / (std + 1e-4) for r in rewards])
    assert found["batch"] == pytest.approx([(r - mean) / (0.5 + 1e-4) for r in rewards])


def test_equal_rewards_are_labelled_as_no_signal():
    equal, unequal = AdvantageExplorer([0.5] * 4), AdvantageExplorer([0.5, 0.5, 0.5, 0.51])
    assert "no signal" in equal.summary() and "no signal" not in unequal.summary()
    for rewards in ([0.5] * 4, [0.1] * 3):  # the mean of the second is 0.10000000000000002
        assert {a for row in AdvantageExplorer(rewards).advantages().values() for a in row} == {0.0}


@pytest.mark.parametrize("advantage", [1.5, -1.5, 0.0])
def test_the_curve_and_its_slope(advantage):
    """Compare the gradient with finite differences of the surrogate in DeepSeekMath's equation 3."""
    ratios = [0.1, 0.79, 0.9, 1.0, 1.27, 1.29, 1.9]

    def surrogate(r):
        return min(r * advantage, min(max(r, 0.8), 1.28) * advantage)

    values, gradients = SurrogateExplorer(epsilon_high=0.28, advantage=advantage).curve(ratios)
    assert values == pytest.approx([surrogate(r) for r in ratios])
    assert gradients == pytest.approx([(surrogate(r + 1e-6) - surrogate(r - 1e-6)) / 2e-6 for r in ratios], abs=1e-6)


def test_the_summary_reports_a_clipped_gradient():
    assert "surrogate 1.28, gradient 0" in SurrogateExplorer(1.5, epsilon_high=0.28).summary()
    assert "surrogate -1.5, gradient -1" in SurrogateExplorer(1.5, advantage=-1).summary()


@pytest.mark.parametrize("view", [AdvantageExplorer(), AdvantageExplorer([1, 1]), AdvantageExplorer([0] * 15 + [1]),
                                  SurrogateExplorer(), SurrogateExplorer(2, 1, 1, -2), SurrogateExplorer(advantage=0)])  # fmt: skip
def test_the_static_rendering_is_a_small_picture_with_a_table(view):
    picture = view.static_png()
    assert picture.startswith(PNG) and len(picture) < 90_000
    assert view.static_html().startswith("<table>") and "nan" not in view.static_html()


def test_rewards_may_be_an_array_or_a_tensor():
    assert AdvantageExplorer(numpy.array([0, 1], dtype=numpy.float32)).rewards == [0.0, 1.0]
    assert AdvantageExplorer(torch.tensor([0.0, 1.0])).rewards == [0.0, 1.0]


@pytest.mark.parametrize(
    ("rewards", "why"),
    [([1], "group of 1 rewards; expected 2 to 16"), ([0] * 17, "17 rewards"), ([0, math.nan], "Reward 1 is nan"),
     ([math.inf, 0], "Reward 0 is inf"), ([0, 10.5], "from -10 to 10"), ([0, "1"], "Reward 1 is '1'"), ([None, 0], "Reward 0 is None")],
)  # fmt: skip
def test_invalid_rewards_raise(rewards, why):
    with pytest.raises(ValueError, match=why):
        AdvantageExplorer(rewards)
    view = AdvantageExplorer([0, 1])
    with pytest.raises(ValueError, match=why):
        view.rewards = rewards
    assert view.rewards == [0.0, 1.0]


@pytest.mark.parametrize("std", [0, -1, 101, math.nan, math.inf, "1", None])
def test_an_invalid_batch_std_raises(std):
    with pytest.raises(ValueError, match="batch_std is .*expected a number above 0"):
        AdvantageExplorer([0, 1], batch_std=std)


@pytest.mark.parametrize("name", ["ratio", "epsilon_low", "epsilon_high", "advantage"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.01, -2.01, "1", None])
def test_invalid_numbers_of_the_surrogate_raise(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*expected a number from"):
        SurrogateExplorer(**{name: value})
