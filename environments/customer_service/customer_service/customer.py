"""Simulated customers: one that follows a script, and one that a language model plays.

`RuleCustomer` needs no model and no network; training and tests use it. `LLMCustomer` works with any provider. A customer's
text is untrusted input for the agent.
"""

from __future__ import annotations

import random
import re
from typing import Any, Protocol

from art_nb.api_costs import load_litellm
from customer_service.tasks import Task, communicated

STOP = "###STOP###"
"""A reply that contains this ends the conversation. tau-bench's marker."""

PATIENCE = 8  # agent messages until the customer gives up
RUDE_REMARKS = ("This is ridiculous.", "Hurry up.", "What kind of service is this?")
CONFIRMATIONS = ("Yes.", "Yes, please.", "Yes, do that.")

# Patterns that detect what a message asks for, in the order of the answers. The keys are those of `facts` in a script.
QUESTIONS = {
    "email": r"e-?mail", "name": r"\bname|who am i", "zip": r"\bzip|postal", "user": r"user id", "order": r"\border",
    "reservation": r"\breservation", "item": r"\bitem|which product", "reason": r"\breason|\bwhy\b",
    "payment": r"\bpay|\brefund",
}  # fmt: skip
CONFIRM = re.compile(r"yes/no|\bconfirm|shall i|\bproceed|is (this|that) (right|correct)", re.IGNORECASE)
REFUSAL = re.compile(
    r"can't|cannot|can not|could not|not (allowed|possible|available|able)|unable|unfortunately|\bsorry|there is no",
    re.IGNORECASE,
)
DONE = re.compile(r"\bdone\b|\bha(s|ve) been\b|\b(is|are) now\b", re.IGNORECASE)


class Customer(Protocol):
    """The other side of a conversation."""

    def open(self) -> str:
        """Return the first message."""
        ...

    def reply(self, message: str) -> str:
        """Return the reply to a message from the agent. A reply that contains STOP is the last."""
        ...


class RuleCustomer:
    """A scripted customer. Deterministic: its replies depend only on the task, the seed and the agent's messages.

    The script is `task.wants`:
      opening: the first message. wish: repeated when no rule matches the agent's message.
      facts: {key of QUESTIONS: answer to a question about it}; mentioned only when the agent asks.
      names: texts, all of which a proposal must contain to get a yes; otherwise it gets a no.
      change: {"says", "wish", "names"}: said instead of the first yes or no; the customer wants this from then on.
      second: the same, said at the first refusal.
      correction: said at the first refusal by a customer whose opening names a wrong order.
      pushes: said one by one at further refusals, before the customer gives up.
      rude: true adds rude remarks.
    """

    def __init__(self, task: Task, seed: int = 0, patience: int = PATIENCE):
        """patience: the customer leaves at this number of agent messages.

        Raises: ValueError for a task without a script, such as tau-bench's.
        """
        if not task.wants:
            raise ValueError(f"task {task.id} has no script (`wants`) for a RuleCustomer; use an LLMCustomer")
        self.task, self.script, self.patience = task, dict(task.wants), patience
        self.rng = random.Random(f"{seed} {task.id}")
        self.pushes = list(self.script.get("pushes", ()))
        self.agent_messages: list[str] = []
        self.agreed = False

    def open(self) -> str:
        return self._remark() + self.script["opening"]

    def reply(self, message: str) -> str:
        self.agent_messages.append(message)
        if len(self.agent_messages) >= self.patience:
            return f"I have no more time for this. {STOP}"
        return self._remark() + self._answer(message)

    def _answer(self, message: str) -> str:
        if self.task.outputs and all(communicated(self.task.outputs, self.agent_messages).values()):
            return f"Thank you. {STOP}"
        if CONFIRM.search(message):
            return self._decide(message)
        if REFUSAL.search(message):
            return self._insist()
        if self.agreed and DONE.search(message):
            return f"Thank you. {STOP}"
        facts = self.script["facts"]
        about = [key for key, pattern in QUESTIONS.items() if key in facts and re.search(pattern, message, re.IGNORECASE)]
        return " ".join(facts[key] for key in about) or f"I do not understand. {self.script['wish']}"

    def _decide(self, message: str) -> str:
        if change := self.script.pop("change", None):
            return self._change_wish(change)
        if all(name in message for name in self.script["names"]):
            self.agreed = True
            return self.rng.choice(CONFIRMATIONS)
        return f"No. {self.script['wish']}"

    def _insist(self) -> str:
        if correction := self.script.pop("correction", None):
            return correction
        if second := self.script.pop("second", None):
            return self._change_wish(second)
        return self.pushes.pop(0) if self.pushes else f"All right, leave it then. {STOP}"

    def _change_wish(self, other: dict[str, Any]) -> str:
        self.script |= {"wish": other["wish"], "names": other["names"]}
        return other["says"]

    def _remark(self) -> str:
        return f"{self.rng.choice(RUDE_REMARKS)} " if self.script.get("rude") and self.rng.random() < 0.5 else ""


INSTRUCTION = """\
You play a customer who writes to a service agent; you are not the agent. What you know and want:

{instruction}

Write one short message at a time. Answer only what you are asked, and only with facts stated above: you don't remember
anything else. When you have got what you want, or see that you will not, write {stop} and nothing else.\
"""


class LLMCustomer:
    """A customer played by a language model through LiteLLM (the extra `judge`). Each reply is one request.

    model: LiteLLM's name, such as `openai/gpt-4o`. params: other arguments of the request.
    Raises: LiteLLM's exceptions for a failed request; then discard the conversation.
    """

    def __init__(self, task: Task, model: str, **params: Any):
        self.model, self.params = model, params
        system = INSTRUCTION.format(instruction=task.instruction, stop=STOP)
        self.messages = [{"role": "system", "content": system}]

    def open(self) -> str:
        return self.reply("Hello, how can I help you?")

    def reply(self, message: str) -> str:
        self.messages.append({"role": "user", "content": message})
        answer = load_litellm().completion(model=self.model, messages=self.messages, **self.params)
        self.messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
        return self.messages[-1]["content"]
