"""Criteria for any tool-calling agent, computed from the conversation alone.

They cannot tell a right answer from a wrong one: for a task with known answers, register criteria (`rubric.register`).
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from art_nb.rewards.rubric import weighted
from art_nb.trajectories import Trajectory
from art_nb.trajectories.records import call_of

FAILED = re.compile(r'^\W*(error|traceback|exception)\b|^(malformed|refused):|"(error|exception)"\s*:(?!\s*null)', re.I)
READABLE = 1_500  # characters; longer answers score less


def accuracy(trajectory: Trajectory) -> tuple[float, str]:
    """The share of valid calls: known tool, arguments in JSON, a result that is not an error."""
    known = {tool["function"]["name"] for tool in trajectory.tools or []}
    right: list[bool] = []
    places: dict[str | None, int] = {}  # of the latest call with each id
    for message in _messages(trajectory):
        places |= {call.get("id"): len(right) + i for i, call in enumerate(message.get("tool_calls") or [])}
        right += [_is_json(arguments) and (not known or name in known) for name, arguments in _calls([message])]
        if message["role"] == "tool" and right and FAILED.search(str(message["content"])):
            right[places.get(message.get("tool_call_id"), -1)] = False
    if not right:
        return 1.0, "no tool was called, so no call was wrong"
    return sum(right) / len(right), f"{sum(right)} of {len(right)} calls went well"


def efficiency(trajectory: Trajectory) -> tuple[float, str]:
    """The share of calls that do not repeat an earlier one with the same arguments."""
    counts = Counter(_calls(_messages(trajectory)))
    repeated = sum(counts.values()) - len(counts)
    return len(counts) / sum(counts.values()) if counts else 1.0, f"{repeated} calls were repeated"


def completeness(trajectory: Trajectory) -> tuple[float, str]:
    """1 when the conversation ends with an answer from the agent, 0.5 when it ends otherwise, 0 when it is empty."""
    if _final_answer(trajectory):
        return 1.0, "it ends with an answer"
    return 0.5 if trajectory.messages() else 0.0, "it ends without an answer"


def user_satisfaction(trajectory: Trajectory) -> tuple[float, str]:
    """A readable final answer: not empty, at most READABLE characters, without tool-call or thinking markup."""
    answer = _final_answer(trajectory)
    if not answer:
        return 0.0, "there is nothing to read"
    if "<tool_call>" in answer or "<think>" in answer:
        return 0.3, "markup is left in the answer"
    return min(1.0, READABLE / len(answer)), f"the answer has {len(answer)} characters"


CRITERIA = weighted(accuracy=accuracy, efficiency=efficiency, completeness=completeness, user_satisfaction=user_satisfaction)


def _messages(trajectory: Trajectory) -> list[Mapping[str, Any]]:
    return [message for history in trajectory.histories() for message in history.messages()]


def _calls(messages: list[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (tool, arguments as JSON) of every call, in order."""
    calls = [call_of(call) for message in messages for call in message.get("tool_calls") or []]
    return [(call["name"], call["arguments"] or "{}") for call in calls]


def _final_answer(trajectory: Trajectory) -> str:
    messages = trajectory.messages()
    last: Mapping[str, Any] = messages[-1] if messages else {}
    spoke = last.get("role") == "assistant" and not last.get("tool_calls")
    return str(last.get("content") or "").strip() if spoke else ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return False
    return True
