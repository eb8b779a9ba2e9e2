"""`art-nb worker URL --rollout my_module:rollout`: runs episodes for a server, on any machine, without a model or a GPU.

A rollout is `async def rollout(model, scenario) -> Trajectory`. Each `chat.completions.create` of its asynchronous
`model.openai_client()` gets a seed derived from the episode, the conversation and the number of earlier requests with it.
The samples therefore do not depend on the worker, on repetitions of the episode or on the timing of its tools.
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

from pydantic import Field, SecretStr
from pydantic_settings import CliPositionalArg, SettingsConfigDict

from art_nb.backends.connection import Connection, RequestRefused, ServerFailed, TokenRefused, Unreachable, digest
from art_nb.backends.remote import lockstep_client, openai_url, remote_client
from art_nb.model import Model
from art_nb.rollouts.gathering import cancel
from art_nb.serving.settings import CommandSettings, describe_error
from art_nb.trajectories import PydanticException, Trajectory
from art_nb.types import PolicyName

Rollout = Callable[[Any, Any], Awaitable[Trajectory]]
POLL_SECONDS = 1.0  # between two requests for episodes when there are none


class WorkerSettings(CommandSettings):
    """Run episodes for a server. Give the token as ART_NB_TOKEN in the environment or in `.env`."""

    model_config = SettingsConfigDict(cli_prog_name="art-nb worker")

    url: CliPositionalArg[str] = Field(description="address of the server, e.g. http://127.0.0.1:8000")
    rollout: str = Field(description="MODULE:FUNCTION, an async function of a model and a scenario")
    token: SecretStr = Field(description="the server's access token; better set in the environment")
    at_once: int = Field(16, ge=1, le=1024, description="maximum number of episodes to run at once")
    patience: float = Field(300.0, gt=0, description="seconds to retry when the server is unreachable")


class EpisodeSeeds:
    """Derives the seeds of one episode's requests. seed: the episode's own."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._counts: Counter[str] = Counter()  # requests so far, by digest of the conversation

    def seeded(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the request with a seed for the n-th request with this conversation, unless it has a seed."""
        conversation = digest(messages := list(request["messages"]))
        seed = hashlib.blake2b(f"{self._seed} {self._counts[conversation]}".encode(), digest_size=6).digest()
        self._counts[conversation] += 1
        return {"seed": int.from_bytes(seed), **request, "messages": messages}


_episode_seeds: ContextVar[EpisodeSeeds] = ContextVar("episode_seeds")


class EpisodeWorker:
    """Leases episodes, runs the rollout on them and submits the results. name: unique to this worker."""

    def __init__(self, connection: Connection, rollout: Rollout, name: str, at_once: int) -> None:
        self.connection, self.rollout, self.name, self.at_once = connection, rollout, name, at_once
        self._clients: dict[str, Any] = {}  # by model
        self._episodes: dict[asyncio.Task, str] = {}  # running episodes and their leases
        self._lease_seconds = 3 * POLL_SECONDS

    async def run(self) -> None:
        """Run episodes until cancelled. Raises: as `Connection.ask`."""
        renewing = asyncio.create_task(self._renew_leases())
        try:
            while True:
                if renewing.done():
                    renewing.result()
                free = self.at_once - len(self._episodes)
                if not free or not await self._lease(free):
                    tasks = [renewing, *self._episodes]
                    await asyncio.wait(tasks, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self._episodes if task.done()]:
                    del self._episodes[task]
                    task.result()
        finally:
            await cancel([renewing, *self._episodes])

    async def _lease(self, most: int) -> int:
        leased = await self.connection.ask("POST", "/api/work/leases", {"worker": self.name, "most": most})
        self._lease_seconds = leased["seconds"]
        for episode in leased["episodes"]:
            self._episodes[asyncio.create_task(self._run_episode(episode))] = episode["lease"]
        return len(leased["episodes"])

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            if leases := sorted(set(self._episodes.values())):
                await self.connection.ask("POST", "/api/work/leases/renewed", {"leases": leases})

    async def _run_episode(self, episode: dict[str, Any]) -> None:
        _episode_seeds.set(EpisodeSeeds(episode["task"]["seed"]))
        place = {"batch": episode["batch"], "place": episode["place"]}
        try:
            trajectory = await self.rollout(self._model(episode), episode["task"]["scenario"])
            result = place | {"trajectory": Trajectory.model_validate(trajectory).model_dump(mode="json")}
        except (Unreachable, TokenRefused):  # not a failure of the rollout
            raise
        except (Exception, asyncio.CancelledError) as error:
            if (task := asyncio.current_task()) and task.cancelling():  # the worker itself is cancelled
                raise
            result = place | {"exception": PydanticException.of(error).model_dump()}
        for _ in range(2):  # first the result; if it is refused, the refusal as an exception
            try:
                return await self.connection.ask("POST", "/api/work/results", result)
            except RequestRefused as error:
                print(f"result {result['place']} of batch {result['batch']} was refused: {error}", file=sys.stderr)
                result = place | {"exception": PydanticException.of(error).model_dump()}

    def _model(self, episode: dict[str, Any]) -> Model:
        """Return the model for the rollout; its requests go to the policy of the episode."""
        project, _, name = episode["model"].partition("/")
        if episode["model"] not in self._clients:
            lockstep = lockstep_client(self.connection, f"/api/models/{project}/{name}")
            self._clients[episode["model"]] = client = remote_client(lockstep.create, self.connection, project)
            create = client.chat.completions.create
            client.chat.completions.create = lambda **given: create(**_episode_seeds.get().seeded(given))  # type: ignore
        model: Model = Model(
            name=name, project=project, inference_model_name=str(PolicyName(name, episode["step"])),
            inference_base_url=openai_url(self.connection, project), inference_api_key=self.connection.api_key,
        )  # fmt: skip
        model.use_client(self._clients[episode["model"]])
        return model


def load_rollout(name: str) -> Rollout:
    """Import the function "module:function"; modules in the working directory take precedence.

    Raises: ValueError for another format or an unknown function; ImportError, or any error of the module's own code.
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
    """Run `art-nb worker` until it is interrupted; return its exit code."""
    try:
        settings = WorkerSettings(_cli_parse_args=list(options))
        rollout = load_rollout(settings.rollout)
        connection = Connection(settings.url, settings.token.get_secret_value(), settings.patience)
    except (ValueError, ImportError) as error:
        print(describe_error(error), file=sys.stderr)
        return 2
    worker = EpisodeWorker(connection, rollout, f"{platform.node()}-{os.getpid()}"[:100], settings.at_once)
    try:
        asyncio.run(worker.run())
    except (Unreachable, TokenRefused, RequestRefused, ServerFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0
