"""LangGraph, under ART's names: a chat model for rollouts, and a wrapper that records a graph's requests as the trajectory.

    async def rollout(model, scenario) -> art.Trajectory:
        agent = create_react_agent(init_chat_model(model.name), tools)
        await agent.ainvoke({"messages": [("user", scenario)]})
        return art.Trajectory(messages_and_choices=[], reward=...)

    trajectory = await wrap_rollout(model, rollout)(model, scenario)

The chat model is LangChain's own and uses the model's client, so that sampled turns keep their token ids. Needs the extra
`langgraph`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Literal

from art_nb.trajectories import Trajectory
from art_nb.trajectories.recording import capture_auto_trajectory

__all__ = ["init_chat_model", "wrap_rollout"]

_model: ContextVar[Any] = ContextVar("model of the rollout")


def wrap_rollout(model: Any, fn: Callable[..., Awaitable[Trajectory]]) -> Callable[..., Awaitable[Trajectory]]:
    """Wrap `fn`, so that the trajectory that it returns gets the conversations recorded from its model calls.

    model: the registered model that `init_chat_model` uses inside the rollout. The first conversation replaces the
    trajectory's messages and tools; further ones (sub-agents, shortened histories) are added to `additional_histories`.
    Reward, metrics, metadata and logs are those that `fn` returned; so are the messages, if it called no model.
    """

    async def wrapper(*args: Any, **kwargs: Any) -> Trajectory:
        returned: list[Trajectory] = []

        async def run() -> None:
            returned.append(await fn(*args, **kwargs))

        token = _model.set(model)
        try:
            recorded = await capture_auto_trajectory(run())
        finally:
            _model.reset(token)
        (trajectory,) = returned
        if recorded.messages_and_choices and trajectory is not recorded:
            trajectory.messages_and_choices, trajectory.tools = recorded.messages_and_choices, recorded.tools
            trajectory.additional_histories += recorded.additional_histories
        return trajectory

    return wrapper


def init_chat_model(
    model: str | None = None,
    *,
    model_provider: str | None = None,
    configurable_fields: Literal[None] = None,
    config_prefix: str | None = None,
    **kwargs: Any,
) -> Any:
    """Return a `langchain_openai.ChatOpenAI` whose requests go to the model of the enclosing `wrap_rollout`.

    model, model_provider, configurable_fields, config_prefix: not used, as in ART. kwargs: arguments of `ChatOpenAI`; the
    temperature is 1 by default.

    Raises: RuntimeError outside of a wrapped rollout; ImportError without the extra.
    """
    registered = _model.get(None)
    if registered is None:
        raise RuntimeError("init_chat_model was called outside of a rollout: call it in one wrapped by `wrap_rollout`")
    try:
        from langchain_openai import ChatOpenAI
    except ImportError as error:
        raise ImportError("langchain-openai is not installed: pip install 'art-nb[langgraph]'") from error
    client, blocking = registered.openai_client(), registered.openai_client(sync=True)
    return ChatOpenAI(
        model=registered.get_inference_name(), api_key="unused", root_client=blocking, client=blocking.chat.completions,
        root_async_client=client, async_client=client.chat.completions, **{"temperature": 1.0} | kwargs,
    )  # fmt: skip
