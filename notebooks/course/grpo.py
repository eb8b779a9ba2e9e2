"""GRPO's loss in plain torch, to take apart in notebook 01; tests compare it with TRL's, which training uses.

Throughout, B is the number of completions, T the length of the longest one, V the size of the vocabulary, and `mask` (B, T)
is 1 where the policy sampled the token and 0 on padding and all other tokens. Values where the mask is 0 do not count, but
must be finite. Advantages, entropy, ratio and the KL estimate k3 are those of `art_nb.training.grpo`, importable from
here too.

Papers: DeepSeekMath (arXiv 2402.03300), DAPO (2503.14476), Dr. GRPO (2503.20783), GSPO (2507.18071), DeepSeek-V3.2
(2512.02556), and John Schulman's note "Approximating KL Divergence" (joschu.net/blog/kl-approx.html).
"""

from typing import Literal

import torch
from torch import Tensor

from art_nb.training.grpo import entropy, group_advantages, kl_k3, ratio, returns_to_go, turn_advantages

__all__ = [
    "aggregate", "clipped_surrogate", "entropy", "group_advantages", "grpo_loss", "kl_k1", "kl_k2", "kl_k3", "ratio",
    "returns_to_go", "sequence_ratio", "token_logprobs", "turn_advantages",
]  # fmt: skip

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo"]


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return log p(id) = logit_id - log sum_v exp(logit_v), the log-probability of each token.

    logits: (..., V), at the position before the token. ids: (...). Returns (...).
    """
    chosen = logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return chosen - logits.logsumexp(-1)


def sequence_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """Return the geometric mean of each completion's token ratios. All (B, T) -> (B, 1).

    One ratio per completion, because the reward is per completion; the mean makes its size independent of the length.
    Source: GSPO, equation 7.
    """
    length = mask.sum(-1, keepdim=True).clamp(min=1)
    return (((logp - old_logp) * mask).sum(-1, keepdim=True) / length).exp()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, epsilon_low: float = 0.2, epsilon_high: float = 0.2) -> Tensor:
    """Return the objective to maximise: ratio times advantage, clipped when the ratio has moved far enough.

    ratio: (B, T) or (B, 1). advantages: broadcastable to it. The gradient is zero where the advantage is positive and
    ratio > 1 + epsilon_high, or negative and ratio < 1 - epsilon_low. The minimum keeps the gradient where the ratio
    moved the wrong way. Source: DeepSeekMath, equation 3; two bounds: DAPO, equation 10 ("clip-higher").
    """
    clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
    return torch.min(ratio * advantages, clipped * advantages)


def kl_k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Return log(pi / pi_ref): on samples of pi an unbiased estimate of KL(pi, pi_ref), of high variance, often negative.

    Not for a loss: the gradient of its mean is the mean score, which is zero in expectation.
    (B, T), (B, T) -> (B, T), in nats. Source: Schulman's note, k1.
    """
    return logp - ref_logp


def kl_k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Return half the squared log-ratio: biased, of low variance; on policy its gradient is that of KL(pi, pi_ref).

    (B, T), (B, T) -> (B, T), in nats. Source: Schulman's note, k2.
    """
    return (logp - ref_logp).square() / 2


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    loss_type: LossType = "dapo",
    max_completion_length: int | None = None,
    num_items: int | Tensor | None = None,
) -> Tensor:
    """Average a (B, T) quantity over the sampled tokens of a batch; the loss type sets the weight of each token.

    "grpo": mean over each completion, then over completions: tokens of long ones weigh less (DeepSeekMath, equation 3).
    "bnpo": mean over all sampled tokens of this call.
    "dapo": sum divided by `num_items`, the number of sampled tokens in the whole batch; without it, as "bnpo".
        All tokens weigh the same (DAPO, equation 12).
    "dr_grpo": sum divided by the constant B * `max_completion_length`: lengths have no influence (Dr. GRPO, section 3.2).

    Returns a scalar. Raises: ValueError: an unknown loss type, or "dr_grpo" without max_completion_length.
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
    """Return the GRPO loss of a batch, a scalar to minimise, and metrics.

    logp: (B, T) log-probabilities under the policy in training, with gradient. old_logp: (B, T) under the sampling
    policy; None if it is the same (ratio 1). advantages: (B,), or (B, T) for turn rewards. ref_logp: (B, T) under the
    reference, needed if beta, the weight of the KL penalty, is not 0. importance_sampling_level: "sequence" is GSPO, made
    for loss_type "grpo". use_bias_correction_kl: multiply each token's KL by the ratio; with "token" k3's gradient becomes
    that of KL(pi, pi_ref) (DeepSeek-V3.2, equation 7; TRL's default). The others: see `aggregate`.

    Metrics: kl (nats per token, with beta), clip_low and clip_high (share of tokens clipped at the lower and upper
    bound), clip_fraction (their sum), ratio_min, ratio_max. The loss equals that of TRL's `GRPOTrainer` with the same
    options. Raises: ValueError: an unknown option, or beta without ref_logp. Source: DeepSeekMath, equation 3.
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
            raise ValueError(f"beta is {beta}: the KL term needs ref_logp, the log-probabilities of the reference")
        kl = kl_k3(logp, ref_logp) * (r if use_bias_correction_kl else 1)
        per_token = per_token + beta * kl
        metrics["kl"] = aggregate(kl.detach(), mask, "bnpo").item()

    return aggregate(per_token, mask, loss_type, max_completion_length, num_items), metrics


@torch.no_grad()
def _clip_metrics(
    ratio: Tensor, advantages: Tensor, mask: Tensor, epsilon_low: float, epsilon_high: float
) -> dict[str, float]:
    """Return the shares of clipped tokens, and the minimum and maximum ratio of all sampled tokens."""
    ratio = ratio.expand_as(mask)
    low = aggregate(((ratio < 1 - epsilon_low) & (advantages < 0)).float(), mask, "bnpo").item()
    high = aggregate(((ratio > 1 + epsilon_high) & (advantages > 0)).float(), mask, "bnpo").item()
    sampled = ratio[mask > 0] if bool((mask > 0).any()) else torch.ones(1)
    extremes = {"ratio_min": sampled.min().item(), "ratio_max": sampled.max().item()}
    return {"clip_low": low, "clip_high": high, "clip_fraction": low + high} | extremes
