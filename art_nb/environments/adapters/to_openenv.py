"""Serve an environment that follows TRL's contract to OpenEnv's clients. Source: the package `openenv` 0.10."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from art_nb.environments.adapters.base import import_extra, listed_tools
from art_nb.environments.contract import environment_tools
from art_nb.environments.tools import parse_arguments


def openenv_app(environment_factory: Callable[[], Any], *, sessions: int = 64) -> Any:
    """Return a FastAPI application, to run with uvicorn, that creates a new environment for each session.

    Clients list the tools and call them with OpenEnv's `ListToolsAction` and `CallToolAction`. The return value of `reset`
    or of a tool is the observation's `result`. The first reward is the environment's `progress` after `reset`; a step's is
    the change, so that the sum is `get_reward()` at the end. The metrics are in the last observation's metadata.

    sessions: maximum number of concurrent sessions. Raises: ImportError without the package.
    """
    parts = ("", ".mcp_types", ".interfaces")
    server, types, interfaces = (import_extra(f"openenv.core.env_server{part}", "openenv") for part in parts)

    class Session(interfaces.Environment):  # type: ignore[name-defined]
        """A session: one environment, entered if it is a context manager, and reset whenever the client requests it."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._environment, self._stack = environment_factory(), ExitStack()
            self._tools = environment_tools(self._environment)
            self._runner = self._stack.enter_context(asyncio.Runner())  # one loop for all async methods
            if hasattr(self._environment, "__enter__"):
                self._stack.enter_context(self._environment)
            self._total_reward, self._steps = 0.0, 0

        def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Any:
            given = row if seed is None else {"seed": seed, **row}
            self._steps, first = 0, self._result(self._environment.reset(**given))
            self._total_reward = self._progress()
            return types.CallToolObservation(tool_name="reset", result=first, done=self._over, reward=self._total_reward)

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            if isinstance(action, types.ListToolsAction):
                return types.ListToolsObservation(tools=listed_tools(types.Tool, self._tools))
            self._steps += 1
            try:
                arguments = parse_arguments(self._tools.values(), action.tool_name, action.arguments)
                result = self._result(getattr(self._environment, action.tool_name)(**arguments))
            except Exception as error:  # as in TRL, the model reads the error
                result = f"Error: {error}"
            total = float(self._result(self._environment.get_reward())) if self._over else self._progress()
            reward, self._total_reward = total - self._total_reward, total
            metadata = dict(getattr(self._environment, "metrics", {})) if self._over else {}
            return types.CallToolObservation(
                tool_name=action.tool_name, result=result, done=self._over, reward=reward, metadata=metadata
            )

        def close(self) -> None:
            self._stack.close()

        def _result(self, value: Any) -> Any:
            return self._runner.run(value) if asyncio.iscoroutine(value) else value

        @property
        def state(self) -> Any:
            return server.types.State(step_count=self._steps)

        @property
        def _over(self) -> bool:
            return bool(getattr(self._environment, "over", False))

        def _progress(self) -> float:
            progress = getattr(self._environment, "progress", None)
            return float(self._result(self._environment.get_reward()) if progress is None else progress)

    return server.create_app(Session, types.CallToolAction, types.CallToolObservation, max_concurrent_envs=sessions)
