"""Turn a TRL-style environment into a verifiers taskset. Source: the package `verifiers` 0.4 (`verifiers.v1`).

    class EmailTools(EnvironmentTools):
        environment_factory = EmailSearchEnvironment

    class EmailTask(EnvironmentTask):
        tools = EmailTools

    class EmailTaskset(EnvironmentTaskset, vf.Taskset[EmailTask, vf.TasksetConfig]):
        rows = ({"scenario": "val-0"},)

    if __name__ == "__main__":
        EmailTools.run()

They are module-level classes because verifiers starts the tools in a separate process, with `python -m MODULE`.
Importing this module requires the package. The environment's `reset` must not be async.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import Any, ClassVar

import verifiers.v1 as vf  # type: ignore[import-not-found]
from mcp.server.mcpserver import MCPServer

from art_nb.environments.adapters.base import call_and_await
from art_nb.environments.contract import environment_tools


class EnvironmentData(vf.TaskData):
    """A row of the environment's dataset. The prompt is the text that `reset` returns for it."""

    row: dict[str, Any]


class EnvironmentTools(vf.Toolset[vf.ToolsetConfig]):
    """The tools of one episode: an MCP server that verifiers starts per rollout. A subclass sets `environment_factory`."""

    TOOL_PREFIX = None
    environment_factory: ClassVar[Callable[[], Any]]

    async def setup_task(self, task: EnvironmentData) -> None:
        self.environment = type(self).environment_factory()
        if hasattr(self.environment, "__enter__"):
            self._exit_stack.enter_context(self.environment)
        self.environment.reset(**task.row)

    def register(self, mcp: Any) -> None:
        if not hasattr(self, "environment"):  # listing the tools needs no task
            self.environment = type(self).environment_factory()
        for name, tool in environment_tools(self.environment).items():
            mcp.add_tool(getattr(self.environment, name), description=tool["function"]["description"])


class EnvironmentTask(vf.Task[EnvironmentData]):
    """One episode. A subclass sets `tools`.

    The tools run in another process, so an episode is scored by replaying its calls in a new environment. The environment
    must therefore be deterministic for a given row and given calls.
    """

    tools: ClassVar[type[EnvironmentTools]]

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return [cls.tools(vf.ToolsetConfig())]

    async def replayed(self, trace: Any, read: Callable[[Any], Any]) -> Any:
        """Replay the calls of a trace through the same MCP tools; return `read(environment)`, awaited if it is async."""
        tools, server = self.tools(vf.ToolsetConfig()), MCPServer(self.tools.__name__)
        async with tools._exit_stack:
            await tools.setup_task(self.data)
            tools.register(server)
            for message in trace.assistant_messages:
                for call in message.tool_calls or []:
                    with suppress(Exception):  # the model read the error when it made the call
                        await server.call_tool(call.name, json.loads(call.arguments))
            return await call_and_await(read, tools.environment)

    @vf.stop
    async def over(self, trace: vf.Trace) -> bool:
        return bool(await self.replayed(trace, lambda environment: getattr(environment, "over", False)))

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        return float(await self.replayed(trace, lambda environment: environment.get_reward()))

    @vf.metric
    async def metrics(self, trace: vf.Trace) -> dict[str, float]:
        found = await self.replayed(trace, lambda environment: getattr(environment, "metrics", {}))
        return {name: float(value) for name, value in found.items()}


class EnvironmentTaskset:
    """Tasks made from dataset rows. A subclass sets `rows`, and also inherits from `vf.Taskset` of its task."""

    rows: ClassVar[Iterable[dict[str, Any]]]

    def load(self) -> Iterator[Any]:
        task = self.task_type()  # type: ignore[attr-defined]
        environment = task.tools.environment_factory()
        with environment if hasattr(environment, "__enter__") else nullcontext():
            for row in self.rows:
                data = EnvironmentData(prompt=environment.reset(**row), row=row)
                yield task(data, self.config.task)  # type: ignore[attr-defined]
