"""Trajectory records: a trajectory as one JSON object, as trajectories/*.jsonl keeps it.

    {"step": int, "split": str, "group": int, "index": int, "reward": number, "advantage": number|null,
     "metrics": {name: number}, "metadata": {name: value}, "logs": [str], "turn_rewards": [number]|null,
     "turns": [turn], "additional_turns": [[turn]]   (only with additional histories)}
    turn: {"role": str, "content": str, "trainable": bool,
           "tool_calls": [{"name": str, "arguments": str}]   (if there are any),
           "tokens": [str], "logprobs": [number], "advantages": [number], "reward": number   (where known)}

A number that is not finite is written as "NaN", "Infinity" or "-Infinity"; Python's float() and JavaScript's
Number() read these. Per-token numbers are rounded to six places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

from openai.types.chat import ChatCompletionMessageToolCallUnion
from openai.types.chat.chat_completion import Choice


class Trajectory(Protocol):
    """What a record takes from a trajectory; the class itself is in `trajectory`, which imports this module."""

    messages_and_choices: list[Any]
    additional_histories: list[Any]
    reward: float
    turn_rewards: list[float] | None
    metrics: dict[str, Any]
    metadata: dict[str, Any]
    logs: list[str]

    def choices(self) -> list[Choice]: ...


def json_number(value: float | int | bool) -> float | int | str:
    """`value` as JSON can hold it; a truth value counts as 0 or 1."""
    if isinstance(value, int):
        return int(value)
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def encode(trajectory: Trajectory, **place: Any) -> dict[str, Any]:
    """The record of a trajectory. place: step, split, group, index, advantage (None: mean over tokens)."""
    rewards = _turn_rewards(trajectory)
    turns = [_turn(item, rewards) for item in trajectory.messages_and_choices]
    more = [
        [_turn(item, rewards) for item in h.messages_and_choices] for h in trajectory.additional_histories
    ]
    if place["advantage"] is None:
        place["advantage"] = _mean_advantage(trajectory)
    return {
        **place,
        "reward": json_number(trajectory.reward),
        "advantage": None if place["advantage"] is None else json_number(place["advantage"]),
        "metrics": {name: json_number(value) for name, value in trajectory.metrics.items()},
        "metadata": {name: _json_fact(value) for name, value in trajectory.metadata.items()},
        "logs": list(trajectory.logs),
        "turn_rewards": None if trajectory.turn_rewards is None else list(map(json_number, trajectory.turn_rewards)),
        "turns": turns,
        **({"additional_turns": more} if more else {}),
    }


def decode(record: dict[str, Any]) -> dict[str, Any]:
    """The fields of the trajectory that a record was made from (all but its token ids)."""
    rewards = record["turn_rewards"]
    return {
        "messages_and_choices": [_item(t, f"{i}") for i, t in enumerate(record["turns"])],
        "additional_histories": [
            {"messages_and_choices": [_item(t, f"{h}_{i}") for i, t in enumerate(turns)]}
            for h, turns in enumerate(record.get("additional_turns", []), start=1)
        ],
        "reward": float(record["reward"]),
        "turn_rewards": None if rewards is None else [float(r) for r in rewards],
        "metrics": {k: float(v) if isinstance(v, str) else v for k, v in record["metrics"].items()},
        "metadata": record["metadata"],
        "logs": record["logs"],
    }


def _json_fact(value: Any) -> Any:
    return json_number(value) if isinstance(value, float) else value


def _choices(trajectory: Trajectory) -> list[Choice]:
    return [c for history in (trajectory, *trajectory.additional_histories) for c in history.choices()]


def _turn_rewards(trajectory: Trajectory) -> Iterator[float] | None:
    if trajectory.turn_rewards is None:
        return None
    given, needed = len(trajectory.turn_rewards), len(_choices(trajectory))
    if given != needed:
        raise ValueError(
            f"{trajectory}: {given} turn_rewards for {needed} turns of the model; give one per Choice."
        )
    return iter(trajectory.turn_rewards)


def _mean_advantage(trajectory: Trajectory) -> float | None:
    advantages = [a for c in _choices(trajectory) for a in getattr(c, "token_advantages", None) or []]
    return sum(advantages) / len(advantages) if advantages else None


def _turn(item: Any, rewards: Iterator[float] | None) -> dict[str, Any]:
    if not isinstance(item, Choice):
        calls = [call["function"] for call in item.get("tool_calls") or []]
        return _without_empty_calls(item["role"], item.get("content"), calls, trainable=False)
    calls = [_called(call) for call in item.message.tool_calls or []]
    turn = _without_empty_calls("assistant", item.message.content, calls, trainable=True)
    turn.update(_sampled(item))
    if rewards is not None:
        turn["reward"] = json_number(next(rewards))
    return turn


def _called(call: ChatCompletionMessageToolCallUnion) -> dict[str, str]:
    if call.type == "custom":
        return {"name": call.custom.name, "arguments": call.custom.input}
    return {"name": call.function.name, "arguments": call.function.arguments}


def _without_empty_calls(
    role: str, content: Any, calls: list[dict[str, Any]], trainable: bool
) -> dict[str, Any]:
    turn = {"role": role, "content": _text(content), "trainable": trainable}
    if calls:
        turn["tool_calls"] = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    return turn


def _text(content: Any) -> str:
    """Content parts (OpenAI's format) joined; a part that is no text is named by its type."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in content)


def _sampled(choice: Choice) -> dict[str, list]:
    """Tokens with their log-probabilities and advantages: from our sampler, else from OpenAI's `logprobs`."""
    content = choice.logprobs.content or [] if choice.logprobs else []
    tokens = getattr(choice, "token_texts", None) or [t.token for t in content]
    logprobs = getattr(choice, "token_logprobs", None) or [t.logprob for t in content]
    columns = {"logprobs": logprobs, "advantages": getattr(choice, "token_advantages", None) or []}
    numbers = {name: [json_number(round(x, 6)) for x in column] for name, column in columns.items() if column}
    return {"tokens": list(tokens), **numbers} if tokens else numbers


def _item(turn: dict[str, Any], name: str) -> Any:
    message: dict[str, Any] = {"role": turn["role"], "content": turn["content"]}
    if "tool_calls" in turn:
        message["tool_calls"] = [
            {"id": f"call_{name}_{i}", "type": "function", "function": dict(call)}
            for i, call in enumerate(turn["tool_calls"])
        ]
    if not turn["trainable"]:
        return message
    extra = {
        f"token_{name}": list(map(float, turn[name])) for name in ("logprobs", "advantages") if name in turn
    }
    if "tokens" in turn:
        extra["token_texts"] = list(turn["tokens"])
    reason = "tool_calls" if "tool_calls" in turn else "stop"
    return Choice(index=0, finish_reason=reason, message=message, **extra)
