"""From trajectories to what is trained on: exact token sequences, what in them counts, and how much."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from openai.types.chat.chat_completion import Choice

from art_nb.inference.chat import is_sampled
from art_nb.inference.prompts import Prompts, plain
from art_nb.training.grpo import group_advantages, turn_advantages
from art_nb.trajectories import History, Trajectory, TrajectoryGroup
from art_nb.types import MessageOrChoice, TrainConfig


@dataclass
class TokenSequence:
    """One sequence of T tokens. `trained[t]` marks those that the policy sampled; elsewhere the others are 0.

    logprobs: as the sampler saw them; NaN where they are not known.
    off_policy: whether another policy than the one in training sampled a token; its ratio is taken to that one.
    """

    ids: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    off_policy: list[bool] = field(default_factory=list)

    def add(
        self, ids: list[int], logprobs: list[float] | None = None, advantage: float = 0.0, off_policy: bool = False
    ) -> None:
        """Append given tokens (logprobs None) or sampled ones."""
        self.ids += ids
        self.off_policy += [off_policy] * len(ids)
        self.trained += [logprobs is not None] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)
        self.advantages += [advantage] * len(ids)


@dataclass(frozen=True)
class InTraining:
    """The policy in training, as "name@step", and which choices it learns from.

    Those of its own steps, those of nobody known (made elsewhere), and with `others` those of any policy. None: all are its.
    """

    policy: str | None = None
    others: bool = False

    def learns(self, choice: Choice) -> bool:
        """Whether the choice is trained on."""
        sampler = _sampler(choice)
        return self.others or not (self.policy and sampler) or _model(sampler) == _model(self.policy)

    def is_off_policy(self, choice: Choice) -> bool:
        """Whether another policy sampled it, if only another step."""
        sampler = _sampler(choice)
        return bool(self.policy and sampler) and sampler != self.policy

    def leaves_out(self, trajectory: Trajectory) -> bool:
        """Whether all that was sampled in it is another's."""
        choices = _choices(trajectory)
        return bool(choices) and not any(map(self.learns, choices))


def build_sequences(
    groups: list[TrajectoryGroup], tokenizer, config: TrainConfig, policy: str | None = None
) -> tuple[list[TokenSequence], dict[str, float]]:
    """The sequences to train on, and counts of what was left out.

    policy: "name@step" of the one in training. What other models sampled is left out, see `TrainConfig.other_policies`.

    A group whose advantages are all zero (equal rewards, or a single trajectory) carries no signal and is
    skipped. Each sampled choice gets `token_advantages`, so that a trajectory can be read together with what
    it taught.

    Raises:
        ValueError: no trajectory at all, or none of this model, a reward that is not finite, turn rewards that do not
            fit the turns, or a trajectory without a trainable token; it names group and trajectory (counted from 0).
    """
    check_rewards(groups)
    training = InTraining(policy, config.other_policies)
    left_out = _left_out(groups, training)
    advantages = compute_advantages(groups, config, training.leaves_out)
    prompts = Prompts(tokenizer, [])
    sequences, silent = [], 0
    for g, group in enumerate(groups):
        carries_signal = _carries_signal(group, advantages[g])
        silent += not carries_signal
        for t, trajectory in enumerate(group):
            if training.leaves_out(trajectory):
                continue
            built = _trajectory_sequences(trajectory, prompts, advantages[g][t], training)
            if not any(any(s.trained) for s in built):
                raise ValueError(
                    f"group {g}, trajectory {t} has no trainable token: it holds no Choice. Append the "
                    "`choices[0]` of the completion to messages_and_choices, not a message dict."
                )
            # Without a signal only the KL penalty could move the policy.
            if carries_signal or config.kl_penalty_coef > 0:
                sequences += built
    counts: dict[str, float] = {"groups": len(groups), "groups_without_signal": silent}
    return sequences, counts | ({"trajectories_of_others": left_out} if left_out else {})


def _left_out(groups: list[TrajectoryGroup], training: InTraining) -> int:
    """How many trajectories are another's. Raises: ValueError when all are."""
    trajectories = [trajectory for group in groups for trajectory in group]
    others = [trajectory for trajectory in trajectories if training.leaves_out(trajectory)]
    if len(others) == len(trajectories):
        names = sorted({_sampler(choice) for trajectory in others for choice in _choices(trajectory)})
        raise ValueError(
            f"there is nothing to train {training.policy} on: all {len(others)} trajectories were sampled by "
            f"{', '.join(names)}. TrainConfig(other_policies=True) trains on these as well."
        )
    return len(others)


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


