"""The exercises of notebook 01, GRPO theory."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from course import grpo
from course.exercises import Exercise, checker, is_number
from course.exercises.training import draw, draws, gather, percents, with_new_model
from game_2048.rules import legal_moves, parse

if TYPE_CHECKING:
    from art_nb import TrainableModel


def _numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def value_and_gradient(function, inputs: tuple) -> tuple[list, list]:
    """Return a function's value, and the gradient of the value's sum with respect to the first input ([] if none)."""
    first = inputs[0].clone().requires_grad_()
    value = function(first, *inputs[1:])
    if not isinstance(value, Tensor):
        raise TypeError(f"expected a tensor, got {type(value).__name__}")
    (slope,) = torch.autograd.grad(value.sum(), first, allow_unused=True) if value.requires_grad else (None,)
    return value.detach().tolist(), [] if slope is None else slope.tolist()


# 1. The log-probability of a token


def _logprob_cases():
    return [(_numbers(5, seed=s) * 3, s % 5) for s in range(4)]


LOGPROB = Exercise(
    right=lambda logits, token: logits.log_softmax(-1)[token],
    cases=_logprob_cases,
    mistakes={
        "This is the probability. Return its logarithm.": lambda logits, token: logits.softmax(-1)[token],
        "This is the logit itself. Logits are not normalised: subtract the log of the sum of their exponentials.":
            lambda logits, token: logits[token],
        "The sign: this is the negative log-likelihood, which is a loss. A log-probability is at most zero.":
            lambda logits, token: -logits.log_softmax(-1)[token],
        "This is in bits (log2). Use the natural logarithm.":
            lambda logits, token: logits.log_softmax(-1)[token] / torch.tensor(2.0).log(),
        "You took the logarithm of all tokens' probabilities. Pick out the one of `token`.":
            lambda logits, token: logits.log_softmax(-1),
    },
)  # fmt: skip


# 2. The advantages of a group


def _group_cases():
    groups = [3.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -2.0, -4.0, 5.0, 0.5], [2.0, 2.0, 2.0]
    return [(torch.tensor(rewards),) for rewards in groups]


def _advantages(rewards: Tensor) -> Tensor:
    return grpo.group_advantages(rewards, torch.zeros(len(rewards), dtype=torch.long))


ADVANTAGES = Exercise(
    right=_advantages,
    cases=_group_cases,
    mistakes={
        "The sign: better than the mean is positive.": lambda r: -_advantages(r),
        "You divide by the biased standard deviation (by n). GRPO's, and torch's default, divides by n - 1.":
            lambda r: (r - r.mean()) / (r.std(unbiased=False) + 1e-4),
        "You divide by the variance. Take its square root, the standard deviation.":
            lambda r: (r - r.mean()) / (r.var() + 1e-4),
        "These are Dr. GRPO's advantages. For GRPO divide them by the standard deviation.": lambda r: r - r.mean(),
        "You divide, but do not subtract the mean first.": lambda r: r / (r.std() + 1e-4),
        "Equal rewards give 0 / 0, which is not a number. Add 1e-4 to the standard deviation.":
            lambda r: (r - r.mean()) / r.std() if r.std() > 0 else r * float("nan"),
    },
)  # fmt: skip


# 3. REINFORCE with a baseline, as a loss


def _reinforce_cases():
    return [(-_numbers(n, seed=n).abs(), _numbers(n, seed=n + 50) + 1) for n in (4, 6)]


REINFORCE = Exercise(
    right=lambda logp, rewards: -((rewards - rewards.mean()) * logp).mean(),
    cases=_reinforce_cases,
    observe=lambda function, inputs: value_and_gradient(function, inputs)[1],  # losses may differ by a constant
    observed="the gradient",
    mistakes={
        "The sign: a loss is minimised, so negate what should rise.":
            lambda logp, rewards: ((rewards - rewards.mean()) * logp).mean(),
        "There is no baseline yet: subtract the mean reward.": lambda logp, rewards: -(rewards * logp).mean(),
        "You sum over the answers. Take their mean, so that the step size does not depend on the group size.":
            lambda logp, rewards: -((rewards - rewards.mean()) * logp).sum(),
        "You weight probabilities. The policy gradient weights log-probabilities.":
            lambda logp, rewards: -((rewards - rewards.mean()) * logp.exp()).mean(),
        "The log-probabilities are detached, so the gradient of this loss is zero.":
            lambda logp, rewards: -((rewards - rewards.mean()) * logp.detach()).mean(),
    },
)  # fmt: skip


# 4. The ratio on the first update, when the old policy is the current one


RATIO = Exercise(
    right=lambda logp: (logp - logp.detach()).exp(),
    cases=lambda: [(-_numbers(3, seed=s).abs(),) for s in range(2)],
    observe=value_and_gradient,
    observed="value and gradient",
    mistakes={
        "Nothing is detached: logp - logp is constant, so the gradient is zero. Detach the old log-probabilities.":
            lambda logp: (logp - logp).exp(),
        "Both are detached, or the result is: the value is right, but it has no gradient. Detach the old ones only.":
            lambda logp: torch.ones_like(logp),
        "Inverted: you detached the new policy, so the gradient has the wrong sign. Divide new by detached old.":
            lambda logp: (logp.detach() - logp).exp(),
        "This is the log of the ratio. Take its exponential.": lambda logp: logp - logp.detach(),
        "This is the probability, not the ratio of two: subtract the old log-probability, detached, first.":
            lambda logp: logp.exp(),
    },
)  # fmt: skip


# 5. The clipped surrogate


def _surrogate_cases():
    return [
        (torch.tensor([0.5, 0.9, 1.0, 1.1, 1.25, 1.6]), torch.tensor(advantage), 0.2, 0.28) for advantage in (1.0, -1.0, 0.5)
    ]


def _clipped(ratio, low, high):
    return ratio.clamp(1 - low, 1 + high)


SURROGATE = Exercise(
    right=grpo.clipped_surrogate,
    cases=_surrogate_cases,
    observe=value_and_gradient,
    observed="value and gradient",
    mistakes={
        "You always clip. Where the ratio moved in the wrong direction the gradient must remain: take the minimum of the "
        "clipped and the unclipped product.": lambda r, a, low, high: _clipped(r, low, high) * a,
        "The maximum keeps the gradient exactly where it should be clipped. Take the minimum.":
            lambda r, a, low, high: torch.max(r * a, _clipped(r, low, high) * a),
        "Nothing is clipped yet.": lambda r, a, low, high: r * a,
        "The bounds are 1 - low and 1 + high.": lambda r, a, low, high: torch.min(r * a, r.clamp(low, high) * a),
        "You use the lower bound on both sides. The upper one is 1 + high.":
            lambda r, a, low, high: torch.min(r * a, _clipped(r, low, low) * a),
        "You take the minimum of the ratios and multiply afterwards. With a negative advantage that is the maximum of "
        "the products: multiply first.": lambda r, a, low, high: torch.min(r, _clipped(r, low, high)) * a,
        "The sign: this is the loss. The surrogate is to be maximised.":
            lambda r, a, low, high: -grpo.clipped_surrogate(r, a, low, high),
    },
)  # fmt: skip


# 6. The KL estimator that is never negative


KL = Exercise(
    right=grpo.kl_k3,
    cases=lambda: [(-_numbers(6, seed=s).abs(), -_numbers(6, seed=s + 9).abs()) for s in range(2)],
    mistakes={
        "The ratio is inverted: r is the reference over the policy.": lambda logp, ref: grpo.kl_k3(ref, logp),
        "This is k1, which is often negative. k3 is r - 1 - log r.": grpo.kl_k1,
        "This is k2. It is biased; k3 is r - 1 - log r.": grpo.kl_k2,
        "The - 1 is missing: for equal policies the estimate must be zero.":
            lambda logp, ref: grpo.kl_k3(logp, ref) + 1,
        "You average. Return one estimate per token.": lambda logp, ref: grpo.kl_k3(logp, ref).mean(),
    },
)  # fmt: skip


# 7. A mean over each completion, then over completions


def _mask_cases():
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]])
    return [(_numbers(3, 4, seed=s), mask) for s in range(2)]


PER_SEQUENCE = Exercise(
    right=lambda values, mask: grpo.aggregate(values, mask, "grpo"),
    cases=_mask_cases,
    mistakes={
        "You average over all tokens at once, as DAPO does: a long completion counts more. Take the mean of each row first.":
            lambda values, mask: grpo.aggregate(values, mask, "bnpo"),
        "Your mean includes the padding. Multiply by the mask, and divide by its sum.": lambda values, mask: values.mean(),
        "You divide each row by its width, padding included. Divide by the number of its real tokens, mask.sum(1).":
            lambda values, mask: ((values * mask).sum(1) / mask.shape[1]).mean(),
        "You sum over the completions. Take their mean.":
            lambda values, mask: ((values * mask).sum(1) / mask.sum(1)).sum(),
        "You sum over the tokens. Divide each row by the number of its tokens.":
            lambda values, mask: (values * mask).sum(1).mean(),
    },
)  # fmt: skip


# 8. The whole loss


def _loss_cases():
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    logp = -_numbers(4, 4, seed=1).abs()
    old = logp + 0.3 * _numbers(4, 4, seed=2)
    return [(logp, old, torch.tensor([1.0, -1.0, 0.5, -0.5]), mask), (logp, old, torch.tensor([-2.0, 1.0, 0.0, 1.0]), mask)]


def _loss(logp, old_logp, advantages, mask, *, epsilon=0.2, loss_type="grpo"):
    bounds = {"epsilon_low": epsilon, "epsilon_high": epsilon}
    return grpo.grpo_loss(logp, old_logp, advantages, mask, loss_type=loss_type, **bounds)[0]


LOSS = Exercise(
    right=_loss,
    cases=_loss_cases,
    observe=value_and_gradient,
    observed="value and gradient",
    mistakes={
        "The sign: the surrogate is maximised, a loss minimised.": lambda *x: -_loss(*x),
        "Nothing is clipped.": lambda *x: _loss(*x, epsilon=1e9),
        "Every token has the same weight here (DAPO). For GRPO take the mean of each completion, then the mean of these.":
            lambda *x: _loss(*x, loss_type="bnpo"),
        "Your loss includes the padding: use the mask.":
            lambda logp, old, advantages, mask: _loss(logp, old, advantages, torch.ones_like(mask)),
        "The advantages are along the wrong dimension: there is one per row, so use advantages[:, None].":
            lambda logp, old, advantages, mask: _loss(logp, old, advantages[None, :].expand_as(mask), mask),
        "You always clip. Take the minimum of the clipped and the unclipped product.":
            lambda logp, old, a, mask: -grpo.aggregate((logp - old).exp().clamp(0.8, 1.2) * a[:, None], mask, "grpo"),
        "The old log-probabilities are not used: the ratio is exp(logp - old_logp).":
            lambda logp, old, advantages, mask: _loss(logp, logp.detach(), advantages, mask),
    },
)  # fmt: skip


# 9. Returns


def _forward_sum(rewards, discount):
    total, sums = 0.0, []
    for k, reward in enumerate(rewards):
        total += discount**k * reward
        sums.append(total)
    return sums


RETURNS = Exercise(
    right=grpo.returns_to_go,
    cases=lambda: [([1.0, 0.0, 2.0, -1.0], 0.5), ([0.0, 0.0, 4.0], 0.9), ([3.0], 0.5)],
    mistakes={
        "You sum the rewards before a turn. Its return is the sum of the rewards from that turn on.": _forward_sum,
        "The discount is missing.": lambda rewards, discount: grpo.returns_to_go(rewards, 1.0),
        "You discount the turn's own reward as well. It is not discounted: R_t = r_t + discount * R_(t+1).":
            lambda rewards, discount: [discount * x for x in grpo.returns_to_go(rewards, discount)],
        "They are in reverse order: the first turn's return comes first.":
            lambda rewards, discount: grpo.returns_to_go(rewards, discount)[::-1],
        "You add the next turn's reward. Add its return, which includes all later rewards.":
            lambda rewards, discount: [r + discount * n for r, n in zip(rewards, [*rewards[1:], 0.0], strict=True)],
        "These are the rewards themselves.": lambda rewards, discount: rewards,
    },
)  # fmt: skip


# 10. PPO's advantages


def gae(rewards: list[float], values: list[float], discount: float, decay: float) -> list[float]:
    """Return the generalised advantage estimates of one episode; the value after its last step is 0.

    rewards, values: one per step. Source: Schulman et al., arXiv 1506.02438, equation 16.
    """
    advantages, following = [], 0.0
    for t in reversed(range(len(rewards))):
        td_error = rewards[t] + discount * (values[t + 1] if t + 1 < len(values) else 0.0) - values[t]
        following = td_error + discount * decay * following
        advantages.append(following)
    return advantages[::-1]


GAE = Exercise(
    right=gae,
    cases=lambda: [([1.0, 0.0, 2.0], [0.5, 1.5, -1.0], 0.9, 0.8), ([0.0, 1.0], [0.2, 0.4], 1.0, 0.5)],
    mistakes={
        "The decay (lambda) is missing where the next step's estimate is added.":
            lambda rewards, values, discount, decay: gae(rewards, values, discount, 1.0),
        "This is the one-step TD error alone. Add discount * decay times the next step's estimate.":
            lambda rewards, values, discount, decay: gae(rewards, values, discount, 0.0),
        "The discount is missing.": lambda rewards, values, discount, decay: gae(rewards, values, 1.0, decay),
        "The sign of the value: it is the baseline, subtract it.":
            lambda rewards, values, discount, decay: gae(rewards, [-v for v in values], discount, decay),
        "These are returns. Subtract what the value function expected.":
            lambda rewards, values, discount, decay: grpo.returns_to_go(rewards, discount),
        "The next step's value is missing from the TD error: r_t + discount * V_(t+1) - V_t.":
            lambda rewards, values, discount, decay: grpo.returns_to_go(
                [r - v for r, v in zip(rewards, values, strict=True)], discount * decay),
        "They are in reverse order.": lambda *x: gae(*x)[::-1],
    },
)  # fmt: skip

# 11. A KL penalty against reward hacking

BOARDS = (
    "2 . . .\n4 . . .\n8 2 . .\n16 4 . .", "2 4 8 16\n. . . .\n. . . .\n. . . .",
    ". . . 2\n. . . 4\n. . . 8\n. . 2 16", ". . . .\n. . . .\n. 2 4 .\n2 8 16 4",
)  # fmt: skip
HACK_STEPS, STILL_LEGAL = 8, 0.75


def train_on_length(weight: float) -> tuple[list[float], list[float]]:
    """Repeat section 10's hacked run, shortened, with a KL penalty. Returns reward and share of legal moves by step."""
    from openai.types.chat import ChatCompletionUserMessageParam

    import art_nb as art

    async def use(model: TrainableModel) -> tuple[list[float], list[float]]:
        client = model.openai_client()

        async def rollout(board: str) -> art.Trajectory:
            message: ChatCompletionUserMessageParam = {"role": "user", "content": board}
            name = model.get_inference_name()
            completion = await client.chat.completions.create(model=name, messages=[message], max_tokens=4)
            word = completion.choices[0].message.content or ""
            trajectory = art.Trajectory(messages_and_choices=[message, completion.choices[0]], reward=len(word) / 5)
            rows = parse(board)
            trajectory.metrics["legal"] = float(rows is not None and word in legal_moves(rows))
            return trajectory

        for _ in range(HACK_STEPS):
            groups = await gather([rollout(board) for _ in range(16)] for board in BOARDS)
            await model.train(groups, art.TrainConfig(learning_rate=2e-3, kl_penalty_coef=weight))
        rows = model.history().query("split == 'train'")
        return rows.reward.tolist(), rows.legal.tolist()

    return with_new_model("nano", use)


