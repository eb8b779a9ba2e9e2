"""One GRPO update: TRL's GRPOTrainer, fed with gathered trajectories instead of generating its own.

The loss, its options and its metrics are TRL's. What is added here: batches of sequences of any length, cut into
micro-batches of like lengths whose weighted losses add up to the whole batch's loss; groups of any size; an
advantage per token; and the numbers that explain a step.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations import get_reporting_integration_callbacks

from art_nb.training.grpo import kl_k3, ratio
from art_nb.training.policy import Policy, default_learning_rate
from art_nb.training.sequences import TokenSequence
from art_nb.training.trainer import SequenceTrainer, trl_settings, under
from art_nb.types import TrainConfig

# After policy, which silences TRL's telemetry and takes this class before Unsloth can replace it.
from trl import GRPOConfig, GRPOTrainer  # isort: skip

# Losses that count every sequence the same; a micro-batch's share of the others is its share of the tokens.
BY_SEQUENCES = {"grpo", "sapo", "luspo", "dr_grpo"}
# How TRL calls what every step reports (means over the trained tokens).
REPORTED = {
    "entropy": "entropy",
    "kl": "kl",
    "clip_ratio/region_mean": "clip_fraction",
    "cispo_clip_ratio": "clip_fraction",
}
WATCHED = 1 / 32  # the part of the sequences on which the KL is measured when the loss does not need it


class Learner(SequenceTrainer, GRPOTrainer):
    """Trains a policy on token sequences, one call of `learn` per optimizer step (or per `num_updates` of them).

    Args:
        policy: what is trained.
        grpo: fields of `trl.GRPOConfig` (loss_type, epsilon, epsilon_high, max_grad_norm, ...). Whom `report_to` names, e.g.
            "tensorboard", "trackio" or "mlflow", is told of every step by `report`; unasked, nobody is.
        output_dir: where TRL may write.
        tokens_per_micro_batch: see `SequenceTrainer`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        grpo: dict | None = None,
        output_dir: str = ".art",
        tokens_per_micro_batch: int | None = None,
    ):
        from datasets import Dataset

        super().__init__(
            policy,
            tokens_per_micro_batch,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(**_settings(policy, grpo or {}, output_dir)),
            train_dataset=Dataset.from_dict({"prompt": [""]}),
        )
        if self.loss_type == "vespo":
            raise ValueError("loss_type 'vespo' takes one advantage per sequence; here every token has its own")
        self.rounds = policy.model.dtype != torch.float32
        named = tuple(get_reporting_integration_callbacks(self.args.report_to))
        self._reporters = [each for each in self.callback_handler.callbacks if isinstance(each, named)]
        self._reporting = False

    def learn(
        self,
        sequences: list[TokenSequence],
        config: TrainConfig,
        report: Callable[[str], None] = lambda text: None,
        *,
        seed: int = 0,
    ) -> dict[str, float]:
        """Update the policy on `sequences`.

        seed: of the dropout, the only thing drawn here.

        Returns the step's metrics. loss, grad_norm, entropy (nats per token), clip_fraction and, with a KL penalty,
        kl (nats per token, from the base model) are means over the updates. ratio_min, ratio_max: the trained
        policy's probability of a sampled token over the sampler's; 1 in the first update. kl without a penalty is
        that of some of the sequences before the update. train_tokens_per_s counts all tokens.

        Raises:
            FloatingPointError: the loss or its gradient is not finite; that update was not made.
        """
        started = time.perf_counter()
        given = "learning_rate" in config.model_fields_set
        rate = config.learning_rate if given else default_learning_rate(self.policy.parameters)
        self.beta = config.kl_penalty_coef
        batches = self.micro_batches(sequences, config)
        with self.ready(seed):
            metrics = {} if self.beta else {"kl": self._watched_kl(sequences)}
            if self.beta:
                for batch in batches:
                    batch["ref_per_token_logps"] = self._logprobs(batch, of_base=True)
            updates = []
            for number in range(1, config.num_updates + 1):
                updates.append(self.update(batches, rate, REPORTED, under(f"update {number}", report)))
                if number == 1 < config.num_updates:
                    for batch in batches:
                        batch.setdefault("old_per_token_logps", batch["logprobs"])
        seconds = time.perf_counter() - started
        return (
            metrics
            | {name: sum(update[name] for update in updates) / len(updates) for name in updates[0]}
            | self._ratio_range(batches)
            | {
                "learning_rate": rate,
                "tokens_trained": sum(sum(s.trained) for s in sequences),
                "train_s": seconds,
                "train_tokens_per_s": sum(len(s.ids) for s in sequences) * config.num_updates / seconds,
            }
        )

    def report(self, step: int, metrics: dict[str, float]) -> None:
        """Tell whom `report_to` names of a step."""
        self.state.global_step = step
        if not self._reporting:
            self._reporting = True
            self._tell("on_train_begin")
        self._tell("on_log", logs=dict(metrics))

    def end(self) -> None:
        """Tell them that there are no more."""
        if self._reporting:
            self._reporting = False
            self._tell("on_train_end")

    def _tell(self, event: str, **what: Any) -> None:
        for reporter in self._reporters:
            getattr(reporter, event)(self.args, self.state, self.control, model=self.policy.model, **what)

    def micro_batches(self, sequences: list[TokenSequence], config: TrainConfig) -> list[dict]:
        """TRL's input dictionaries, each with the `weight` of its loss in the whole batch's."""
        batches = self.weighted(sequences, config.grad_accumulation_sequences)
        if self.loss_type in BY_SEQUENCES:
            for batch in batches:
                batch["weight"] = len(batch["tool_mask"]) / len(sequences)
        return batches

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """TRL's loss. Leaves the log-probabilities that it was computed from in `inputs`."""
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        inputs["logprobs"] = self.last_logprobs
        return loss

    def _note_old(self, logprobs: torch.Tensor) -> None:
        """In the first update TRL takes the ratio of each token to what it is now. What another policy sampled has one to
        that policy: it is given here, before TRL asks for it. In bfloat16 the sampler is another policy, by a few percent:
        it rounds elsewhere. logprobs: (B, T), those of the first update."""
        other = (self._inputs["off_policy"] | self.rounds) & self._inputs["sampling_logprobs"].isfinite()
        if other.any() and "old_per_token_logps" not in self._inputs:
            self._inputs["old_per_token_logps"] = torch.where(other, self._inputs["sampling_logprobs"], logprobs)

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **_):
        """Log-probabilities and entropies (B, T) of the sampled tokens, 0 elsewhere, in the place of TRL's forward."""
        logprobs, entropies = self.score(model)
        self.last_logprobs = logprobs.detach()
        if logprobs.requires_grad:
            self._note_old(self.last_logprobs)
        return logprobs, entropies, None

    @torch.no_grad()
    def _logprobs(self, batch: dict, *, of_base: bool) -> torch.Tensor:
        """Log-probabilities (B, T) of the sampled tokens, without dropout: of the base model or of the policy."""
        self.model.eval()
        self._inputs = batch
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        width = batch["completion_ids"].shape[1]
        if not of_base:
            return self._get_per_token_logps_and_entropies(self.model, ids, None, width)[0]
        with self.accelerator.unwrap_model(self.model).disable_adapter():
            return self._get_per_token_logps_and_entropies(self.model, ids, None, width)[0]

    def _watched_kl(self, sequences: list[TokenSequence]) -> float:
        """KL from the base model, nats per sampled token, on a spread-out part of the sequences."""
        every = round(1 / WATCHED)
        order = sorted(sequences, key=lambda s: len(s.ids))
        batch = self.collate(order[(len(order) - 1) // 2 % every :: every])
        kl = kl_k3(self._logprobs(batch, of_base=False), self._logprobs(batch, of_base=True))
        return float((kl * batch["tool_mask"]).sum() / batch["tool_mask"].sum())

    def _ratio_range(self, batches: list[dict]) -> dict[str, float]:
        """Least and greatest ratio of the trained policy's probability of a sampled token to the sampler's.

        Tokens that were not sampled here have none.
        """
        ratios = [ratio(b["logprobs"], b["sampling_logprobs"])[b["tool_mask"].bool()] for b in batches]
        known = torch.cat(ratios) if ratios else torch.zeros(0)
        known = known[known.isfinite()]
        ends = [known.min().item(), -known.max().item()] if len(known) else [math.inf, math.inf]
        low, high = self.ranks.least(ends)
        return {"ratio_min": low, "ratio_max": -high} if low < math.inf else {}


def _settings(policy: Policy, grpo: dict, output_dir: str) -> dict:
    """Fields for GRPOConfig: what was asked for, on top of what suits gathered trajectories."""
    # How a batch is cut is decided by `micro_batches`; these only have to satisfy TRL.
    fixed = {"per_device_train_batch_size": 2, "num_generations": 2, "gradient_accumulation_steps": 1}
    if ignored := sorted(set(grpo) & {*fixed, "steps_per_generation", "generation_batch_size", "num_iterations"}):
        warnings.warn(
            f"without effect here: {', '.join(ignored)} (groups have any size; the number of optimizer steps is "
            "TrainConfig's num_updates)",
            stacklevel=5,
        )
    suited = trl_settings(policy, output_dir) | {"temperature": 1.0}
    return suited | {name: value for name, value in grpo.items() if name not in ignored} | fixed
