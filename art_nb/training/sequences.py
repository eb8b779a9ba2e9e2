"""Token sequences from trajectories: exact token ids, a mask of the trained tokens, log-probabilities and advantages.

`build_sequences` is for GRPO, `demonstration_sequences` for supervised fine-tuning.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from openai.types.chat.chat_completion import Choice

from art_nb.inference.chat import is_sampled
from art_nb.inference.messages import normalize
from art_nb.inference.prompts import PromptEncoder
from art_nb.training.grpo import group_advantages, turn_advantages
from art_nb.trajectories import History, Trajectory, TrajectoryGroup
from art_nb.trajectories.records import as_float
from art_nb.types import MessageOrChoice, PolicyName, TrainConfig


@dataclass
class TokenSequence:
    """T tokens; each list has one value per token. Where `trained` is False, the later fields are 0 or False.

    trained: whether the loss includes the token. logprobs: the sampler's (natural log, temperature 1); NaN if unknown.
    off_policy: whether a policy other than the one in training sampled it; the ratio is then relative to that policy.
    """

    ids: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    off_policy: list[bool] = field(default_factory=list)

    def add(
        self, ids: list[int], logprobs: list[float] | None = None, advantage: float = 0.0, off_policy: bool = False
    ) -> None:
        """Append tokens: trained ones with their `logprobs`, context with None."""
        self.ids += ids
        self.off_policy += [off_policy] * len(ids)
        self.trained += [logprobs is not None] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)
        self.advantages += [advantage] * len(ids)


@dataclass(frozen=True)
class ChoiceFilter:
    """Selects the choices to train on: those of the policy's model or of an unknown sampler and, if requested, all others.

    policy: "name@step" of the policy in training; None: accept every choice as on-policy. other_policies: accept all.
    """

    policy: str | None = None
    other_policies: bool = False

    def accepts(self, choice: Choice) -> bool:
        """Whether the choice is trained on."""
        sampler = _sampler(choice)
        return self.other_policies or not (self.policy and sampler) or _model(sampler) == _model(self.policy)

    def is_off_policy(self, choice: Choice) -> bool:
        """Whether a known policy other than the one in training sampled the choice, e.g. another step of the same model."""
        sampler = _sampler(choice)
        return bool(self.policy and sampler) and sampler != self.policy

    def rejects_all(self, trajectory: Trajectory) -> bool:
        """Whether the trajectory has choices and none of them is trained on."""
        choices = trajectory.all_choices()
        return bool(choices) and not any(map(self.accepts, choices))


def build_sequences(
    groups: list[TrajectoryGroup], tokenizer, config: TrainConfig, policy: str | None = None, context: int | None = None
) -> tuple[list[TokenSequence], dict[str, float]]:
    """Return the sequences to train on, and counts: groups, groups_without_signal and, if any, trajectories_of_others.

    policy: "name@step" of the policy in training. context: maximum number of tokens per sequence. A group whose advantages
    are all zero has no signal: it is trained on only with a KL penalty. Sets `token_advantages` on each accepted choice.

    Raises: ValueError: there is no trajectory, or none of this model; a reward is not finite; the numbers of turn rewards
        and choices differ; a message has no role; a trajectory has no trainable token or an empty prompt, or exceeds
        `context`. RequestError (a ValueError): malformed messages or tools. Groups and trajectories are counted from 0.
    """
    check_groups(groups)
    choice_filter = ChoiceFilter(policy, config.other_policies)
    rejected = [trajectory for group in groups for trajectory in group if choice_filter.rejects_all(trajectory)]
    if len(rejected) == sum(map(len, groups)):
        samplers = sorted({_sampler(choice) for trajectory in rejected for choice in trajectory.all_choices()})
        raise ValueError(
            f"there is nothing to train {policy} on: all {len(rejected)} trajectories were sampled by "
            f"{', '.join(samplers)}. TrainConfig(other_policies=True) trains on these as well."
        )
    advantages = compute_advantages(groups, config, choice_filter.rejects_all)
    unscaled = compute_advantages(groups, config.model_copy(update={"scale_rewards": "none"}), choice_filter.rejects_all)
    prompts = PromptEncoder(tokenizer, [])
    sequences, without_signal = [], 0
    for g, group in enumerate(groups):
        signal = has_signal(group, unscaled[g])
        without_signal += not signal
        for t, trajectory in enumerate(group):
            if choice_filter.rejects_all(trajectory):
                continue
            built = _trajectory_sequences(trajectory, prompts, advantages[g][t], choice_filter)
            if not any(any(s.trained) for s in built):
                raise ValueError(
                    f"group {g}, trajectory {t} has no trainable token: it contains no Choice. Append the completion's "
                    "`choices[0]` to messages_and_choices, not a message dict."
                )
            _check_tokens(built, context, f"group {g}, trajectory {t}")
            if signal or config.kl_penalty_coef > 0:
                sequences += built
    counts: dict[str, float] = {"groups": len(groups), "groups_without_signal": without_signal}
    counts |= {"trajectories_of_others": len(rejected)} if rejected else {}
    return strongest(sequences, config.trained_share), counts


def strongest(sequences: list[TokenSequence], share: float) -> list[TokenSequence]:
    """Return the share of sequences with the largest absolute advantage of any token, at least one, in their order."""
    if share == 1 or not sequences:
        return sequences
    strength = [max(map(abs, sequence.advantages)) for sequence in sequences]
    first = sorted(range(len(sequences)), key=strength.__getitem__, reverse=True)[: max(1, round(share * len(sequences)))]
    return [sequences[i] for i in sorted(first)]


def check_groups(groups: list[TrajectoryGroup]) -> None:
    """Check the groups. Raises: ValueError: no trajectory, a reward that is not finite, or a message without a role."""
    if not any(len(group) for group in groups):
        failed = [e for group in groups for e in group.exceptions]
        first = f"; the first of {len(failed)} errors: {failed[0].type}: {failed[0].message}" if failed else ""
        raise ValueError(f"there is nothing to train on: {len(groups)} groups contain no trajectory{first}")
    for g, group in enumerate(groups):
        for t, trajectory in enumerate(group):
            rewards = [("reward", trajectory.reward)]
            rewards += [(f"turn_rewards[{i}]", r) for i, r in enumerate(trajectory.turn_rewards or [])]
            _check_messages(trajectory, f"group {g}, trajectory {t}")
            for name, reward in rewards:
                if not hasattr(reward, "__float__") or not math.isfinite(as_float(reward)):
                    raise ValueError(f"group {g}, trajectory {t}: {name} is {reward!s:.40}, not a finite number")


def has_signal(group: TrajectoryGroup, advantages: list[list[float]]) -> bool:
    """Whether any of the group's unscaled `advantages` differs from 0 by more than the rounding error of its baseline."""
    rewards = [abs(r) for t in group for r in ([t.reward] if t.turn_rewards is None else t.turn_rewards)]
    return any(abs(a) > 1e-9 * max(rewards, default=0.0) for choices in advantages for a in choices)


