"""LocalBackend: samples and trains in this process. Heavy packages are imported when a model is loaded."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI

from art_nb.backends.base import FileBackend, integer
from art_nb.backends.steps import StepRequest, StepState, numbers
from art_nb.inference.client import InProcessClient
from art_nb.model import Backend as Backend  # where ART has it
from art_nb.model import Model, TrainableModel
from art_nb.storage import checkpoints
from art_nb.storage.run_log import RunLog
from art_nb.storage.summary import summary
from art_nb.types import LocalTrainResult, TrainConfig

if TYPE_CHECKING:
    from filelock import FileLock
    from openai.types.chat import ChatCompletion

    from art_nb.backends.loaded_model import LoadedModel
    from art_nb.inference.policies import NamedPolicy
    from art_nb.inference.streaming import Chunks
    from art_nb.training.policy import Policy


class LocalBackend(FileBackend["LoadedModel", LocalTrainResult]):
    """Trains and samples in this process.

    Args:
        in_process: accepted for compatibility with ART; this backend is always in process.
        path: folder that all files are written to; None: `.art`.
        gpu_cost_per_hour_usd: the price of this machine; each step then logs its cost as costs/gpu. None: not logged.
        engine: "auto" (Unsloth where it works, see `load_policy`), "unsloth" or "transformers".
        seed: of the adapter's initialisation, of sampling and of dropout.
        slots: number of conversations that a model decodes at once; more wait in a queue.
        base_models: folders or hub names of base models, by alias. A model's `base_model` may be an alias; other names are
            used unchanged.
        progress: called with a short text before a long operation.

    Raises: ValueError when `path` is a file, or below one, or slots, seed or price is out of range.
    """

    def __init__(
        self,
        *,
        in_process: bool = False,
        path: str | os.PathLike | None = None,
        gpu_cost_per_hour_usd: float | None = None,
        engine: str = "auto",
        seed: int = 0,
        slots: int = 128,
        base_models: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(path, progress, gpu_cost_per_hour_usd)
        self.engine, self.base_models = engine, dict(base_models or {})
        self.seed, self.slots = integer("seed", seed, -(2**63)), integer("slots", slots, 1)

    async def close(self) -> None:
        """Release every model. With glibc (most Linux systems) their CPU memory is returned to the system."""
        for key in self.models:  # a loop variable for the model would keep the last one alive
            self.models[key].learner.end()
            if lock := self.models[key].lock:
                lock.release()
        await super().close()
        gc.collect()  # a loaded model is part of reference cycles
        if os.name == "posix" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)  # glibc otherwise keeps most of the freed memory

    async def load(self, model: TrainableModel) -> LoadedModel:
        """Load a model at its latest checkpoint, and clean up after killed processes.

        Raises: as `load_policy` and `LoadedModel.restore`; RuntimeError when another process has the model loaded.
        """
        self.progress(f"loading {model.base_model}")
        from art_nb.backends.loaded_model import LoadedModel
        from art_nb.inference.sampler import Sampler
        from art_nb.training.policy_store import PolicyStore

        folder = self.output_dir(model)
        lock = self.lock(folder)
        try:
            for each in (folder, folder / "checkpoints", *folder.glob("trajectories/*/")) if lock else ():
                checkpoints.recover(each)
            policy, base = self.load_policy(model)
            policies = PolicyStore(policy, model.name, model.base_model, folder / "checkpoints", self.seed, Path(base))
            sampler = Sampler(policy.base, policy.tokenizer, slots=self.slots)
            loaded = LoadedModel(policy, policies, sampler, folder, model.internal_config.get("trainer_args") or {})
            loaded.lock = lock
            self.restore(model, loaded)
        except BaseException:
            if lock:
                lock.release()
            raise
        return loaded

    def lock(self, folder: Path) -> FileLock | None:
        """Lock a model's folder. A subclass that does not write to it returns None. Raises: as `lock_folder`."""
        return checkpoints.lock_folder(folder)

    def load_policy(self, model: TrainableModel) -> tuple[Policy, str]:
        """Load a model's policy; return it, and the base model's folder or hub name. Raises: as `policy.load_policy`."""
        from art_nb.training.policy import load_policy

        internal, base = model.internal_config, self.base_models.get(model.base_model, model.base_model)
        policy = load_policy(
            base, engine=self.engine, seed=self.seed,
            init_args=internal.get("init_args"), peft_args=internal.get("peft_args"),
        )  # fmt: skip
        return policy, base

    def run_log(self, model: Model) -> RunLog:
        """Return the log that training steps are written to."""
        return model.run_log

    def restore(self, model: Model, loaded: LoadedModel) -> None:
        """Load the latest checkpoint, and log its row if the process was killed or interrupted before it was logged."""
        state = loaded.restore()
        if row := state.unlogged_row(loaded.folder):
            self.run_log(model).append_row(state.split, state.step, row)
        loaded.finish(state.step)

    def _restored(self, model: TrainableModel) -> LoadedModel:
        """Return a registered model; if an attempt to train or restore it was interrupted, restore it first."""
        loaded = self.loaded(model)
        if loaded.stale:
            self.restore(model, loaded)
        return loaded

    def client(self, model: TrainableModel) -> AsyncOpenAI:
        """Return an OpenAI client that samples in this process, from the base model or any policy that has a checkpoint."""
        names = lambda: self.loaded(model).names.names()  # noqa: E731
        return InProcessClient(partial(self.answer, model), names, self.loaded(model).loop)

    async def answer(
        self, to: TrainableModel, *, messages: Iterable[dict], model: str | None = None, **parameters: Any
    ) -> ChatCompletion | Chunks:
        """Answer a chat completion request: whole, or with `stream=True` in chunks (see `inference.streaming`).

        to: the registered model. model: the name of one of its policies; None: the latest.

        Raises: RequestError, whose message states what to change; ValueError when the model is not registered.
        """
        loaded = self._restored(to)
        policy = self.named_policy(loaded, model)
        if loaded.gather_resets.should_reset(loaded.sampler.decoder.idle):
            loaded.sampler.forget()
            if not loaded.gathered:
                loaded.reset_counts()
            loaded.gathered = True
        return await loaded.sampler.create(messages=messages, policy=policy, model=policy.name, **parameters)

    def named_policy(self, loaded: LoadedModel, name: str | None) -> NamedPolicy:
        """Return the policy that a request names. Raises: RequestError when there is none."""
        return loaded.policies.get(name)

    async def take_step(self, model: TrainableModel, request: StepRequest) -> LocalTrainResult:
        """Train one step and save a checkpoint. Raises: as `train`, after loading the latest checkpoint again."""
        loaded, started = self._restored(model), time.perf_counter()
        row, learn = self._prepare(loaded, request)
        loaded.stale, log, step = True, self.run_log(model), loaded.step
        with log.rollback_on_error(unless=lambda: (checkpoints.latest(loaded.policies.folder) or 0) > step):
            try:
                row |= learn()
                row["train_s"] = row["time/step_trainer_s"] = time.perf_counter() - started
                row["data/step_trainer_tokens"] = row.get("tokens_trained", 0)
                if request.log:
                    row = await log.complete_row(loaded.split, row, request.groups)
                return self.save_step(model, loaded, row, request)
            except BaseException:  # Ctrl-C, too
                self.restore(model, loaded)
                raise

    def _prepare(self, loaded: LoadedModel, request: StepRequest) -> tuple[dict[str, Any], Callable[[], dict[str, Any]]]:
        """Check and tokenise the data of a step. Returns metrics of the data, and the function that trains on it."""
        from art_nb.training.sequences import build_sequences, demonstration_sequences

        config, tokenizer = request.config, loaded.policy.tokenizer
        report = lambda text: self.progress(f"training: {text}")  # noqa: E731
        context = loaded.policy.base.config.max_position_embeddings
        if not isinstance(config, TrainConfig):
            demonstrations = demonstration_sequences(request.data, tokenizer, context)
            return {"trajectories": len(demonstrations)}, partial(loaded.imitate, demonstrations, config, report)
        sequences, counts = build_sequences(request.groups, tokenizer, config, loaded.policies.at(), context)
        if not sequences:
            self.progress("nothing to learn: in every group all advantages are zero")
        row = summary(request.groups) | counts | loaded.rollout_metrics()
        return row, partial(loaded.learn, sequences, config, report)

    def save_step(
        self, model: TrainableModel, loaded: LoadedModel, row: dict[str, Any], request: StepRequest
    ) -> LocalTrainResult:
        """Write trajectories, checkpoint and row, in this order: after a kill the step is either done or repeated."""
        self.progress("saving the checkpoint")
        started, step = time.perf_counter(), loaded.step + 1
        if request.log and request.groups:
            self.run_log(model).write_trajectories(request.groups, loaded.split, step)
        checkpoint = loaded.save(step, row if request.log else None, request.key)
        row["save_s"] = time.perf_counter() - started
        if request.log:
            self.run_log(model).append_row(loaded.split, step, row, request.groups, checkpoint)
            prefix = "" if loaded.split == "train" else f"{loaded.split}/"
            loaded.learner.report(step, {f"{prefix}{name}": value for name, value in numbers(row).items()})
        loaded.finish(step)
        return LocalTrainResult(step, numbers(row), str(checkpoint))

    def last_request(self, model: TrainableModel) -> tuple[str | None, LocalTrainResult]:
        """Return the key of the latest step's `StepRequest`, and its result; without metrics if the step was not logged."""
        loaded = self.loaded(model)
        state, checkpoint = StepState.read(loaded.folder, loaded.step), loaded.policies.checkpoint(loaded.step)
        return state.request, LocalTrainResult(loaded.step, numbers(state.row or {}), str(checkpoint))

    async def fork(self, model: Model, from_model: str, from_project: str, **options: Any) -> int:
        """Copy a checkpoint of another model to this one, before or after `register`; return this model's step."""
        from art_nb.training.fork_checkpoint import fork_checkpoint
        from art_nb.training.state import read_adapter

        source: Model[Any, Any] = Model(name=from_model, project=from_project)
        target = self.output_dir(model)
        loaded = self.models.get((model.project, model.name))
        check = lambda checkpoint: loaded and read_adapter(loaded.policy, checkpoint)  # noqa: E731
        lock = self.lock(target) if not loaded and target.exists() else None  # another process may have loaded it
        try:
            fork_checkpoint(self.output_dir(source), target, check=check, **options)
        finally:
            if lock:
                lock.release()
        if loaded:
            loaded.stale = True  # until `restore` has finished: it may be interrupted
            loaded.policies.clear()
            loaded.sampler.forget()
            self.restore(model, loaded)
        return checkpoints.latest(target / "checkpoints") or 0
