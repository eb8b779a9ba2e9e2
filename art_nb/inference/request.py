"""One sequence that is being decoded: what is asked, what was drawn, and what is still to be computed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from art_nb.inference.chat import Options
from art_nb.inference.constraints import Constraint
from art_nb.inference.policies import NamedPolicy
from art_nb.inference.texts import GrowingText


@dataclass(eq=False)
class Request:
    """A request for n > 1 answers becomes n of these.

    last_slot: the one that may hold its conversation; slot: the one that it was given.
    text: of its tokens; texts, raw, alternatives: of each token, see `chat.Answer`.
    pending: tokens that are known but not computed yet; guess: tokens computed on suspicion behind them.
    constraint: which tokens may be drawn; None for all. on_token: called whenever it has got further tokens.
    """

    policy: NamedPolicy
    prompt: list[int]
    options: Options
    max_tokens: int
    draws: random.Random
    done: asyncio.Future
    last_slot: int | None
    text: GrowingText
    constraint: Constraint | None = None
    slot: int = -1  # until it is admitted
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    alternatives: list[list[tuple[str, bytes, float]]] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    guess: list[int] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)
    finish_reason: str = ""  # while it goes on
    cut: bool = False  # a stop string ended it
    on_token: Callable[[], None] = lambda: None

    def uniform(self, index: int) -> float:
        """The draw for the token with this index: the same however often it is asked for."""
        while len(self.uniforms) <= index:
            self.uniforms.append(self.draws.random())
        return self.uniforms[index]

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        self.finish_reason = self.finish_reason or "cancelled"

    def last_two(self) -> tuple[int, ...]:
        return tuple((self.prompt[-2:] + self.tokens[-2:])[-2:])
