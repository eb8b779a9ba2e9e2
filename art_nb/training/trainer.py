"""Run TRL's trainers on token sequences: batching, forward pass, gradient accumulation and the optimizer step.

The base of `learner.Learner` (GRPO) and `supervised.SupervisedLearner` (SFT). The loss is TRL's. Before it, sequences are
laid out as a prefix tree or as padded rows, and only positions that predict a trained token go through the output head.
"""

import math
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from numbers import Real
from typing import Any

import numpy
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

from art_nb.inference.last_layer import narrow_last_layer
from art_nb.training.fused_lora import fused_lora
from art_nb.training.grpo import entropy
from art_nb.training.micro_batches import collate, split_sequences
from art_nb.training.policy import Policy
from art_nb.training.prefix_tree import enable_tree_attention, supports_prefix_trees
from art_nb.training.process_group import SingleProcess
from art_nb.training.sequences import TokenSequence

Report = Callable[[str], None]  # called with a description of the current computation
SCHEDULE = {"num_train_epochs", "max_steps", "warmup_steps", "warmup_ratio", "lr_scheduler_type", "lr_scheduler_kwargs"}
NOT_NEGATIVE = {"epsilon", "epsilon_high", "max_grad_norm", "temperature", "weight_decay"}
MAX_LOGITS = 2**26  # 256 MiB in float32; more are computed in chunks, and recomputed in the backward pass


