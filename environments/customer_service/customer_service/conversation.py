"""One conversation between an agent and a customer: its messages, its tool calls, and its reward.

The agent may be a model in a rollout or in TRL's loop, a rule-based agent, or the reader of a notebook.
"""

from __future__ import annotations

import json
from typing import Any

from art_nb.trajectories import Trajectory
from customer_service.customer import STOP, Customer
from customer_service.policy import READ_ONLY_TOOLS
from customer_service.policy_monitor import PolicyMonitor
from customer_service.tasks import Task, communicated, goal_state
from customer_service.world import World, is_error

MAX_TURNS = 20
OVER = "The conversation is over."
TRANSFER_TOOL = "transfer_to_human_agents"


class Conversation:
    """An attempt at a task. A turn is a message from the agent or a tool call.

    Attributes: world (the current state), goal (the world after the task's actions), opening (the customer's first message),
    turns, turn_rewards (the change of `progress` in each turn), ended_by (None while the conversation runs, then "customer",
    "transfer" or "turns"), agent_messages, failed_calls (tool calls answered with an error), monitor (counts policy
    violations), log (all messages and calls as OpenAI messages, without the calls' ids).
    """

    def __init__(self, world: World, task: Task, customer: Customer, max_turns: int = MAX_TURNS):
        """world: the state at the start of the task; it is copied."""
        self.world, self.task, self.customer, self.max_turns = world.fork(), task, customer, max_turns
        self.goal = goal_state(world, task)
        self.turns = self.failed_calls = 0
        self.ended_by: str | None = None
        self.agent_messages: list[str] = []
        self.monitor = PolicyMonitor(world.domain)
        self.turn_rewards: list[float] = []
        self.opening = customer.open()
        self.monitor.observe_customer(self.opening, self.world)
        self.log: list[dict[str, Any]] = [{"role": "user", "content": self.opening}]

    @property
    def over(self) -> bool:
        return self.ended_by is not None

    def say(self, message: str) -> str:
        """Send a message to the customer and return the reply, which contains STOP when the customer leaves."""
        if self.over:
            return OVER
        before = self.progress()
        reply = self.customer.reply(message)
        self.agent_messages.append(message)
        self.monitor.observe_message(message, reply, self.world)
        self.log += [{"role": "assistant", "content": message}, {"role": "user", "content": reply}]
        self._end_turn(before, "customer" if STOP in reply else None)
        return reply

    def call(self, name: str, arguments: str | dict) -> str:
        """Call a tool and return its answer."""
        if self.over:
            return OVER
        before, world = self.progress(), self.world.fork()
        answer = self.world.call(name, arguments)
        if is_error(answer):
            self.failed_calls += 1
        else:
            given = json.loads(arguments) if isinstance(arguments, str) else arguments
            self.monitor.observe_call(name, given, world, self.world, answer)
        function = {"name": name, "arguments": arguments}
        self.log += [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}]
        self.log += [{"role": "tool", "name": name, "content": answer}]
        self._end_turn(before, "transfer" if name == TRANSFER_TOOL and not is_error(answer) else None)
        return answer

    def _end_turn(self, before: float, ended_by: str | None) -> None:
        self.turns += 1
        self.ended_by = ended_by or ("turns" if self.turns >= self.max_turns else None)
        self.turn_rewards.append(self.progress() - before)

    def progress(self) -> float:
        """Return the share of required changes and outputs that are done, minus 0.5 for each wrong record and violation.

        If nothing is required, the share is 0, and 1 once the customer has ended the conversation.
        """
        changed, required = self.world.changes(), self.goal.changes()
        found = {(table, key): record for table, rows in changed.items() for key, (_, record) in rows.items()}
        wanted = {(table, key): record for table, rows in required.items() for key, (_, record) in rows.items()}
        right = sum(found.get(place) == record for place, record in wanted.items())
        wrong = sum(wanted.get(place) != record for place, record in found.items())
        outputs = communicated(self.task.outputs, self.agent_messages)
        parts = len(wanted) + len(outputs)
        done = (right + sum(outputs.values())) / parts if parts else float(self.ended_by == "customer")
        return done - 0.5 * wrong - 0.5 * sum(self.monitor.violations.values())

    def solved(self) -> bool:
        """Return whether the database equals the goal and all outputs were communicated."""
        reached = self.world.equals(self.goal)
        return reached and all(communicated(self.task.outputs, self.agent_messages).values())

    def reward(self) -> float:
        """Return 1 if the task is solved, else 0. An unfinished conversation is scored in its current state.

        Source: tau-bench.
        """
        return float(self.solved())

    def trajectory(self) -> Trajectory:
        """Return the conversation for a viewer, a judge or fine-tuning. Its logs list the changes to the database."""
        messages: list[Any] = []
        for number, message in enumerate(self.log):
            if calls := message.get("tool_calls"):
                name, arguments = calls[0]["function"].values()
                text = arguments if isinstance(arguments, str) else json.dumps(arguments)
                call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": text}}
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            elif message["role"] == "tool":
                messages.append({"role": "tool", "tool_call_id": f"call_{number - 1}", "content": message["content"]})
            else:
                messages.append(dict(message))
        return Trajectory(
            messages_and_choices=messages, tools=self.world.tools, reward=self.reward(), metrics=self.metrics(),
            metadata={"task": self.task.id, "domain": self.world.domain, "ended_by": self.ended_by or "nothing"},
            logs=self.world.differences(),
        )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """Return the metrics to chart. `writes` includes failed calls; `broke_` plus a rule's name counts its violations."""
        writes = sum(
            call["function"]["name"] not in READ_ONLY_TOOLS for message in self.log for call in message.get("tool_calls", ())
        )
        violations = self.monitor.violations
        return {
            "solved": self.reward(), "turns": float(self.turns), "messages": float(len(self.agent_messages)),
            "writes": float(writes), "refused_calls": float(self.failed_calls),
            "violations": float(sum(violations.values())), "transferred": float(self.ended_by == "transfer"),
            "out_of_turns": float(self.ended_by == "turns"),
            **{f"broke_{rule}": float(count) for rule, count in violations.items()},
        }  # fmt: skip
