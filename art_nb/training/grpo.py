"""The mathematics of GRPO in plain torch: rewards become advantages, and with log-probabilities one loss.

It knows nothing of models, tokenizers or trainers: tensors go in, tensors come out. Throughout,
B is the number of completions, T the length of the longest one, V the size of the vocabulary, and
`mask` (B, T) is 1 where a token was sampled by the policy and 0 on padding and on what others wrote.
Values under a 0 of the mask count for nothing, but must be finite.

Papers: DeepSeekMath (arXiv 2402.03300), DAPO (2503.14476), Dr. GRPO (2503.20783), GSPO (2507.18071),
DeepSeek-V3.2 (2512.02556), and John Schulman's note "Approximating KL Divergence"
(joschu.net/blog/kl-approx.html).
"""

from typing import Literal

import torch
from torch import Tensor

ScaleRewards = Literal["group", "batch", "none"]
LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo"]

# Keeps a group of equal rewards at advantage 0 instead of 0 / 0. TRL's value.
STD_FLOOR = 1e-4


def group_advantages(rewards: Tensor, group_ids: Tensor, scale_rewards: ScaleRewards = "group") -> Tensor:
    """How much better each completion did than its group did on average.

    rewards: (B,) float, finite. group_ids: (B,) integers, equal for completions of one group; groups may
    differ in size. scale_rewards: divide by the standard deviation of the group's rewards ("group"), of all
    rewards ("batch"), or not at all ("none"). Returns (B,); a group of one, or with equal rewards, gets 0.

    Source: DeepSeekMath, section 4.1.2 (outcome supervision); "none" is Dr. GRPO, section 3.2, which shows
    that the division favours groups with little spread. The deviation is the unbiased one (n - 1) plus 1e-4,
    as in TRL.
    """
    centred = rewards - _mean_by(rewards, group_ids)
    return _scaled(centred, rewards, group_ids, scale_rewards)


def turn_advantages(
    turn_rewards: list[list[float]],
    discount: float = 1.0,
    scale_rewards: ScaleRewards = "group",
    group_ids: list[int] | None = None,
) -> list[list[float]]:
    """How much better things went from each turn on than they did for the group on average.

    turn_rewards: one list per trajectory, one finite reward per turn; lengths may differ. discount: in [0,
    1], the weight of a reward one turn later. group_ids: the group of each trajectory; None means that all
    are one group. Returns lists of the same shape. The baseline of a turn is the mean return over those of
    the group that reached it, so a turn that only one trajectory reached gets 0. scale_rewards: divide by the
    standard deviation of all returns of the group or of the batch (n - 1, plus 1e-4), or not.

    With one turn each, this is `group_advantages`. Source: DeepSeekMath, section 4.1.3 (process supervision),
    which normalises the rewards first and then adds them up; here they are added up first, because a baseline
    for each turn does not punish a trajectory for having many turns left.
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
    """The discounted sum of the rewards from each turn to the last: R_t = r_t + discount * R_(t+1).

    Source: Sutton and Barto, Reinforcement Learning (2018), equation 3.9.
    """
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + discount * (returns[-1] if returns else 0.0))
    return returns[::-1]


def _scaled(centred: Tensor, values: Tensor, group_ids: Tensor, scale_rewards: ScaleRewards) -> Tensor:
    """`centred` (N,) over the spread of `values` (N,) within the group, within the batch, or as it is."""
    if scale_rewards == "none":
        return centred
    if scale_rewards == "group":
        return centred / (_std_by(values, group_ids) + STD_FLOOR)
    if scale_rewards == "batch":
        return centred / (_std_by(values, torch.zeros_like(group_ids)) + STD_FLOOR)
    raise ValueError(f"scale_rewards is {scale_rewards!r}; use 'group', 'batch' or 'none'")


def _mean_by(values: Tensor, ids: Tensor) -> Tensor:
    """(N,) the mean of the values that share an element's id, at each element."""
    _, index, count = ids.unique(return_inverse=True, return_counts=True)
    total = values.new_zeros(len(count)).index_add(0, index, values)
    return (total / count)[index]


