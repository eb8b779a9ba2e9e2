"""An OpenAI client without a socket: what it is asked is answered by a function beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from openai import AsyncOpenAI


class InProcessClient(AsyncOpenAI):
    """`openai.AsyncOpenAI` whose chat completions come from `create(**parameters)`."""

    def __init__(self, create: Callable[..., Awaitable[Any]]) -> None:
        super().__init__(api_key="in-process", base_url="http://in-process.invalid/v1")
        self._create = create

    @property
    def chat(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def copy(self, **_: Any) -> InProcessClient:  # type: ignore[override]
        """Itself: timeouts, retries and headers mean nothing without a socket."""
        return self

    with_options = copy
