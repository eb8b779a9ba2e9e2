"""From trajectories to what is trained on: exact token sequences, what in them counts, and how much."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from openai.types.chat.chat_completion import Choice

from art_nb.training.grpo import group_advantages, turn_advantages
from art_nb.trajectories import History, Trajectory, TrajectoryGroup
from art_nb.types import TrainConfig


@dataclass
class TokenSequence:
    """One sequence of T tokens. `trained[t]` marks those that the policy sampled; elsewhere the others are 0.

    logprobs: as the sampler saw them; NaN where they are not known.
    """

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

    A group whose advantages are all zero (equal rewards, or a single trajectory) carries no signal and is
    skipped. Each sampled choice gets `token_advantages`, so that a trajectory can be read together with what
    it taught.

    Raises:
        ValueError: no trajectory at all, a reward that is not finite, turn rewards that do not fit the turns,
            or a trajectory without a trainable token; it names group and trajectory (both counted from 0).
    """
    check_rewards(groups)
    advantages = compute_advantages(groups, config)
    sequences, silent = [], 0
    for g, group in enumerate(groups):
        carries_signal = _carries_signal(group, advantages[g])
        silent += not carries_signal
        for t, trajectory in enumerate(group):
            built = _trajectory_sequences(trajectory, tokenizer, advantages[g][t])
            if not any(any(s.trained) for s in built):
                raise ValueError(
                    f"group {g}, trajectory {t} has no trainable token: it holds no Choice. Append the "
                    "`choices[0]` of the completion to messages_and_choices, not a message dict."
                )
            # Without a signal only the KL penalty could move the policy.
            if carries_signal or config.kl_penalty_coef > 0:
                sequences += built
    return sequences, {"groups": len(groups), "groups_without_signal": silent}


def check_rewards(groups: list[TrajectoryGroup]) -> None:
    """Refuse an empty batch and any reward that is not a finite number."""
    if not any(len(group) for group in groups):
        failed = [e for group in groups for e in group.exceptions]
        first = f"; the first of {len(failed)} errors: {failed[0].type}: {failed[0].message}" if failed else ""
        raise ValueError(f"there is nothing to train on: {len(groups)} groups hold no trajectory{first}")
    for g, group in enumerate(groups):
        for t, trajectory in enumerate(group):
            rewards = [("reward", trajectory.reward)]
            rewards += [(f"turn_rewards[{i}]", r) for i, r in enumerate(trajectory.turn_rewards or [])]
            for name, reward in rewards:
                if not math.isfinite(reward):
                    raise ValueError(f"group {g}, trajectory {t}: {name} is {reward}, not a finite number")


def _carries_signal(group: TrajectoryGroup, advantages: list[list[float]]) -> bool:
    """Whether an advantage differs from zero by more than the rounding of the mean that was subtracted."""
    rewards = [abs(r) for t in group for r in (t.reward, *(t.turn_rewards or []))]
    return any(abs(a) > 1e-9 * max(1.0, *rewards) for choices in advantages for a in choices)


def compute_advantages(groups: list[TrajectoryGroup], config: TrainConfig) -> list[list[list[float]]]:
    """Advantages[group][trajectory][choice]: from turn rewards in groups that carry them, else from rewards.

    Raises: ValueError when a trajectory of a group with turn rewards has not exactly one for each choice.
    """
    rewards = torch.tensor([t.reward for group in groups for t in group], dtype=torch.float64)
    ids = torch.tensor([g for g, group in enumerate(groups) for _ in group])
    outcome = iter(group_advantages(rewards, ids, config.scale_rewards).tolist())
    by_outcome = [[[next(outcome)] * len(_choices(t)) for t in group] for group in groups]
    by_turn = iter(_by_turn(groups, config))
    return [[next(by_turn) for _ in group] if _has_turn_rewards(group) else by_outcome[g] for g, group in enumerate(groups)]


def _by_turn(groups: list[TrajectoryGroup], config: TrainConfig) -> list[list[float]]:
    """Advantages of each choice, for the trajectories of all groups that carry turn rewards."""
    rewards, ids = [], []
    for g, group in enumerate(groups):
        for t, trajectory in enumerate(group if _has_turn_rewards(group) else []):
            given, needed = len(trajectory.turn_rewards or []), len(_choices(trajectory))
            if given != needed:
                raise ValueError(
                    f"group {g}, trajectory {t} has {given} turn_rewards and {needed} choices; "
                    "in a group with turn rewards every trajectory needs one for each choice"
                )
            rewards.append(trajectory.turn_rewards or [])
            ids.append(g)
    return turn_advantages(rewards, config.turn_discount, config.scale_rewards, ids)


def _has_turn_rewards(group: TrajectoryGroup) -> bool:
    return any(trajectory.turn_rewards is not None for trajectory in group)


def _choices(trajectory: Trajectory) -> list[Choice]:
    return [c for history in (trajectory, *trajectory.additional_histories) for c in history.choices()]


def _trajectory_sequences(trajectory: Trajectory, tokenizer, advantages: list[float]) -> list[TokenSequence]:
    """A choice whose prompt extends the sequence so far joins it; any other starts a new sequence."""
    remaining = iter(advantages)
    sequences = []
    for history in (trajectory, *trajectory.additional_histories):
        current = TokenSequence()
        for i, item in enumerate(history.messages_and_choices):
            if not isinstance(item, Choice):
                continue
            advantage = next(remaining)
            prompt, sampled, logprobs = _tokens_of(item, history, i, tokenizer)
            if not current.ids or prompt[: len(current.ids)] != current.ids:
                current = TokenSequence()
                sequences.append(current)
            current.add(prompt[len(current.ids) :])
            current.add(sampled, logprobs, advantage)
            item.token_advantages = [advantage] * len(sampled)
    return sequences


def _tokens_of(choice: Choice, history: History, position: int, tokenizer) -> tuple[list[int], list[int], list[float]]:
    """(prompt ids, sampled ids, logprobs): exact if our sampler made the choice, else re-tokenised.

    What another server sampled has no known log-probabilities: NaN.
    """
    if getattr(choice, "token_ids", None):
        return choice.prompt_token_ids, choice.token_ids, choice.token_logprobs
    messages = history.messages()
    render = {"tools": history.tools, "tokenize": False}
    prompt = tokenizer.apply_chat_template(messages[:position], add_generation_prompt=True, **render)
    whole = tokenizer.apply_chat_template(messages[: position + 1], **render)
    # Some templates do not repeat the generation prompt (they drop earlier thoughts).
    answer = whole[len(prompt) :] if whole.startswith(prompt) else (choice.message.content or "")
    # What follows the end of the turn is the template's, not the policy's.
    sampled = answer.split(tokenizer.eos_token)[0] + tokenizer.eos_token
    ids = tokenizer.encode(sampled, add_special_tokens=False)
    return tokenizer.encode(prompt, add_special_tokens=False), ids, [math.nan] * len(ids)
