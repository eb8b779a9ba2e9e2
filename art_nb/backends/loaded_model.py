"""LoadedModel: policy, learner and sampler of one model in this process, and its checkpoints.

    checkpoints/{step:04d}/    adapter, optimizer state and state.json (see `steps`), written atomically

Random states are not saved: all random draws of sampling and training are derived from the seed and the step.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

from filelock import FileLock

from art_nb.backends.base import RegisteredModel
from art_nb.backends.steps import StepState
from art_nb.inference.sampler import Sampler
from art_nb.rollouts.gathering import GatherResetDetector
from art_nb.storage import checkpoints
from art_nb.training.learner import Learner
from art_nb.training.policy import Policy
from art_nb.training.policy_store import PolicyStore
from art_nb.training.sequences import TokenSequence
from art_nb.training.state import load_policy_state, save_policy_state, set_optimizer_state
from art_nb.training.supervised import SupervisedLearner
from art_nb.training.trainer import Report
from art_nb.types import TrainConfig, TrainSFTConfig


class LoadedModel(RegisteredModel):
    """The policy in training, its learner, its earlier versions and its sampler.

    trainer_args: fields of `trl.GRPOConfig` for every GRPO step.
    split: kind of the last step, "train" or "sft". The optimizer's moments are kept between steps of the same kind only: the
        gradients of rewards and of demonstrations differ in scale.
    stale: weights and optimizer may differ from the latest checkpoint; call `restore` and `finish` before using them.
    gathered: whether a gather call has sampled since the latest checkpoint.
    lock: the folder's, held while the model is loaded; None if this process does not write to the folder.
    """

    def __init__(self, policy: Policy, policies: PolicyStore, sampler: Sampler, folder: Path, trainer_args: dict[str, Any]):
        super().__init__(policies, folder)
        self.policy, self.policies, self.sampler, self.trainer_args = policy, policies, sampler, trainer_args
        self.learner = Learner(policy, grpo=trainer_args, output_dir=str(folder))
        self._options = trainer_args
        self.split, self.stale, self.gathered = "train", True, False
        self.lock: FileLock | None = None
        self.gather_resets = GatherResetDetector()

    @property
    def step(self) -> int:
        """The latest step, as set by `finish`."""
        return self.policies.step

    def sampled(self) -> tuple[int, float]:
        return self.sampler.decoder.tokens_sampled, self.sampler.decoder.seconds

    def save(self, step: int, row: dict[str, Any] | None = None, key: str | None = None) -> Path:
        """Write the checkpoint of a step; return its folder. row, key: `row` and `request` of its `StepState`."""

        def fill(folder: Path) -> None:
            save_policy_state(self.policy, self.learner.optimizer, folder)
            StepState(step, self.split, row, key).write(folder)

        checkpoints.write_folder(self.policies.checkpoint(step), fill)
        return self.policies.checkpoint(step)

    def restore(self) -> StepState:
        """Load the latest intact checkpoint; for a new model, first write that of step 0. Returns the checkpoint's state.

        Sets damaged ones aside with a warning. Raises: DamagedCheckpoint if none is intact; ValueError if one does not fit.
        """
        if not (steps := checkpoints.list_checkpoints(self.policies.folder)):
            self.save(0)
            steps = [0]
        try:
            state = StepState.read(self.folder, steps[-1])
            load_policy_state(self.policy, self.learner.optimizer, self.policies.checkpoint(steps[-1]))
        except checkpoints.DamagedCheckpoint as damage:
            if len(steps) == 1:
                raise
            aside = checkpoints.set_aside(self.policies.folder, steps[-1])
            self.policies.clear()  # the step will be taken again
            warnings.warn(f"{damage}. Continuing from step {steps[-2]}; the damaged checkpoint is now {aside}", stacklevel=2)
            return self.restore()
        self.split = state.split
        return state

    def finish(self, step: int) -> None:
        """Make `step`, whose weights are loaded and saved, the latest one; restart the counts of sampling."""
        self.sampler.forget(self.policies.at())
        self.reset_counts()
        self.policies.step, self.stale, self.gathered = step, False, False

    def learn(self, sequences: list[TokenSequence], config: TrainConfig, report: Report) -> dict[str, Any]:
        """Update the policy by GRPO; return metrics. Changed options need a new learner, which inherits the moments."""
        options = {**self.trainer_args, **config.grpo}
        if options != self._options or self.split != "train":
            moments = self._begin_step("train")
            if options != self._options:
                learner = Learner(self.policy, grpo=options, output_dir=str(self.folder))
                self.learner.end()
                learner.process_group = self.learner.process_group
                self.learner, self._options = learner, options
            set_optimizer_state(self.learner.optimizer, moments)
        return self.learner.learn(sequences, config, report, seed=self._seed()) if sequences else {}

    def imitate(self, demonstrations: list[list[TokenSequence]], config: TrainSFTConfig, report: Report) -> dict[str, Any]:
        """Update the policy by supervised fine-tuning; return metrics."""
        learner = SupervisedLearner(self.policy, sft=config.sft, output_dir=str(self.folder))
        set_optimizer_state(learner.optimizer, self._begin_step("sft"))
        row = learner.learn(demonstrations, config, report, seed=self._seed())
        set_optimizer_state(self.learner.optimizer, learner.optimizer.state_dict()["state"])
        return row

    def _seed(self) -> int:
        return random.Random(f"{self.policies.seed} {self.step + 1}").getrandbits(63)

    def _begin_step(self, split: str) -> dict[int, dict[str, Any]]:
        """Set `split`; return the optimizer's moments for a step of that kind, {} if the last step was of the other kind."""
        moments = self.learner.optimizer.state_dict()["state"] if self.split == split else {}
        self.split = split
        return moments