def _std_by(values: Tensor, ids: Tensor) -> Tensor:
    """(N,) the standard deviation (n - 1) of the values that share an element's id; 0 where it is alone."""
    _, index, count = ids.unique(return_inverse=True, return_counts=True)
    squares = (values - _mean_by(values, ids)).square()
    total = values.new_zeros(len(count)).index_add(0, index, squares)
    return (total / (count - 1).clamp(min=1)).sqrt()[index]


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probability of each token. logits: (..., V), at the position before the token; ids: (...) -> (...).

    log softmax of the one logit that is asked for: log p(id) = logit_id - log sum_v exp(logit_v).
    """
    chosen = logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return chosen - logits.logsumexp(-1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of the next-token distribution, H = -sum_v p_v log p_v. logits: (..., V) -> (...)."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    """pi(token) / pi_old(token): how much more likely the policy makes a token than when it was sampled.

    Both (B, T) -> (B, T). Source: DeepSeekMath, equation 3 (the fraction in it).
    """
    return (logp - old_logp).exp()


def sequence_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """The geometric mean of a completion's token ratios. All (B, T) -> (B, 1).

    One ratio for the whole completion, whose likelihood is what the reward judged; the mean keeps its size
    independent of the length. Source: GSPO, equation 7.
    """
    length = mask.sum(-1, keepdim=True).clamp(min=1)
    return (((logp - old_logp) * mask).sum(-1, keepdim=True) / length).exp()


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, epsilon_low: float = 0.2, epsilon_high: float = 0.2
) -> Tensor:
    """What the policy is to raise: ratio times advantage, flat once the ratio has moved far enough.

    ratio: (B, T) or (B, 1); advantages: broadcastable to it. Its gradient is zero where the advantage is
    positive and ratio > 1 + epsilon_high, or negative and ratio < 1 - epsilon_low; the minimum keeps the
    gradient where the ratio went the wrong way. Source: DeepSeekMath, equation 3; two bounds: DAPO, equation
    10 ("clip-higher").
    """
    clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
    return torch.min(ratio * advantages, clipped * advantages)


def kl_k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """log(pi / pi_ref): unbiased for KL(pi, pi_ref) on samples of pi, of high variance, and often negative.

    Not for a loss: the gradient of its mean is the mean score, which is zero in expectation.
    (B, T), (B, T) -> (B, T), in nats. Source: Schulman's note, k1.
    """
    return logp - ref_logp


def kl_k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Half the squared log-ratio: biased, of low variance; its gradient is the gradient of the KL on policy.

    (B, T), (B, T) -> (B, T), in nats. Source: Schulman's note, k2.
    """
    return (logp - ref_logp).square() / 2


