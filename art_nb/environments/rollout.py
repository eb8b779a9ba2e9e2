"""The loop between an agent and a tool-calling episode: a model behind a chat client, or a player in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from art_nb.environments.episode import Episode, ToolEpisode
from art_nb.trajectories import Trajectory


async def rollout(
    client: Any,
    episode: ToolEpisode,
    *,
    model: str,
    metadata: dict[str, Any] | None = None,
    turn_rewards: bool = False,
    **request: Any,
) -> Trajectory:
    """Play an episode to its end with a model. Returns the trajectory with the episode's reward and metrics.

    client: `AsyncOpenAI`, `model.openai_client()` or another with `chat.completions.create`. model: the model's name in the
    requests. turn_rewards: also store a reward for each answer of the model, the sum of the episode's `turn_rewards` for its
    calls. request: other parameters of each request, such as `temperature`; `tools` are the episode's by default.

    An answer without a tool call is malformed. A malformed call ends the episode, a refused one does not; neither raises.
    Exceptions of the client and of tools propagate.
    """
    request = {"tools": episode.tools} | request
    trajectory = Trajectory(
        messages_and_choices=[{"role": "user", "content": episode.first_message()}], tools=request["tools"],
        metadata=metadata or {},
    )  # fmt: skip
    rewards = []
    while not episode.over:
        completion = await client.chat.completions.create(model=model, messages=trajectory.messages(), **request)
        choice, turns = completion.choices[0], episode.turns
        trajectory.messages_and_choices.append(choice)
        if not choice.message.tool_calls:
            episode.call(None, None)
        for call in choice.message.tool_calls or []:
            observation = episode.call(call.function.name, call.function.arguments)
            trajectory.messages_and_choices.append({"role": "tool", "tool_call_id": call.id, "content": observation})
        rewards.append(sum(episode.turn_rewards[turns:]))
    trajectory.reward, trajectory.metrics = episode.reward(), episode.metrics()
    if turn_rewards:
        trajectory.turn_rewards = rewards
    return trajectory


def play(player: Callable[[Episode], Any], episode: Episode) -> Episode:
    """Let `player(episode)` make the calls, without a model. Returns the episode."""
    player(episode)
    return episode
