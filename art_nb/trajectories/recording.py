"""Recording: the trajectory of whatever a function says to a model, written beside it as it speaks.

The agent need not know of trajectories; it asks a client of `model.openai_client()` as it would ask any:

    trajectory = await art.capture_auto_trajectory(agent(model.openai_client(), task))

Inside of it, `art.auto_trajectory()` is that trajectory: there the agent may set a reward or a metric. Who is being
recorded is a context variable, so recordings beside or inside one another stay apart, and asyncio's tasks inherit it.
"""

from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, Literal, overload

from openai.types.chat.chat_completion import Choice
from pydantic_core import to_jsonable_python

from art_nb.trajectories.trajectory import History, Trajectory

_recorded: ContextVar[Trajectory | None] = ContextVar("recorded", default=None)


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...
@overload
def auto_trajectory(*, required: Literal[False] = False) -> Trajectory | None: ...
def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """The trajectory that is being recorded here, else None.

    required: raise RuntimeError instead of giving None.
    """
    trajectory = _recorded.get()
    if trajectory is None and required:
        raise RuntimeError(
            "nothing is being recorded here: await the function with "
            "`art.capture_auto_trajectory(function())`, or call auto_trajectory() and expect None."
        )
    return trajectory


async def capture_auto_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Await `coroutine` and return the trajectory of what it said to models; what it returns itself is dropped.

    An answer that goes on from what was said so far, with the same tools, lengthens that conversation; any other
    begins one of `additional_histories`. Of several answers to one request (`n`) the first is kept.
    metrics["duration"] is set at the end. Inside another recording, only this one notes what is said.

    Raises: what the coroutine raises; its trajectory is then lost, unless it kept `auto_trajectory()` itself.
    """
    trajectory = Trajectory()
    token = _recorded.set(trajectory)
    try:
        await coroutine
    finally:
        _recorded.reset(token)
        trajectory.finish()
    return trajectory


def record(messages: list[Any], tools: list[Any] | None, choice: Choice) -> None:
    """Note that `choice` answered `messages`, if anybody is recording. For clients; the choice is kept, not copied."""
    trajectory = _recorded.get()
    if trajectory is None:
        return
    asked = [_plain(message) for message in messages]
    offered = to_jsonable_python(tools or None)
    history = _continued(trajectory, asked, offered)
    history.messages_and_choices += [*asked[len(history.messages_and_choices) :], choice]
    history.tools = offered


def _continued(trajectory: Trajectory, messages: list[Any], tools: list[Any] | None) -> History:
    """The first conversation that `messages` go on from, or a new one."""
    for history in (trajectory, *trajectory.additional_histories):
        said = [_plain(message) for message in history.messages()]
        fits = history.tools == tools or (history.tools is None and not said)
        if fits and [*map(_essence, said)] == [*map(_essence, messages[: len(said)])]:
            return history
    trajectory.additional_histories.append(History())
    return trajectory.additional_histories[-1]


def _plain(message: Any) -> Any:
    """A copy as a dict, whether openai's object or a dict was given; what is None or empty is left out."""
    fields = to_jsonable_python(message, exclude_none=True)
    return {"content": "", **{name: value for name, value in fields.items() if value not in (None, [])}}


def _essence(message: Any) -> Any:
    """What two messages share that are the same: all; of an assistant's what it says and calls, in the API's terms."""
    if message.get("role") != "assistant":
        return message
    calls = [(call.get("id"), call.get("function")) for call in message.get("tool_calls", ())]
    return message["content"], calls
