"""A trajectory: what one rollout said, did and earned."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pydantic
from openai.types.chat.chat_completion import Choice

from art_nb.trajectories.records import decode, encode
from art_nb.types import Messages, MessagesAndChoices, Tools

MetadataValue = float | int | str | bool | None


def _with_choices(items: Any) -> Any:
    """What was a `Choice` before it was serialised is one again; a message is left as it is."""
    if not isinstance(items, list | tuple):
        return items
    is_choice = {"finish_reason", "message"}.issubset
    return [_choice(item) if isinstance(item, dict) and is_choice(item) else item for item in items]


def _choice(fields: dict[str, Any]) -> Choice:
    choice = Choice(**fields)
    for name in ("token_logprobs", "token_advantages"):
        if name in fields:
            setattr(choice, name, [float(x) for x in fields[name]])  # "NaN", "Infinity" are numbers again
    return choice


class History(pydantic.BaseModel):
    """A conversation: messages as plain dicts, and a `Choice` wherever the trained model spoke."""

    # NaN and infinity have no spelling in JSON: they are written as strings, which pydantic reads back
    model_config = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    messages_and_choices: MessagesAndChoices = []
    tools: Tools | None = None

    _restore = pydantic.field_validator("messages_and_choices", mode="before")(_with_choices)

    def messages(self) -> Messages:
        """The conversation as plain messages, fit for an API or a chat template; no content is None."""
        return [_message(item) for item in self.messages_and_choices]

    def choices(self) -> list[Choice]:
        """The turns that can be trained on, in order."""
        return [item for item in self.messages_and_choices if isinstance(item, Choice)]


class Trajectory(History):
    """One rollout: what was said, what it earned, and whatever else is worth a curve.

    messages_and_choices: the conversation; append `completion.choices[0]` itself where it is to be trained.
        What another model said (its choice's `policy`), the base in self-play say, is not: see TrainConfig.other_policies.
    tools: the tools offered to the model, in OpenAI's format.
    additional_histories: further conversations of the same rollout (of sub-agents, say), trained with it.
    reward: of the whole trajectory; any finite number by the time it is trained on.
    turn_rewards: one per `Choice`, in order, `additional_histories` last; None: one reward for all.
    metrics: numbers to average and plot, and what the rollout took (see `accounts`); metadata: facts to filter by; logs:
        lines to read.
    initial_policy_version, final_policy_version: training steps of the policy that began and ended it.
    """

    additional_histories: list[History] = []
    reward: float = 0.0
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    metrics: dict[str, float | int | bool] = {}
    metadata: dict[str, MetadataValue] = {}
    logs: list[str] = []
    turn_rewards: list[float] | None = None
    start_time: datetime = pydantic.Field(default_factory=datetime.now, exclude=True)

    _ran: tuple[float, float] | None = None  # see `accounts`

    def log(self, message: str) -> None:
        """Add a line to `logs`."""
        self.logs.append(message)

    def finish(self) -> "Trajectory":
        """Set metrics["duration"], the seconds since the trajectory was made; returns it."""
        self.metrics["duration"] = (datetime.now() - self.start_time).total_seconds()
        return self

    @asynccontextmanager
    async def track_duration(self, metric_name: str) -> AsyncIterator[None]:
        """Add the seconds spent in the `async with` block to metrics["{metric_name}_duration"]."""
        start = time.monotonic()
        try:
            yield
        finally:
            key = f"{metric_name}_duration"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.monotonic() - start

    def for_logging(self) -> dict[str, Any]:
        """A dict to print: the messages, each with `trainable`, and all else but the additional histories."""
        fields = ("reward", "initial_policy_version", "final_policy_version", "metrics", "metadata")
        return {
            **{name: getattr(self, name) for name in fields},
            "messages": [
                {**(i.message.to_dict() if (sampled := isinstance(i, Choice)) else i), "trainable": sampled}
                for i in self.messages_and_choices
            ],
            "tools": self.tools,
            "logs": self.logs,
        }

    def record(
        self,
        *,
        step: int = 0,
        split: str = "train",
        group: int = 0,
        index: int = 0,
        advantage: float | None = None,
    ) -> dict[str, Any]:
        """The trajectory as one JSON object (see `records`), placed by step, split, group and index.

        advantage: None takes the mean over the tokens that were trained on, if any.
        Raises: ValueError when `turn_rewards` does not have one entry per Choice.
        """
        return encode(self, step=step, split=split, group=group, index=index, advantage=advantage)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Trajectory":
        """The trajectory of a record. Its choices have `token_texts`, `token_logprobs`, but no token ids."""
        return cls(**decode(record))

    def __str__(self) -> str:
        return f"Trajectory(reward={self.reward}, metrics={self.metrics}, metadata={self.metadata})"


def _message(item: Any) -> Any:
    """As a dict. By hand where pydantic would do as well: a long conversation's messages are asked for every turn."""
    if not isinstance(item, Choice):
        return dict(item) if item.get("content") is not None else {**item, "content": ""}
    said = item.message
    message: dict[str, Any] = {"role": "assistant", "content": said.content or ""}
    if said.tool_calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            if c.type == "function"
            else c.model_dump(mode="json")
            for c in said.tool_calls
        ]
    return message
