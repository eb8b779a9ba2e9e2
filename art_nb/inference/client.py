"""An OpenAI client without a socket: what it is asked is answered by a function beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from openai import AsyncOpenAI, NotGiven, Omit
from openai._base_client import AsyncPaginator
from openai.pagination import AsyncPage
from openai.types import Model

from art_nb.trajectories.recording import record


class InProcessClient(AsyncOpenAI):
    """`openai.AsyncOpenAI` whose chat completions come from `create(**parameters)`.

    names: gives the models that can be asked, for `client.models.list()`.
    """

    def __init__(self, create: Callable[..., Awaitable[Any]], names: Callable[[], list[str]]) -> None:
        super().__init__(api_key="in-process", base_url="http://in-process.invalid/v1")
        self._create, self._names = create, names

    @property
    def chat(self) -> Any:
        return SimpleNamespace(completions=SimpleNamespace(create=self._recorded))

    async def _recorded(self, **parameters: Any) -> Any:
        completion = await self._create(**parameters)
        tools = parameters.get("tools")
        given = None if isinstance(tools, NotGiven | Omit) else tools
        record(parameters["messages"], given, completion.choices[0])
        return completion

    @property
    def models(self) -> Any:
        return SimpleNamespace(list=lambda **_: Listing(self._names()))

    def copy(self, **_: Any) -> InProcessClient:
        """Itself: timeouts, retries and headers mean nothing without a socket."""
        return self

    with_options = copy


class Listing(AsyncPaginator[Model, AsyncPage[Model]]):
    """What `models.list()` returns: `await` gives the page, `async for` its models."""

    def __init__(self, names: list[str]) -> None:
        models = [Model(id=name, created=0, object="model", owned_by="art_nb") for name in names]
        self._page = AsyncPage[Model](data=models, object="list")

    async def _get_page(self) -> AsyncPage[Model]:
        return self._page
