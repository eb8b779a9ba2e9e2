"""What a rollout took: tokens, US dollars, seconds. In the metrics of its trajectory:

    completion_tokens    sampled tokens of a turn, their mean, as ART has it; sampled_tokens: of all turns
    cost_usd             what its calls of APIs cost, as far as a `MetricsBuilder` was told, and its own costs/...
    judge_cost_usd, judge_tokens    its share of what judging its group took (`rewards.ruler_score_group`)

A number that is not known is not there. Seconds are written down with the trajectory by `Trajectory.finish` alone: so a run
that is taken up again leaves the same files. It knows nothing of prices.
"""

from collections.abc import Iterable

from openai.types.chat.chat_completion import Choice

from art_nb.trajectories.trajectory import Trajectory


def account(trajectories: Iterable[Trajectory], ran: tuple[float, float], costs: list[float]) -> None:
    """Write down what the rollout of these took; several of one rollout share its costs. What was written before stays.

    ran: when it began and ended, in seconds of `time.monotonic`. costs: of its calls, in US dollars.
    """
    new = [trajectory for trajectory in trajectories if trajectory._ran is None]
    for trajectory in new:
        trajectory._ran = ran
        count_tokens(trajectory)
        own = [float(value) for name, value in trajectory.metrics.items() if name.startswith("costs/")]
        if own or costs:
            trajectory.metrics.setdefault("cost_usd", sum(own) + sum(costs) / len(new))


def count_tokens(trajectory: Trajectory) -> None:
    """Set completion_tokens and sampled_tokens; neither when no turn says how many it has."""
    counts = [count for choice in trajectory.choices() if (count := _tokens_in(choice)) is not None]
    more = [_tokens_in(choice) or 0 for history in trajectory.additional_histories for choice in history.choices()]
    if counts:
        trajectory.metrics["completion_tokens"] = sum(counts) / len(counts)
    if counts or any(more):
        trajectory.metrics["sampled_tokens"] = sum(counts) + sum(more)


def seconds(trajectory: Trajectory) -> float | None:
    """How long its rollout took: metrics["duration"], or else as it was seen; None when it ran elsewhere."""
    began, ended = trajectory._ran or (0.0, None)
    return trajectory.metrics.get("duration", None if ended is None else ended - began)


def seconds_between(trajectories: Iterable[Trajectory]) -> float | None:
    """From the start of the first rollout to the end of the last; None when none of them ran here."""
    spans = [trajectory._ran for trajectory in trajectories if trajectory._ran]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else None


def _tokens_in(choice: Choice) -> int | None:
    if choice.logprobs:
        return len(choice.logprobs.content or choice.logprobs.refusal or [])
    ids = getattr(choice, "token_ids", None)
    return None if ids is None else len(ids)
