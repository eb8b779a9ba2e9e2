"""One GRPO update: TRL's GRPOTrainer on gathered trajectories, in place of completions that it would generate.

The loss, its options and its metrics are TRL's. Added here: groups of any size, micro-batches whose weighted losses add up
to the loss of the batch, an advantage per token, and metrics that explain a step. Only two TRL options depend on the split
into micro-batches: `top_entropy_quantile`, and `entropy_coef` with a loss in SEQUENCE_MEAN_LOSSES.
"""

import math
import time
from contextlib import nullcontext
from typing import Any

import torch
from transformers.integrations import get_reporting_integration_callbacks

from art_nb.training.grpo import kl_k3, ratio
from art_nb.training.micro_batches import split_sequences
from art_nb.training.policy import Policy, default_learning_rate
from art_nb.training.sequences import TokenSequence
from art_nb.training.trainer import Report, SequenceTrainer, check_options, keep_accelerate, summarize_updates, trl_settings
from art_nb.types import TrainConfig

# After policy, which imports GRPOTrainer before Unsloth replaces it.
from trl import GRPOConfig, GRPOTrainer  # isort: skip

# Losses divided by the number of sequences. For others, a micro-batch is weighted by its share of the trained tokens.
SEQUENCE_MEAN_LOSSES = {"grpo", "sapo", "luspo", "dr_grpo"}
# TRL's options without effect: TrainConfig has them, batch sizes may vary, or TRL's rewards and forward pass are not used.
WITHOUT_EFFECT = {
    "num_iterations", "learning_rate", "beta", "scale_rewards", "steps_per_generation", "generation_batch_size",
    "mask_truncated_completions", "reward_weights", "multi_objective_aggregation", "neftune_noise_alpha",
}  # fmt: skip
KL_SAMPLE = 32  # without a KL penalty, the KL is measured on one in this many sequences


