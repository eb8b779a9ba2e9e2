"""One conversation between an agent and a customer about a world: what was said and called, and what it is worth.

It is the same whoever makes the agent's turns: a model in a rollout, TRL's loop, a player by rule, the reader of a notebook.
"""

from __future__ import annotations

import json
from typing import Any

from art_nb.tasks.customer_service.customer import STOP, Customer
from art_nb.tasks.customer_service.policy import READS, Watch, refused
from art_nb.tasks.customer_service.tasks import Task, expected, told
from art_nb.tasks.customer_service.world import World
from art_nb.trajectories import Trajectory

MAX_TURNS = 20
OVER = "The conversation is over."
HANDED_OVER = "transfer_to_human_agents"


class Conversation:
    """A task being worked on.

    Fields: world (as the agent's calls have left it), goal (as the task's own calls leave it), opening (the customer's first
    message), turns (messages and calls of the agent), turn_rewards (one for each: what it added to `progress`), ended_by
    (None while it runs, then "customer", "transfer" or "turns"), said (the agent's messages), refused (calls that were
    answered by a refusal), watch (rules that were broken), log (everything, as OpenAI messages without the calls' ids).
    """

    def __init__(self, world: World, task: Task, customer: Customer, max_turns: int = MAX_TURNS):
        """world: as the task finds it; it is left alone."""
        self.world, self.task, self.customer, self.max_turns = world.fork(), task, customer, max_turns
        self.goal = expected(world, task)
        self.turns = self.refused = 0
        self.ended_by: str | None = None
        self.said: list[str] = []
        self.watch = Watch(world.domain)
        self.turn_rewards: list[float] = []
        self.opening = customer.open()
        self.watch.hear(self.opening, self.world)
        self.log: list[dict[str, Any]] = [{"role": "user", "content": self.opening}]

    @property
    def over(self) -> bool:
        return self.ended_by is not None

    def say(self, message: str) -> str:
        """The agent writes to the customer; returns their reply, which holds STOP when they leave."""
        if self.over:
            return OVER
        before = self.progress()
        reply = self.customer.reply(message)
        self.said.append(message)
        self.watch.said(message, reply, self.world)
        self.log += [{"role": "assistant", "content": message}, {"role": "user", "content": reply}]
        self._turn(before, "customer" if STOP in reply else None)
        return reply

    def call(self, name: str, arguments: str | dict) -> str:
        """The agent calls a tool; returns its answer."""
        if self.over:
            return OVER
        before, world = self.progress(), self.world.fork()
        answer = self.world.call(name, arguments)
        if refused(answer):
            self.refused += 1
        else:
            given = json.loads(arguments) if isinstance(arguments, str) else arguments
            self.watch.called(name, given, world, self.world, answer)
        function = {"name": name, "arguments": arguments}
        self.log += [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}]
        self.log += [{"role": "tool", "name": name, "content": answer}]
        self._turn(before, "transfer" if name == HANDED_OVER and not refused(answer) else None)
        return answer

    def _turn(self, before: float, ended_by: str | None) -> None:
        self.turns += 1
        self.ended_by = ended_by or ("turns" if self.turns >= self.max_turns else None)
        self.turn_rewards.append(self.progress() - before)

    def progress(self) -> float:
        """How much of what is due was done, 0 to 1, less half for each wrong record and each broken rule."""
        changed, due = self.world.changes(), self.goal.changes()
        found = {(table, key): now for table, rows in changed.items() for key, (_, now) in rows.items()}
        wanted = {(table, key): now for table, rows in due.items() for key, (_, now) in rows.items()}
        right = sum(found.get(place) == record for place, record in wanted.items())
        wrong = sum(wanted.get(place) != record for place, record in found.items())
        outputs = told(self.task.outputs, self.said)
        parts = len(wanted) + len(outputs)
        done = (right + sum(outputs.values())) / parts if parts else float(self.ended_by == "customer")
        return done - 0.5 * wrong - 0.5 * sum(self.watch.broken.values())

    def solved(self) -> bool:
        """Whether the database is as it should be and the customer was told what they had to be told."""
        return self.world.digest() == self.goal.digest() and all(told(self.task.outputs, self.said).values())

    def reward(self) -> float:
        """1 for a solved task, else 0; a conversation that was broken off is judged as it stands. Source: tau-bench."""
        return float(self.solved())

    def trajectory(self) -> Trajectory:
        """The conversation for a viewer, a judge or fine-tuning; its logs say what became of the database."""
        messages: list[Any] = []
        for number, message in enumerate(self.log):
            if calls := message.get("tool_calls"):
                name, arguments = calls[0]["function"].values()
                said = arguments if isinstance(arguments, str) else json.dumps(arguments)
                call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": said}}
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
        """What to chart: shares are 0 or 1 here, `broke_` and a rule's name counts how often it was broken."""
        writes = sum(
            call["function"]["name"] not in READS for message in self.log for call in message.get("tool_calls", ())
        )
        return {
            "solved": self.reward(), "turns": float(self.turns), "messages": float(len(self.said)), "writes": float(writes),
            "refused_calls": float(self.refused), "violations": float(sum(self.watch.broken.values())),
            "transferred": float(self.ended_by == "transfer"), "out_of_turns": float(self.ended_by == "turns"),
            **{f"broke_{rule}": float(count) for rule, count in self.watch.broken.items()},
        }  # fmt: skip
