"""`art-nb worker URL --rollout my_module:rollout`: plays episodes for a server, on any machine. Needs no model and no GPU.

A rollout is that of the notebooks, `async def rollout(model, scenario) -> Trajectory`. What it asks the model is seeded by
the episode and by what is asked: whoever plays it, however often, and whichever of its tools answers first, the same is
sampled.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import platform
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, CliPositionalArg, SettingsConfigDict

from art_nb.model import Model
from art_nb.remote.client import remote_client
from art_nb.remote.connection import Connection, RequestRefused, TokenRefused, Unreachable, encoded
from art_nb.remote.line import Line
from art_nb.rollouts.gathering import cancel
from art_nb.server.settings import faults
from art_nb.trajectories import PydanticException, Trajectory

Rollout = Callable[[Any, Any], Awaitable[Trajectory]]
IDLE = 1.0  # seconds to wait where there is nothing to do

_episode: ContextVar[tuple[str, Counter[bytes]]] = ContextVar("episode")  # its seed, and how often it asked what, by digest


class WorkerSettings(BaseSettings):
    """Play episodes for a server. The token comes from ART_NB_TOKEN in the environment or in `.env`."""

    model_config = SettingsConfigDict(
        env_prefix="ART_NB_", env_file=".env", env_file_encoding="utf-8", extra="ignore", cli_prog_name="art-nb worker",
        cli_kebab_case=True, cli_hide_none_type=True, env_ignore_empty=True,
    )  # fmt: skip

    url: CliPositionalArg[str] = Field(description="of the server, e.g. http://127.0.0.1:8000")
    rollout: str = Field(description="MODULE:FUNCTION, an async function of a model and a scenario")
    token: SecretStr = Field(description="the server's; set it in the environment")
    at_once: int = Field(16, ge=1, le=1024, description="episodes that are played at once")
    patience: float = Field(300.0, gt=0, description="seconds that the server may be out of reach")


class Worker:
    """Plays episodes until it is told to stop.

    name: of this worker, unlike any other's.
    """

    def __init__(self, connection: Connection, rollout: Rollout, name: str, at_once: int) -> None:
        self.connection, self.rollout, self.name, self.at_once = connection, rollout, name, at_once
        self._clients: dict[str, Any] = {}
        self._playing: dict[asyncio.Task, str] = {}  # episodes, and the leases that they belong to
        self._seconds = 3 * IDLE  # that a lease lasts

    async def run(self) -> None:
        """Lease, play, hand in, for ever. Raises: what ends the connection."""
        renewing = asyncio.create_task(self._renew())
        try:
            while True:
                if renewing.done():
                    renewing.result()
                free = self.at_once - len(self._playing)
                if not free or not await self._take(free):
                    await asyncio.wait([renewing, *self._playing], timeout=IDLE, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self._playing if task.done()]:
                    del self._playing[task]
                    task.result()
        finally:
            await cancel([renewing, *self._playing])

    async def _take(self, most: int) -> int:
        given = await self.connection.ask("POST", "/api/work/leases", {"worker": self.name, "most": most})
        self._seconds = given["seconds"]
        for episode in given["episodes"]:
            self._playing[asyncio.create_task(self._play(episode))] = episode["lease"]
        return len(given["episodes"])

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / 3)
            if leases := sorted(set(self._playing.values())):
                await self.connection.ask("POST", "/api/work/leases/renewed", {"leases": leases})

    async def _play(self, episode: dict[str, Any]) -> None:
        _episode.set((episode["task"]["seed"], Counter()))
        result = {"batch": episode["batch"], "place": episode["place"]}
        try:
            trajectory = await self.rollout(self._model(episode), episode["task"]["scenario"])
            result["trajectory"] = Trajectory.model_validate(trajectory).model_dump(mode="json")
        except (Unreachable, TokenRefused):  # not the rollout's fault
            raise
        except Exception as error:
            result["exception"] = PydanticException.of(error).model_dump()
        try:
            await self.connection.ask("POST", "/api/work/results", result)
        except RequestRefused as error:  # its batch is over
            print(f"episode {result['place']} of {result['batch']} came too late: {error}", file=sys.stderr)

    def _model(self, episode: dict[str, Any]) -> Model:
        """What the rollout is given: it asks the policy that the episode is for."""
        project, _, name = episode["model"].partition("/")
        url, key = f"{self.connection.url}/v1", self.connection.api_key
        if episode["model"] not in self._clients:
            line = Line(self.connection, f"/api/models/{project}/{name}")
            self._clients[episode["model"]] = remote_client(lambda **asked: line.create(**seeded(asked)), url, key)
        model: Model = Model(
            name=name, project=project, inference_model_name=f"{name}@{episode['step']}", inference_base_url=url,
            inference_api_key=key,
        )  # fmt: skip
        model._client = self._clients[episode["model"]]
        return model


def seeded(request: dict[str, Any]) -> dict[str, Any]:
    """The request, with a seed that follows from the episode and how often this was asked in it, unless it has its own.

    The sampler adds the conversation to it: two conversations of an episode share no draws.
    """
    seed, asked = _episode.get()
    conversation = hashlib.blake2b(encoded(list(request["messages"])), digest_size=12).digest()
    drawn = hashlib.blake2b(f"{seed} {asked[conversation]}".encode(), digest_size=6).digest()
    asked[conversation] += 1
    return {"seed": int.from_bytes(drawn), **request}


def load_rollout(name: str) -> Rollout:
    """The function that "module:function" names; modules of the working folder come first.

    Raises: ValueError when there is none.
    """
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise ValueError(f"--rollout is {name!r}: expected MODULE:FUNCTION, e.g. my_agent:rollout")
    sys.path.insert(0, os.getcwd())
    found = getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise ValueError(f"--rollout is {name!r}: module {module!r} has no function {function!r}")
    return found


def work(options: Sequence[str]) -> int:
    """play episodes for a server, see `art-nb worker --help`"""
    try:
        settings = WorkerSettings(_cli_parse_args=list(options))
        rollout = load_rollout(settings.rollout)
    except ValidationError as error:
        print(faults(error), file=sys.stderr)
        return 2
    except (ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    connection = Connection(settings.url, settings.token.get_secret_value(), settings.patience)
    worker = Worker(connection, rollout, f"{platform.node()}-{os.getpid()}"[:100], settings.at_once)
    try:
        asyncio.run(worker.run())
    except (Unreachable, TokenRefused) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0
