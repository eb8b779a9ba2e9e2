"""The tasks of a verifiers taskset as an environment. Source: the package `verifiers` 0.4 (`verifiers.v1`)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from art_nb.environments.adapters.base import ConnectedEnvironment, call_and_await, import_extra, with_tools
from art_nb.environments.adapters.mcp import Connector


def verifiers_environment(taskset: str, **config: Any) -> type[VerifiersEnvironment]:
    """Return an environment class for the tasks of a taskset; its toolsets run over MCP in this process.

    A task ends with an answer without a call, a call of `answer`, or a `@vf.stop` function that returns true. taskset: name
    of its module, as for verifiers' own commands. config: fields of its config.

    Raises: ImportError without the package; ValueError for tasks that need a container, hooks, rewards, metrics or judges of
    the first task that need a runtime, `@vf.stop` functions that take a request or response, tools that share state with the
    task, two tools of the same name, and unsupported tool names or schemas.
    """
    vf, loaders = import_extra("verifiers.v1", "verifiers"), import_extra("verifiers.v1.utils.loaders", "verifiers")
    kind = loaders.taskset_class(taskset)
    generic = import_extra("verifiers.v1.utils.generic", "verifiers")
    configured = (generic.concrete_type(kind, vf.TasksetConfig) or vf.TasksetConfig)(id=taskset, **config)
    loaded, task_type = kind(configured), kind.task_type()
    for hook in ("setup", "finalize", "stage_verifier"):
        if getattr(task_type, hook) is not getattr(vf.Task, hook):
            raise ValueError(f"{task_type.__name__} has `{hook}`, which needs a verifiers runtime: run it with verifiers")
    if task_type.NEEDS_CONTAINER:
        raise ValueError(f"{task_type.__name__} needs a container: run it with verifiers")
    for task in loaded.take(1):
        for scored in (*task.hooks("metric"), *task.hooks("reward"), *(judge.score for judge in task.plugged_judges())):
            if getattr(inspect.signature(scored).parameters.get("runtime"), "default", None) is inspect.Parameter.empty:
                raise ValueError(f"`{scored.__qualname__}` needs a verifiers runtime: run it with verifiers")
        for stop in task.hooks("stop"):
            if import_extra("verifiers.v1.session", "verifiers").hook_boundary(stop, allow_trace=True) is not vf.Trace:
                raise ValueError(f"`{stop.__qualname__}` takes a request or response: run it with verifiers")

    def toolsets() -> list[Any]:
        return [*kind.toolsets(configured), *task_type.toolsets(configured.task)]

    if any(type(each.state) is not vf.State for each in toolsets()):
        raise ValueError(f"the tools of {taskset} share state with the task, which needs verifiers' own server")
    made = _connections(toolsets())
    with ExitStack() as stack:
        named = [(prefix + name, tool) for prefix, connect in made for name, tool in connect(stack)[2].items()]
    tools = [{"type": "function", "function": tool["function"] | {"name": name}} for name, tool in named]
    names = ["answer", *(name for name, _ in named)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two tools are called {twice[0]} (`answer` is added here): set another TOOL_PREFIX in {taskset}")
    environment = with_tools(VerifiersEnvironment, "VerifiersEnvironment", tools)
    environment._setup = (vf, loaded, toolsets)  # type: ignore[attr-defined]
    return environment


def _connections(toolsets: list[Any]) -> list[tuple[str, Connector]]:
    def server(toolset: Any) -> Any:
        made = import_extra("mcp.server.mcpserver", "mcp").MCPServer(type(toolset).__name__)
        toolset.register(made)
        return made

    return [(f"{each.server_name}_" if each.server_name else "", Connector(partial(server, each), {})) for each in toolsets]


class VerifiersEnvironment(ConnectedEnvironment):
    """One task of a taskset. Made by `verifiers_environment`."""

    plain_tool = "answer"
    _setup: tuple[Any, Any, Callable[[], list[Any]]]

    def reset(self, index: int = 0, **row: Any) -> str:
        """Start the task at this position. Returns its system prompt, if any, and its prompt; other columns are ignored."""
        from anyio.from_thread import start_blocking_portal

        self._stack.close()
        vf, loaded, new_toolsets = self._setup
        self._task: Any = next(iter(loaded.skip(index).take(1)), None)
        if self._task is None:
            raise ValueError(f"the taskset has no task {index}")
        prompt = self._task.data.prompt
        if prompt is None or not (isinstance(prompt, str) or all(message.role == "user" for message in prompt)):
            raise ValueError("the task does not start with a user message: run it with verifiers")
        self._portal = self._stack.enter_context(start_blocking_portal())
        toolsets = new_toolsets()  # verifiers starts them for each rollout, and sets them up before it lists their tools
        for toolset in toolsets:
            self._portal.call(toolset.setup)
            self._portal.call(toolset.setup_task, self._task.data)
        self._clients: dict[str, tuple[Any, Any, str]] = {}
        for prefix, connect in _connections(toolsets):
            portal, client, tools = connect(self._stack)
            self._clients |= {prefix + name: (portal, client, name) for name in tools}
        trace, agent = (import_extra(f"verifiers.v1.{name}", "verifiers") for name in ("trace", "configs.agent"))
        about = trace.TraceTask(type=type(self._task).__name__, data=self._task.data, key=self._task.key)
        self._trace = vf.Trace(task=about, agent=trace.AgentInfo(config=agent.AgentConfig()))
        self.over, self._scored, text = False, False, self._task.data.prompt_text
        if self._task.data.system_prompt:
            text = f"{self._task.data.system_prompt}\n\n{text}"
        self._add(vf.UserMessage(content=text))
        return text

    def _add(self, message: Any, sampled: bool = False) -> None:
        node, last = import_extra("verifiers.v1.graph", "verifiers").MessageNode, len(self._trace.nodes) - 1
        self._trace.nodes.append(node(parent=last if last >= 0 else None, message=message, sampled=sampled))

    def _call(self, name: str, arguments: dict) -> str:
        if self.over:
            return "The task is over."
        vf, (portal, client, tool) = self._setup[0], self._clients[name]
        given = {key: value for key, value in arguments.items() if value is not None}
        result = portal.call(partial(client.call_tool, tool, given))
        text = "\n".join(part.text for part in result.content if part.type == "text")
        call = f"call_{len(self._trace.nodes)}"
        written = json.dumps(given)
        self._add(vf.AssistantMessage(tool_calls=[vf.ToolCall(id=call, name=name, arguments=written)]), sampled=True)
        self._add(vf.ToolMessage(tool_call_id=call, name=name, content=text))
        for stop in self._task.hooks("stop"):
            self.over = self.over or bool(self._portal.call(partial(call_and_await, stop, self._trace)))
        return text

    def answer(self, text: str) -> str:
        """
        Give the final answer. This ends the task.

        Args:
            text: the answer.
        """
        if not self.over:
            self._add(self._setup[0].AssistantMessage(content=text), sampled=True)
            self.over = True
        return "Thank you."

    def get_reward(self) -> float:
        """Return the weighted sum of the task's rewards; 0 before the end. Raises: any exception of a reward function."""
        if not self.over:
            return 0.0
        if not self._scored:
            self._portal.call(self._task.score, self._trace)
            self._scored = True
        return float(self._trace.reward)

    @property
    def metrics(self) -> dict[str, float]:
        rewards = {name: each.score for name, each in self._trace.rewards.items() if each is not None}
        return {name: float(value) for name, value in {**self._trace.metrics, **rewards}.items() if value is not None}
