"""One GRPO update: TRL's GRPOTrainer, fed with gathered trajectories instead of generating its own.

The loss, its options and its metrics are TRL's. What is added here: batches of sequences of any length, cut into
micro-batches of like lengths whose weighted losses add up to the whole batch's loss; groups of any size; an
advantage per token; and the numbers that explain a step.
"""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy
import torch
from torch.utils.checkpoint import checkpoint

from art_nb.training.grpo import entropy, kl_k3, ratio
from art_nb.training.micro_batches import by_beginning, by_length, collate
from art_nb.training.policy import Policy, default_learning_rate
from art_nb.training.prefix_tree import attending_in_trees, fits_trees
from art_nb.training.sequences import TokenSequence
from art_nb.training.shortcuts import folded_adapters, last_layer_only_where
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
LOGITS_AT_ONCE = 2**26  # 256 MiB in float32; more are computed in parts, and again for the gradient
WATCHED = 1 / 32  # the part of the sequences on which the KL is measured when the loss does not need it


class Learner(GRPOTrainer):
    """Trains a policy on token sequences, one call of `learn` per optimizer step (or per `num_updates` of them).

    Args:
        policy: what is trained.
        grpo: fields of `trl.GRPOConfig` (loss_type, epsilon, epsilon_high, max_grad_norm, ...).
        output_dir: where TRL may write.
        tokens_per_micro_batch: distinct tokens that go through the model at once (padded ones where it takes no trees).
            On a GPU this bounds the memory; on a CPU few are faster, as they stay in its cache. None: 16384 and 1536.
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

        base = policy.model.get_base_model()
        own_forward = base.__dict__.get("forward")
        with _global_generators_kept():
            super().__init__(
                model=policy.model,
                reward_funcs=lambda completions, **_: [0.0] * len(completions),
                args=GRPOConfig(**_settings(policy, grpo or {}, output_dir)),
                train_dataset=Dataset.from_dict({"prompt": [""]}),
                processing_class=policy.tokenizer,
            )
        # TRL has put a forward of its own on the model. It is not needed here and needs Triton.
        base.__dict__.pop("forward", None)
        if own_forward is not None:
            base.forward = own_forward
        if self.loss_type == "vespo":
            raise ValueError("loss_type 'vespo' takes one advantage per sequence; here every token has its own")
        if self.args.gradient_checkpointing:
            policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.aux_loss_enabled = False  # it balances a router, which no adapter changes
        default = 16384 if policy.device.type == "cuda" else 1536
        self.policy, self.tokens_per_micro_batch = policy, tokens_per_micro_batch or default
        self.as_tree = _as_tree(policy)
        self.current_gradient_accumulation_steps = 1
        self.create_optimizer()
        self.optimizer: torch.optim.Optimizer = self.accelerator.prepare(self.optimizer)

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
        decoder = self.policy.model.get_base_model().base_model
        needed = last_layer_only_where(decoder, lambda: self._inputs["layout"].needed)
        with _seeded(seed, self.policy.device), needed, attending_in_trees(decoder) if self.as_tree else nullcontext():
            metrics = {} if self.beta else {"kl": self._watched_kl(sequences)}
            if self.beta:
                for batch in batches:
                    batch["ref_per_token_logps"] = self._logprobs(batch, of_base=True)
            updates = []
            for number in range(1, config.num_updates + 1):
                updates.append(self._update(batches, rate, _under(f"update {number}", report)))
                if number == 1 < config.num_updates:
                    for batch in batches:
                        batch.setdefault("old_per_token_logps", batch["logprobs"])
        seconds = time.perf_counter() - started
        return (
            metrics
            | {name: sum(update[name] for update in updates) / len(updates) for name in updates[0]}
            | _ratio_range(batches)
            | {
                "learning_rate": rate,
                "tokens_trained": sum(sum(s.trained) for s in sequences),
                "train_s": seconds,
                "train_tokens_per_s": sum(len(s.ids) for s in sequences) * config.num_updates / seconds,
            }
        )

    def micro_batches(self, sequences: list[TokenSequence], config: TrainConfig) -> list[dict]:
        """TRL's input dictionaries, each with the `weight` of its loss in the whole batch's."""
        most = config.grad_accumulation_sequences or len(sequences)
        cuts = (by_beginning if self.as_tree else by_length)(sequences, self.tokens_per_micro_batch, most)
        batches = [self._collate(cut) for cut in cuts]
        tokens = sum(batch["num_items_in_batch"].item() for batch in batches)
        for batch, cut in zip(batches, cuts, strict=True):
            batch["share"] = batch["num_items_in_batch"].item() / tokens
            batch["weight"] = len(cut) / len(sequences) if self.loss_type in BY_SEQUENCES else batch["share"]
        return batches

    def _collate(self, sequences: list[TokenSequence]) -> dict:
        return collate(sequences, self._tokenizer.pad_token_id or 0, self.policy.device, self.as_tree)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """TRL's loss; notes first what it will ask the log-probabilities of."""
        self._inputs = inputs
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _note_old(self, logprobs: torch.Tensor) -> None:
        """In the first update TRL takes the ratio of each token to what it is now. What another policy sampled has one to
        that policy: it is given here, before TRL asks for it. logprobs: (B, T), those of the first update."""
        other = self._inputs["off_policy"] & self._inputs["sampling_logprobs"].isfinite()
        if other.any() and "old_per_token_logps" not in self._inputs:
            self._inputs["old_per_token_logps"] = torch.where(other, self._inputs["sampling_logprobs"], logprobs)

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **_):
        """Log-probabilities and entropies (B, T) of the sampled tokens, 0 elsewhere, in the place of TRL's forward.

        The model is given the layout in the place of the padded sequences. Only places where a sampled token is predicted
        go through the output head (TRL sends what the environment said through it as well).
        """
        base, layout = self.accelerator.unwrap_model(model).get_base_model(), self._inputs["layout"]
        trained = self._inputs["tool_mask"].bool()
        with self.accelerator.autocast():
            hidden = base.base_model(**layout.forward, use_cache=False).last_hidden_state[layout.needed]
            found = self._head(base.get_output_embeddings(), hidden, layout.places, input_ids[:, 1:][trained])
        logprobs, entropies = (
            torch.zeros(trained.shape, device=values.device).masked_scatter(trained, values) for values in found
        )
        self.last_logprobs = logprobs.detach()
        if logprobs.requires_grad:
            self._note_old(self.last_logprobs)
        return logprobs, entropies, None

    def _head(self, head: torch.nn.Module, hidden: torch.Tensor, places: torch.Tensor, ids: torch.Tensor):
        """hidden: (R, C); places: (M,), which of these predicts each token; ids: (M,). Returns their log-probabilities and
        entropies, both (M,)."""

        def compute(hidden, places, ids):
            logits = head(hidden).float() / self.temperature
            entropies = entropy(logits if self._entropy_bonus_enabled else logits.detach())
            return logits[places, ids] - logits.logsumexp(-1)[places], entropies[places]

        rows = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
        if len(hidden) <= rows:
            return compute(hidden, places, ids)
        found = torch.zeros(2, len(ids), device=hidden.device)
        for i, part in enumerate(hidden.split(rows)):
            here = places // rows == i
            done = checkpoint(compute, part, places[here] - i * rows, ids[here], use_reentrant=False)
            found = found.masked_scatter(here, torch.stack(done))
        return found.unbind()

    def _update(self, batches: list[dict], rate: float, report: Callable[[str], None]) -> dict[str, float]:
        """One optimizer step; returns its metrics."""
        self.model.train()
        seen = self._metrics["train"]
        seen.clear()
        with whole_steps(self.accelerator):
            loss, norm = self._take_step(batches, rate, report)
        shares = [batch["share"] for batch in batches]
        means = {
            ours: sum(value * share for value, share in zip(seen[theirs], shares, strict=True))
            for theirs, ours in REPORTED.items()
            if theirs in seen
        }
        return {"loss": loss, "grad_norm": norm} | means

    def _take_step(self, batches: list[dict], rate: float, report: Callable[[str], None]) -> tuple[float, float]:
        """Loss and gradient norm of one optimizer step."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        with folded_adapters(self.model):
            for i, batch in enumerate(batches):
                report(f"micro-batch {i + 1} of {len(batches)}")
                loss = self.compute_loss(self.model, batch) * batch["weight"]
                self.accelerator.backward(loss)
                batch["logprobs"] = self.last_logprobs
                losses.append(loss.detach())
        loss = torch.stack(losses).sum().item()
        most = self.args.max_grad_norm or math.inf
        norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), most))
        # With fp16 the scaler skips a step that overflowed, by design.
        scaled = self.accelerator.scaler is not None
        if not math.isfinite(loss) or not (math.isfinite(norm) or scaled):
            self.optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(f"loss {loss}, gradient norm {norm}: the step was not taken")
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, norm

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
        batch = self._collate(order[(len(order) - 1) // 2 % every :: every])
        kl = kl_k3(self._logprobs(batch, of_base=False), self._logprobs(batch, of_base=True))
        return float((kl * batch["tool_mask"]).sum() / batch["tool_mask"].sum())


def _settings(policy: Policy, grpo: dict, output_dir: str) -> dict:
    """Fields for GRPOConfig: what was asked for, on top of what suits gathered trajectories."""
    on_gpu = policy.device.type == "cuda"
    bf16 = on_gpu and torch.cuda.is_bf16_supported()
    # How a batch is cut is decided by `micro_batches`; these only have to satisfy TRL.
    fixed = {"per_device_train_batch_size": 2, "num_generations": 2, "gradient_accumulation_steps": 1}
    if ignored := sorted(set(grpo) & {*fixed, "steps_per_generation", "generation_batch_size", "num_iterations"}):
        warnings.warn(
            f"without effect here: {', '.join(ignored)} (groups have any size; the number of optimizer steps is "
            "TrainConfig's num_updates)",
            stacklevel=5,
        )
    suited = {
        "output_dir": output_dir, "report_to": "none", "use_cpu": not on_gpu, "bf16": bf16, "fp16": on_gpu and not bf16,
        "gradient_checkpointing": False, "disable_tqdm": True, "temperature": 1.0, "weight_decay": 0.0,
    }  # fmt: skip
    return suited | {name: value for name, value in grpo.items() if name not in ignored} | fixed


def _under(heading: str, report: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: report(f"{heading}, {text}")


def _as_tree(policy: Policy) -> bool:
    """Whether the policy is trained on prefix trees. Unsloth's own attention on a GPU takes none."""
    own = policy.engine == "unsloth" and policy.device.type != "cpu"
    if not own and fits_trees(policy.model.get_base_model().base_model):
        return True
    warnings.warn(
        f"{type(policy.model.get_base_model()).__name__} takes no prefix trees here: what sequences have in common is "
        "computed for each of them",
        stacklevel=3,
    )
    return False


