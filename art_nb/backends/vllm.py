"""VllmBackend: trains in this process and samples on a vLLM server, which has a GPU of its own.

vLLM loads adapters from the checkpoint folders when they are first used. It receives token ids, never text: prompts are
rendered here, so that no message can contain control tokens.

Source: vLLM 0.28, routes /v1/load_lora_adapter and /v1/completions.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from art_nb.backends.connection import Connection, RequestRefused
from art_nb.backends.local import LocalBackend
from art_nb.inference.chat import RequestError
from art_nb.inference.decoder import Decoder
from art_nb.inference.generation import Generation
from art_nb.inference.policies import NamedPolicy
from art_nb.inference.sampler import Sampler

if TYPE_CHECKING:
    from art_nb.backends.loaded_model import LoadedModel
    from art_nb.model import TrainableModel

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # allowed values of --max-lora-rank
READ_TIMEOUT = 3600.0  # seconds; vLLM sends nothing before an answer is complete
ADAPTER = "adapter_model.safetensors"
ID = "token_id:"  # prefix of tokens that vLLM returns as ids


def command(base_model: str, rank: int = 16, *, gpus: int = 1, port: int = 8000, host: str = "127.0.0.1") -> list[str]:
    """Return the command that starts the server, in an environment with the variables of `environment`.

    base_model: the `TrainableModel`'s. rank: its adapter's. gpus: number of GPUs for tensor parallelism.
    host: address to listen on.

    Raises: ValueError for a rank above vLLM's limit.
    """
    max_rank = next((each for each in RANKS if each >= rank), None)
    if max_rank is None:
        raise ValueError(f"rank is {rank}: vLLM supports at most {RANKS[-1]}")
    options: dict[str, Any] = {"max-lora-rank": max_rank, "max-loras": 2, "tensor-parallel-size": gpus, "max-logprobs": 20}
    options |= {"host": host, "port": port}
    named = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return ["vllm", "serve", base_model, "--enable-lora", "--logprobs-mode", "raw_logprobs", *named]


def environment(api_key: str) -> dict[str, str]:
    """Return environment variables that let vLLM load adapters at run time, and disable its usage statistics.

    api_key: the `VllmBackend`'s; in the environment, because other users can read a process's arguments.
    """
    return {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_NO_USAGE_STATS": "1", "VLLM_API_KEY": api_key}


class VllmServer:
    """A vLLM server of one base model. It must see the checkpoint folders. Arguments: as in `VllmBackend`."""

    def __init__(self, url: str, api_key: str, patience: float):
        self.connection = Connection(url, api_key, patience)
        self.base = ""
        self.context = 0
        self._loading: dict[str, asyncio.Task[bytes]] = {}

    async def connect(self) -> None:
        """Query the base model and its context length. Raises: as `Connection.ask`; ValueError when no model is served."""
        cards = (await self.connection.ask("GET", "/v1/models"))["data"]
        bases = [card for card in cards if not card.get("parent")]
        if not bases:
            raise ValueError(f"{self.connection.url} serves no base model: give the address of `vllm serve`")
        self.base, self.context = bases[0]["id"], bases[0]["max_model_len"]

    async def complete(self, folder: Path | None, body: dict[str, Any]) -> dict[str, Any]:
        """Return the choice of a completion with the adapter in `folder`; None: with the base model.

        Raises: RuntimeError when vLLM does not load the adapter; RequestRefused when it refuses the request.
        """
        for again in (True, False):
            name = self.base if folder is None else await self._loaded(folder)
            try:
                answer = await self.connection.ask("POST", "/v1/completions", {**body, "model": name}, READ_TIMEOUT)
                return answer["choices"][0]
            except RequestRefused as error:
                if not (again and folder is not None and "does not exist" in str(error)):
                    raise
                self._loading.pop(name, None)  # vLLM was restarted and has lost its adapters
        raise AssertionError  # unreachable: the second round returns or raises

    async def _loaded(self, folder: Path) -> str:
        """Load the adapter into vLLM unless it is loaded; return its name there, which depends on the adapter's content."""
        name = _adapter_name(folder, (folder / ADAPTER).stat().st_mtime_ns)
        task, loop = self._loading.get(name), asyncio.get_running_loop()
        if task is None or task.cancelled() or not (task.done() or task.get_loop() is loop):
            body = {"lora_name": name, "lora_path": str(folder.absolute())}
            fetching = self.connection.fetch("POST", "/v1/load_lora_adapter", body, READ_TIMEOUT)
            self._loading[name] = asyncio.ensure_future(fetching)
        try:
            await asyncio.shield(self._loading[name])
        except RequestRefused as error:
            if "already been loaded" not in str(error):
                self._loading.pop(name, None)
                raise RuntimeError(
                    f"vLLM did not load the adapter in {folder}: {error}. Start vLLM with the command of "
                    "`art_nb.backends.vllm.command`, with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment "
                    "(`environment`), on a machine that sees this folder."
                ) from error
        except Exception:
            self._loading.pop(name, None)
            raise
        return name


