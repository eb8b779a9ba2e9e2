"""Let a model behind a chat client play any environment that follows TRL's `environment_factory` contract.

The contract: `reset(**row)` returns the text after the prompt; every other public method is a tool, with type hints and a
Google docstring; `get_reward()` returns the reward. Properties are not tools, and four of them are read here if they exist:

- `over`: True once the episode has ended. An answer without a call also ends it, as in TRL, unless there is a `plain_tool`.
- `plain_tool`: name of the one-parameter tool that receives an answer without a call.
- `metrics`: a dict of numbers to chart.
- `progress`: a number whose changes are the turn rewards; by default the reward.

An environment that is a context manager is entered before `reset` and exited at the end.
Source: GRPOTrainer.__init__ and GRPOTrainer._tool_call_loop of TRL 1.15.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from art_nb.environments.isolation import BrokenEnvironment, IsolatedCalls
from art_nb.environments.tools import MalformedCall, clean, parse_arguments, tool_schema
from art_nb.trajectories import History, Trajectory

NOT_TOOLS, PROPERTIES = ("reset", "get_reward"), {"over", "plain_tool", "metrics", "progress"}
_SCHEMAS: WeakKeyDictionary[type, dict[str, dict]] = WeakKeyDictionary()  # each rollout makes an environment


def environment_tools(environment: Any) -> dict[str, dict]:
    """Return the OpenAI schemas of an environment's tools by name, sorted as TRL lists them.

    A method's attribute `schema` takes precedence over its type hints and docstring. All environments of a class share the
    schemas: do not change them. Raises: TypeError, ValueError for a method without type hints or descriptions.
    """
    found, derived = {}, _SCHEMAS.setdefault(type(environment), {})
    for name, method in _methods(environment).items():
        found[name] = getattr(method, "schema", None) or derived.get(name) or derived.setdefault(name, tool_schema(method))
    return found


def _methods(environment: Any) -> dict[str, Callable[..., Any]]:
    kind = type(environment)  # not with inspect.getmembers, which is slow: this runs after every call
    names = [name for name in dir(kind) if not name.startswith("_") and name not in NOT_TOOLS]
    methods = [getattr(environment, name) for name in names if inspect.isfunction(getattr(kind, name, None))]
    return {method.__name__: method for method in methods}


def observation_text(source: str, result: Any) -> str:
    """Return an observation as the text that the model reads: JSON for values other than text.

    source: its name in error messages. Raises: BrokenEnvironment for a value that text cannot represent.
    """
    if result is None or isinstance(result, str):
        return clean(result or "")
    if not isinstance(result, int | float | dict | list | tuple):
        raise BrokenEnvironment(f"{source} returned {type(result).__name__}: expected text or JSON values.")
    if isinstance(result, list) and any(isinstance(part, dict) and part.get("type") == "image" for part in result):
        raise BrokenEnvironment(f"{source} returned an image: the model can be shown text only.")
    try:
        return clean(json.dumps(result, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise BrokenEnvironment(f"{source} returned a value that JSON cannot represent: {error}.") from error


GRACE = 1.0  # seconds to wait for a call that is still running when its rollout ends


class _Episode:
    """One environment while a rollout plays it: its calls are limited in time, its observations in length."""

    def __init__(self, calls: IsolatedCalls, max_observation: int):
        self.calls, self.max_observation = calls, max_observation
        self.name, self.environment = "the environment", cast(Any, None)
        self.logs: list[str] = []
        self.failures, self.entered, self.state = 0, False, ""  # state: the last observation that is not an error

    async def start(self, factory: Callable[[], Any], row: dict[str, Any]) -> None:
        self.environment = await self._contract("environment_factory", factory)
        self.name, self.entered = type(self.environment).__name__, not hasattr(self.environment, "__enter__")
        self.methods = _methods(self.environment)
        if methods := sorted(PROPERTIES & self.methods.keys()):
            raise BrokenEnvironment(f"{self.name}.{methods[0]} is a method, so a tool: expected a property. Add @property.")
        self.schemas = environment_tools(self.environment)
        if not self.entered:
            self.entered = True  # also if it returns after the time limit
            try:
                await self._contract(f"{self.name}.__enter__", self.environment.__enter__)
            except BrokenEnvironment:
                self.entered = not await self.calls.returned(0)
                raise
        observation = await self._contract(f"{self.name}.reset", self.environment.reset, **row)
        self.state = self._text("reset", observation)

    async def read(self, name: str, default: Any = None) -> Any:
        """Return a property of the environment."""
        fallback = () if hasattr(type(self.environment), name) else (default,)  # a default would hide a property's error
        return await self._contract(f"{self.name}.{name}", getattr, self.environment, name, *fallback)

    async def number(self, name: str, function: Callable[..., Any], *args: Any) -> float:
        value = await self._contract(f"{self.name}.{name}", function, *args)
        try:
            number = float(value)
        except Exception:  # RuntimeError of a tensor without data, for example
            number = math.nan
        if not math.isfinite(number):
            raise BrokenEnvironment(f"{self.name}.{name} returned {_short(value)}: expected a finite number.")
        return number

    async def reward(self) -> float:
        return await self.number("get_reward", self.environment.get_reward)

    async def progress(self) -> float:
        if hasattr(type(self.environment), "progress") or "progress" in getattr(self.environment, "__dict__", ()):
            return await self.number("progress", getattr, self.environment, "progress")
        return await self.reward()

    async def call(self, name: str, arguments: str | dict | None) -> str:
        """Call a tool. As in TRL, the message of a malformed call or of the tool's exception is the observation."""
        failures = self.failures
        try:
            given = parse_arguments(self.schemas.values(), name, arguments)
            result = await self.calls.call(f"tool {name} of {self.name}", self.methods[name], **given)
        except BrokenEnvironment:
            raise
        except Exception as error:
            self.failures += 1
            kind = "Malformed" if isinstance(error, MalformedCall) else f"Error: {type(error).__name__}"
            result = f"{kind}: {error}"
        if _methods(self.environment) != self.methods:
            now = ", ".join(_methods(self.environment)) or "none"
            raise BrokenEnvironment(
                f"{self.name} changed its tools during the episode (before: {', '.join(self.methods)}; now: {now}): "
                "the prompt lists the first ones. Make an environment for each set of tools."
            )
        text = self._text(name, result)
        self.state = text if self.failures == failures else self.state
        return text

    async def close(self) -> None:
        if not (self.entered and hasattr(self.environment, "__exit__")):
            return
        leave = partial(self.environment.__exit__, None, None, None)
        if await self.calls.returned(GRACE):
            await self._contract(f"{self.name}.__exit__", leave)
        else:
            self.calls.call_later(leave)

    async def _contract(self, what: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return await self.calls.call(what, function, *args, **kwargs)
        except BrokenEnvironment:
            raise
        except Exception as error:
            raise BrokenEnvironment(f"{what} raised {type(error).__name__}: {_short(error)}") from error

    def _text(self, what: str, result: Any) -> str:
        text = observation_text(f"{what} of {self.name}", result)
        if (more := len(text) - self.max_observation) > 0:
            shown = f"the model saw {self.max_observation:,}"
            self.logs.append(f"{what} of {self.name} returned {len(text):,} characters; {shown}.")
            text = f"{text[: self.max_observation]}\n[{more:,} more characters]"
        return text


async def rollout_environment(
    client: Any,
    environment_factory: Callable[[], Any],
    *,
    model: str,
    row: dict[str, Any] | None = None,
    prompt: Iterable[dict] = ({"role": "user", "content": ""},),
    max_turns: int = 20,
    history: bool = True,
    timeout: float | None = 60.0,
    max_observation: int = 8_000,
    metadata: dict[str, Any] | None = None,
    turn_rewards: bool = False,
    **request: Any,
) -> Trajectory:
    """Let a model play one episode of an environment made for TRL. Returns the trajectory with the environment's reward.

    client: `AsyncOpenAI`, `model.openai_client()` or another with `chat.completions.create`. model: its name in requests.
    environment_factory: as for TRL; called once, for this episode alone.
    row: a dataset row, passed to `reset`. prompt: messages; the text that `reset` returns is appended to the last one.
    max_turns: limit on the model's answers. timeout: seconds for each call to the environment; None: no limit, which
        is faster, for environments that you trust. max_observation: characters of an observation that the model sees.
    history: False sends only the prompt with the newest observation (after a failed call: the error and the last
        observation), which is faster, and enough if each observation shows the whole state, e.g. a board. The text from
        `reset` is in the first request only. Each later request is one of `additional_histories`. Needs `tools=None`.
    turn_rewards: also store a reward for each answer, the change of the environment's `progress`.
    request: other parameters of each request, such as `temperature`. `tools=None` offers no tools, for a model without tool
        calls; the environment then needs a `plain_tool`.

    metrics: the environment's; `turns`; `tool_failures` (calls that were malformed or raised; the model reads why);
    `out_of_turns`.

    Raises: BrokenEnvironment if the environment cannot be made, reset or scored, hangs, returns neither text nor JSON, or
    changes its tools: with `max_exceptions`, gather records it and continues. TypeError, ValueError: as `environment_tools`,
    or for `max_turns`, `prompt` or `history`. Any exception from the client.
    """
    if max_turns < 1:
        raise ValueError(f"max_turns is {max_turns}: expected 1 or more")
    calls = IsolatedCalls(timeout)
    episode = _Episode(calls, max_observation)
    try:
        await episode.start(environment_factory, row or {})
        messages = [] if isinstance(prompt, str) else [dict(message) for message in prompt]
        if not messages or not isinstance(messages[-1].get("content"), str):
            raise ValueError("prompt must be a list of messages, of which the last has text as its content")
        first = _followed_by(messages, episode.state)
        trajectory = Trajectory(messages_and_choices=first, metadata=metadata or {}, logs=episode.logs)
        request = {"tools": list(episode.schemas.values()) or None} | request
        trajectory.tools = request["tools"]
        repeated = None if history else messages
        rewards = await _play(client, episode, trajectory, {"model": model, **request}, max_turns, turn_rewards, repeated)
        trajectory.reward = await episode.reward()
        trajectory.metrics |= {**(await episode.read("metrics") or {}), "tool_failures": episode.failures}
        trajectory.logs = episode.logs
        trajectory.turn_rewards = rewards or None
        return trajectory
    finally:
        try:
            await episode.close()
        finally:
            calls.close()


def _followed_by(prompt: list[dict], observation: str) -> list[Any]:
    return [*prompt[:-1], {**prompt[-1], "content": prompt[-1]["content"] + observation}]


async def _play(
    client: Any, episode: _Episode, trajectory: Trajectory, request: dict[str, Any], max_turns: int, turn_rewards: bool,
    prompt: list[dict] | None,
) -> list[float]:  # fmt: skip
    """Alternate between model and environment. Returns the turn rewards, if requested. prompt: only without history."""
    request = {name: value for name, value in request.items() if name != "tools" or value}
    plain = await episode.read("plain_tool")
    if prompt and ("tools" in request or not plain):
        raise ValueError("history=False is for answers in text: expected tools=None, and an environment with a `plain_tool`")
    taken = list(episode.schemas[plain]["function"]["parameters"]["properties"]) if plain in episode.schemas else []
    if plain and len(taken) != 1:
        raise BrokenEnvironment(f"{episode.name}.plain_tool is {plain!r}: expected the name of a tool with one parameter.")
    rewards, before = [], await episode.progress() if turn_rewards else 0.0
    conversation, observation = cast(History, trajectory), ""
    for turn in range(max_turns):
        if prompt and turn:
            seen = observation if observation == episode.state else f"{observation}\n{episode.state}"  # after an error both
            conversation = History(messages_and_choices=_followed_by(prompt, seen))
            trajectory.additional_histories.append(conversation)
        completion = await client.chat.completions.create(messages=conversation.messages(), **request)
        choice, answers = completion.choices[0], conversation.messages_and_choices
        answers.append(choice)
        for call in choice.message.tool_calls or []:
            observation = await episode.call(call.function.name, call.function.arguments)
            answers.append({"role": "tool", "tool_call_id": call.id, "content": observation})
        if has_text := plain and not choice.message.tool_calls:
            observation = await episode.call(plain, {taken[0]: choice.message.content or ""})
            answers.append({"role": "user", "content": observation})
        if turn_rewards:
            rewards.append(await episode.progress() - before)
            before += rewards[-1]
        ended = not (choice.message.tool_calls or has_text)
        if ended or await episode.read("over", False):
            break
    turns = len(trajectory.all_choices())
    trajectory.metrics |= {"turns": turns, "out_of_turns": not ended and not await episode.read("over", False)}
    return rewards


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
