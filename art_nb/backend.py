"""LocalBackend: owns the policy in this process and wires sampler, learner and checkpoints together.

Files of a model lie under {path}/{project}/models/{name}/:

    checkpoints/{step:04d}/    adapter, optimizer state, random state, the step's metrics; whole or not there at all
    history.jsonl, trajectories/, state.json    see `logbook`
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI

from . import checkpoints, logbook
from .trajectories import TrajectoryGroup
from .types import LocalTrainResult, TrainConfig

if TYPE_CHECKING:
    from .learner import Learner
    from .model import TrainableModel
    from .policy import Policy
    from .sampler import Sampler


@dataclass
class Running:
    """One registered model: its policy, what samples from it, what trains it, and how far it is."""

    policy: Policy
    sampler: Sampler
    learner: Learner
    folder: Path
    step: int
    grpo: dict[str, Any]
    stale: bool = False  # an update was broken off: the weights must be read back before they are used
    sampled: tuple[int, float] = (0, 0.0)  # the sampler's tokens and seconds when the last step ended


class LocalBackend:
    """Trains and samples in this process.

    Args:
        in_process: kept for ART; this backend is always in process.
        path: folder of everything that is written.
        engine: "auto" (Unsloth where it imports), "unsloth" or "transformers".
        seed: of the adapter's random start and of all sampling.
        slots: conversations decoded at once; more wait their turn.
        progress: called with a short text whenever something long takes a step; None prints nothing.
    """

    def __init__(
        self,
        *,
        in_process: bool = False,
        path: str | os.PathLike | None = None,
        engine: str = "auto",
        seed: int = 0,
        slots: int = 128,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.path = Path(path or ".art")
        self.engine, self.seed, self.slots = engine, seed, slots
        self.progress = progress or (lambda text: None)
        self._running: dict[Path, Running] = {}

    async def register(self, model: TrainableModel) -> None:
        """Make the model's folder, and clear what killed writers left in it."""
        folder = self.output_dir(model)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        checkpoints.sweep(folder / "checkpoints")

    def output_dir(self, model: TrainableModel) -> Path:
        """Where the model's files lie."""
        return self.path / model.project / "models" / model.name

    async def close(self) -> None:
        """Let go of every model."""
        self._running.clear()

    async def __aenter__(self) -> LocalBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _prepare_backend_for_training(
        self, model: TrainableModel, config: dict[str, Any] | None = None
    ) -> tuple[str | None, str | None]:
        """Load the model at its latest checkpoint. Returns (base url, api key): None, as no socket is open."""
        folder = self.output_dir(model)
        if folder not in self._running:
            self._running[folder] = self._load(model, folder)
        return None, None

    def client(self, model: TrainableModel) -> AsyncOpenAI:
        """An OpenAI client that asks the model in this process."""
        return InProcessClient(self._of(model), model.name)

    async def _get_step(self, model: TrainableModel) -> int:
        return self._of(model).step

    async def train(
        self, model: TrainableModel, trajectory_groups: Iterable[TrajectoryGroup], *, config: TrainConfig | None = None,
        _log: bool = False, **art_options: Any,
    ) -> LocalTrainResult:  # fmt: skip
        """One training step on the groups, and a checkpoint.

        art_options: learning_rate=..., kl_penalty_coef=... and other options of ART's `backend.train`.

        Raises:
            ValueError: the groups can't be trained on; it names the trajectory. FloatingPointError: the loss is not
            finite. The model is unchanged in both cases.
        """
        config = (config or TrainConfig()).with_art_options(art_options)
        groups, running = list(trajectory_groups), self._of(model)
        from .sequences import build_sequences

        started = time.perf_counter()
        sequences, counts = build_sequences(groups, running.policy.tokenizer, config)
        metrics: dict[str, Any] = counts | self._rollout_metrics(running)
        if sequences:
            running.stale = True  # until the new weights are saved
            self._use_options(running, config)
            metrics |= running.learner.learn(sequences, config, lambda text: self.progress(f"training: {text}"))
        else:
            self.progress("nothing to learn: in every group all rewards are equal")
        step = running.step + 1
        metrics["train_s"] = time.perf_counter() - started
        row = logbook.summary(groups) | metrics
        if _log:
            logbook.write_trajectories(running.folder, groups, "train", step)
        started = time.perf_counter()
        self.progress("saving the checkpoint")
        where = running.folder / "checkpoints" / f"{step:04d}"
        checkpoints.write_folder(where, lambda folder: _save(running, folder, step, row if _log else None))
        row["save_s"] = metrics["save_s"] = time.perf_counter() - started
        running.step, running.stale = step, False
        if _log:
            logbook.append_row(running.folder, "train", step, row)
        self._refresh(running)
        return LocalTrainResult(step, metrics, str(where))

    async def _delete_checkpoint_files(self, model: TrainableModel, steps_to_keep: list[int]) -> None:
        checkpoints.prune(self._of(model).folder / "checkpoints", set(steps_to_keep))

    def _of(self, model: TrainableModel) -> Running:
        running = self._running.get(self.output_dir(model))
        if running is None:
            raise ValueError(f"model {model.name!r} is not registered here: call `await model.register(backend)` first")
        if running.stale:
            self._restore(running)
        return running

    def _load(self, model: TrainableModel, folder: Path) -> Running:
        self.progress(f"loading {model.base_model}")
        from .learner import Learner
        from .policy import load_policy
        from .sampler import Sampler

        internal = model._internal_config or {}
        policy = load_policy(
            model.base_model, engine=self.engine, seed=self.seed,
            init_args=internal.get("init_args"), peft_args=internal.get("peft_args"),
        )  # fmt: skip
        grpo = dict(internal.get("trainer_args") or {})
        learner = Learner(policy, grpo=grpo, output_dir=str(folder))
        sampler = Sampler(policy.sampling_model(), policy.tokenizer, slots=self.slots, seed=self.seed)
        running = Running(policy, sampler, learner, folder, 0, grpo)
        self._restore(running)
        return running

    def _restore(self, running: Running) -> None:
        """Go back to the latest checkpoint, or to the start where there is none."""
        root = running.folder / "checkpoints"
        step = checkpoints.latest(root)
        if step is None:
            # The start is a checkpoint too, so that an update that was broken off has a place to return to.
            checkpoints.write_folder(root / "0000", lambda folder: _save(running, folder, 0, None))
            step = 0
        row = _read(running, root / f"{step:04d}")
        running.step, running.stale = step, False
        logged = [r["step"] for r in logbook.rows(running.folder) if r["split"] == "train"]
        if row is not None and step not in logged:
            logbook.append_row(running.folder, "train", step, row)
        self._refresh(running)

    def _refresh(self, running: Running) -> None:
        """Let the sampler see the policy's present weights."""
        running.policy.sampling_model()
        running.sampler.forget()
        running.sampler.seed = (self.seed, running.step)
        running.sampled = (running.sampler.tokens_sampled, running.sampler.seconds)

    def _use_options(self, running: Running, config: TrainConfig) -> None:
        """A change of TRL's options takes a new trainer; the optimizer's state moves over."""
        if config.grpo == running.grpo or not config.grpo:
            return
        from .learner import Learner

        state = running.learner.optimizer.state_dict()
        running.grpo = {**running.grpo, **config.grpo}
        running.learner = Learner(running.policy, grpo=running.grpo, output_dir=str(running.folder))
        running.learner.optimizer.load_state_dict(state)

    def _rollout_metrics(self, running: Running) -> dict[str, float]:
        tokens = running.sampler.tokens_sampled - running.sampled[0]
        seconds = running.sampler.seconds - running.sampled[1]
        return {"rollout_s": seconds, "rollout_tokens_per_s": tokens / seconds} if seconds else {}


