"""Base class of the rule-based agents of both domains, with a probability of making each choice correctly."""

from __future__ import annotations

import json
import random
import re
from typing import Any, NoReturn

from customer_service.conversation import Conversation
from customer_service.policy_monitor import YES
from customer_service.world import is_error

WISH = re.compile(r"I want|Please change|How much|must be")
PAYMENT_SOURCES = {"gift card": "gift_card", "credit card": "credit_card", "PayPal": "paypal"}
"""Payment methods as the course's customers write them, and their names in the data."""


class ConversationEnded(Exception):
    """The conversation is over, or the agent has nothing left to try."""


class RuleAgent:
    """A rule-based agent that makes each choice correctly with probability `skill`.

    The choices: whether to ask for confirmation, to check the rules, to decline what they forbid, and which item, variant
    and payment method to use. It reads only the conversation, and understands the wording of the course's customers.
    """

    conversation: Conversation
    customer_messages: list[str]
    user_id: str

    def __init__(self, skill: float = 1.0, seed: int = 0):
        self.skill, self.rng = skill, random.Random(seed)

    def __call__(self, conversation: Conversation) -> None:
        """Work on the conversation until it is over."""
        self.conversation, self.customer_messages = conversation, [conversation.opening]
        try:
            self.serve()
        except ConversationEnded:
            pass

    def serve(self) -> None:
        """Serve the customer. Raises: ConversationEnded."""
        raise NotImplementedError

    def chooses_correctly(self) -> bool:
        return self.rng.random() < self.skill

    def choose(self, correct: Any, options: list) -> Any:
        """Return the correct option or, on a mistake, any of the options."""
        return correct if self.chooses_correctly() or not options else self.rng.choice(options)

    def say(self, message: str) -> str:
        """Send a message and return the reply."""
        reply = self.conversation.say(message)
        if self.conversation.over:
            raise ConversationEnded
        self.customer_messages.append(reply)
        return reply

    def call(self, name: str, **arguments: Any) -> Any:
        """Call a tool. Returns its answer, parsed if it is JSON, or None if it is an error."""
        answer = self.conversation.call(name, arguments)
        if self.conversation.over:
            raise ConversationEnded
        if is_error(answer):
            return None
        return json.loads(answer) if answer.startswith(("{", "[")) else answer

    def look_up(self, name: str, **arguments: Any) -> Any:
        """Call a tool that finds a record. Returns its answer, or declines if there is no such record."""
        return self.call(name, **arguments) or self.decline("I cannot find that")

    def ask_until_found(self, pattern: str, question: str) -> Any:
        """Return the last match in the customer's messages; ask the question until there is one."""
        while not (found := re.findall(pattern, "\n".join(self.customer_messages))):
            self.say(question)
        return found[-1]

    def wish(self) -> str:
        """Return the customer's last message that states a wish; ask until there is one."""
        while not (found := [text for text in self.customer_messages if WISH.search(text)]):
            self.say("What do you want?")
        return found[-1]

    def payment_method(self, question: str) -> dict:
        """Look up the payment method that the customer names."""
        methods = list(self.call("get_user_details", user_id=self.user_id)["payment_methods"].values())
        source = PAYMENT_SOURCES[self.ask_until_found("|".join(PAYMENT_SOURCES), question)]
        correct = [method for method in methods if method["source"] == source]
        return self.choose(correct[0] if correct else methods[0], methods)

    def decline(self, reason: str) -> NoReturn:
        """Decline until the customer leaves."""
        while True:
            self.say(f"I am sorry, {reason}.")

    def write(self, proposal: str, tool: str, **arguments: Any) -> None:
        """Make a change if the customer confirms it. Returns if the customer wants something else."""
        if self._confirmed(proposal):
            if self.call(tool, **arguments) is None:
                self.decline("this is not possible")
            while True:
                self.say("It has been done.")

    def _confirmed(self, proposal: str) -> bool:
        """Return whether the customer confirms. On a mistake the agent does not ask, which counts as a yes."""
        return not self.chooses_correctly() or bool(YES.search(self.say(f"{proposal} Do you confirm? (yes/no)")))