def compute_advantages(
    groups: list[TrajectoryGroup], config: TrainConfig, excluded: Callable[[Trajectory], bool] = lambda trajectory: False
) -> list[list[list[float]]]:
    """Return advantages[group][trajectory][choice]: by turn in groups with turn rewards, else one per trajectory.

    excluded: whether to leave a trajectory out of baseline and scale; its advantages are then 0. With scale_rewards "batch",
    groups with turn rewards and the other groups are scaled separately.

    Raises: ValueError when a trajectory of a group with turn rewards does not have one for each choice.
    """
    members = [(g, t, trajectory) for g, group in enumerate(groups) for t, trajectory in enumerate(group)]
    members = [member for member in members if not excluded(member[2])]
    advantages = [[[0.0] * len(trajectory.all_choices()) for trajectory in group] for group in groups]
    with_turn_rewards = {g for g, _, trajectory in members if trajectory.turn_rewards is not None}
    others = [member for member in members if member[0] not in with_turn_rewards]
    rewards = torch.tensor([trajectory.reward for *_, trajectory in others], dtype=torch.float64)
    by_outcome = group_advantages(rewards, torch.tensor([g for g, *_ in others], dtype=torch.long), config.scale_rewards)
    for (g, t, _), advantage in zip(others, by_outcome.tolist(), strict=True):
        advantages[g][t] = [advantage] * len(advantages[g][t])

    members = [member for member in members if member[0] in with_turn_rewards]
    for g, t, trajectory in members:
        if (given := len(trajectory.turn_rewards or [])) != (expected := len(advantages[g][t])):
            raise ValueError(
                f"group {g}, trajectory {t} has {given} turn_rewards and {expected} choices; "
                "in a group with turn rewards every trajectory needs one for each choice"
            )
    turn_rewards = [trajectory.turn_rewards or [] for *_, trajectory in members]
    by_turn = turn_advantages(turn_rewards, config.turn_discount, config.scale_rewards, [g for g, *_ in members])
    for (g, t, _), values in zip(members, by_turn, strict=True):
        advantages[g][t] = values
    return advantages


def _sampler(choice: Choice) -> str:
    """Return the name of the policy that sampled a choice, "" if unknown."""
    return getattr(choice, "policy", None) or ""


