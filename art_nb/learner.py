"""One GRPO update: TRL's GRPOTrainer, fed with gathered trajectories instead of generating its own.

The loss, its options and its metrics are TRL's. What is added here: batches of sequences of any length, cut into
micro-batches of like lengths whose weighted losses add up to the whole batch's loss; groups of any size; an
advantage per token; and the numbers that explain a step.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import torch

from art_nb.grpo import entropy, token_logprobs
from art_nb.policy import Policy, default_learning_rate
from art_nb.sequences import TokenSequence
from art_nb.types import TrainConfig

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
from trl import GRPOConfig, GRPOTrainer  # noqa: E402 - no network at run time, so the line above comes first

# How a micro-batch's loss counts in the batch's: by sequences, by tokens, or not at all (already normalised by the batch).
BY_SEQUENCES, BY_TOKENS = {"grpo", "sapo", "luspo", "dr_grpo"}, {"bnpo"}


class Learner(GRPOTrainer):
    """Trains a policy on token sequences, one call of `learn` per optimizer step (or per `num_updates` of them).

    Args:
        policy: what is trained.
        grpo: fields of `trl.GRPOConfig` (loss_type, epsilon, epsilon_high, max_grad_norm, ...).
        output_dir: where TRL may write.
        tokens_per_micro_batch: padded tokens that go through the model at once; bounds the memory.
    """

    def __init__(self, policy: Policy, *, grpo: dict | None = None, output_dir: str = ".art", tokens_per_micro_batch=8192):
        from datasets import Dataset

        on_gpu = policy.device.type == "cuda"
        bf16 = on_gpu and torch.cuda.is_bf16_supported()
        settings = {
            "output_dir": output_dir, "report_to": "none", "use_cpu": not on_gpu, "bf16": bf16, "fp16": on_gpu and not bf16,
            "gradient_checkpointing": False, "disable_tqdm": True, "temperature": 1.0, "weight_decay": 0.0,
            "per_device_train_batch_size": 2, "num_generations": 2, "gradient_accumulation_steps": 1,
        }  # fmt: skip
        base = policy.model.get_base_model()
        # TRL wraps the forward of the model instance it is given; take off an earlier trainer's wrapper.
        if hasattr(base.forward, "__wrapped__"):
            base.__dict__.pop("forward", None)
        random_state = torch.get_rng_state()
        super().__init__(
            model=policy.model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(**(settings | (grpo or {}))),
            train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=policy.tokenizer,
        )
        torch.set_rng_state(random_state)
        self.policy, self.tokens_per_micro_batch = policy, tokens_per_micro_batch
        self.current_gradient_accumulation_steps = 1
        self.create_optimizer()
        self.optimizer = self.accelerator.prepare(self.optimizer)

    def learn(
        self, sequences: list[TokenSequence], config: TrainConfig, report: Callable[[str], None] = lambda text: None
    ) -> dict[str, float]:
        """Update the policy on `sequences`; returns the step's metrics.

        Raises:
            FloatingPointError: the loss or its gradient is not finite; the policy is unchanged.
        """
        started = time.perf_counter()
        given = "learning_rate" in config.model_fields_set
        rate = config.learning_rate if given else default_learning_rate(self.policy.parameters)
        self.beta = config.kl_penalty_coef
        batches = self.micro_batches(sequences, config)
        self.model.eval()  # no dropout: the log-probabilities must be those that were sampled from
        self._add_reference(batches, everywhere=self.beta > 0)
        self.model.train()
        metrics: dict[str, float] = {"learning_rate": rate}
        for update in range(config.num_updates):
            metrics |= self._update(batches, rate, lambda text, u=update: report(f"update {u + 1}: {text}"))
            if config.num_updates > 1 and update == 0:
                for batch in batches:
                    batch["old_per_token_logps"] = batch["seen"]
        metrics["kl"] = self._kl(batches)
        seconds = time.perf_counter() - started
        trained = sum(len(s.ids) for s in sequences)
        return metrics | {
            "tokens_trained": sum(sum(s.trained) for s in sequences),
            "train_s": seconds,
            "train_tokens_per_s": trained * config.num_updates / seconds,
        }

    def micro_batches(self, sequences: list[TokenSequence], config: TrainConfig) -> list[dict]:
        """TRL's input dictionaries, of like lengths, each with the weight of its loss in the whole batch's."""
        order = sorted(sequences, key=lambda s: len(s.ids))
        cuts, width = [[]], 0
        for sequence in order:
            width = len(sequence.ids)
            full = width * (len(cuts[-1]) + 1) > self.tokens_per_micro_batch
            if cuts[-1] and (full or len(cuts[-1]) == config.grad_accumulation_sequences):
                cuts.append([])
            cuts[-1].append(sequence)
        tokens = torch.tensor(float(sum(sum(s.trained) for s in sequences)), device=self.policy.device)
        batches = []
        for cut in cuts:
            batch = collate(cut, self._tokenizer.pad_token_id or 0, self.policy.device)
            batch["num_items_in_batch"] = tokens
            share = {"rows": len(cut) / len(order), "tokens": float(batch["tool_mask"].sum() / tokens)}
            by = "rows" if self.loss_type in BY_SEQUENCES else "tokens" if self.loss_type in BY_TOKENS else None
            batch["weight"] = share[by] if by else 1.0
            batch["token_share"] = share["tokens"]
            batches.append(batch)
        return batches

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """TRL's loss; notes first which tokens it will ask the log-probabilities of."""
        self._trained = inputs["tool_mask"].bool()
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **_):
        """Log-probabilities and entropies (B, T) of the sampled tokens, 0 elsewhere, in the place of TRL's forward.

        Only sampled tokens go through the output head (TRL sends what the environment said through it as well), and
        no kernel is needed that only a GPU build of torch brings.
        """
        base = self.accelerator.unwrap_model(model).get_base_model()
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        with self.accelerator.autocast():
            hidden = base.base_model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
            ).last_hidden_state
            logits = base.get_output_embeddings()(hidden[:, -logits_to_keep - 1 : -1][self._trained])
        logits = logits.float() / self.temperature
        chosen = input_ids[:, -logits_to_keep:][self._trained]
        logps = torch.zeros(self._trained.shape, device=logits.device)
        logps[self._trained] = token_logprobs(logits, chosen)
        entropies = torch.zeros_like(logps)
        entropies[self._trained] = entropy(logits if self._entropy_bonus_enabled else logits.detach())
        self.last_logps = logps.detach()
        return logps, entropies, None

    def _update(self, batches: list[dict], rate: float, report: Callable[[str], None]) -> dict[str, float]:
        self._metrics["train"].clear()
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for i, batch in enumerate(batches):
            report(f"micro-batch {i + 1} of {len(batches)}")
            loss = self.compute_loss(self.model, batch) * batch["weight"]
            self.accelerator.backward(loss)
            batch["seen"] = self.last_logps
            losses.append(loss.detach())
        loss = torch.stack(losses).sum().item()
        norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm))
        scaled = self.accelerator.scaler is not None  # fp16: the scaler skips a step that overflowed, by design
        if not math.isfinite(loss) or not (math.isfinite(norm) or scaled):
            self.optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(f"loss {loss}, gradient norm {norm}: the step was not taken, the policy is unchanged")
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        shares = [batch["token_share"] for batch in batches]
        seen = self._metrics["train"]
        mean = {key: sum(v * s for v, s in zip(values, shares, strict=True)) for key, values in seen.items()
                if len(values) == len(shares) and not key.startswith("clip_ratio/") or key == "clip_ratio/region_mean"}  # fmt: skip
        return {
            "loss": loss,
            "grad_norm": norm,
            "entropy": mean.get("entropy", math.nan),
            "clip_fraction": mean.get("clip_ratio/region_mean", 0.0),
        } | _ratio_range(batches)

    @torch.no_grad()
    def _add_reference(self, batches: list[dict], everywhere: bool) -> None:
        """Log-probabilities under the base model: for every batch when the loss needs them, else for one, to watch."""
        chosen = batches if everywhere else [batches[len(batches) // 2]]
        with self.accelerator.unwrap_model(self.model).disable_adapter():
            for batch in chosen:
                batch["ref_per_token_logps"] = self._logps(batch)

    def _logps(self, batch: dict) -> torch.Tensor:
        self._trained = batch["tool_mask"].bool()
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        return self._get_per_token_logps_and_entropies(self.model, ids, mask, batch["completion_ids"].shape[1])[0]

    def _kl(self, batches: list[dict]) -> float:
        """KL from the base model before the update, per sampled token, by the k3 estimator."""
        total = count = 0.0
        for batch in batches:
            if "ref_per_token_logps" in batch:
                log_ratio = batch["ref_per_token_logps"] - batch.get("old_per_token_logps", batch["seen"])
                total += float(((log_ratio.exp() - log_ratio - 1) * batch["tool_mask"]).sum())
                count += float(batch["tool_mask"].sum())
        return total / count


def collate(sequences: list[TokenSequence], pad: int, device) -> dict[str, torch.Tensor]:
    """TRL's inputs: prompts (up to the first sampled token) padded on the left, the rest on the right."""
    firsts = [s.trained.index(True) for s in sequences]
    wide = max(firsts)
    long = max(len(s.ids) - first for s, first in zip(sequences, firsts, strict=True))
    fields = {"prompt_ids": [], "prompt_mask": [], "completion_ids": [], "completion_mask": []}
    fields |= {"tool_mask": [], "advantages": [], "sampling_logps": []}
    for s, first in zip(sequences, firsts, strict=True):
        left, right = wide - first, long - (len(s.ids) - first)
        fields["prompt_ids"].append([pad] * left + s.ids[:first])
        fields["prompt_mask"].append([0] * left + [1] * first)
        fields["completion_ids"].append(s.ids[first:] + [pad] * right)
        fields["completion_mask"].append([1] * (long - right) + [0] * right)
        fields["tool_mask"].append([int(t) for t in s.trained[first:]] + [0] * right)
        fields["advantages"].append(s.advantages[first:] + [0.0] * right)
        fields["sampling_logps"].append(s.logprobs[first:] + [math.nan] * right)
    return {name: torch.tensor(rows, device=device) for name, rows in fields.items()}


def _ratio_range(batches: list[dict]) -> dict[str, float]:
    """Least and greatest ratio of the trained policy's probability of a sampled token to the sampler's."""
    low, high = math.inf, -math.inf
    for batch in batches:
        ratio = (batch["seen"] - batch["sampling_logps"]).exp()[batch["tool_mask"].bool()]
        ratio = ratio[ratio.isfinite()]
        if ratio.numel():
            low, high = min(low, ratio.min().item()), max(high, ratio.max().item())
    return {"ratio_min": low, "ratio_max": high} if high >= low else {}
