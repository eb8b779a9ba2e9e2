"""Training throughput on gathered conversations, compared with stock TRL's GRPOTrainer on the same tokens.

`python -m benchmarks.learner [--batch games|2048|email|answers|tools] [--other trl|unsloth]` prints one JSON line.
`ratio`: tokens per second of training on the gathered groups (building sequences, forward, backward, optimizer, metrics),
over those of one optimizer step of stock TRL on the same sequences. `ratio_to_padded`: over ours without prefix trees,
with one row per sequence. All sides count real tokens without padding; a shared prefix counts in each sequence. The stock
trainer gets its own input format (prompts padded on the left, completions on the right, tool_mask) in place of
generation; everything from there to the end of the step is its own code, and timed. Adapter, advantages, loss and
learning rate are the same. Several batch sizes of stock TRL are measured, and the fastest counts. After each of its steps
ours takes one step of each kind, so that a slow phase of the machine affects all. Raises SystemExit if the gradient norms
of the first two steps differ.

Batches: `games`, 64 conversations of 5 to 60 turns of 2048 by tool calls; `2048`, 64 games to the 128 tile; `email`, a
step of notebook 04; `answers`, a step of notebook 06, the real model with its default dtype; `tools`, the same model's
searches of the mailbox by tool calls. `distinct_tokens` is the number of nodes in a prefix tree of the whole batch.

With `--other unsloth` stock TRL trains a model loaded by Unsloth, in the dtype of the stored weights. `--base` takes another
base model. On a GPU `gib` is torch's peak memory in our last step of each kind, which includes stock TRL's model.
Reports the seconds of each step on stderr; on a GPU the first step includes compilation.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerCallback

import art_nb as art
from art_nb.training.learner import Learner
from art_nb.training.policy import Policy
from art_nb.training.prefix_tree import PrefixTree
from art_nb.training.sequences import TokenSequence, build_sequences
from art_nb.training.trainer import tokens_that_fit
from benchmarks.batches import NAMES, Batch, batch, gathered
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.stock_trl import GRPOTrainer, import_loss_kernel, stock_policy, stock_trainer

ENGINES = {"trl": "transformers", "unsloth": "unsloth"}  # --other -> the engine that loads stock TRL's model


@dataclass
class OurLearner:
    """Our learner and its measurements.

    count: it trains on the first `count` sequences. seconds: of the steps with prefix trees (True) and padded rows (False).
    """

    groups: list[art.TrajectoryGroup]
    config: art.TrainConfig
    learner: Learner
    count: int
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    grad_norms: list[float] = field(default_factory=list)
    gib: dict[str, float] = field(default_factory=dict)

    def sequences(self) -> list[TokenSequence]:
        return build_sequences(self.groups, self.learner.policy.tokenizer, self.config)[0][: self.count]

    def steps(self) -> None:
        """Take one step with prefix trees and one with padded rows, each with its best number of tokens per micro-batch."""
        on_gpu = self.learner.policy.device.type == "cuda"
        best = tokens_that_fit(self.learner.policy.device)  # on a CPU rows are fastest in larger micro-batches than trees
        for as_tree, tokens in ((True, best), (False, best if on_gpu else 2048)):
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            self.learner.as_tree, self.learner.tokens_per_micro_batch = as_tree, tokens
            self.grad_norms.append(self.learner.learn(self.sequences(), self.config)["grad_norm"])
            self.seconds[as_tree].append(time.perf_counter() - started)
            say(f"ours, {'prefix trees' if as_tree else 'padded rows'}: {self.seconds[as_tree][-1]:.2f} s")
            if on_gpu:
                self.gib["tree" if as_tree else "padded"] = torch.cuda.max_memory_allocated() / 2**30


async def prepared(folder: str, name: str, chosen: Batch, multiple: int, **overrides: int) -> OurLearner:
    """Gather the batch. The number of sequences is rounded down to a multiple of stock TRL's largest batch size."""
    model = await registered(folder, chosen.base, name, engine="transformers")  # as for stock TRL
    say(f"gathering {name}")
    groups = await gathered(model, name, **overrides)
    learner = model.backend().loaded(model).learner
    ours = OurLearner(groups, chosen.config, learner, 10**9)
    ours.count = len(ours.sequences()) // multiple * multiple
    return ours


class PrecomputedTrainer(GRPOTrainer):
    """Stock TRL that uses `gathered` instead of generating."""

    gathered: dict[str, torch.Tensor]

    def _generate_and_score_completions(self, inputs: list) -> dict[str, torch.Tensor]:
        return dict(self.gathered)


class StepClock(TrainerCallback):
    """Records the seconds of each optimizer step with all its micro-batches, and calls `between` after each."""

    def __init__(self, between: Callable[[], None]):
        self.seconds: list[float] = []
        self.between = between

    def on_step_begin(self, args, state, control, **_):
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        self.seconds.append(time.perf_counter() - self.started)
        say(f"stock TRL: {self.seconds[-1]:.2f} s")
        self.between()


