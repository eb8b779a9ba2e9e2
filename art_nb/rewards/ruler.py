"""RULER: a judge compares the trajectories of a group, and its scores become their rewards.

The calls are ART's; so is the idea. Source: art.openpipe.ai/fundamentals/ruler.
Comparing is easier than grading, and GRPO uses nothing but the differences within a group.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

from art_nb.metrics import JUDGE, MetricsBuilder
from art_nb.rewards.judge_answers import TrajectoryScore
from art_nb.rewards.judges import Judge, JudgeError, Judgement, LLMJudge, Usage
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
    """Score conversations against each other. Returns one score each, in their order; `trajectory_id` counts from 1.

    Args:
        message_lists: the conversations, each a list of messages.
        judge_model: a model as LiteLLM names it ("openai/o3", "anthropic/...", "ollama/...", "hosted_vllm/..."), or a
            judge: `LLMJudge(...)` for its options, `RubricJudge(...)` for none at all.
        extra_litellm_params: further arguments of the request (temperature, api_base, ...).
        rubric: what makes an attempt good, in words; a `RubricJudge` has its own.
        tools: what the agent could call, to show to the judge.
        debug: print the scores and reasons.

    What the judge cost goes to the active `art.metrics.MetricsBuilder`, if there is one.

    Raises: JudgeError when the judge gave no usable scores; ImportError when LiteLLM is needed and missing.
    """
    trajectories = [Trajectory(messages_and_choices=list(messages), tools=tools) for messages in message_lists]
    judgement = await _judge(trajectories, judge_model, extra_litellm_params, rubric, debug)
    if (builder := MetricsBuilder.active_one()) and judgement.usage.cost_usd is not None:
        builder.add_cost(f"{builder.cost_context}/{JUDGE}", judgement.usage.cost_usd)
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
    """A copy of `group` whose rewards are the judge's scores; fit for `after_each` of `gather_trajectory_groups`.

    In each trajectory of the copy: `reward` and metrics["ruler_score"] are the score, metrics["independent_reward"] is
    the reward there was, the reason is in `logs`, and `turn_rewards` is None (a score is for the whole trajectory). In
    the copy's own metrics: what judging took, as judge_calls, judge_cached, judge_prompt_tokens, judge_completion_tokens,
    judge_duration (seconds), judge_shortened (trajectories that the judge saw in part) and, where the price is known,
    judge_cost_usd; with the row of a split that adds up to costs/train/judge/ruler, or costs/eval/... Each trajectory has
    an equal share: judge_tokens, judge_cost_usd.

    Args:
        swallow_exceptions: log a JudgeError as a warning and return None: `gather_trajectory_groups` drops the group.
            What can only be a mistake in the call is raised all the same.
        Others: as of `ruler`. Conversations in `additional_histories` are judged with their trajectory.

    Raises: JudgeError naming the group, when the judge gave no usable scores.
    """
    started = time.monotonic()
    try:
        judgement = await _judge(group.trajectories, judge_model, extra_litellm_params, rubric, debug)
    except JudgeError as error:
        named = JudgeError(f"{group_name(group)}: {error}")
        if not swallow_exceptions:
            raise named from error
        log.warning("not scored, and left out: %s", named)
        return None
    took = _metrics(judgement) | {"judge_duration": time.monotonic() - started}
    share = _share(took, len(group)) if took["judge_calls"] or took["judge_cached"] else {}
    scored = [_scored(t, score, share) for t, score in zip(group.trajectories, judgement.scores, strict=True)]
    metrics = {**group.metrics, **took}
    return group.model_copy(update={"trajectories": scored, "metrics": metrics})


async def _judge(
    trajectories: Sequence[Trajectory],
    judge_model: str | Judge,
    extra_litellm_params: dict[str, Any] | None,
    rubric: str,
    debug: bool,
) -> Judgement:
    if isinstance(judge_model, str):
        judge_model = LLMJudge(judge_model, params=extra_litellm_params or {})
    elif extra_litellm_params:
        raise ValueError("extra_litellm_params goes with a judge given by name; here, give LLMJudge(..., params=...).")
    if not trajectories:
        return Judgement([])
    if len(trajectories) > 1 and all(_said(t) == _said(trajectories[0]) for t in trajectories):
        log.warning("all %d trajectories are identical: nothing to compare, nothing to learn", len(trajectories))
    judgement = await judge_model.judge(trajectories, rubric)
    if debug:
        for score in judgement.scores:
            print(f"trajectory {score.trajectory_id}: {score.score:.2f}  {score.explanation}")
    return judgement


def group_name(group: TrajectoryGroup) -> str:
    """What tells the group from others: its metadata, or what its trajectories' agree on, or how it begins."""
    first, *others = group.trajectories or [Trajectory()]
    shared = {k: v for k, v in first.metadata.items() if all(t.metadata.get(k) == v for t in others)}
    facts = group.metadata or shared
    if facts:
        return "group " + ", ".join(f"{name}={value}" for name, value in facts.items())
    asked = [str(message["content"]) for message in first.messages() if message["role"] == "user"]
    return f"the group that begins with {asked[0][:80] if asked else ''!r}"


def _said(trajectory: Trajectory) -> list[Messages]:
    return [history.messages() for history in (trajectory, *trajectory.additional_histories)]


def _scored(trajectory: Trajectory, score: TrajectoryScore, share: dict[str, float]) -> Trajectory:
    metrics = {**trajectory.metrics, "independent_reward": trajectory.reward, "ruler_score": score.score, **share}
    logs = [*trajectory.logs, f"RULER explanation: {score.explanation}"]
    own = {"messages_and_choices": list(trajectory.messages_and_choices), "metadata": dict(trajectory.metadata)}
    update = {"reward": score.score, "turn_rewards": None, "metrics": metrics, "logs": logs, **own}
    return trajectory.model_copy(update=update)


def _share(took: dict[str, float], trajectories: int) -> dict[str, float]:
    """Of one trajectory."""
    shared = {"judge_tokens": took["judge_prompt_tokens"] + took["judge_completion_tokens"]}
    if "judge_cost_usd" in took:
        shared["judge_cost_usd"] = took["judge_cost_usd"]
    return {name: value / trajectories for name, value in shared.items()}


def _metrics(judgement: Judgement) -> dict[str, float]:
    usage: Usage = judgement.usage
    metrics: dict[str, float] = {
        "judge_calls": usage.calls,
        "judge_cached": usage.cached,
        "judge_prompt_tokens": usage.prompt_tokens,
        "judge_completion_tokens": usage.completion_tokens,
        "judge_shortened": judgement.shortened,
    }
    return metrics if usage.cost_usd is None else {**metrics, "judge_cost_usd": usage.cost_usd}
