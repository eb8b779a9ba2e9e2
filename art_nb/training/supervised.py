"""Supervised fine-tuning: TRL's SFTTrainer on demonstrations as token sequences, on the adapter that GRPO trains.

Loss, options and metrics are TRL's. Tokens, mask and log-probabilities are computed here: TRL's `apply_chat_template` lets
text forge control tokens (see `inference.chat_template`), and its Triton kernel does not run on a CPU.
"""

import inspect
import time
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch

from art_nb.training.policy import SMALL_MODEL, Policy, SFTTrainer, default_learning_rate
from art_nb.training.sequences import TokenSequence
from art_nb.training.trainer import Report, SequenceTrainer, check_options, keep_accelerate, summarize_updates, trl_settings
from art_nb.types import TrainSFTConfig

# After policy, which imports SFTTrainer before Unsloth replaces it.
from trl import SFTConfig  # isort: skip

AUTO_BATCH_SIZE = 2  # trajectories, as in ART


class SupervisedLearner(SequenceTrainer, SFTTrainer):
    """Trains a policy on demonstrations, with one optimizer step per batch.

    sft: fields of `trl.SFTConfig` (loss_type, max_grad_norm, adam_beta2, ...). output_dir: where TRL may write.
    tokens_per_micro_batch: see `SequenceTrainer`.

    Raises: ValueError: an invalid option, or label_smoothing_factor.
    """

    metric_names = {"entropy": "entropy", "mean_token_accuracy": "token_accuracy"}

    @keep_accelerate()
    def __init__(
        self, policy: Policy, *, sft: dict | None = None, output_dir: str = ".art", tokens_per_micro_batch: int | None = None
    ):
        from datasets import Dataset

        if (sft or {}).get("label_smoothing_factor"):
            raise ValueError("sft: label_smoothing_factor needs all logits, which TRL does not compute here: leave it out")
        # No dataset is prepared or loaded; these values only have to pass TRL's checks.
        fixed = {"max_length": None, "packing": False, "dataset_kwargs": {"skip_prepare_dataset": True}}
        ignored = {*fixed, "learning_rate", "completion_only_loss", "neftune_noise_alpha"}
        given = check_options(sft or {}, SFTConfig, ignored, stacklevel=5)
        super().__init__(
            policy,
            tokens_per_micro_batch,
            args=SFTConfig(**trl_settings(policy, output_dir) | given | fixed),
            train_dataset=Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]}),
        )

    def learn(
        self, demonstrations: list[list[TokenSequence]], config: TrainSFTConfig, report: Report = lambda text: None, *,
        seed: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """Update the policy on each batch of demonstrations in turn.

        demonstrations: the sequences of each (see `demonstration_sequences`). report, seed: as in `Learner.learn`.

        Returns loss and entropy (nats per token), grad_norm and token_accuracy (share of the assistant's tokens that are
        the policy's most likely token), means over the batches; and `losses`, the loss of each batch before its update.

        Raises: ValueError: too few learning rates. FloatingPointError: as `update`; the earlier updates are kept.
        """
        started = time.perf_counter()
        size = AUTO_BATCH_SIZE if config.batch_size == "auto" else config.batch_size
        batches = [list(chain(*demonstrations[i : i + size])) for i in range(0, len(demonstrations), size)]
        learning_rates = self._learning_rates(config, len(batches))
        updates = []
        with self.prepared_model(seed):
            for number, (sequences, learning_rate) in enumerate(zip(batches, learning_rates, strict=True), start=1):
                heading = f"batch {number} of {len(batches)}"
                updates.append(self.update(self.weighted_micro_batches(sequences), learning_rate, heading, report))
        seconds = time.perf_counter() - started
        summary = summarize_updates(updates, list(chain(*batches)), learning_rates[-1], seconds)
        return summary | {"batches": len(batches), "losses": [update["loss"] for update in updates]}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Return TRL's loss, computed from `forward_batch`."""

        def fused_head_outputs(**_: Any) -> SimpleNamespace:
            """Return the output of a model with TRL's fused output head."""
            log_probs, entropies, is_top1 = self.forward_batch()
            mask = self.batch["tool_mask"].bool()
            return SimpleNamespace(log_probs=log_probs, entropy=entropies, is_top1=is_top1, label_mask=mask)

        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        # On a CPU Unsloth wraps TRL's loss in its own.
        trl_loss = inspect.unwrap(SFTTrainer.compute_loss)
        return trl_loss(self, fused_head_outputs, {"attention_mask": mask}, return_outputs, num_items_in_batch)

    def token_values(self, logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the values of `SequenceTrainer.token_values`, and whether each token is the most likely one."""
        return *super().token_values(logits, rows, ids), (logits.argmax(-1)[rows] == ids).float()

    def _learning_rates(self, config: TrainSFTConfig, batches: int) -> list[float]:
        """Return the learning rate of each batch. Raises: ValueError when the configuration lists too few."""
        rates = config.learning_rate
        if not isinstance(rates, list):
            by_size = self.policy.parameters < SMALL_MODEL and "learning_rate" not in config.model_fields_set
            return [default_learning_rate(self.policy.parameters) if by_size else rates] * batches
        if len(rates) < batches:
            raise ValueError(f"learning_rate lists {len(rates)} rates for {batches} batches: give one for each, or a number")
        return rates[:batches]
