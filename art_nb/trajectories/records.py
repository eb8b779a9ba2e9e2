"""Trajectory records: a trajectory as one JSON object, a line of trajectories/{split}/*.jsonl.

    {"step": int, "split": str, "group": int, "index": int, "reward": number, "advantage": number|null,
     "metrics": {name: number}, "metadata": {name: value}, "logs": [str], "turn_rewards": [number]|null,
     "turns": [turn], "additional_turns": [[turn]]   (only with additional histories)}
    turn: {"role": str, "content": str, "trainable": bool,
           "tool_calls": [{"name": str, "arguments": str}]   (if any),
           "tokens": [str], "logprobs": [number], "advantages": [number], "reward": number   (if known)}

A number that is not finite is written as "NaN", "Infinity" or "-Infinity", which Python's float() and JavaScript's Number()
parse. Per-token numbers are rounded to six decimals.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from openai.types.chat.chat_completion import Choice


def as_float(value: float) -> float:
    """Return `value` as a float; an integer beyond the range of floats as infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def json_number(value: float | int | bool) -> float | int | str:
    """Return `value` as a JSON number, a bool as 0 or 1; a value that is not finite as a float becomes a string."""
    number = as_float(value)
    if not math.isfinite(number):
        return json.dumps(number)
    return int(value) if isinstance(value, int) else number


def histories(record: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the conversations of a record, each as its turns: the first, then those of additional histories."""
    return [record["turns"], *record.get("additional_turns", [])]


def encode(trajectory: Any, *, advantage: float | None, **place: Any) -> dict[str, Any]:
    """Return a `Trajectory`'s record. place: step, split, group, index. advantage, errors: as in `Trajectory.record`."""
    choices = trajectory.all_choices()
    rewards = _turn_rewards(trajectory, len(choices))
    turns, *more = [[_turn(item, rewards) for item in history.messages_and_choices] for history in trajectory.histories()]
    metadata = {k: v.item() if getattr(v, "ndim", 1) == 0 else v for k, v in trajectory.metadata.items()}  # numpy or torch
    advantages = [a for c in choices for a in getattr(c, "token_advantages", None) or []]
    if advantage is None and advantages:
        advantage = sum(advantages) / len(advantages)
    return {
        **place,
        "advantage": None if advantage is None else json_number(advantage),
        "reward": json_number(trajectory.reward),
        "metrics": {name: json_number(value) for name, value in trajectory.metrics.items()},
        "metadata": {k: json_number(v) if isinstance(v, float) else v for k, v in metadata.items()},
        "logs": list(trajectory.logs),
        "turn_rewards": None if trajectory.turn_rewards is None else list(map(json_number, trajectory.turn_rewards)),
        "turns": turns,
        **({"additional_turns": more} if more else {}),
    }


def _turn_rewards(trajectory: Any, choices: int) -> Iterator[float] | None:
    if trajectory.turn_rewards is None:
        return None
    if len(trajectory.turn_rewards) != choices:
        given = f"{len(trajectory.turn_rewards)} turn_rewards for {choices} turns of the model"
        raise ValueError(f"{trajectory}: {given}; give one per Choice.")
    return iter(trajectory.turn_rewards)


def _turn(item: Any, rewards: Iterator[float] | None) -> dict[str, Any]:
    sampled = isinstance(item, Choice)
    role, content = ("assistant", item.message.content) if sampled else (item["role"], item.get("content"))
    calls = [c.model_dump() for c in item.message.tool_calls or []] if sampled else item.get("tool_calls") or []
    turn = {"role": role, "content": content_text(content), "trainable": sampled}
    if calls := list(map(call_of, calls)):
        turn["tool_calls"] = calls
    if sampled:
        turn.update(_sampled(item))
        if rewards is not None:
            turn["reward"] = json_number(next(rewards))
    return turn


def call_of(call: Mapping[str, Any]) -> dict[str, str]:
    """Return name and arguments of a message's tool call; for a custom tool, name and input text."""
    if call.get("type") == "custom":
        return {"name": call["custom"]["name"], "arguments": call["custom"]["input"]}
    return {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}


def content_text(content: Any) -> str:
    """Return a message's content as text: parts one per line, a part that is not text as its type in brackets."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in content)


def _sampled(choice: Choice) -> dict[str, list]:
    """Return tokens, log-probabilities (of this package's sampler, else OpenAI's `logprobs`) and advantages, where known."""
    content = choice.logprobs.content or [] if choice.logprobs else []
    tokens = getattr(choice, "token_texts", None) or [t.token for t in content]
    logprobs = getattr(choice, "token_logprobs", None) or [t.logprob for t in content]
    columns = {"logprobs": logprobs, "advantages": getattr(choice, "token_advantages", None) or []}
    numbers = {name: [json_number(round(x, 6)) for x in column] for name, column in columns.items() if column}
    return {"tokens": list(tokens), **numbers} if tokens else numbers


def turn_message(turn: dict[str, Any], call_prefix: str = "call_") -> dict[str, Any]:
    """Return a record's turn as a plain message; its tool calls get the ids "{call_prefix}0", "{call_prefix}1", ..."""
    message: dict[str, Any] = {"role": turn["role"], "content": turn["content"]}
    if "tool_calls" in turn:
        message["tool_calls"] = [
            {"id": f"{call_prefix}{i}", "type": "function", "function": dict(call)}
            for i, call in enumerate(turn["tool_calls"])
        ]
    return message


def turn_text(turn: dict[str, Any]) -> str:
    """Return a record's turn as text: "role: content", and a line per tool call."""
    calls = [f"{call['name']}({call['arguments']})" for call in turn.get("tool_calls", ())]
    return "\n".join([f"{turn['role']}: {turn['content']}", *calls])
