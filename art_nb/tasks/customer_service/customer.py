"""The customer: somebody who wants something, tells what they are asked, and doesn't always make it easy.

`RuleCustomer` needs no model and no network; it is the one of training and tests. `LLMCustomer` is played by a language
model of any provider. What a customer writes is untrusted: it may hold anything, and obliges the agent to nothing.
"""

from __future__ import annotations

import random
import re
from typing import Any, Protocol

from art_nb.api_costs import load_litellm
from art_nb.tasks.customer_service.tasks import Task, told

STOP = "###STOP###"
"""In a customer's reply: they are gone. tau-bench's word."""

PATIENCE = 8  # replies
RUDE = ("This is ridiculous.", "Hurry up.", "What kind of service is this?")
YESES = ("Yes.", "Yes, please.", "Yes, do that.")

# What a message is about, in the order in which answers are given. The keys are those of a task's facts.
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
    """Who an agent talks to. `reply` takes a message of the agent; a reply with STOP in it is the last."""

    def open(self) -> str: ...

    def reply(self, message: str) -> str: ...


class RuleCustomer:
    """A customer by rule: the same task and seed say the same to the same messages.

    Its script is `task.wants`:
      opening: its first message. wish: what it repeats when it is not understood.
      facts: {a key of QUESTIONS: what it says when it is asked for that}; what it is not asked for it does not say.
      names: what a message must hold, all of it, for its yes to it; a message that holds less gets a no.
      change: {"says", "wish", "names"}: said in place of its first yes; from then on it wants this.
      second: the same, said when it hears that what it wants can't be had.
      correction: what it says when the order or reservation can't be found, having named a wrong one at first.
      pushes: what it tries when it is refused, one after the other, before it gives in.
      rude: true for one who is.
    """

    def __init__(self, task: Task, seed: int = 0, patience: int = PATIENCE):
        """Raises: ValueError for a task without a script, such as those of tau-bench: these need an LLMCustomer."""
        if not task.wants:
            raise ValueError(f"task {task.id} has no script for a customer by rule; use LLMCustomer")
        self.task, self.script, self.patience = task, dict(task.wants), patience
        self.rng = random.Random(f"{seed} {task.id}")
        self.pushes = list(self.script.get("pushes", ()))
        self.heard: list[str] = []
        self.agreed = False

    def open(self) -> str:
        return self._mood() + self.script["opening"]

    def reply(self, message: str) -> str:
        self.heard.append(message)
        if len(self.heard) >= self.patience:
            return f"I have no more time for this. {STOP}"
        return self._mood() + self._answer(message)

    def _answer(self, message: str) -> str:
        if self.task.outputs and all(told(self.task.outputs, self.heard).values()):
            return f"Thank you. {STOP}"
        if CONFIRM.search(message):
            return self._decide(message)
        if REFUSAL.search(message):
            return self._insist()
        if self.agreed and DONE.search(message):
            return f"Thank you. {STOP}"
        facts = self.script["facts"]
        asked = [key for key, pattern in QUESTIONS.items() if key in facts and re.search(pattern, message, re.IGNORECASE)]
        return " ".join(facts[key] for key in asked) or f"I do not understand. {self.script['wish']}"

    def _decide(self, message: str) -> str:
        if change := self.script.pop("change", None):
            return self._want(change)
        if all(name in message for name in self.script["names"]):
            self.agreed = True
            return self.rng.choice(YESES)
        return f"No. {self.script['wish']}"

    def _insist(self) -> str:
        if correction := self.script.pop("correction", None):
            return correction
        if second := self.script.pop("second", None):
            return self._want(second)
        return self.pushes.pop(0) if self.pushes else f"All right, leave it then. {STOP}"

    def _want(self, other: dict[str, Any]) -> str:
        self.script |= {"wish": other["wish"], "names": other["names"]}
        return other["says"]

    def _mood(self) -> str:
        return f"{self.rng.choice(RUDE)} " if self.script.get("rude") and self.rng.random() < 0.5 else ""


INSTRUCTION = """\
You play a customer who writes to a service agent; you are not the agent. What you know and want:

{instruction}

Write one short message at a time. Tell only what you are asked for, and nothing that is not above: what is not there,
you don't remember. When you have got what you want, or see that you will not, write {stop} and nothing else.\
"""


class LLMCustomer:
    """A customer played by a language model through LiteLLM (the extra `judge`); each reply is a request.

    model: LiteLLM's name, such as `openai/gpt-4o`. params: further arguments of the request.
    Raises: whatever LiteLLM raises for a request that fails; the conversation is then no rollout.
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
