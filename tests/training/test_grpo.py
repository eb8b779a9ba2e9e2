"""Advantages compared with brute force."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art_nb.training import grpo

finite = st.floats(-100, 100, width=32)
members = st.lists(st.tuples(finite, st.integers(-3, 3)), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(members, st.sampled_from(["group", "batch", "none"]))
def test_group_advantages_equal_brute_force_for_groups_of_any_size(pairs, scale):
    rewards, ids = zip(*pairs, strict=True)
    got = grpo.group_advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(ids), scale)
    for reward, own, advantage in zip(rewards, ids, got.tolist(), strict=True):
        group = [r for r, i in pairs if i == own]
        spread = std(group) if scale == "group" else std(rewards)
        expected = (reward - mean(group)) / (1 if scale == "none" else spread + 1e-4)
        assert advantage == pytest.approx(expected, abs=1e-7)


def mean(values):
    return sum(values) / len(values)


def std(values):
    return math.sqrt(sum((v - mean(values)) ** 2 for v in values) / max(len(values) - 1, 1))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_groups_without_signal_have_advantage_zero(scale):
    alone = grpo.group_advantages(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 1, 2]), scale)
    equal = grpo.group_advantages(torch.tensor([2.0, 2.0, 2.0]), torch.tensor([4, 4, 4]), scale)
    assert alone.tolist() == equal.tolist() == [0.0, 0.0, 0.0]
    assert grpo.group_advantages(torch.tensor([7.0]), torch.tensor([0]), scale).tolist() == [0.0]
    assert grpo.turn_advantages([[1.0, 2.0, 3.0]], 0.9, scale) == [[0.0, 0.0, 0.0]]


trajectories = st.lists(
    st.tuples(st.lists(finite, min_size=0, max_size=6), st.integers(0, 2)), min_size=1, max_size=7
)


@settings(deadline=None, max_examples=60)
@given(trajectories, st.floats(0, 1), st.sampled_from(["group", "batch", "none"]))
def test_turn_advantages_equal_brute_force(pairs, discount, scale):
    rewards = [turns for turns, _ in pairs]
    ids = [group for _, group in pairs]
    got = grpo.turn_advantages(rewards, discount, scale, group_ids=ids)
    returns = [
        [sum(discount**k * r for k, r in enumerate(turns[t:])) for t in range(len(turns))]
        for turns in rewards
    ]
    for i, turns in enumerate(returns):
        group = [r for r, g in zip(returns, ids, strict=True) if g == ids[i]]
        pool = [value for r in (group if scale == "group" else returns) for value in r]
        assert len(got[i]) == len(turns)
        for t, value in enumerate(turns):
            baseline = mean([r[t] for r in group if len(r) > t])
            expected = (value - baseline) / (1 if scale == "none" else std(pool) + 1e-4)
            assert got[i][t] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_one_turn_each_is_outcome_supervision(scale):
    rewards, ids = [1.0, 4.0, -2.0, 0.0, 9.0], [0, 0, 0, 1, 1]
    turns = grpo.turn_advantages([[r] for r in rewards], 0.5, scale, group_ids=ids)
    outcome = grpo.group_advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(ids), scale)
    assert [a for (a,) in turns] == pytest.approx(outcome.tolist())


def test_returns_to_go_by_hand():
    assert grpo.returns_to_go([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]
    assert grpo.returns_to_go([]) == []
    assert grpo.turn_advantages([[], []]) == [[], []] and grpo.turn_advantages([]) == []


def test_unknown_scaling_is_refused():
    with pytest.raises(ValueError, match="scale_rewards is True"):
        grpo.group_advantages(torch.ones(2), torch.zeros(2), True)
