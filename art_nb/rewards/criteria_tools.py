"""Criteria for an agent that calls tools, where nothing is known of its task: what shows in the conversation alone.

They can't tell a right answer from a wrong one. A task that can should have criteria of its own (`rubric.register`).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from art_nb.rewards.rubric import weighted
from art_nb.trajectories import Trajectory

FAILED = re.compile(r'^\W*(error|traceback|exception)\b|"(error|exception)"\s*:', re.IGNORECASE)
READABLE = 1_500  # characters of an answer that is read to its end


def accuracy(trajectory: Trajectory) -> tuple[float, str]:
    """The share of calls that were right as calls: known tool, arguments in JSON, a result that is no error."""
    calls, results = _calls(trajectory), _results(trajectory)
    if not calls:
        return 1.0, "no tool was called, so no call was wrong"
    known = {tool["function"]["name"] for tool in trajectory.tools or []}
    wrong = sum(not _is_json(arguments) or bool(known and name not in known) for name, arguments in calls)
    failed = sum(bool(FAILED.search(result)) for result in results)
    right = max(0, len(calls) - max(wrong, failed))
    return right / len(calls), f"{right} of {len(calls)} calls went well"


def efficiency(trajectory: Trajectory) -> tuple[float, str]:
    """The share of calls that were not made before with the same arguments."""
    counts = Counter(_calls(trajectory))
    repeated = sum(counts.values()) - len(counts)
    return len(counts) / max(1, sum(counts.values())) if counts else 1.0, f"{repeated} calls were repeated"


def completeness(trajectory: Trajectory) -> tuple[float, str]:
    """1 when the agent has the last word and says something; 0.5 when it stops at a call or an empty answer."""
    said = _final_answer(trajectory)
    return (1.0, "it ends with an answer") if said else (0.5 if trajectory.messages() else 0.0, "it ends without an answer")


def user_satisfaction(trajectory: Trajectory) -> tuple[float, str]:
    """An answer that can be read: there, not longer than READABLE characters, with no markup of calls left in it."""
    said = _final_answer(trajectory)
    if not said:
        return 0.0, "there is nothing to read"
    if "<tool_call>" in said or "<think>" in said:
        return 0.3, "markup is left in the answer"
    return min(1.0, READABLE / len(said)), f"the answer has {len(said)} characters"


CRITERIA = weighted(
    accuracy=accuracy, efficiency=efficiency, completeness=completeness, user_satisfaction=user_satisfaction
)


def _messages(trajectory: Trajectory) -> Iterator[Mapping[str, Any]]:
    for history in (trajectory, *trajectory.additional_histories):
        yield from history.messages()


def _calls(trajectory: Trajectory) -> list[tuple[str, str]]:
    """(tool, arguments as JSON) of every call, in order, those of further conversations included."""
    return [
        (call["function"]["name"], call["function"]["arguments"] or "{}")
        for message in _messages(trajectory)
        for call in message.get("tool_calls") or []
    ]


def _results(trajectory: Trajectory) -> list[str]:
    return [str(message["content"]) for message in _messages(trajectory) if message["role"] == "tool"]


def _final_answer(trajectory: Trajectory) -> str:
    messages = trajectory.messages()
    last: Mapping[str, Any] = messages[-1] if messages else {}
    return str(last.get("content") or "").strip() if last.get("role") == "assistant" and not last.get("tool_calls") else ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, TypeError):
        return False
    return True