def _why_still_hacked(answer: Callable[[], float]) -> str | None:
    weight = answer()
    if not is_number(weight):
        return f"Expected a number, got {weight!r}."
    if not 0 < (weight := float(weight)) <= 10:
        return f"Expected a weight above 0 and at most 10, got {weight:g}."
    reward, legal = train_on_length(weight)
    if draws():
        without, name = train_on_length(0.0), f"weight {weight:g}"
        pairs = zip(("reward", "share of legal moves"), without, (reward, legal), strict=True)
        panels = {title: {"no penalty": [one], name: [other]} for title, one, other in pairs}
        draw(panels, {"no penalty": "failed", name: "trained"})
    if fmean(legal[-3:]) >= STILL_LEGAL:
        return None
    return f"Still hacked: at weight {weight:g} the share of legal moves by step was {percents(legal)}."


KL_PENALTY = Exercise(right=lambda: 3.0, accept=_why_still_hacked)

EXERCISES = {
    "logprob": LOGPROB,
    "advantages": ADVANTAGES,
    "reinforce": REINFORCE,
    "ratio": RATIO,
    "surrogate": SURROGATE,
    "kl": KL,
    "per_sequence": PER_SEQUENCE,
    "loss": LOSS,
    "returns": RETURNS,
    "gae": GAE,
    "kl_penalty": KL_PENALTY,
}

check = checker(EXERCISES)
