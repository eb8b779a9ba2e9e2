"""The mathematics of GRPO in plain torch, without the loss: advantages from rewards, entropy, ratio and KL estimate.

The loss is TRL's. Does not depend on models, tokenizers or trainers. B is the number of completions, T the length of the
longest one, V the size of the vocabulary.

Papers: DeepSeekMath (arXiv 2402.03300), Dr. GRPO (2503.20783), and John Schulman's note "Approximating KL Divergence"
(joschu.net/blog/kl-approx.html).
"""

from typing import Literal

import torch
from torch import Tensor

ScaleRewards = Literal["group", "batch", "none"]

# Added to the standard deviation, so that equal rewards give the advantage 0 instead of 0 / 0. TRL's value.
STD_EPSILON = 1e-4


def group_advantages(rewards: Tensor, group_ids: Tensor, scale_rewards: ScaleRewards = "group") -> Tensor:
    """Return the advantage of each completion: its reward minus the mean reward of its group, scaled.

    rewards: (B,) float, finite. group_ids: (B,) integers, equal for the completions of one group; groups may differ in
    size. scale_rewards: divide by the standard deviation of the group's rewards ("group"), of all rewards ("batch"), or
    not ("none"). Returns (B,): 0 in a group of one, 0 up to rounding for equal rewards. Raises: ValueError: unknown scale.

    Source: DeepSeekMath, section 4.1.2 (outcome supervision). "none" is from Dr. GRPO, whose section 3 shows that the
    division favours groups with a small deviation. As in TRL, the deviation is computed with n - 1, and 1e-4 is added.
    """
    centred = rewards - _mean_by(rewards, group_ids)
    return _scaled(centred, rewards, group_ids, scale_rewards)


def turn_advantages(
    turn_rewards: list[list[float]],
    discount: float = 1.0,
    scale_rewards: ScaleRewards = "group",
    group_ids: list[int] | None = None,
) -> list[list[float]]:
    """Return the advantage of each turn: its return minus the mean return of its group at that turn, scaled.

    turn_rewards: one list per trajectory, one finite reward per turn; lengths may differ. discount: in [0, 1], the weight
    of a reward one turn later. group_ids: the group of each trajectory; None: all are one group. scale_rewards: as in
    `group_advantages`, over all returns. Returns lists of the same lengths; a turn that only one trajectory reached gets 0.

    With one turn each, this equals `group_advantages`. Source: DeepSeekMath, section 4.1.3 (process supervision), which
    normalises the rewards and then sums them. Here they are summed first, so that the number of later turns is no penalty.
    """
    returns = [returns_to_go(rewards, discount) for rewards in turn_rewards]
    lengths = [len(turns) for turns in returns]
    flat = torch.tensor([value for turns in returns for value in turns], dtype=torch.float64)
    ids = torch.tensor(group_ids or [0] * len(returns), dtype=torch.long)
    groups = ids.repeat_interleave(torch.tensor(lengths, dtype=torch.long))
    turn = torch.cat([torch.arange(length) for length in [*lengths, 0]])
    group_and_turn = groups * (max(lengths, default=0) + 1) + turn
    advantages = _scaled(flat - _mean_by(flat, group_and_turn), flat, groups, scale_rewards)
    return [turns.tolist() for turns in advantages.split(lengths)]


def returns_to_go(rewards: list[float], discount: float = 1.0) -> list[float]:
    """Return the discounted sum of the rewards from each turn to the last: R_t = r_t + discount * R_(t+1).

    Source: Sutton and Barto, Reinforcement Learning (2018), equation 3.9.
    """
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + discount * (returns[-1] if returns else 0.0))
    return returns[::-1]


def _scaled(centred: Tensor, values: Tensor, group_ids: Tensor, scale_rewards: ScaleRewards) -> Tensor:
    """Return `centred` (N,) divided by the standard deviation of `values` (N,) in the group or the batch, or unchanged."""
    if scale_rewards == "none":
        return centred
    if scale_rewards == "group":
        return centred / (_std_by(values, group_ids) + STD_EPSILON)
    if scale_rewards == "batch":
        return centred / (_std_by(values, torch.zeros_like(group_ids)) + STD_EPSILON)
    raise ValueError(f"scale_rewards is {scale_rewards!r}; use 'group', 'batch' or 'none'")


def _mean_by(values: Tensor, ids: Tensor) -> Tensor:
    """Return (N,): for each element, the mean of the values with the same id."""
    _, index, count = ids.unique(return_inverse=True, return_counts=True)
    total = values.new_zeros(len(count)).index_add(0, index, values)
    return (total / count)[index]


def _std_by(values: Tensor, ids: Tensor) -> Tensor:
    """Return (N,): for each element, the standard deviation (n - 1) of the values with the same id; 0 for a single value."""
    _, index, count = ids.unique(return_inverse=True, return_counts=True)
    squares = (values - _mean_by(values, ids)).square()
    total = values.new_zeros(len(count)).index_add(0, index, squares)
    return (total / (count - 1).clamp(min=1)).sqrt()[index]


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats of the next-token distribution, H = -sum_v p_v log p_v. logits: (..., V) -> (...)."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    """Return pi(token) / pi_old(token): the probability of each token now, divided by that when it was sampled.

    (B, T), (B, T) -> (B, T). Source: DeepSeekMath, equation 3 (the fraction in it).
    """
    return (logp - old_logp).exp()


def kl_k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Return r - 1 - log r with r = pi_ref / pi: on samples of pi an unbiased estimate of KL(pi, pi_ref), never negative.

    Its variance is low. On policy its gradient is on average that of KL(pi_ref, pi), and multiplied by `ratio` that of
    KL(pi, pi_ref). (B, T), (B, T) -> (B, T), in nats. Source: Schulman's note, k3; DeepSeekMath, equation 4.
    """
    log_r = ref_logp - logp
    return log_r.exp() - 1 - log_r
