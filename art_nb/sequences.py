"""From trajectories to what is trained on: exact token sequences, which of their tokens count, and their advantages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from openai.types.chat.chat_completion import Choice

from art_nb.grpo import group_advantages, turn_advantages
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import TrainConfig


@dataclass
class TokenSequence:
    """One sequence of T tokens. `trained[t]` marks tokens that the policy sampled; the other lists are 0 elsewhere."""

    ids: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)

    def add(self, ids: list[int], logprobs: list[float] | None = None, advantage: float = 0.0) -> None:
        """Append given tokens (logprobs None) or sampled ones."""
        self.ids += ids
        self.trained += [logprobs is not None] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)
        self.advantages += [advantage] * len(ids)


def build_sequences(
    groups: list[TrajectoryGroup], tokenizer, config: TrainConfig
) -> tuple[list[TokenSequence], dict[str, float]]:
    """The sequences to train on, and counts of what was left out.

    A group whose advantages are all zero (equal rewards, or a single trajectory) carries no signal and is skipped.
    Each sampled choice gets `token_advantages`, so that a trajectory can be read together with what it taught.

    Raises:
        ValueError: no trajectory at all, a reward that is not finite, or a trajectory without a trainable token;
            it names the group and the trajectory (both counted from 0).
    """
    check_rewards(groups)
    advantages = compute_advantages(groups, config)
    sequences, silent = [], 0
    for g, group in enumerate(groups):
        carries_signal = any(a != 0 for choices in advantages[g] for a in choices)
        silent += not carries_signal
        for t, trajectory in enumerate(group.trajectories):
            built = _trajectory_sequences(trajectory, tokenizer, advantages[g][t])
            if not any(any(s.trained) for s in built):
                raise ValueError(
                    f"group {g}, trajectory {t} has no trainable token: it holds no Choice. Append the `choices[0]` of "
                    "the completion to messages_and_choices, not a message dict."
                )
            # Without a signal only the KL penalty could move the policy.
            if carries_signal or config.kl_penalty_coef > 0:
                sequences += built
    return sequences, {"groups": len(groups), "groups_without_signal": silent}


def check_rewards(groups: list[TrajectoryGroup]) -> None:
    """Refuse an empty batch and any reward that is not a finite number."""
    if not any(len(group.trajectories) for group in groups):
        failed = [e for group in groups for e in group.exceptions]
        why = f"; {len(failed)} rollouts raised, the first: {failed[0].type}: {failed[0].message}" if failed else ""
        raise ValueError(f"there is nothing to train on: {len(groups)} groups hold no trajectory{why}")
    for g, group in enumerate(groups):
        for t, trajectory in enumerate(group.trajectories):
            rewards = [("reward", trajectory.reward)]
            rewards += [(f"turn_rewards[{i}]", r) for i, r in enumerate(trajectory.turn_rewards or [])]
            for name, reward in rewards:
                if not math.isfinite(reward):
                    raise ValueError(f"group {g}, trajectory {t}: {name} is {reward}; expected a finite number")


def compute_advantages(groups: list[TrajectoryGroup], config: TrainConfig) -> list[list[list[float]]]:
    """Advantages[group][trajectory][choice]: from turn rewards where every trajectory of the group carries them."""
    rewards = torch.tensor([t.reward for group in groups for t in group.trajectories], dtype=torch.float64)
    ids = torch.tensor([g for g, group in enumerate(groups) for _ in group.trajectories])
    outcome = group_advantages(rewards, ids, config.scale_rewards).tolist()
    advantages = []
    for g, group in enumerate(groups):
        mine = [outcome.pop(0) for _ in group.trajectories]
        choices = [_choices(trajectory) for trajectory in group.trajectories]
        if not any(trajectory.turn_rewards is not None for trajectory in group.trajectories):
            advantages.append([[a] * len(c) for a, c in zip(mine, choices, strict=True)])
            continue
        for t, trajectory in enumerate(group.trajectories):
            given = len(trajectory.turn_rewards or [])
            if given != len(choices[t]):
                raise ValueError(
                    f"group {g}, trajectory {t} has {given} turn_rewards and {len(choices[t])} choices; "
                    "in a group with turn rewards every trajectory needs one for each choice"
                )
        per_turn = [trajectory.turn_rewards for trajectory in group.trajectories]
        advantages.append(turn_advantages(per_turn, config.turn_discount, config.scale_rewards))
    return advantages


def _choices(trajectory: Trajectory) -> list[Choice]:
    histories = [trajectory.messages_and_choices, *(h.messages_and_choices for h in trajectory.additional_histories)]
    return [item for history in histories for item in history if isinstance(item, Choice)]


def _trajectory_sequences(trajectory: Trajectory, tokenizer, advantages: list[float]) -> list[TokenSequence]:
    """A choice whose prompt extends the sequence so far joins it; any other starts a new sequence."""
    remaining = iter(advantages)
    sequences = []
    for history, tools in [
        (trajectory.messages_and_choices, trajectory.tools),
        *((h.messages_and_choices, h.tools) for h in trajectory.additional_histories),
    ]:
        current = TokenSequence()
        for i, item in enumerate(history):
            if not isinstance(item, Choice):
                continue
            advantage = next(remaining)
            prompt, sampled, logprobs = _tokens_of(item, history[:i], tools, tokenizer)
            if not current.ids or prompt[: len(current.ids)] != current.ids:
                current = TokenSequence()
                sequences.append(current)
            current.add(prompt[len(current.ids) :])
            current.add(sampled, logprobs, advantage)
            item.token_advantages = [advantage] * len(sampled)
    return sequences


def _tokens_of(choice: Choice, before: list, tools, tokenizer) -> tuple[list[int], list[int], list[float]]:
    """(prompt ids, sampled ids, logprobs): exact where our sampler made the choice, re-tokenised where another did."""
    if getattr(choice, "token_ids", None):
        return choice.prompt_token_ids, choice.token_ids, choice.token_logprobs
    messages = Trajectory(messages_and_choices=before).messages()
    answer = Trajectory(messages_and_choices=[choice]).messages()
    render = {"tools": tools, "tokenize": False}
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **render)
    whole = tokenizer.apply_chat_template(messages + answer, **render)
    sampled = whole[len(prompt) :] if whole.startswith(prompt) else (choice.message.content or "") + tokenizer.eos_token
    # What follows the end of the turn is the template's, not the policy's.
    if tokenizer.eos_token in sampled:
        sampled = sampled[: sampled.index(tokenizer.eos_token) + len(tokenizer.eos_token)]
    ids = tokenizer.encode(sampled, add_special_tokens=False)
    return tokenizer.encode(prompt, add_special_tokens=False), ids, [math.nan] * len(ids)