class InProcessClient(AsyncOpenAI):
    """`openai.AsyncOpenAI` whose chat completions are answered by the sampler beside it, without a socket."""

    def __init__(self, running: Running, name: str) -> None:
        super().__init__(api_key="in-process", base_url="http://in-process.invalid/v1")
        self._running, self._name = running, name

    @property
    def chat(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(completions=SimpleNamespace(create=self._create))

    async def _create(self, *, messages: Iterable[dict], model: str | None = None, **parameters: Any) -> Any:
        name, _, step = (model or self._name).partition("@")
        if name != self._name or (step and int(step) != self._running.step):
            raise ValueError(
                f"model {model!r} is not loaded: this client answers for {self._name!r} at step {self._running.step}"
            )
        if self._running.stale:
            raise RuntimeError("a training step was broken off: call `await model.register(backend)` to go on")
        return await self._running.sampler.create(messages=list(messages), model=self._name, **parameters)


def _save(running: Running, folder: Path, step: int, row: dict[str, Any] | None) -> None:
    """Adapter (as PEFT saves it), optimizer and random state (safetensors), and state.json."""
    import torch
    from safetensors.torch import save_file

    running.policy.model.save_pretrained(folder, selected_adapters=["default"])
    tensors = {"torch_rng": torch.get_rng_state()}
    for i, state in running.learner.optimizer.state_dict()["state"].items():
        tensors |= {f"{i}.{name}": torch.as_tensor(value).contiguous() for name, value in state.items()}
    save_file(tensors, folder / "optimizer.safetensors")
    (folder / "state.json").write_text(json.dumps({"step": step, "row": logbook._plain(row)}, allow_nan=False))


def _read(running: Running, folder: Path) -> dict[str, Any] | None:
    """Load what `_save` wrote; returns the step's metrics, if the step was a logged one."""
    import torch
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    set_peft_model_state_dict(running.policy.model, load_file(folder / "adapter_model.safetensors"))
    tensors = load_file(folder / "optimizer.safetensors")
    torch.set_rng_state(tensors.pop("torch_rng"))
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer = running.learner.optimizer
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    optimizer.zero_grad(set_to_none=True)
    return json.loads((folder / "state.json").read_text())["row"]
