"""Rule-based players for conversations of both domains: `expert` makes no mistakes, `hasty` makes all of them."""

from __future__ import annotations

from collections.abc import Callable

from customer_service.airline_agent import AirlineAgent
from customer_service.conversation import Conversation
from customer_service.retail_agent import RetailAgent
from customer_service.rule_agent import RuleAgent

Player = Callable[[Conversation], None]
AGENTS: dict[str, type[RuleAgent]] = {"retail": RetailAgent, "airline": AirlineAgent}
"""The rule-based agent of each domain."""


def expert(conversation: Conversation) -> None:
    """Make every choice correctly."""
    AGENTS[conversation.world.domain]()(conversation)


def hasty(conversation: Conversation) -> None:
    """Use the tools without asking for confirmation or checking a rule; decline only what a tool rejects."""
    AGENTS[conversation.world.domain](skill=0.0, seed=len(conversation.opening))(conversation)
