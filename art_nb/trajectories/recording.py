"""Trajectories of a function, apart from its return value: recorded from its model calls, or yielded by it.

    trajectory = await art.capture_auto_trajectory(agent(model.openai_client(), task))

In the agent, `art.auto_trajectory()` returns that trajectory, so that the agent can set a reward or a metric. The recording
is a context variable: concurrent and nested recordings stay separate, and asyncio tasks inherit it.
"""

import json
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, Literal, overload

from openai.types.chat.chat_completion import Choice
from pydantic_core import to_jsonable_python

from art_nb.trajectories.trajectory import History, Trajectory

_recorded: ContextVar[Trajectory | None] = ContextVar("recorded", default=None)
# A list, because tasks that the function starts share the object, whereas a value set in a task is visible only there.
_yielded: ContextVar[list[Trajectory] | None] = ContextVar("yielded", default=None)


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...
@overload
def auto_trajectory(*, required: Literal[False] = False) -> Trajectory | None: ...
def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """Return the trajectory that is being recorded, or None. required: raise RuntimeError instead of returning None."""
    trajectory = _recorded.get()
    if trajectory is None and required:
        raise RuntimeError(
            "no trajectory is being recorded: await the function with `art.capture_auto_trajectory(function())`, "
            "or call auto_trajectory() and handle None."
        )
    return trajectory


async def capture_auto_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Await `coroutine`, drop its return value, and return the trajectory of its model calls.

    The first request starts the main conversation. A later one continues the recorded conversation that its messages extend
    if it has the same tools, else it starts one of `additional_histories`. Of several choices (`n`) the first is recorded.
    metrics["duration"] is set at the end. Calls inside a nested recording are recorded only there.

    Raises: any exception of the coroutine; the trajectory is then lost, unless the function kept `auto_trajectory()`.
    """
    trajectory = Trajectory()
    token = _recorded.set(trajectory)
    try:
        await coroutine
    finally:
        _recorded.reset(token)
        trajectory.finish()
    return trajectory


def yield_trajectory(trajectory: Trajectory) -> None:
    """Hand `trajectory` to the enclosing `capture_yielded_trajectory`; without one, do nothing."""
    captured = _yielded.get()
    if captured is not None:
        captured[:] = [trajectory]


async def capture_yielded_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Await `coroutine`, drop its return value, and return the trajectory that it yielded last.

    Raises: RuntimeError when it yielded none; any exception of the coroutine.
    """
    captured: list[Trajectory] = []
    token = _yielded.set(captured)
    try:
        await coroutine
    finally:
        _yielded.reset(token)
    if not captured:
        raise RuntimeError("no trajectory was yielded: call `art.yield_trajectory(trajectory)` in the awaited function.")
    return captured[0]


def record(messages: list[Any], tools: list[Any] | None, choice: Choice) -> None:
    """Add a request and its answer `choice` (not a copy) to the current recording, if any. Called by art_nb's clients."""
    trajectory = _recorded.get()
    if trajectory is None:
        return
    request = [_plain(message) for message in messages]
    plain_tools = to_jsonable_python(tools or None)
    history = _extended_history(trajectory, request, plain_tools)
    history.messages_and_choices += [*request[len(history.messages_and_choices) :], choice]
    history.tools = plain_tools


def _extended_history(trajectory: Trajectory, messages: list[Any], tools: list[Any] | None) -> History:
    """Return the first conversation that `messages` extend, or add a new one to `additional_histories`."""
    for history in trajectory.histories():
        so_far = [_plain(message) for message in history.messages()]
        same_tools = history.tools == tools or (history.tools is None and not so_far)
        if same_tools and [*map(_identity, so_far)] == [*map(_identity, messages[: len(so_far)])]:
            return history
    trajectory.additional_histories.append(History())
    return trajectory.additional_histories[-1]


def _plain(message: Any) -> Any:
    """Copy a message (a dict or an openai object) to a dict without None values or empty lists; content is always set."""
    fields = to_jsonable_python(message, exclude_none=True)
    return {"content": "", **{name: value for name, value in fields.items() if value not in (None, [])}}


def _identity(message: Any) -> Any:
    """Return the key that messages are compared by: content and calls of an assistant message, all of any other."""
    if message.get("role") != "assistant":
        return message
    calls = [(call.get("id"), _parsed_call(call.get("function"))) for call in message.get("tool_calls", ())]
    return message["content"], calls


def _parsed_call(function: Any) -> Any:
    """Return a call with its arguments parsed: LangChain and others serialise them again, with different whitespace."""
    try:
        return {**function, "arguments": json.loads(function["arguments"])}
    except (TypeError, KeyError, ValueError):
        return function
