"""Duration of a rollout; the tokens and US dollars that it used, as metrics of its trajectory:

    completion_tokens    mean tokens per turn of the main conversation, as in ART; sampled_tokens: sum over all conversations
    cost_usd             cost of its API calls, as reported to a `MetricsBuilder`, plus its own costs/... metrics
    judge_cost_usd, judge_tokens    its share of the cost of judging its group (`rewards.ruler_score_group`)

Unknown numbers are absent. The duration is not stored as a metric here, so that a resumed run writes identical files.
"""

from collections.abc import Iterable

from openai.types.chat.chat_completion import Choice

from art_nb.trajectories.trajectory import Trajectory


def add_usage(trajectories: Iterable[Trajectory], span: tuple[float, float], costs: list[float]) -> None:
    """Set the metrics of one rollout's trajectories, which share its costs; an existing `cost_usd` is kept.

    Skips trajectories with a `rollout_span`. span: start and end in seconds of `time.monotonic`. costs: US dollars per call.
    """
    new = [trajectory for trajectory in trajectories if trajectory.rollout_span is None]
    for trajectory in new:
        trajectory.rollout_span = span
        count_tokens(trajectory)
        own = [float(value) for name, value in trajectory.metrics.items() if name.startswith("costs/")]
        if own or costs:
            trajectory.metrics.setdefault("cost_usd", sum(own) + sum(costs) / len(new))


def count_tokens(trajectory: Trajectory) -> None:
    """Set completion_tokens and sampled_tokens, unless no turn's number of tokens is known."""
    counts = [count for choice in trajectory.choices() if (count := _tokens_in(choice)) is not None]
    total = sum(_tokens_in(choice) or 0 for choice in trajectory.all_choices())
    if counts:
        trajectory.metrics["completion_tokens"] = sum(counts) / len(counts)
    if counts or total:
        trajectory.metrics["sampled_tokens"] = total


def rollout_seconds(trajectory: Trajectory) -> float | None:
    """Return metrics["duration"], else the measured seconds; None without either, for example from another process."""
    started, ended = trajectory.rollout_span or (0.0, None)
    return trajectory.metrics.get("duration", None if ended is None else ended - started)


def wall_seconds(trajectories: Iterable[Trajectory]) -> float | None:
    """Return the seconds from the first rollout's start to the last one's end; None if no rollout was measured here."""
    spans = [trajectory.rollout_span for trajectory in trajectories if trajectory.rollout_span]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else None


def _tokens_in(choice: Choice) -> int | None:
    if choice.logprobs:
        return len(choice.logprobs.content or choice.logprobs.refusal or [])
    ids = getattr(choice, "token_ids", None)
    return None if ids is None else len(ids)