class Learner(SequenceTrainer, GRPOTrainer):
    """Trains a policy with GRPO on token sequences.

    grpo: fields of `trl.GRPOConfig` (loss_type, epsilon, epsilon_high, max_grad_norm, ...). `temperature` must be that of
        the sampled answers; it divides the logits. Integrations in `report_to` ("tensorboard", "trackio", "mlflow", ...)
        get each step's metrics from `report`; by default none.
    output_dir: where TRL may write. tokens_per_micro_batch: see `SequenceTrainer`.

    Raises: ValueError: an invalid option, use_adaptive_entropy, or a loss without token advantages.
    """

    metric_names = {
        "entropy": "entropy", "kl": "kl", "clip_ratio/region_mean": "clip_fraction", "cispo_clip_ratio": "clip_fraction"
    }  # fmt: skip

    @keep_accelerate()
    def __init__(
        self, policy: Policy, *, grpo: dict | None = None, output_dir: str = ".art",
        tokens_per_micro_batch: int | None = None,
    ):  # fmt: skip
        from datasets import Dataset

        # `micro_batches` splits the batch: the 2s only pass TRL's checks, the 1 scales its loss.
        fixed = {"per_device_train_batch_size": 2, "num_generations": 2, "gradient_accumulation_steps": 1}
        given = check_options(grpo or {}, GRPOConfig, {*fixed, *WITHOUT_EFFECT}, stacklevel=6)
        super().__init__(
            policy,
            tokens_per_micro_batch,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(**trl_settings(policy, output_dir) | {"temperature": 1.0} | given | fixed),
            train_dataset=Dataset.from_dict({"prompt": [""]}),
        )
        if not self.temperature:
            raise ValueError(f"grpo: temperature is {self.temperature}: expected a number above 0")
        if self.loss_type == "vespo":
            raise ValueError("loss_type 'vespo' takes one advantage per sequence, not one per token: use another type")
        if getattr(self.args, "use_adaptive_entropy", False):
            raise ValueError("grpo: use_adaptive_entropy would adapt to each micro-batch; set entropy_coef instead")
        self.low_precision = policy.model.dtype != torch.float32 or self.args.bf16 or self.args.fp16
        integrations = tuple(get_reporting_integration_callbacks(self.args.report_to))
        callbacks = self.callback_handler.callbacks
        self.callback_handler.callbacks = [each for each in callbacks if isinstance(each, integrations)]
        self._reporting = False

    def learn(
        self, sequences: list[TokenSequence], config: TrainConfig, report: Report = lambda text: None, *, seed: int = 0
    ) -> dict[str, float]:
        """Update the policy on `sequences`, with `config.num_updates` optimizer steps.

        report: called with a short text before each micro-batch. seed: for dropout, the only randomness.

        Returns the step's metrics. loss, grad_norm, entropy (nats per token), clip_fraction and, with a KL penalty, kl
        (nats per token, to the base model) are means over the updates; without a penalty, kl is measured before them on
        a part of the sequences. ratio_min, ratio_max: a token's probability at the last update over that at sampling;
        missing at a temperature other than 1, at which the sampler's probabilities are not known.

        Raises: FloatingPointError: as `update`. ValueError: another policy sampled some of the tokens, and the temperature
        is not 1.
        """
        started = time.perf_counter()
        given = "learning_rate" in config.model_fields_set
        learning_rate = config.learning_rate if given else default_learning_rate(self.policy.parameters)
        self.beta = config.kl_penalty_coef
        batches = self.micro_batches(sequences, config)
        with self.prepared_model(seed):
            metrics = {} if self.beta else {"kl": self._sampled_kl(sequences)}
            if self.beta:
                for batch in batches:
                    batch["ref_per_token_logps"] = self._logprobs(batch, of_base=True)
            updates = []
            for number in range(1, config.num_updates + 1):
                updates.append(self.update(batches, learning_rate, f"update {number}", report))
                if number == 1 < config.num_updates:
                    for batch in batches:
                        batch.setdefault("old_per_token_logps", batch["logprobs"])
        seconds = time.perf_counter() - started
        summary = summarize_updates(updates, sequences, learning_rate, seconds, passes=config.num_updates)
        return metrics | summary | self._ratio_range(batches)

    def report(self, step: int, metrics: dict[str, float]) -> None:
        """Send the metrics of a step to the integrations in `report_to`."""
        self.state.global_step = step
        if not self._reporting:
            self._reporting = True
            self.callback_handler.on_train_begin(self.args, self.state, self.control)
        self.callback_handler.on_log(self.args, self.state, self.control, dict(metrics))

    def end(self) -> None:
        """Notify the integrations in `report_to` that the run has ended."""
        if self._reporting:
            self._reporting = False
            self.callback_handler.on_train_end(self.args, self.state, self.control)

    def micro_batches(self, sequences: list[TokenSequence], config: TrainConfig) -> list[dict]:
        """Return the micro-batches of one update, see `weighted_micro_batches`."""
        if self.temperature != 1 and any(any(sequence.off_policy) for sequence in sequences):
            raise ValueError("another policy sampled some of the turns: leave them out, or train at temperature 1")
        by_sequences = self.loss_type in SEQUENCE_MEAN_LOSSES
        batches = self.weighted_micro_batches(sequences, config.grad_accumulation_sequences, by_sequences)
        if self.temperature != 1:  # the sampler's log-probabilities are those at temperature 1, so a ratio would be wrong
            for batch in batches:
                batch["sampling_logprobs"].fill_(math.nan)
        return batches

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any):
        """Return log-probabilities and entropies (B, T) of the sampled tokens, in place of TRL's forward pass.

        In the first update TRL uses these log-probabilities as those of the sampling policy. Where the sampler's
        differ, those are stored first, as `old_per_token_logps`: for tokens that another policy sampled, and below float32
        precision, where sampler and learner round differently and probabilities differ by a few percent.
        """
        logprobs, entropies = self.forward_batch()
        if logprobs.requires_grad:
            batch, known = self.batch, self.batch["sampling_logprobs"].isfinite()
            batch["logprobs"] = logprobs.detach()
            differs = (batch["off_policy"] | self.low_precision) & known
            if differs.any() and "old_per_token_logps" not in batch:
                batch["old_per_token_logps"] = torch.where(differs, batch["sampling_logprobs"], batch["logprobs"])
        return logprobs, entropies, None

    @torch.no_grad()
    def _logprobs(self, batch: dict, *, of_base: bool) -> torch.Tensor:
        """Return log-probabilities (B, T) of the sampled tokens under the base model or the policy, without dropout."""
        self.model.eval()
        self.batch = batch
        with self.accelerator.unwrap_model(self.model).disable_adapter() if of_base else nullcontext():
            return self.forward_batch()[0]

    def _sampled_kl(self, sequences: list[TokenSequence]) -> float:
        """Return the KL to the base model, nats per sampled token, on one in `KL_SAMPLE` sequences, of all lengths."""
        by_length = sorted(sequences, key=lambda s: len(s.ids))
        sample, total, tokens = by_length[(len(by_length) - 1) // 2 % KL_SAMPLE :: KL_SAMPLE], 0.0, 0
        for part in split_sequences(sample, self.tokens_per_micro_batch, len(sample), self.as_tree):
            batch = self.collate(part)
            kl = kl_k3(self._logprobs(batch, of_base=False), self._logprobs(batch, of_base=True))
            total, tokens = total + float((kl * batch["tool_mask"]).sum()), tokens + int(batch["tool_mask"].sum())
        return total / tokens

    def _ratio_range(self, batches: list[dict]) -> dict[str, float]:
        """Return the minimum and maximum ratio to the sampler's probability, over tokens for which that is known."""
        ratios = [ratio(b["logprobs"], b["sampling_logprobs"])[b["tool_mask"].bool()] for b in batches]
        known = torch.cat(ratios) if ratios else torch.zeros(0)
        known = known[known.isfinite()]
        extremes = [known.min().item(), -known.max().item()] if len(known) else [math.inf, math.inf]
        low, high = self.process_group.minimum(extremes)
        return {"ratio_min": low, "ratio_max": -high} if low < math.inf else {}
