"""LocalBackend: owns the policy in this process and wires sampler, learner and checkpoints together.

Files of a model lie under {path}/{project}/models/{name}/:

    checkpoints/{step:04d}/    adapter, optimizer state, the step's metrics; whole or not there at all
    history.jsonl, trajectories/, state.json    see `logbook`

Random states are not kept: whatever is drawn while sampling and training follows from the seed and the step.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI

from art_nb.inference.client import InProcessClient
from art_nb.model import Backend as Backend  # where ART has it
from art_nb.model import Model
from art_nb.rollouts.gathering import Fresh
from art_nb.storage import checkpoints, logbook
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import LocalTrainResult, TrainConfig, TrainSFTConfig

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

    from art_nb.inference.sampler import Sampler
    from art_nb.inference.streaming import Chunks
    from art_nb.model import TrainableModel
    from art_nb.training.learner import Learner
    from art_nb.training.policy import Policy
    from art_nb.training.versions import Versions


@dataclass
class Running:
    """One registered model: the policy in training, what trains it, its versions so far, and what samples from them.

    options: the GRPOConfig fields that `learner` was made with; trainer_args: those of the model itself.
    split: "train" or "sft", where the last step was logged. The optimizer remembers gradients of that kind only: those of
        a reward and those of demonstrations differ in scale.
    stale: an update was broken off; the weights must be read back before they are used.
    loop: where it was registered; code that does not await is answered there.
    sampled: the sampler's tokens and seconds when the last step ended.
    fresh: of the gatherings that have asked.
    """

    policy: Policy
    learner: Learner
    versions: Versions
    sampler: Sampler
    folder: Path
    trainer_args: dict[str, Any]
    options: dict[str, Any]
    split: str = "train"
    loop: asyncio.AbstractEventLoop | None = None
    stale: bool = True
    sampled: tuple[int, float] = (0, 0.0)
    fresh: Fresh = field(default_factory=Fresh)

    @property
    def step(self) -> int:
        return self.versions.step


class LocalBackend:
    """Trains and samples in this process.

    Args:
        in_process: kept for ART; this backend is always in process.
        path: folder of everything that is written.
        gpu_cost_per_hour_usd: what this machine costs; each step then says in costs/gpu what it cost. None: nothing is said.
        engine: "auto" (Unsloth where it imports), "unsloth" or "transformers".
        seed: of the adapter's random start and of all sampling.
        slots: conversations decoded at once; more wait their turn.
        base_models: names that models may give as their `base_model`, and the folder of each; any other is taken as it is.
        progress: called with a short text whenever something long takes a step, to show what is waited for.

    Raises: ValueError when `path` cannot be a folder.
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
        self.path = Path(path or ".art")
        if files := [each for each in (self.path, *self.path.parents) if each.is_file()]:
            raise ValueError(f"path is {str(path)!r}, but {str(files[0])!r} is a file: give a folder, new or not")
        self.gpu_cost_per_hour_usd = gpu_cost_per_hour_usd
        self.engine, self.seed, self.slots, self.base_models = engine, seed, slots, dict(base_models or {})
        self.progress = progress or (lambda text: None)
        self._running: dict[Path, Running] = {}

    async def register(self, model: Model[Any, Any]) -> None:
        """Make the model's folder, and clear what killed writers left in it."""
        folder = self.output_dir(model)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        checkpoints.sweep(folder / "checkpoints")

    def automatic_gpu_cost_per_hour_usd(self, model: Model[Any, Any]) -> float | None:
        """What was given for it."""
        return self.gpu_cost_per_hour_usd

    def output_dir(self, model: Model[Any, Any]) -> Path:
        """Where the model's files lie."""
        return self.path / model.project / "models" / model.name

    async def close(self) -> None:
        """Let go of every model."""
        for running in self._running.values():
            running.learner.end()
        self._running.clear()

    async def __aenter__(self) -> LocalBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _prepare_backend_for_training(
        self, model: TrainableModel, config: dict[str, Any] | None = None
    ) -> tuple[str | None, str | None]:
        """Load the model at its latest checkpoint. Returns base url and api key: None, no socket is open."""
        folder = self.output_dir(model)
        if folder not in self._running:
            self._running[folder] = self._load(model, folder)
        self._running[folder].loop = asyncio.get_running_loop()
        return None, None

    def client(self, model: TrainableModel) -> AsyncOpenAI:
        """An OpenAI client that asks the model in this process, as it is now or was at any kept step, or its base model."""
        loop = self._of(model).loop
        return InProcessClient(partial(self.answer, model), lambda: self._of(model).versions.names(), loop)

    async def answer(
        self, to: TrainableModel, *, messages: Iterable[dict], model: str | None = None, **parameters: Any
    ) -> ChatCompletion | Chunks:
        """Answer a request of OpenAI's chat completions: whole, or with `stream=True` in chunks (`inference.streaming`).

        to: whose client was asked; model: which of its policies, by name.

        Raises: RequestError, which says what to change.
        """
        running = self._of(to)
        policy = running.versions.asked(model)
        if running.fresh.begins(running.sampler.idle):
            running.sampler.forget()
        return await running.sampler.create(messages=list(messages), policy=policy, model=policy.name, **parameters)

    async def _get_step(self, model: Model[Any, Any]) -> int:
        return self._of(model).step

    def _model_inference_name(self, model: TrainableModel, step: int | None = None) -> str:
        versions = self._of(model).versions
        return versions.at(versions.step if step is None else step)

    async def train(
        self,
        model: TrainableModel,
        trajectory_groups: Iterable[TrajectoryGroup],
        *,
        config: TrainConfig | None = None,
        _log: bool = False,
        _key: str | None = None,
        **art_options: Any,
    ) -> LocalTrainResult:
        """One training step on the groups, and a checkpoint.

        art_options: learning_rate=..., kl_penalty_coef=... and other options of ART's `backend.train`.
        _key: of the request that asks for the step; kept with the checkpoint, see `last_request`.

        Raises:
            ValueError: the groups can't be trained on; it names the trajectory.
            FloatingPointError: the loss is not finite.
            Model and files are unchanged in both cases.
        """
        from art_nb.training.sequences import build_sequences

        config = (config or TrainConfig()).with_art_options(art_options)
        groups, running = list(trajectory_groups), self._of(model)
        started = time.perf_counter()
        sequences, counts = build_sequences(groups, running.policy.tokenizer, config, running.versions.at(running.step))
        row = logbook.summary(groups) | counts | self._rollout_metrics(running)
        running.stale = True  # until everything is saved
        self._use_options(running, config)
        if sequences:
            row |= running.learner.learn(
                sequences, config, lambda text: self.progress(f"training: {text}"), seed=self._seed_of(running.step + 1)
            )
        else:
            self.progress("nothing to learn: in every group all rewards are equal")
        row = await self._timed(model, row, started, groups, _log)
        return self._keep(model, running, row, _log, groups, _key)

    async def train_sft(
        self,
        model: TrainableModel,
        trajectories: Iterable[Trajectory],
        *,
        config: TrainSFTConfig | None = None,
        _log: bool = False,
        _key: str | None = None,
    ) -> LocalTrainResult:
        """One training step on demonstrations, of an optimizer step for each batch of them, and a checkpoint.

        Raises: as `train`.
        """
        from art_nb.training.demonstrations import demonstrated
        from art_nb.training.state import remember
        from art_nb.training.supervised import SupervisedLearner

        config, running = config or TrainSFTConfig(), self._of(model)
        started = time.perf_counter()
        context = running.policy.base.config.max_position_embeddings
        sequences = demonstrated(trajectories, running.policy.tokenizer, context)
        running.stale = True  # until everything is saved
        learner = SupervisedLearner(running.policy, sft=config.sft, output_dir=str(running.folder))
        remember(learner.optimizer, self._remembered(running, "sft"))
        row = learner.learn(
            sequences, config, lambda text: self.progress(f"training: {text}"), seed=self._seed_of(running.step + 1)
        )
        remember(running.learner.optimizer, learner.optimizer.state_dict()["state"])
        row = await self._timed(model, row | {"trajectories": len(sequences)}, started, [], _log)
        return self._keep(model, running, row, _log, key=_key)

    async def _timed(
        self, model: TrainableModel, row: dict[str, Any], started: float, groups: list[TrajectoryGroup], log: bool
    ) -> dict[str, Any]:
        """The row of a step that began at `started`; with the sums of a run if it is logged."""
        row["train_s"] = row["time/step_trainer_s"] = time.perf_counter() - started
        row["data/step_trainer_tokens"] = row.get("tokens_trained", 0)
        return await model._with_totals("train", row, groups) if log else row

    def last_request(self, model: TrainableModel) -> tuple[str | None, LocalTrainResult]:
        """The key of the request that the latest step was taken for, and what it left: no request need be served twice."""
        running = self._of(model)
        folder = checkpoints.step_folder(running.folder / "checkpoints", running.step)
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return state.get("request"), _result(running.step, state["row"] or {}, folder)

    def _keep(
        self,
        model: TrainableModel,
        running: Running,
        row: dict,
        log: bool,
        groups: list[TrajectoryGroup] | None = None,
        key: str | None = None,
    ) -> LocalTrainResult:
        """Write trajectories, checkpoint, metrics. A kill in between: the step is done, or done again."""
        self.progress("saving the checkpoint")
        started, step = time.perf_counter(), running.step + 1
        if log and groups is not None:
            logbook.write_trajectories(running.folder, groups, running.split, step)
        where = checkpoints.step_folder(running.folder / "checkpoints", step)
        checkpoints.write_folder(where, lambda folder: self._save(running, folder, step, row if log else None, key))
        row["save_s"] = time.perf_counter() - started
        if log:
            model._append_row(running.split, step, row, groups or [], where)
            prefix = "" if running.split == "train" else f"{running.split}/"
            running.learner.report(step, {f"{prefix}{name}": value for name, value in _numbers(row).items()})
        self._refresh(running, step)
        return _result(step, row, where)

    def _log_again(self, running: Running, step: int, row: dict[str, Any]) -> None:
        """The row of a step whose checkpoint is there, and which a kill kept from being logged."""
        logbook.append_row(running.folder, running.split, step, row)

    async def _experimental_fork_checkpoint(
        self,
        model: Model,
        from_model: str,
        from_project: str | None = None,
        from_s3_bucket: str | None = None,
        not_after_step: int | None = None,
        verbose: bool = False,
        prefix: str | None = None,
        *,
        best_metric: str | None = None,
        optimizer: bool = True,
    ) -> None:
        """Let `model` start where another model of this backend was, at the same step; before or after `register`.

        Args:
            from_model, from_project: its name, and its project if that is another one.
            not_after_step: take none of its later checkpoints.
            best_metric: "split/name" of a logged metric: of its checkpoints the best by that one, not the latest.
            optimizer: take over what the optimizer remembers as well.
            from_s3_bucket, prefix: ART's storage, which is not here. verbose: print what was done.

        Raises: as `training.forking.fork`; ValueError as well when the adapter does not fit a registered model.
        """
        from art_nb.training.forking import fork
        from art_nb.training.state import read_adapter

        if from_s3_bucket is not None or prefix is not None:
            raise ValueError("from_s3_bucket, prefix: there is no S3 here; copy the model's folder into this backend's path")
        theirs: Model[Any, Any] = Model(name=from_model, project=from_project or model.project)
        mine = self.output_dir(model)
        running = self._running.get(mine)
        origin = fork(
            self.output_dir(theirs), mine, not_after_step=not_after_step, best_metric=best_metric, optimizer=optimizer,
            check=lambda checkpoint: running and read_adapter(running.policy, checkpoint),
        )  # fmt: skip
        if running:
            running.versions.forget()
            running.sampler.forget()
            running.stale = True
        if verbose:
            print(f"{model.name!r} starts from {origin}")

    async def _delete_checkpoint_files(self, model: TrainableModel, steps_to_keep: list[int]) -> None:
        running = self._of(model)
        checkpoints.prune(running.folder / "checkpoints", {*steps_to_keep, running.step})

    def _of(self, model: Model[Any, Any]) -> Running:
        running = self._running.get(self.output_dir(model))
        if running is None:
            raise ValueError(f"model {model.name!r} is not registered here: call `await model.register(backend)` first")
        if running.stale:
            self._restore(running)
        return running

    def _load(self, model: TrainableModel, folder: Path) -> Running:
        self.progress(f"loading {model.base_model}")
        from art_nb.inference.sampler import Sampler
        from art_nb.training.learner import Learner
        from art_nb.training.versions import Versions

        policy, base = self._load_policy(model)
        trainer_args = dict((model._internal_config or {}).get("trainer_args") or {})
        learner = Learner(policy, grpo=trainer_args, output_dir=str(folder))
        versions = Versions(policy, model.name, model.base_model, folder / "checkpoints", self.seed, Path(base))
        sampler = Sampler(policy.base, policy.tokenizer, slots=self.slots)
        running = Running(policy, learner, versions, sampler, folder, trainer_args, trainer_args)
        self._restore(running)
        return running

    def _load_policy(self, model: TrainableModel) -> tuple[Policy, str]:
        """The policy as it begins, and the folder or name that its base model was loaded from."""
        from art_nb.training.policy import load_policy

        internal, base = model._internal_config or {}, self.base_models.get(model.base_model, model.base_model)
        policy = load_policy(
            base, engine=self.engine, seed=self.seed,
            init_args=internal.get("init_args"), peft_args=internal.get("peft_args"),
        )  # fmt: skip
        return policy, base

    def _save(self, running: Running, folder: Path, step: int, row: dict[str, Any] | None, key: str | None = None) -> None:
        """Adapter and optimizer (see `training.state`), and state.json with the step's metrics if it was a logged one."""
        from art_nb.training.state import save_policy_state

        save_policy_state(running.policy, running.learner.optimizer, folder)
        state = {"step": step, "split": running.split, "row": logbook.plain_numbers(row)} | ({"request": key} if key else {})
        (folder / "state.json").write_text(json.dumps(state, allow_nan=False), encoding="utf-8")

    def _restore(self, running: Running) -> None:
        """Go back to the latest checkpoint; the start is one too."""
        from art_nb.training.state import load_policy_state

        root = running.folder / "checkpoints"
        step = checkpoints.latest(root)
        if step is None:
            step = 0
            checkpoints.write_folder(checkpoints.step_folder(root, 0), lambda folder: self._save(running, folder, 0, None))
        folder = checkpoints.step_folder(root, step)
        load_policy_state(running.policy, running.learner.optimizer, folder)
        running.split, row = unlogged(running.folder, step)
        if row is not None:
            self._log_again(running, step, row)
        self._refresh(running, step)

    def _refresh(self, running: Running, step: int) -> None:
        """The checkpoint of `step` is the latest now, and the policy in training holds the same."""
        running.sampler.forget(running.versions.at(running.step))
        running.sampled = (running.sampler.tokens_sampled, running.sampler.seconds)
        running.versions.step, running.stale = step, False

    def _seed_of(self, step: int) -> int:
        return random.Random(f"{self.seed} {step}").getrandbits(63)

    def _use_options(self, running: Running, config: TrainConfig) -> None:
        """A change of TRL's options takes a new trainer; what the optimizer remembers moves over."""
        wanted = {**running.trainer_args, **config.grpo}
        if wanted == running.options and running.split == "train":
            return
        from art_nb.training.learner import Learner
        from art_nb.training.state import remember

        remembered = self._remembered(running, "train")
        if wanted != running.options:
            running.learner.end()
            running.learner = Learner(running.policy, grpo=wanted, output_dir=str(running.folder))
            running.options = wanted
        remember(running.learner.optimizer, remembered)

    def _remembered(self, running: Running, split: str) -> dict[int, dict[str, Any]]:
        """What the optimizer remembers, for a step of that kind; nothing if the last one was of the other."""
        state = running.learner.optimizer.state_dict()["state"] if running.split == split else {}
        running.split = split
        return state

    def _rollout_metrics(self, running: Running) -> dict[str, float]:
        tokens = running.sampler.tokens_sampled - running.sampled[0]
        seconds = running.sampler.seconds - running.sampled[1]
        if not seconds:
            return {}
        return {"rollout_s": seconds, "rollout_tokens_per_s": tokens / seconds, "time/step_actor_s": seconds}


def unlogged(folder: Path, step: int) -> tuple[str, dict[str, Any] | None]:
    """The split that a step was logged with, and its row where a kill came between the checkpoint and history.jsonl."""
    state = json.loads((checkpoints.step_folder(folder / "checkpoints", step) / "state.json").read_text(encoding="utf-8"))
    split = state.get("split", "train")
    logged = {row["step"] for row in logbook.rows(folder) if row["split"] == split}
    return split, None if step in logged else state["row"]


def _result(step: int, row: dict[str, Any], checkpoint: Path) -> LocalTrainResult:
    return LocalTrainResult(step, _numbers(row), str(checkpoint))


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, int | float)}
