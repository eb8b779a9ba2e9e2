"""RULER: a judge compares the trajectories of a group, and its scores become their rewards.

Comparing is easier than grading, and GRPO uses only the differences within a group. The functions have ART's signatures.
Source: art.openpipe.ai/fundamentals/ruler.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

from art_nb.rewards.judge_answers import TrajectoryScore
from art_nb.rewards.judges import Judge, JudgeError, Judgement, LLMJudge
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import Messages, Tools

log = logging.getLogger(__name__)

DEFAULT_RUBRIC = """\
- What counts most is whether the task was done. Every attempt that did it gets a clearly higher score than any that did not.
- Of attempts that did it, the more direct one is better: steps that led nowhere or were repeated cost it something.
- An attempt that fell short earns a part of the score for how far it came.
- Let the distance between two scores say how much better one attempt is: small for a detail, large for a task done."""


async def ruler(
    message_lists: list[Messages],
    judge_model: str | Judge = "openai/o3",
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    tools: Tools | None = None,
    *,
    debug: bool = False,
) -> list[TrajectoryScore]:
    """Score conversations against each other; return one score each, in their order, with `trajectory_id` from 1.

    Args:
        message_lists: the conversations, each a list of messages.
        judge_model: a LiteLLM model name ("openai/o3", "anthropic/...", "ollama/...", "hosted_vllm/..."), or a
            judge: `LLMJudge(...)` for a model with options, `RubricJudge(...)` without a model.
        extra_litellm_params: further arguments of the request (temperature, api_base, ...).
        rubric: instructions for scoring; ignored by `RubricJudge`.
        tools: the agent's tools, shown to the judge.
        debug: print scores and explanations.

    Costs, even of a judge that fails, are added to the active `art.metrics.MetricsBuilder`, if any.

    Raises: JudgeError when the judge gave no usable scores; ImportError when LiteLLM is needed but missing.
    """
    trajectories = [Trajectory(messages_and_choices=list(messages), tools=tools) for messages in message_lists]
    judgement = await _judge(trajectories, judge_model, extra_litellm_params, rubric, debug)
    judgement.usage.add_cost()
    return judgement.scores


async def ruler_score_group(
    group: TrajectoryGroup,
    judge_model: str | Judge = "openai/o3",
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    swallow_exceptions: bool = False,
    debug: bool = False,
) -> TrajectoryGroup | None:
    """Return a copy of `group` whose rewards are the judge's scores; for `after_each` of `gather_trajectory_groups`.

    In each trajectory of the copy, `reward` and metrics["ruler_score"] are the score, metrics["independent_reward"] is the
    reward before any judging, `logs` has the explanation, and `turn_rewards` is None. The copy's metrics add judge_calls,
    judge_cached, judge_prompt_tokens, judge_completion_tokens, judge_duration (seconds), judge_shortened (trajectories
    shortened in the prompt) and, if the price is known, judge_cost_usd, which is added to costs/train/judge/ruler, or
    costs/eval/..., when the group is logged. Each trajectory has an equal share: judge_tokens, judge_cost_usd. A second
    judging adds to these. The cost of a judge that fails is added to the active `art.metrics.MetricsBuilder`, if any.

    Args:
        swallow_exceptions: log a JudgeError as a warning and return None, so that `gather_trajectory_groups` drops the
            group. Other exceptions always propagate.
        Others: as in `ruler`. A trajectory's `additional_histories` are judged, too.

    Raises: JudgeError naming the group, when the judge gave no usable scores.
    """
    started = time.monotonic()
    try:
        judgement = await _judge(group.trajectories, judge_model, extra_litellm_params, rubric, debug)
    except JudgeError as error:
        named = JudgeError(f"{group_name(group)}: {error}")
        if not swallow_exceptions:
            raise named from error
        log.warning("group dropped without scores: %s", named)
        return None
    usage = judgement.usage
    cost = {} if usage.cost_usd is None else {"judge_cost_usd": usage.cost_usd}
    metrics: dict[str, float] = {
        "judge_calls": usage.calls, "judge_cached": usage.cached, "judge_prompt_tokens": usage.prompt_tokens,
        "judge_completion_tokens": usage.completion_tokens, "judge_shortened": judgement.shortened, **cost,
        "judge_duration": time.monotonic() - started,
    }  # fmt: skip
    total = {"judge_tokens": usage.prompt_tokens + usage.completion_tokens, **cost} if usage.calls or usage.cached else {}
    share = {name: value / len(group) for name, value in total.items()}
    scored = [_scored(t, score, share) for t, score in zip(group.trajectories, judgement.scores, strict=True)]
    metrics = {name: group.metrics[name] + value if name in group.metrics else value for name, value in metrics.items()}
    return group.model_copy(update={"trajectories": scored, "metrics": {**group.metrics, **metrics}})


async def _judge(
    trajectories: Sequence[Trajectory], judge_model: str | Judge, params: dict[str, Any] | None, rubric: str, debug: bool
) -> Judgement:
    if isinstance(judge_model, str):
        judge_model = LLMJudge(judge_model, params=params or {})
    elif params:
        raise ValueError("extra_litellm_params is for a judge given by name: pass LLMJudge(..., params=...) instead.")
    if not trajectories:
        return Judgement([])
    conversations = [[history.messages() for history in trajectory.histories()] for trajectory in trajectories]
    if len(trajectories) > 1 and all(each == conversations[0] for each in conversations):
        log.warning("all %d conversations are identical: no training signal if the judge reads only them", len(trajectories))
    judgement = await judge_model.judge(trajectories, rubric)
    if debug:
        for score in judgement.scores:
            print(f"trajectory {score.trajectory_id}: {score.score:.2f}  {score.explanation}")
    return judgement


def group_name(group: TrajectoryGroup) -> str:
    """Name a group in logs and errors by its metadata, its trajectories' common metadata, or first user message."""
    first, *others = group.trajectories or [Trajectory()]
    shared = {k: v for k, v in first.metadata.items() if all(t.metadata.get(k) == v for t in others)}
    facts = group.metadata or shared
    if facts:
        return "group " + ", ".join(f"{name}={value}" for name, value in facts.items())
    questions = [str(message["content"]) for message in first.messages() if message.get("role") == "user"]
    return f"the group that begins with {questions[0][:80] if questions else ''!r}"


def _scored(trajectory: Trajectory, score: TrajectoryScore, share: dict[str, float]) -> Trajectory:
    first = {} if "ruler_score" in trajectory.metrics else {"independent_reward": trajectory.reward}
    share = {name: trajectory.metrics.get(name, 0) + value for name, value in share.items()}
    metrics = {**trajectory.metrics, **first, "ruler_score": score.score, **share}
    logs = [*trajectory.logs, f"RULER explanation: {score.explanation}"]
    own = {"messages_and_choices": list(trajectory.messages_and_choices), "metadata": dict(trajectory.metadata)}
    update = {"reward": score.score, "turn_rewards": None, "metrics": metrics, "logs": logs, **own}
    return trajectory.model_copy(update=update)