class SequenceTrainer:
    """A mixin, listed before a TRL trainer class among the bases.

    tokens_per_micro_batch: maximum size of a forward pass that holds several sequences: nodes of the prefix tree, or padded
        tokens. None: on a GPU 256 per GiB of memory, at most 16384; on a CPU 1536, because small batches fit its cache.
    trl_arguments: arguments of TRL's trainer.
    """

    metric_names: dict[str, str] = {}  # TRL's name of a metric -> ours
    process_group: SingleProcess = SingleProcess()
    temperature = 1.0
    _entropy_bonus_enabled = False  # TRL's GRPOTrainer sets it
    batch: dict  # the micro-batch that the loss is computed on
    model: Any
    accelerator: Any
    optimizer: torch.optim.Optimizer
    args: Any

    def __init__(self, policy: Policy, tokens_per_micro_batch: int | None, **trl_arguments: Any):
        base = policy.model.get_base_model()
        own_forward = base.__dict__.get("forward")
        trl_arguments["args"]._n_gpu = 1  # TRL refuses several visible GPUs; only one is used here
        with _preserved_random_states():
            super().__init__(model=policy.model, processing_class=policy.tokenizer, **trl_arguments)  # type: ignore[call-arg]
        # TRL has patched the model's forward with an output head that needs Triton. `forward_batch` replaces it.
        base.__dict__.pop("forward", None)
        if own_forward is not None:
            base.forward = own_forward
        for parameter in policy.model.parameters():
            if parameter.requires_grad:  # TRL casts those of quantised models to bfloat16, which rounds most updates away
                parameter.data = parameter.data.float()
        if self.args.fp16:
            self.accelerator.scaler = policy.gradient_scaler = policy.gradient_scaler or self.accelerator.scaler
        if self.args.gradient_checkpointing:
            policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.aux_loss_enabled = False  # this loss balances an MoE router, which no adapter changes
        self.policy, self.tokens_per_micro_batch = policy, tokens_per_micro_batch or tokens_that_fit(policy.device)
        self.as_tree = _uses_prefix_trees(policy)
        self.current_gradient_accumulation_steps = 1
        self.create_optimizer()  # type: ignore[attr-defined]  # transformers' Trainer
        self.optimizer = self.accelerator.prepare(self.optimizer)

    @contextmanager
    def prepared_model(self, seed: int) -> Iterator[None]:
        """Inside the `with` block the model accepts micro-batches; torch's generator (dropout) starts from `seed`."""
        decoder = self.policy.model.get_base_model().base_model
        cuda = [self.policy.device] if self.policy.device.type == "cuda" else []
        narrow = narrow_last_layer(decoder, lambda: self.batch["layout"].needed)
        with torch.random.fork_rng(devices=cuda), narrow, enable_tree_attention(decoder) if self.as_tree else nullcontext():
            torch.manual_seed(seed)
            yield

    def weighted_micro_batches(
        self, sequences: list[TokenSequence], max_sequences: int | None = None, by_sequences: bool = False
    ) -> list[dict]:
        """Return the micro-batches of this process, of at most `max_sequences` sequences each.

        Each has a "share", its fraction of all trained tokens, and a "weight": the share or, with `by_sequences`, its
        fraction of the sequences. The weighted losses of the micro-batches of all processes add up to the loss of the batch.
        """
        groups = split_sequences(sequences, self.tokens_per_micro_batch, max_sequences or len(sequences), self.as_tree)
        batches = [self.collate(group) for group in self.process_group.shard(groups)]
        tokens = sum(sum(sequence.trained[1:]) for sequence in sequences)
        for batch in batches:
            batch["share"] = batch["num_items_in_batch"].item() / tokens
            batch["weight"] = len(batch["tool_mask"]) / len(sequences) if by_sequences else batch["share"]
        return batches

    def collate(self, sequences: list[TokenSequence]) -> dict:
        """Return one micro-batch, see `micro_batches.collate`."""
        return collate(sequences, self.policy.tokenizer.pad_token_id or 0, self.policy.device, self.as_tree)

    def forward_batch(self) -> list[torch.Tensor]:
        """Run `self.batch` through the model, in place of TRL's forward pass.

        Returns the values of `token_values` as tensors of the shape of `tool_mask`, (B, T); 0 where a token is not trained.
        """
        base, layout = self.accelerator.unwrap_model(self.model).get_base_model(), self.batch["layout"]
        trained = self.batch["tool_mask"].bool()
        half = torch.bfloat16 if self.args.bf16 else torch.float16
        # Not Accelerate's autocast: another trainer in this process may have changed its process-wide precision.
        with torch.autocast(self.policy.device.type, half, enabled=self.args.bf16 or self.args.fp16):
            hidden = base.base_model(**layout.forward, use_cache=False).last_hidden_state[layout.needed]
            ids = self.batch["completion_ids"][trained]
            values = self._apply_head(base.get_output_embeddings(), hidden, layout.rows, ids)
        return [torch.zeros(trained.shape, device=value.device).masked_scatter(trained, value) for value in values]

    def token_values(self, logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return log-probability and entropy (nats) at each trained token, both (M,).

        logits: (R, V). rows: (M,), the row of the logits that predicts each token. ids: (M,).
        """
        entropies = entropy(logits if self._entropy_bonus_enabled else logits.detach())
        return logits[rows, ids] - logits.logsumexp(-1)[rows], entropies[rows]

    def _apply_head(
        self, head: torch.nn.Module, hidden: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the `token_values` of the output head's logits, divided by the temperature. hidden: (R, C)."""

        def compute(hidden, rows, ids):
            logits = head(hidden).float()
            return self.token_values(logits if self.temperature == 1 else logits / self.temperature, rows, ids)

        chunk = max(1, MAX_LOGITS // head.weight.shape[0])
        if len(hidden) <= chunk:
            return compute(hidden, rows, ids)
        values: Any = None
        for i, part in enumerate(hidden.split(chunk)):
            here = rows // chunk == i
            of_part = torch.stack(checkpoint(compute, part, rows[here] - i * chunk, ids[here], use_reentrant=False))
            values = torch.zeros(len(of_part), len(ids), device=hidden.device) if values is None else values
            values = values.masked_scatter(here, of_part)
        return values.unbind()

    def update(self, batches: list[dict], learning_rate: float, heading: str, report: Report) -> dict[str, float]:
        """Take one optimizer step on the weighted sum of the micro-batches' losses.

        If gradients overflow in float16, they are computed again with half the gradient scale, down to 1.

        report: called with "heading, micro-batch 1 of 3" before each micro-batch. Returns loss, grad_norm (before clipping)
        and the metrics of `metric_names` that TRL computes, as means over the trained tokens.

        Raises: FloatingPointError if loss or gradient is not finite (no step is taken), or a step made weights too large.
        """
        self.model.train()
        logged = self._metrics["train"]  # type: ignore[attr-defined]  # TRL's, one value per micro-batch
        norm = math.nan
        with _every_backward_is_a_step(self.accelerator):
            while not math.isfinite(norm):
                logged.clear()
                loss = self._backward(batches, lambda text: report(f"{heading}, {text}"))
                norm = self._take_step(loss, learning_rate)
        means = torch.zeros(len(self.metric_names), 2, dtype=torch.float64)  # mean of each metric; whether TRL logged it
        for i, name in enumerate(self.metric_names):
            if name in logged:
                pairs = zip(logged[name], batches, strict=True)
                means[i, 0], means[i, 1] = sum(value * batch["share"] for value, batch in pairs), 1.0
        self.process_group.sum_in_place([means])
        named = zip(self.metric_names.values(), means.tolist(), strict=True)
        return {"loss": loss, "grad_norm": norm} | {name: mean for name, (mean, count) in named if count}

    def _backward(self, batches: list[dict], report: Report) -> float:
        """Compute the gradients. Returns the loss; both are summed over all processes."""
        self.optimizer.zero_grad(set_to_none=True)
        scaler, losses = self.accelerator.scaler, []
        if scaler is not None:
            scaler.scale(torch.zeros((), device=self.policy.device))  # creates the scale even if this process has no batch
            # All processes use the same scale. `update` also resets a scaler that was interrupted within a step.
            scaler.update(*self.process_group.minimum([scaler.get_scale()]))
        with fused_lora(self.model):
            for i, batch in enumerate(batches):
                report(f"micro-batch {i + 1} of {len(batches)}")
                self.batch = batch
                loss = self.compute_loss(self.model, batch) * batch["weight"]  # type: ignore[attr-defined]  # TRL's
                self.accelerator.backward(loss)
                losses.append(loss.detach())
        total = torch.stack(losses).sum() if losses else torch.zeros((), device=self.policy.device)
        if self.process_group.size > 1:
            trained = [p for p in self.model.parameters() if p.requires_grad]
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self.process_group.sum_in_place([total, *(parameter.grad for parameter in trained)])
        return total.item()

    def _take_step(self, loss: float, learning_rate: float) -> float:
        """Clip the gradients and apply them. Returns their norm before clipping; if it is not finite, repeat `_backward`."""
        scaler = self.accelerator.scaler
        if scaler is not None:  # Accelerate's clip_grad_norm_ would read the process-wide precision, see `forward_batch`
            scaler.unscale_(self.optimizer.optimizer)
        trained = [p for p in self.model.parameters() if p.grad is not None]
        norm = float(clip_grad_norm_(trained, self.args.max_grad_norm or math.inf))
        if not math.isfinite(loss + norm):
            self.optimizer.zero_grad(set_to_none=True)
            if scaler is not None:
                overflow = math.isfinite(loss) and scaler.get_scale() > 1
                scaler.update(scaler.get_scale() / 2 if overflow else 2.0**16)  # torch's initial scale
                if overflow:
                    return norm
            raise FloatingPointError(f"loss {loss}, gradient norm {norm}: expected finite numbers; the step was not taken")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not get_total_norm(trained).isfinite():  # also infinite if products of weights would overflow
            raise FloatingPointError(f"a step with learning rate {learning_rate:g} made weights too large: lower the rate")
        return norm


@contextmanager
def keep_accelerate() -> Iterator[None]:
    """Restore Accelerate's process-wide state if the block raises: a TRL trainer resets it before it checks its options."""
    kept = [(each, dict(each._shared_state)) for each in (AcceleratorState, GradientState, PartialState)]
    try:
        yield
    except BaseException:
        for each, state in kept:
            each._shared_state.clear()
            each._shared_state.update(state)
        raise


def summarize_updates(
    updates: list[dict[str, float]], sequences: list[TokenSequence], learning_rate: float, seconds: float, passes: int = 1
) -> dict[str, Any]:
    """Return the updates' mean metrics, learning rate, trained tokens, seconds and throughput (all tokens per second)."""
    return {name: sum(update[name] for update in updates) / len(updates) for name in updates[0]} | {
        "learning_rate": learning_rate,
        "tokens_trained": sum(sum(s.trained) for s in sequences),
        "train_s": seconds,
        "train_tokens_per_s": sum(len(s.ids) for s in sequences) * passes / seconds,
    }


def trl_settings(policy: Policy, output_dir: str) -> dict[str, Any]:
    """Return the fields that are the same in every TRL configuration for this policy.

    On a GPU a model in half precision is trained under autocast to its dtype.
    """
    on_gpu, dtype = policy.device.type == "cuda", policy.model.dtype
    return {
        "output_dir": output_dir, "report_to": "none", "use_cpu": not on_gpu,
        "bf16": on_gpu and dtype == torch.bfloat16, "fp16": on_gpu and dtype == torch.float16,
        "gradient_checkpointing": False, "disable_tqdm": True, "weight_decay": 0.0,
    }  # fmt: skip


def check_options(given: dict[str, Any], config: Any, ignored: set[str], stacklevel: int) -> dict[str, Any]:
    """Return the given options without those that have no effect (`ignored` and TRL's schedule); warn about these.

    Raises: ValueError when `config`, a class of TRL's, lacks an option, or one of NOT_NEGATIVE is not a number >= 0.
    """
    if unknown := sorted(given.keys() - config.__dataclass_fields__.keys() - SCHEDULE):
        raise ValueError(f"trl.{config.__name__} has no option {', '.join(unknown)}")
    for name in NOT_NEGATIVE & given.keys():
        if given[name] is not None and not (isinstance(given[name], Real) and given[name] >= 0):
            raise ValueError(f"{name} is {given[name]!r}: expected a number >= 0")
    found = sorted(given.keys() & (ignored | SCHEDULE))
    if found:
        warnings.warn(
            f"these options have no effect here: {', '.join(found)} (batch and group sizes may vary; art.TrainConfig and "
            "art.TrainSFTConfig set updates, learning rate, KL penalty and the scale of rewards)",
            stacklevel=stacklevel,
        )
    return {name: value for name, value in given.items() if name not in found}


def tokens_that_fit(device: torch.device) -> int:
    """Return the default of `tokens_per_micro_batch`."""
    if device.type != "cuda":
        return 1536
    return min(16384, 256 * (torch.cuda.get_device_properties(device).total_memory >> 30))


def _uses_prefix_trees(policy: Policy) -> bool:
    """Whether the policy is trained on prefix trees; warn if not. On a GPU Unsloth's own attention does not support them.

    On a GPU half precision needs FlexAttention, and so compute capability 8.0 or higher: plain torch would store the keys of
    a shared prefix once for each sequence.
    """
    base, on_gpu = policy.model.get_base_model(), policy.device.type == "cuda"
    old = on_gpu and base.dtype != torch.float32 and torch.cuda.get_device_capability(policy.device) < (8, 0)
    if not old and not (on_gpu and policy.engine == "unsloth") and supports_prefix_trees(base.base_model):
        return True
    warnings.warn(
        f"{type(base).__name__} does not support prefix trees here: a shared prefix is computed once for each sequence",
        stacklevel=5,
    )
    return False


@contextmanager
def _every_backward_is_a_step(accelerator: Any) -> Iterator[None]:
    """Disable Accelerate's gradient accumulation, a process-wide setting that another trainer may have changed; restore it.

    A trainer that was interrupted between two steps leaves `sync_gradients` False: `optimizer.step()` would do nothing.
    """
    before = accelerator.sync_gradients, accelerator.gradient_accumulation_steps
    accelerator.sync_gradients, accelerator.gradient_accumulation_steps = True, 1
    try:
        yield
    finally:
        accelerator.sync_gradients, accelerator.gradient_accumulation_steps = before


@contextmanager
def _preserved_random_states() -> Iterator[None]:
    """Restore the global random generators at the end: the constructors of TRL's trainers seed them all."""
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)
