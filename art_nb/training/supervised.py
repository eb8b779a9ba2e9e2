"""Supervised fine-tuning: TRL's SFTTrainer, fed with demonstrations as token sequences, on the adapter that GRPO trains.

The loss, its options and its metrics are TRL's: the mean negative log-likelihood of the assistant's tokens in a batch. TRL
would render the messages by `apply_chat_template`, which lets a text forge control tokens (see `inference.rendering`), and
compute the log-probabilities by a Triton kernel, which a CPU build of torch does not have. Here it is handed tokens, a mask
and log-probabilities.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch

from art_nb.training.policy import SMALL, Policy, SFTTrainer, default_learning_rate
from art_nb.training.sequences import TokenSequence
from art_nb.training.trainer import SequenceTrainer, trl_settings, under
from art_nb.types import TrainSFTConfig

# After policy, which silences TRL's telemetry and has taken the trainer before Unsloth can replace it.
from trl import SFTConfig  # isort: skip

REPORTED = {"entropy": "entropy", "mean_token_accuracy": "token_accuracy"}
BATCH = 2  # trajectories, where the configuration says "auto": ART's


class SupervisedLearner(SequenceTrainer, SFTTrainer):
    """Trains a policy on demonstrations, an optimizer step for each batch of them.

    Args:
        policy: what is trained.
        sft: fields of `trl.SFTConfig` (loss_type, max_grad_norm, adam_beta2, ...).
        output_dir: where TRL may write.
        tokens_per_micro_batch: see `SequenceTrainer`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        sft: dict | None = None,
        output_dir: str = ".art",
        tokens_per_micro_batch: int | None = None,
    ):
        from datasets import Dataset

        if (sft or {}).get("label_smoothing_factor"):
            raise ValueError("sft: label_smoothing_factor needs all logits, which TRL does not compute here: leave it out")
        # TRL need not prepare what is handed to it; this only has to satisfy it.
        fixed = {"max_length": None, "packing": False, "dataset_kwargs": {"skip_prepare_dataset": True}}
        super().__init__(
            policy,
            tokens_per_micro_batch,
            args=SFTConfig(**trl_settings(policy, output_dir) | (sft or {}) | fixed),
            train_dataset=Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]}),
        )

    def learn(
        self,
        demonstrations: list[list[TokenSequence]],
        config: TrainSFTConfig,
        report: Callable[[str], None] = lambda text: None,
        *,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Update the policy on one batch of demonstrations after the other.

        demonstrations: the sequences of each (see `demonstrations.demonstrated`).
        seed: of the dropout, the only thing drawn here.

        Returns loss (nats a token), grad_norm, entropy (nats a token), token_accuracy (the share of the assistant's tokens
        that the policy finds the likeliest), all means over the batches, and `losses`, that of each batch before its update.

        Raises:
            FloatingPointError: a loss or its gradient is not finite; that update was not made, those before it were.
        """
        started = time.perf_counter()
        size = BATCH if config.batch_size == "auto" else config.batch_size
        batches = [list(chain(*demonstrations[i : i + size])) for i in range(0, len(demonstrations), size)]
        rates = self._rates(config, len(batches))
        updates = []
        with self.ready(seed):
            for number, (sequences, rate) in enumerate(zip(batches, rates, strict=True), start=1):
                heading = under(f"batch {number} of {len(batches)}", report)
                updates.append(self.update(self.weighted(sequences), rate, REPORTED, heading))
        seconds = time.perf_counter() - started
        every = list(chain(*batches))
        return {name: sum(update[name] for update in updates) / len(updates) for name in updates[0]} | {
            "batches": len(batches),
            "losses": [update["loss"] for update in updates],
            "learning_rate": rates[-1],
            "tokens_trained": sum(sum(s.trained) for s in every),
            "train_s": seconds,
            "train_tokens_per_s": sum(len(s.ids) for s in every) / seconds,
        }

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """TRL's loss, of log-probabilities that are computed here."""
        self._inputs = inputs
        theirs = {"attention_mask": torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)}
        # On a CPU Unsloth puts a loss of its own around TRL's.
        loss = inspect.unwrap(SFTTrainer.compute_loss)
        return loss(self, self._scored, theirs, return_outputs, num_items_in_batch)

    def _scored(self, **_: Any) -> SimpleNamespace:
        """What TRL's fused output head answers."""
        log_probs, entropies, is_top1 = self.score(self.model)
        mask = self._inputs["tool_mask"].bool()
        return SimpleNamespace(log_probs=log_probs, entropy=entropies, is_top1=is_top1, label_mask=mask)

    def read(self, logits: torch.Tensor, places: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """As `SequenceTrainer.read`, and whether each token is the likeliest."""
        return *super().read(logits, places, ids), (logits.argmax(-1)[places] == ids).float()

    def _rates(self, config: TrainSFTConfig, batches: int) -> list[float]:
        rates = config.learning_rate
        if not isinstance(rates, list):
            own = self.policy.parameters < SMALL and "learning_rate" not in config.model_fields_set
            return [default_learning_rate(self.policy.parameters) if own else rates] * batches
        if len(rates) < batches:
            raise ValueError(f"learning_rate lists {len(rates)} rates for {batches} batches: give one for each, or a number")
        return rates[:batches]