def measure_stock(folder: str, base: str, engine: str, ours: OurLearner, batch_size: int, repeats: int) -> dict:
    """Return the median seconds of a step of stock TRL after a warm-up step, and the gradient norms of the first two steps.

    batch_size: sequences per forward pass.
    """
    say(f"training, stock TRL with {batch_size} sequences at a time, model loaded by {engine}")
    policy, sequences, clock = stock_policy(base, 0, engine), ours.sequences(), StepClock(ours.steps)
    trainer = stock_trainer(
        policy, folder, [{"prompt": ""}] * len(sequences), trainer_class=PrecomputedTrainer,
        per_device_train_batch_size=batch_size, gradient_accumulation_steps=len(sequences) // batch_size,
        num_generations=2, learning_rate=ours.config.learning_rate, max_steps=1 + repeats,
        max_completion_length=policy.model.config.max_position_embeddings,
        logging_strategy="steps", logging_steps=1,
    )  # fmt: skip
    trainer.gathered = stock_inputs(sequences, policy)
    trainer.add_callback(clock)
    trainer.train()
    norms = [logged["grad_norm"] for logged in trainer.state.log_history[:2]]
    return {"seconds": statistics.median(clock.seconds[1:]), "grad_norms": norms}


def stock_inputs(sequences: list[TokenSequence], policy: Policy) -> dict[str, torch.Tensor]:
    """Return all sequences in TRL's input format: prompts padded left, completions padded right, one advantage each."""
    prompts, completions, sampled = [], [], []
    for s in sequences:
        first = s.trained.index(True)
        prompts.append(s.ids[:first])
        completions.append(s.ids[first:])
        sampled.append([int(trained) for trained in s.trained[first:]])

    def padded(rows: list[list[int]], value: int, side: str) -> torch.Tensor:
        return pad_sequence([torch.tensor(row) for row in rows], True, value, side).to(policy.device)

    pad = policy.tokenizer.pad_token_id
    inputs = {
        "prompt_ids": padded(prompts, pad, "left"),
        "prompt_mask": padded([[1] * len(ids) for ids in prompts], 0, "left"),
        "completion_ids": padded(completions, pad, "right"),
        "completion_mask": padded([[1] * len(ids) for ids in completions], 0, "right"),
        "tool_mask": padded(sampled, 1, "right"),
        "advantages": torch.tensor([s.advantages[s.trained.index(True)] for s in sequences], device=policy.device),
    }
    return inputs | {"num_items_in_batch": (inputs["completion_mask"] * inputs["tool_mask"]).sum()}


def measure(name: str, batch_sizes: list[int], repeats: int, other: str = "trl", base: str = "", **overrides: int) -> dict:
    """Compare both sides. other: one of ENGINES. base: the batch's by default. overrides: see `gathered`."""
    chosen, engine = batch(name, base), ENGINES[other]
    batch_sizes = batch_sizes or list(chosen.batch_sizes)
    with tempfile.TemporaryDirectory() as folder:
        ours = asyncio.run(prepared(folder, name, chosen, max(batch_sizes), **overrides))
        import_loss_kernel()
        stock = {size: measure_stock(folder, chosen.base, engine, ours, size, repeats) for size in batch_sizes}
    first = ours.grad_norms[:2]  # of the first step, with trees, and of the second, with padded rows
    for size, numbers in stock.items():
        if any(abs(theirs / mine - 1) > chosen.tolerance for theirs, mine in zip(numbers["grad_norms"], first, strict=True)):
            raise SystemExit(f"gradient norms differ: ours {first}, stock TRL {numbers} at batch size {size}")
    seconds = {size: numbers["seconds"] for size, numbers in stock.items()}
    return {"other": other} | compared(ours, seconds) | {"grad_norms": first} | ({"gib": ours.gib} if ours.gib else {})


def compared(ours: OurLearner, stock: dict[int, float]) -> dict:
    """Return the result. stock: seconds of a step, by batch size."""
    sequences, best = ours.sequences(), min(stock, key=lambda size: stock[size])
    tokens, longest = sum(len(s.ids) for s in sequences), max(len(s.ids) for s in sequences)
    tree, padded = (statistics.median(ours.seconds[as_tree][1:]) for as_tree in (True, False))
    return {
        "ratio": stock[best] / tree,
        "ratio_to_padded": padded / tree,
        "ours_tokens_per_s": tokens / tree,
        "padded_tokens_per_s": tokens / padded,
        "stock_tokens_per_s": tokens / stock[best],
        "stock_batch_size": best,
        "stock_tokens_per_s_by_batch_size": {size: tokens / seconds for size, seconds in stock.items()},
        "sequences": len(sequences),
        "tokens": tokens,
        "distinct_tokens": len(PrefixTree(sorted(s.ids for s in sequences))),
        "trained_tokens": sum(sum(s.trained) for s in sequences),
        "padding_of_stock": 1 - tokens / (len(sequences) * longest),
    }


def main() -> None:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", choices=NAMES, default="games")
    parser.add_argument("--other", choices=ENGINES, default="trl", help="the library that loads stock TRL's model")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="candidates for stock TRL (default: the batch's)")
    parser.add_argument("--repeats", type=int, default=3, help="measured steps after a warm-up step")
    parser.add_argument("--base", default="", help="folder of the base model (default: the batch's)")
    a = parser.parse_args()
    print_result(f"learner_{a.batch}", lambda: measure(a.batch, a.batch_sizes, a.repeats, a.other, a.base))


if __name__ == "__main__":
    main()