def _model(policy: str) -> str:
    """Return the model's name from a policy's name, "" for a base model."""
    name = PolicyName.parse(policy)
    return name.model if name else ""


def _trajectory_sequences(
    trajectory: Trajectory, prompts: PromptEncoder, advantages: list[float], choice_filter: ChoiceFilter
) -> list[TokenSequence]:
    remaining = iter(advantages)
    sequences = []
    for history in trajectory.histories():
        current: list[TokenSequence] = []
        for i, item in enumerate(history.messages_and_choices):
            if not isinstance(item, Choice):
                continue
            advantage = next(remaining)
            if not choice_filter.accepts(item):
                continue
            prompt, sampled, logprobs = turn_tokens(item, history, i, prompts)
            add_turn(current, prompt, sampled, logprobs, advantage, choice_filter.is_off_policy(item))
            item.token_advantages = [advantage] * len(sampled)  # type: ignore[attr-defined]  # an extra field
        sequences += current
    return sequences


def demonstration_sequences(
    trajectories: Iterable[Trajectory], tokenizer, context: int | None = None
) -> list[list[TokenSequence]]:
    """Return the sequences of each trajectory, additional histories included; all turns of the assistant are trained.

    A turn is tokenised as it would be sampled, after the prompt that the template renders from the messages before it; a
    turn of art_nb's sampler keeps its tokens. The first message of a history is never trained. context: maximum number of
    tokens per sequence.

    Raises: ValueError when there is no trajectory, or one (counted from 0) has nothing to train on, a message without a role
        or more than `context` tokens. RequestError (a ValueError) when messages or tools are malformed.
    """
    prompts = PromptEncoder(tokenizer, [])
    built = []
    for number, trajectory in enumerate(trajectories):
        sequences: list[TokenSequence] = []
        _check_messages(trajectory, f"trajectory {number}")
        for history in trajectory.histories():
            current: list[TokenSequence] = []
            for i, item in enumerate(history.messages_and_choices):
                if i and (isinstance(item, Choice) or item.get("role") == "assistant"):
                    add_turn(current, *turn_tokens(item, history, i, prompts))
            sequences += current
        if not sequences:
            raise ValueError(f"trajectory {number} has nothing to train on: no assistant message follows another message")
        _check_tokens(sequences, context, f"trajectory {number}")
        built.append(sequences)
    if not built:
        raise ValueError("there is nothing to train on: expected at least one trajectory")
    return built


def _check_messages(trajectory: Trajectory, name: str) -> None:
    for history in trajectory.histories():
        for item in history.messages_and_choices:  # LiteLLM's messages are not dicts, but have `get`
            if not isinstance(item, Choice) and not isinstance(getattr(item, "get", lambda name: None)("role"), str):
                expected = 'expected a dict like {"role": "user", "content": ...} or a Choice'
                raise ValueError(f"{name}: messages_and_choices contains {item!r:.60}: {expected}")


def _check_tokens(sequences: list[TokenSequence], context: int | None, name: str) -> None:
    if any(sequence.trained[:1] == [True] for sequence in sequences):
        raise ValueError(f"{name}: the prompt_token_ids of a Choice are empty: expected the token ids of its prompt")
    longest = max(len(sequence.ids) for sequence in sequences)
    if context is not None and longest > context:
        raise ValueError(f"{name} has {longest} tokens, the model's context has {context}: shorten it")


def add_turn(
    sequences: list[TokenSequence], prompt: list[int], sampled: list[int], logprobs: list[float],
    advantage: float = 0.0, off_policy: bool = False,
) -> None:  # fmt: skip
    """Add a turn to the last sequence if the turn's prompt extends it token for token, else to a new sequence."""
    if not sequences or prompt[: len(sequences[-1].ids)] != sequences[-1].ids:
        sequences.append(TokenSequence())
    current = sequences[-1]
    current.add(prompt[len(current.ids) :])
    current.add(sampled, logprobs, advantage, off_policy)


def turn_tokens(
    item: MessageOrChoice, history: History, index: int, prompts: PromptEncoder
) -> tuple[list[int], list[int], list[float]]:
    """Return (prompt ids, answer ids, logprobs) of the assistant turn `item` at `index` of a history.

    Exact for turns of art_nb's sampler. Others are tokenised, with NaN logprobs. Raises: RequestError: malformed messages.
    """
    if isinstance(item, Choice) and is_sampled(item):
        return item.prompt_token_ids, item.token_ids, item.token_logprobs
    tools: list[Any] | None = history.tools
    prompt, answer = prompts.template(tools, {}).turn(normalize(history.messages()[: index + 1]))
    return prompt, answer, [math.nan] * len(answer)