def kl_k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """r - 1 - log r with r = pi_ref / pi: unbiased on samples of pi, never negative, of low variance.

    On policy its gradient is that of the other direction, KL(pi_ref, pi); times `ratio`, it is that of
    KL(pi, pi_ref). (B, T), (B, T) -> (B, T), in nats. Source: Schulman's note, k3; DeepSeekMath, equation 4.
    """
    log_r = ref_logp - logp
    return log_r.exp() - 1 - log_r


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    loss_type: LossType = "dapo",
    max_completion_length: int | None = None,
    num_items: int | Tensor | None = None,
) -> Tensor:
    """Average a (B, T) quantity over the sampled tokens (mask 1) of a batch: how much does each token count?

    "grpo": mean over each completion, then over completions; a token of a long one counts less
    (DeepSeekMath, equation 3).
    "bnpo": mean over all tokens of this call.
    "dapo": sum over `num_items`, the tokens of the whole batch of which this call may be a part; without it,
    as "bnpo". Every token counts the same (DAPO, equation 12).
    "dr_grpo": sum over B * `max_completion_length`, a constant, so that no length has an influence
    (Dr. GRPO, section 3.2).
    """
    total = per_token * mask
    if loss_type == "grpo":
        return (total.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    if loss_type == "dapo" and num_items is not None:
        return total.sum() / max(num_items, 1)
    if loss_type in ("bnpo", "dapo"):
        return total.sum() / mask.sum().clamp(min=1)
    if loss_type == "dr_grpo" and max_completion_length is not None:
        return total.sum() / (len(per_token) * max_completion_length)
    if loss_type == "dr_grpo":
        raise ValueError("loss_type 'dr_grpo' divides by a constant length: give max_completion_length")
    raise ValueError(f"loss_type is {loss_type!r}; use 'grpo', 'bnpo', 'dr_grpo' or 'dapo'")


def grpo_loss(
    logp: Tensor,
    old_logp: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    ref_logp: Tensor | None = None,
    beta: float = 0.0,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    loss_type: LossType = "dapo",
    importance_sampling_level: Literal["token", "sequence"] = "token",
    use_bias_correction_kl: bool = True,
    max_completion_length: int | None = None,
    num_items: int | Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The GRPO loss of a batch and what to watch while it falls or does not.

    logp: (B, T) log-probabilities under the policy that is trained, with gradient. old_logp: (B, T) under the
    policy that sampled; None when that is the same one (ratio 1). advantages: (B,), or (B, T) for turn
    rewards. ref_logp: (B, T) under the reference, needed when beta is not 0. importance_sampling_level
    "sequence" is GSPO, made for loss_type "grpo". use_bias_correction_kl: weigh each token's KL by its ratio,
    which turns the gradient of k3 into that of KL(pi, pi_ref) (DeepSeek-V3.2, equation 7; TRL's default). The
    others: see `aggregate`.

    Returns the loss, a scalar to minimise, and metrics as floats: kl (nats per token, with beta),
    clip_low and clip_high (share of tokens whose gradient the lower and the upper bound cut), clip_fraction
    (their sum), ratio_min, ratio_max. Equal to TRL's `GRPOTrainer` with the same options. Source:
    DeepSeekMath, equation 3.
    """
    mask = mask.to(logp.dtype)
    old_logp = logp.detach() if old_logp is None else old_logp
    advantages = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages

    if importance_sampling_level == "token":
        r = ratio(logp, old_logp)
    elif importance_sampling_level == "sequence":
        r = sequence_ratio(logp, old_logp, mask)
    else:
        raise ValueError(f"importance_sampling_level is {importance_sampling_level!r}; use token or sequence")

    per_token = -clipped_surrogate(r, advantages, epsilon_low, epsilon_high).expand_as(mask)
    metrics = _clip_metrics(r, advantages, mask, epsilon_low, epsilon_high)

    if beta:
        if ref_logp is None:
            raise ValueError(
                f"beta is {beta}: the KL term needs ref_logp, the log-probabilities of the reference"
            )
        kl = kl_k3(logp, ref_logp) * (r if use_bias_correction_kl else 1)
        per_token = per_token + beta * kl
        metrics["kl"] = aggregate(kl.detach(), mask, "bnpo").item()

    return aggregate(per_token, mask, loss_type, max_completion_length, num_items), metrics


@torch.no_grad()
def _clip_metrics(
    ratio: Tensor, advantages: Tensor, mask: Tensor, epsilon_low: float, epsilon_high: float
) -> dict[str, float]:
    """Shares of the sampled tokens whose gradient is cut, and the extremes of their ratio."""
    ratio = ratio.expand_as(mask)
    low = aggregate(((ratio < 1 - epsilon_low) & (advantages < 0)).float(), mask, "bnpo").item()
    high = aggregate(((ratio > 1 + epsilon_high) & (advantages > 0)).float(), mask, "bnpo").item()
    sampled = ratio[mask > 0]
    lowest, highest = sampled.aminmax() if sampled.numel() else (torch.tensor(1.0), torch.tensor(1.0))
    return {
        "clip_low": low,
        "clip_high": high,
        "clip_fraction": low + high,
        "ratio_min": lowest.item(),
        "ratio_max": highest.item(),
    }