def compute_advantages(
    groups: list[TrajectoryGroup], config: TrainConfig, leaves_out: Callable[[Trajectory], bool] = lambda trajectory: False
) -> list[list[list[float]]]:
    """Advantages[group][trajectory][choice]: from turn rewards in groups that carry them, else from rewards.

    leaves_out: trajectories that count for nothing; their advantages are 0.

    Raises: ValueError when a trajectory of a group with turn rewards has not exactly one for each choice.
    """
    counted = [[(t, trajectory) for t, trajectory in enumerate(group) if not leaves_out(trajectory)] for group in groups]
    rewards = torch.tensor([trajectory.reward for group in counted for _, trajectory in group], dtype=torch.float64)
    ids = torch.tensor([g for g, group in enumerate(counted) for _ in group])
    outcome = iter(group_advantages(rewards, ids, config.scale_rewards).tolist())
    advantages = [[[0.0] * len(_choices(trajectory)) for trajectory in group] for group in groups]
    for g, group in enumerate(counted):
        for t, _ in group:
            advantages[g][t] = [next(outcome)] * len(advantages[g][t])
    for (g, t), values in _by_turn(counted, config).items():
        advantages[g][t] = values
    return advantages


def _by_turn(groups: list[list[tuple[int, Trajectory]]], config: TrainConfig) -> dict[tuple[int, int], list[float]]:
    """Advantages of each choice, for the trajectories (by group and number) of all groups that carry turn rewards."""
    rewards, places = [], []
    for g, group in enumerate(groups):
        carries = any(trajectory.turn_rewards is not None for _, trajectory in group)
        for t, trajectory in group if carries else []:
            given, needed = len(trajectory.turn_rewards or []), len(_choices(trajectory))
            if given != needed:
                raise ValueError(
                    f"group {g}, trajectory {t} has {given} turn_rewards and {needed} choices; "
                    "in a group with turn rewards every trajectory needs one for each choice"
                )
            rewards.append(trajectory.turn_rewards or [])
            places.append((g, t))
    found = turn_advantages(rewards, config.turn_discount, config.scale_rewards, [g for g, _ in places])
    return dict(zip(places, found, strict=True))


def _choices(trajectory: Trajectory) -> list[Choice]:
    return [c for history in (trajectory, *trajectory.additional_histories) for c in history.choices()]


def _sampler(choice: Choice) -> str:
    """The policy that sampled it, empty where that is not known."""
    return getattr(choice, "policy", None) or ""


def _model(policy: str) -> str:
    """The name of the model in the name of a policy; none in that of a base model."""
    return policy.rpartition("@")[0]


def _trajectory_sequences(
    trajectory: Trajectory, prompts: Prompts, advantages: list[float], training: InTraining
) -> list[TokenSequence]:
    """The sequences of all that the policy learns from."""
    remaining = iter(advantages)
    sequences = []
    for history in (trajectory, *trajectory.additional_histories):
        current: list[TokenSequence] = []
        for i, item in enumerate(history.messages_and_choices):
            if not isinstance(item, Choice):
                continue
            advantage = next(remaining)
            if not training.learns(item):
                continue
            prompt, sampled, logprobs = tokens_of(item, history, i, prompts)
            add_turn(current, prompt, sampled, logprobs, advantage, training.is_off_policy(item))
            item.token_advantages = [advantage] * len(sampled)  # type: ignore[attr-defined]  # they take further fields
        sequences += current
    return sequences


def add_turn(
    sequences: list[TokenSequence],
    prompt: list[int],
    said: list[int],
    logprobs: list[float],
    advantage: float = 0.0,
    off_policy: bool = False,
) -> None:
    """A turn whose prompt extends the last sequence joins it; any other starts a new sequence."""
    if not sequences or prompt[: len(sequences[-1].ids)] != sequences[-1].ids:
        sequences.append(TokenSequence())
    current = sequences[-1]
    current.add(prompt[len(current.ids) :])
    current.add(said, logprobs, advantage, off_policy)


def tokens_of(
    said: MessageOrChoice, history: History, position: int, prompts: Prompts
) -> tuple[list[int], list[int], list[float]]:
    """(prompt ids, answer's ids, logprobs) of an assistant's turn: exact if our sampler made it, else re-tokenised.

    What was not sampled here has no known log-probabilities: NaN.
    """
    if isinstance(said, Choice) and is_sampled(said):
        return said.prompt_token_ids, said.token_ids, said.token_logprobs
    tools: list[Any] | None = history.tools
    prompt, answer = prompts.template(tools, {}).turn(plain(history.messages()[: position + 1]))
    return prompt, answer, [math.nan] * len(answer)