@lru_cache(maxsize=64)
def _adapter_name(folder: Path, modified: int) -> str:
    """Return a name made from the step and the content. modified: the file's modification time, part of the cache key."""
    with (folder / ADAPTER).open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12))
    return f"{folder.name}-{digest.hexdigest()}"


class VllmDecoder(Decoder):
    """Completes generations on a vLLM server. folder: returns the folder of a policy's adapter, None for the base model."""

    def __init__(self, server: VllmServer, folder: Callable[[str], Path | None]):
        super().__init__()
        self.server, self.folder = server, folder
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        return not self._tasks

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = {task for task in self._tasks if task.get_loop() is loop}  # others were abandoned with their loop

    def submit(self, generations: list[Generation]) -> None:
        """Send each generation by itself; vLLM batches them."""
        if not self._tasks:
            self._since = time.perf_counter()
        for generation in generations:
            task = asyncio.create_task(self._complete(generation))
            self._tasks.add(task)
            task.add_done_callback(self._completed)

    def _completed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self.seconds += time.perf_counter() - self._since

    async def _complete(self, generation: Generation) -> None:
        if generation.constraint:
            message = "response_format, tool_choice: not supported on vLLM yet; leave them out, or use a LocalBackend"
            return generation.finish("refused", RequestError(message))
        call = asyncio.ensure_future(self.server.complete(self.folder(generation.policy.name), self._body(generation)))
        generation.done.add_done_callback(lambda done: call.cancel())  # the caller no longer waits
        try:
            answer = await call
            self._append(generation, answer["token_ids"], answer["logprobs"])
            if not generation.finish_reason:
                count, reason = len(generation.tokens), answer["finish_reason"]
                raise RuntimeError(f"vLLM ended an answer early, after {count} tokens ({reason}): see its log")
        except asyncio.CancelledError:
            generation.done.cancel()
        except Exception as error:
            generation.finish("failed", error)

    def _body(self, generation: Generation) -> dict[str, Any]:
        """Build the request. Every setting is explicit, because vLLM's defaults depend on the model."""
        options = generation.options
        return {
            "prompt": generation.prompt, "max_tokens": generation.max_tokens, "temperature": options.temperature,
            "top_p": options.top_p, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "stop": options.stop,
            "stop_token_ids": sorted(generation.vocabulary.end_tokens), "seed": generation.draws.getrandbits(63),
            "logprobs": options.top_logprobs, "return_token_ids": True, "return_tokens_as_token_ids": True,
        }  # fmt: skip

    def _append(self, generation: Generation, tokens: list[int], logprobs: dict[str, Any]) -> None:
        """Append tokens until the generation ends, by the same rules as any decoder."""
        for token, logprob, top in zip(tokens, logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
            likeliest = sorted((top or {}).items(), key=lambda item: -item[1])[: generation.options.top_logprobs]
            generation.append(token, logprob, [(int(name.removeprefix(ID)), p) for name, p in likeliest])
            self.tokens_sampled += 1
            if generation.finish_reason:
                break
        generation.on_token()


class VllmBackend(LocalBackend):
    """A `LocalBackend` that samples on a vLLM server; `command` returns the command that starts it.

    url: the server's address, e.g. "http://localhost:8000". api_key: its API key, see `environment`. patience: seconds to
    retry while it cannot be reached, for example during a restart. local: arguments of `LocalBackend`; the server must see
    `path`.
    """

    def __init__(self, url: str, *, api_key: str = "none", patience: float = 60.0, **local: Any) -> None:
        super().__init__(**local)
        self.url, self.api_key, self.patience = url, api_key, patience

    async def close(self) -> None:
        """Release every model, then close the connections. References to decoders would keep their models in memory."""
        connections = [cast(VllmDecoder, loaded.sampler.decoder).server.connection for loaded in self.models.values()]
        await super().close()
        for connection in connections:
            await connection.close()

    async def _prepare_backend_for_training(
        self, model: TrainableModel, config: dict[str, Any] | None = None
    ) -> tuple[str | None, str | None]:
        """As `LocalBackend`. Raises: as `VllmServer.connect`."""
        server = VllmServer(self.url, self.api_key, self.patience)
        await server.connect()
        url_and_key = await super()._prepare_backend_for_training(model, config)
        loaded = self.loaded(model)

        def folder(policy: str) -> Path | None:
            step = loaded.policies.step_of(policy)
            return None if step is None else loaded.policies.checkpoint(step)

        decoder = VllmDecoder(server, folder)
        decoder.tokens_sampled, decoder.seconds = loaded.sampled()  # not 0 when the model is registered again
        loaded.sampler = Sampler(loaded.policy.base, loaded.policy.tokenizer, decoder=decoder)
        loaded.sampler.context = min(loaded.sampler.context, server.context)
        return url_and_key

    def named_policy(self, loaded: LoadedModel, name: str | None) -> NamedPolicy:
        """Return the policy that a request names, without weights: the server has them."""
        name = loaded.policies.resolve(name)
        return NamedPolicy(name, (self.seed, name), None)