@contextmanager
def whole_steps(accelerator: Any) -> Iterator[None]:
    """Every backward counts whole and every step is taken, whatever another trainer of this process has set.

    Accelerate keeps the number of micro-batches per step, and whether this one ends a step, once for the process. A trainer
    that was interrupted between two steps leaves it at "not yet": then `optimizer.step()` would silently do nothing.
    """
    before = accelerator.sync_gradients, accelerator.gradient_accumulation_steps
    accelerator.sync_gradients, accelerator.gradient_accumulation_steps = True, 1
    try:
        yield
    finally:
        accelerator.sync_gradients, accelerator.gradient_accumulation_steps = before


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    """TRL's trainer seeds every global random generator when it is made; whoever uses them must not notice."""
    of_python, of_numpy = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
    random.setstate(of_python)
    numpy.random.set_state(of_numpy)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, torch draws from `seed`; outside, as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _ratio_range(batches: list[dict]) -> dict[str, float]:
    """Least and greatest ratio of the trained policy's probability of a sampled token to the sampler's.

    Tokens that were not sampled here have none.
    """
    ratios = [ratio(b["logprobs"], b["sampling_logprobs"])[b["tool_mask"].bool()] for b in batches]
    known = torch.cat(ratios)
    known = known[known.isfinite()]
    return {"ratio_min": known.min().item(), "ratio_max": known.max().item()} if len(known) else {}
