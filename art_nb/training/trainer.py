"""What every trainer here shares, whatever its loss: TRL's trainer on a policy, fed with token sequences.

TRL's class is mixed in behind this one and keeps its loss. What it would do before the loss is replaced: sequences are laid
out as a prefix tree or as padded rows, and only places where a trained token is predicted go through the output head.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy
import torch
from torch.utils.checkpoint import checkpoint

from art_nb.training.grpo import entropy
from art_nb.training.micro_batches import by_beginning, by_length, collate
from art_nb.training.policy import Policy
from art_nb.training.prefix_tree import attending_in_trees, fits_trees
from art_nb.training.ranks import Alone
from art_nb.training.sequences import TokenSequence
from art_nb.training.shortcuts import cheaper_adapters, last_layer_only_where

LOGITS_AT_ONCE = 2**26  # 256 MiB in float32; more are computed in parts, and again for the gradient


class SequenceTrainer:
    """Mixed into a trainer of TRL's, before it.

    Args:
        policy: what is trained.
        tokens_per_micro_batch: distinct tokens that go through the model at once (padded ones where it takes no trees).
            On a GPU this bounds the memory; on a CPU few are faster, as they stay in its cache. None: 16384 and 1536.
        of_trl: arguments of TRL's trainer.
    """

    model: Any
    accelerator: Any
    optimizer: torch.optim.Optimizer
    args: Any
    ranks: Alone = Alone()  # or those with whom it trains
    temperature = 1.0
    _entropy_bonus_enabled = False

    def __init__(self, policy: Policy, tokens_per_micro_batch: int | None, **of_trl: Any):
        base = policy.model.get_base_model()
        own_forward = base.__dict__.get("forward")
        with _global_generators_kept():
            super().__init__(model=policy.model, processing_class=policy.tokenizer, **of_trl)  # type: ignore[call-arg]
        # TRL has put a forward of its own on the model. It is not needed here and needs Triton.
        base.__dict__.pop("forward", None)
        if own_forward is not None:
            base.forward = own_forward
        if self.args.gradient_checkpointing:
            policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.aux_loss_enabled = False  # it balances a router, which no adapter changes
        default = 16384 if policy.device.type == "cuda" else 1536
        self.policy, self.tokens_per_micro_batch = policy, tokens_per_micro_batch or default
        self.as_tree = _as_tree(policy)
        self.current_gradient_accumulation_steps = 1
        self.create_optimizer()  # type: ignore[attr-defined]  # transformers'
        self.optimizer = self.accelerator.prepare(self.optimizer)

    @contextmanager
    def ready(self, seed: int) -> Iterator[None]:
        """Inside, the model takes micro-batches; what is drawn (for dropout) follows from the seed."""
        decoder = self.policy.model.get_base_model().base_model
        needed = last_layer_only_where(decoder, lambda: self._inputs["layout"].needed)
        with _seeded(seed, self.policy.device), needed, attending_in_trees(decoder) if self.as_tree else nullcontext():
            yield

    def weighted(self, sequences: list[TokenSequence], most: int | None = None) -> list[dict]:
        """TRL's input dictionaries, of at most `most` sequences each, for this process of those that train. `share`: of
        the trained tokens of all sequences; `weight`: of its loss in that of all."""
        cut = by_beginning if self.as_tree else by_length
        cuts = cut(sequences, self.tokens_per_micro_batch, most or len(sequences))
        batches = [self.collate(each) for each in self.ranks.share(cuts)]
        tokens = sum(sum(sequence.trained[1:]) for sequence in sequences)
        for batch in batches:
            batch["share"] = batch["weight"] = batch["num_items_in_batch"].item() / tokens
        return batches

    def collate(self, sequences: list[TokenSequence]) -> dict:
        """One of them, see `micro_batches.collate`."""
        return collate(sequences, self.policy.tokenizer.pad_token_id or 0, self.policy.device, self.as_tree)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """TRL's loss; notes first what it will ask the log-probabilities of."""
        self._inputs = inputs
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)  # type: ignore[misc]  # TRL's

    def score(self, model: Any) -> list[torch.Tensor]:
        """What `read` says of the trained tokens, (B, T) each, 0 elsewhere; in the place of TRL's forward.

        The model is given the layout in the place of the padded sequences.
        """
        base, layout = self.accelerator.unwrap_model(model).get_base_model(), self._inputs["layout"]
        trained = self._inputs["tool_mask"].bool()
        with self.accelerator.autocast():
            hidden = base.base_model(**layout.forward, use_cache=False).last_hidden_state[layout.needed]
            ids = self._inputs["completion_ids"][trained]
            found = self._head(base.get_output_embeddings(), hidden, layout.places, ids)
        return [torch.zeros(trained.shape, device=values.device).masked_scatter(trained, values) for values in found]

    def read(self, logits: torch.Tensor, places: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """logits: (R, V); places: (M,), which of these predicts each token; ids: (M,).

        Returns the tokens' log-probabilities and the entropies behind them, both (M,).
        """
        entropies = entropy(logits if self._entropy_bonus_enabled else logits.detach())
        return logits[places, ids] - logits.logsumexp(-1)[places], entropies[places]

    def _head(
        self, head: torch.nn.Module, hidden: torch.Tensor, places: torch.Tensor, ids: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """`read` of what the output head says. hidden: (R, C)."""

        def compute(hidden, places, ids):
            return self.read(head(hidden).float() / self.temperature, places, ids)

        rows = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
        if len(hidden) <= rows:
            return compute(hidden, places, ids)
        found: Any = None
        for i, part in enumerate(hidden.split(rows)):
            here = places // rows == i
            done = torch.stack(checkpoint(compute, part, places[here] - i * rows, ids[here], use_reentrant=False))
            found = torch.zeros(len(done), len(ids), device=hidden.device) if found is None else found
            found = found.masked_scatter(here, done)
        return found.unbind()

    def update(
        self, batches: list[dict], rate: float, reported: dict[str, str], report: Callable[[str], None]
    ) -> dict[str, float]:
        """One optimizer step on the sum of the micro-batches' losses, each times its `weight`.

        reported: TRL's name of a metric -> ours. Returns loss, grad_norm, and those that TRL has noted, by our names:
        means over the trained tokens.

        Raises: FloatingPointError: loss or gradient are not finite; the step was not taken.
        """
        self.model.train()
        seen = self._metrics["train"]  # type: ignore[attr-defined]  # TRL's, a value for each micro-batch
        seen.clear()
        with whole_steps(self.accelerator):
            loss, norm = self._take_step(batches, rate, report)
        shares = [batch["share"] for batch in batches]
        means = torch.zeros(len(reported), 2, dtype=torch.float64)  # of each metric its mean, and whether TRL noted it
        for i, theirs in enumerate(reported):
            if theirs in seen:
                means[i, 0], means[i, 1] = sum(v * share for v, share in zip(seen[theirs], shares, strict=True)), 1.0
        self.ranks.add_up([means])
        noted = {ours: mean for ours, (mean, count) in zip(reported.values(), means.tolist(), strict=True) if count}
        return {"loss": loss, "grad_norm": norm} | noted

    def _take_step(self, batches: list[dict], rate: float, report: Callable[[str], None]) -> tuple[float, float]:
        """Loss and gradient norm of one optimizer step."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        with cheaper_adapters(self.model):
            for i, batch in enumerate(batches):
                report(f"micro-batch {i + 1} of {len(batches)}")
                loss = self.compute_loss(self.model, batch) * batch["weight"]
                self.accelerator.backward(loss)
                losses.append(loss.detach())
        loss = self._added_up(losses)
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

    def _added_up(self, losses: list[torch.Tensor]) -> float:
        """The loss of all processes; the gradients become those of all."""
        loss = torch.stack(losses).sum() if losses else torch.zeros((), device=self.policy.device)
        if self.ranks.size > 1:
            trained = [p for p in self.model.parameters() if p.requires_grad]
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self.ranks.add_up([loss, *(parameter.grad for parameter in trained)])
        return loss.item()


def trl_settings(policy: Policy, output_dir: str) -> dict[str, Any]:
    """Fields of every configuration of TRL's that suit a policy here."""
    on_gpu = policy.device.type == "cuda"
    bf16 = on_gpu and torch.cuda.is_bf16_supported()
    return {
        "output_dir": output_dir, "report_to": "none", "use_cpu": not on_gpu, "bf16": bf16, "fp16": on_gpu and not bf16,
        "gradient_checkpointing": False, "disable_tqdm": True, "weight_decay": 0.0,
    }  # fmt: skip


def under(heading: str, report: Callable[[str], None]) -> Callable[[str], None]:
    """Reports with a heading."""
    return lambda text: report(f"{heading}, {text}")


def _as_tree(policy: Policy) -> bool:
    """Whether the policy is trained on prefix trees. Unsloth's own attention on a GPU takes none."""
    own = policy.engine == "unsloth" and policy.device.type != "cpu"
    if not own and fits_trees(policy.model.get_base_model().base_model):
        return True
    warnings.warn(
        f"{type(policy.model.get_base_model()).__name__} takes no prefix trees here: what sequences have in common is "
        "computed for each of them",
        stacklevel=4,
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
