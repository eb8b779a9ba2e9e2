"""VllmBackend: trains in this process while a vLLM server, on a GPU of its own, draws the tokens.

vLLM loads an adapter from the folder where it lies: after a step it is told of the new checkpoint, and older ones stay there
to be asked. It gets token ids, never text: prompts are rendered here, and nothing that a message spells is a control token.

Source: vLLM 0.28, its routes /v1/load_lora_adapter and /v1/completions.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_nb.backend import LocalBackend, Running
from art_nb.inference.chat import RequestError
from art_nb.inference.policies import NamedPolicy
from art_nb.inference.request import Request
from art_nb.inference.sampler import Sampler
from art_nb.remote.connection import Connection, RequestRefused
from art_nb.storage import checkpoints

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

    from art_nb.inference.streaming import Chunks
    from art_nb.model import TrainableModel

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
LONGEST = 3600.0  # seconds that an answer may take: nothing is heard of it before it is whole
ADAPTER = "adapter_model.safetensors"
ID = "token_id:"  # how vLLM names a token where it was asked for ids


def command(base_model: str, rank: int = 16, *, gpus: int = 1, port: int = 8000) -> list[str]:
    """What starts the server; `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True` must be in its environment.

    base_model: as of the `TrainableModel`; rank: of its adapter; gpus: that share each forward.

    Raises: ValueError for a rank that is higher than vLLM takes.
    """
    room = next((each for each in RANKS if each >= rank), None)
    if room is None:
        raise ValueError(f"rank is {rank}: vLLM takes up to {RANKS[-1]}")
    options = {"max-lora-rank": room, "max-loras": 2, "tensor-parallel-size": gpus, "max-logprobs": 20, "port": port}
    named = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return ["vllm", "serve", base_model, "--enable-lora", "--logprobs-mode", "raw_logprobs", *named]


class VllmServer:
    """A running server, of one base model. The folders of adapters must be on a disk that it sees, under the same path.

    url: of its root; api_key: what it was given as `--api-key`; patience: seconds for which it may be away.
    """

    def __init__(self, url: str, api_key: str = "none", patience: float = 60.0):
        self._connection = Connection(url.rstrip("/").removesuffix("/v1"), api_key, patience)
        self.base = ""
        self.context = 0
        self._loading: dict[str, asyncio.Task[bytes]] = {}

    async def look(self) -> None:
        """Learn what it serves. Raises: as `Connection.ask`; ValueError when it serves no model."""
        cards = (await self._connection.ask("GET", "/v1/models"))["data"]
        bases = [card for card in cards if not card.get("parent")]
        if not bases:
            raise ValueError(f"{self._connection.url} serves no base model: is it `vllm serve`?")
        self.base, self.context = bases[0]["id"], bases[0]["max_model_len"]

    async def complete(self, folder: Path | None, body: dict[str, Any]) -> dict[str, Any]:
        """The choice of a completion by the adapter in `folder`; None: by the base model.

        Raises: RuntimeError: it does not load adapters, or not this one. RequestRefused: it will not serve the request.
        """
        for again in (True, False):
            name = self.base if folder is None else await self._loaded(folder)
            try:
                answer = await self._connection.ask("POST", "/v1/completions", {**body, "model": name}, LONGEST)
                return answer["choices"][0]
            except RequestRefused as error:
                if not (again and folder is not None and "does not exist" in str(error)):
                    raise
                self._loading.pop(name, None)  # it was started anew, and knows no adapter
        raise AssertionError  # the second round returns or raises

    async def _loaded(self, folder: Path) -> str:
        """The name by which it knows the adapter: its content says it, so none is taken for that of an earlier run."""
        name = _named(folder, (folder / ADAPTER).stat().st_mtime_ns)
        if name not in self._loading:
            body = {"lora_name": name, "lora_path": str(folder.absolute())}
            fetching = self._connection.fetch("POST", "/v1/load_lora_adapter", body, LONGEST)
            self._loading[name] = asyncio.ensure_future(fetching)
        try:
            await asyncio.shield(self._loading[name])
        except RequestRefused as error:
            if "already been loaded" not in str(error):
                self._loading.pop(name, None)
                raise RuntimeError(
                    f"vLLM does not load {folder}: {error}. Was it started as `art_nb.cluster.vllm.command` says, with "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, and does it see this folder?"
                ) from error
        except Exception:
            self._loading.pop(name, None)
            raise
        return name


@lru_cache(maxsize=64)
def _named(folder: Path, written: int) -> str:
    """After the step and the content. written: when, so that an adapter that was replaced gets another name."""
    with (folder / ADAPTER).open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12))
    return f"{folder.name}-{digest.hexdigest()}"


class VllmSampler(Sampler):
    """Has the tokens of each request drawn by a server; all else of an answer is made as by `Sampler`.

    folder: gives of a policy's name where its adapter lies; None for the base model.
    """

    def __init__(self, model: Any, tokenizer: Any, server: VllmServer, folder: Callable[[str], Path | None]):
        super().__init__(model, tokenizer, slots=1)
        self.server, self.folder = server, folder
        self.context = min(self.context, server.context)
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        return not self._asking

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._asking = {task for task in self._asking if task.get_loop() is loop}  # another one was abandoned
        if not self._asking:
            self._since = time.perf_counter()
        task = loop.create_task(self._send())
        self._asking.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        if not self._asking:
            self.seconds += time.perf_counter() - self._since

    async def _send(self) -> None:
        """Each request by itself: vLLM computes together what is there together."""
        requests = list(self.waiting)
        self.waiting.clear()
        await asyncio.gather(*map(self._ask, requests))

    async def _ask(self, request: Request) -> None:
        if request.constraint:
            error = RequestError("response_format, tool_choice: not on vLLM yet; leave them out, or ask a LocalBackend")
            return self._end(request, "refused", error)
        asking = asyncio.ensure_future(self.server.complete(self.folder(request.policy.name), self._body(request)))
        request.done.add_done_callback(lambda done: asking.cancel())  # given up: nobody waits any more
        try:
            given = await asking
            self._fill(request, given["token_ids"], given["logprobs"])
            if not request.finish_reason:
                raise RuntimeError(f"vLLM ended an answer after {len(request.tokens)} tokens: {given['finish_reason']}")
        except asyncio.CancelledError:
            request.done.cancel()
        except Exception as error:
            self._end(request, "failed", error)

    def _body(self, request: Request) -> dict[str, Any]:
        """Every setting is said: what is left out, vLLM takes from the model's own defaults."""
        options = request.options
        return {
            "prompt": request.prompt, "max_tokens": request.max_tokens, "temperature": options.temperature,
            "top_p": options.top_p, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "stop": options.stop,
            "stop_token_ids": sorted(self.end_tokens), "seed": request.draws.getrandbits(63),
            "logprobs": options.top_logprobs, "return_token_ids": True, "return_tokens_as_token_ids": True,
        }  # fmt: skip

    def _fill(self, request: Request, tokens: list[int], logprobs: dict[str, Any]) -> None:
        """Take the tokens, until the answer ends as it does with any sampler."""
        for token, logprob, top in zip(tokens, logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.texts.append(self.texts.of_token(token))
            if request.options.logprobs:
                likeliest = sorted((top or {}).items(), key=lambda item: -item[1])[: request.options.top_logprobs]
                others = [(int(name.removeprefix(ID)), p) for name, p in likeliest]
                request.raw.append(self._raw(token))
                request.alternatives.append([(self.texts.of_token(other), self._raw(other), p) for other, p in others])
            self.tokens_sampled += 1
            if self._finished(request):
                break
        request.on_token()

    def _end(self, request: Request, reason: str, error: Exception | None = None) -> None:
        """No slot falls free: it had none."""
        request.finish_reason = reason
        if not request.done.done():
            request.done.set_exception(error) if error else request.done.set_result(None)


class VllmBackend(LocalBackend):
    """A `LocalBackend` whose tokens a vLLM server draws: `command` says how to start it.

    Args:
        url: of the server's root, "http://localhost:8000", say.
        api_key: what it was given as `--api-key`.
        patience: seconds for which it may be away, started anew, say: what was asked is asked again.
        local: arguments of `LocalBackend`. Its `path` must be seen by the server as well.
    """

    def __init__(self, url: str, *, api_key: str = "none", patience: float = 60.0, **local: Any) -> None:
        super().__init__(**local)
        self.url, self.api_key, self.patience = url, api_key, patience

    async def _prepare_backend_for_training(
        self, model: TrainableModel, config: dict[str, Any] | None = None
    ) -> tuple[str | None, str | None]:
        """As `LocalBackend`. Raises: as `VllmServer.look`."""
        server = VllmServer(self.url, self.api_key, self.patience)
        await server.look()
        given = await super()._prepare_backend_for_training(model, config)
        running = self._running[self.output_dir(model)]
        running.sampler = VllmSampler(running.policy.base, running.policy.tokenizer, server, _folders(running))
        return given

    async def answer(
        self, to: TrainableModel, *, messages: Iterable[dict], model: str | None = None, **parameters: Any
    ) -> ChatCompletion | Chunks:
        running = self._of(to)
        name = running.versions.resolve(model)
        if running.fresh.begins(running.sampler.idle):
            running.sampler.forget()
        policy = NamedPolicy(name, (self.seed, name), None)
        return await running.sampler.create(messages=list(messages), policy=policy, model=name, **parameters)


def _folders(running: Running) -> Callable[[str], Path | None]:
    """Where the adapter of a policy lies, by its name."""

    def folder(name: str) -> Path | None:
        if name == running.versions.base:
            return None
        return checkpoints.step_folder(running.folder / "checkpoints", int(name.rpartition("@")[2]))

    return folder
