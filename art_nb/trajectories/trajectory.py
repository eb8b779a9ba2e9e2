"""`Trajectory`: the conversation, reward and metrics of one rollout."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pydantic
from openai.types.chat.chat_completion import Choice

from art_nb.trajectories.records import encode
from art_nb.types import Messages, MessagesAndChoices, Tools

MetadataValue = float | int | str | bool | None


def _with_choices(items: Any) -> Any:
    """Turn serialised choices back into `Choice` objects; leave messages as they are."""
    if not isinstance(items, list | tuple):
        return items
    is_choice = {"finish_reason", "message"}.issubset
    return [_choice(item) if isinstance(item, dict) and is_choice(item) else item for item in items]


def _choice(fields: dict[str, Any]) -> Choice:
    choice = Choice(**fields)
    for name in ("token_logprobs", "token_advantages"):
        if name in fields:
            setattr(choice, name, [float(x) for x in fields[name]])  # parses "NaN" and "Infinity"
    return choice


class History(pydantic.BaseModel):
    """A conversation: messages as plain dicts, and a `Choice` for each turn of the trained model."""

    # JSON has no NaN or infinity, so pydantic writes and reads them as strings
    model_config = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    messages_and_choices: MessagesAndChoices = []
    tools: Tools | None = None

    _restore = pydantic.field_validator("messages_and_choices", mode="before")(_with_choices)

    def messages(self) -> Messages:
        """Return the conversation as plain messages for an API or a chat template; content is never None."""
        return [_message(item) for item in self.messages_and_choices]

    def choices(self) -> list[Choice]:
        """Return the sampled turns, in order."""
        return [item for item in self.messages_and_choices if isinstance(item, Choice)]


class Trajectory(History):
    """One rollout: its conversation, reward, metrics and logs.

    messages_and_choices: the conversation; append `completion.choices[0]` itself for each turn to train on. Turns that
        another model sampled (see the choice's `policy`) are not trained on by default: see TrainConfig.other_policies.
    tools: the tools offered to the model, in OpenAI's format.
    additional_histories: further conversations of the rollout, for example of sub-agents, also trained on.
    reward: of the whole trajectory; must be finite when it is trained on.
    turn_rewards: one per `Choice`, in order, those of `additional_histories` last; None: `reward` counts for every turn.
    metrics: numbers to average and plot, and the rollout's tokens and costs (see `usage`).
    metadata: values to filter by. logs: lines of text.
    initial_policy_version, final_policy_version: training step of the policy at the start and end; art_nb does not set them.
    rollout_span: start and end in seconds of `time.monotonic`, set by the call that runs the rollout; not serialised.
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
    rollout_span: tuple[float, float] | None = pydantic.Field(default=None, exclude=True, repr=False)

    def histories(self) -> list[History]:
        """Return all conversations of the rollout: this one and the additional ones."""
        return [self, *self.additional_histories]

    def all_choices(self) -> list[Choice]:
        """Return the sampled turns of all conversations, in the order of `turn_rewards`."""
        return [choice for history in self.histories() for choice in history.choices()]

    def log(self, message: str) -> None:
        """Add a line to `logs`."""
        self.logs.append(message)

    def finish(self) -> "Trajectory":
        """Set metrics["duration"], the seconds since the trajectory was created; return the trajectory."""
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
        """Return a dict to print: messages (with `trainable`) and tools of the main conversation, logs, metrics etc."""
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
        self, *, step: int = 0, split: str = "train", group: int = 0, index: int = 0, advantage: float | None = None
    ) -> dict[str, Any]:
        """Return the trajectory as a dict for JSON (see `records`).

        advantage: None: the mean over the tokens trained on, if any.
        Raises: ValueError when `turn_rewards` does not have one entry per Choice.
        """
        return encode(self, step=step, split=split, group=group, index=index, advantage=advantage)

    def __str__(self) -> str:
        return f"Trajectory(reward={self.reward}, metrics={self.metrics}, metadata={self.metadata})"


def _message(item: Any) -> Any:
    """Return the message as a dict. Avoids pydantic, which is slow: every turn converts the whole conversation."""
    if not isinstance(item, Choice):
        return dict(item) if item.get("content") is not None else {**item, "content": ""}
    message: dict[str, Any] = {"role": "assistant", "content": item.message.content or ""}
    if item.message.tool_calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            if c.type == "function"
            else c.model_dump(mode="json")
            for c in item.message.tool_calls
        ]
    return message
