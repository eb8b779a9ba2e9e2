"""How fast gathered conversations are trained on, against stock TRL's GRPOTrainer on the same tokens.

`python -m benchmarks.learner` prints one JSON line. `ratio`: tokens a second of `model.train` on 64
conversations of 5 to 60 turns (the step's own `train_s`: making sequences of the trajectories, forward,
backward, optimizer, metrics), over those of one optimizer step of stock TRL on the same sequences. Tokens are
real ones on both sides, padding not counted. The stock trainer finds its own input format (prompts padded on
the left, completions on the right, tool_mask) where it would generate; everything from there to the end of
the step is its own, and timed. Same adapter, advantages, loss and learning rate. It runs with several batch
sizes, and the fastest counts. It stops if the gradient norms of the first step differ: both sides must do the
same work.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time

import torch
from openai.types.chat.chat_completion import Choice
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, TrainerCallback

import art_nb as art
from art_nb.training.policy import Policy
from art_nb.training.sequences import TokenSequence, build_sequences
from benchmarks.gathering import BASE, registered
from benchmarks.result import print_result, say
from benchmarks.rollout import play
from benchmarks.stock_trl import GRPOTrainer, need_a_loss, stock_policy, stock_trainer

CONFIG = art.TrainConfig(learning_rate=1e-4)
GROUP = 8


async def conversations(model: art.TrainableModel, count: int, shortest: int, longest: int) -> list:
    """Groups of GROUP games each, `count` games of lengths spread evenly from `shortest` to `longest` turns."""
    lengths = [shortest + i * (longest - shortest) // (count - 1) for i in range(count)]
    count = count // GROUP
    groups = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(play(model, g, turns) for turns in lengths[g::count]) for g in range(count)],
        pbar_desc=None,
    )
    for trajectory in (trajectory for group in groups for trajectory in group):
        cut_where_tokens_differ(trajectory)
    return groups


def cut_where_tokens_differ(trajectory: art.Trajectory) -> None:
    """Ends a conversation before the first prompt that does not go on from the tokens so far.

    A malformed answer may read differently when it is sent back. We would train on two sequences then; TRL can't.
    """
    seen: list[int] = []
    for i, item in enumerate(trajectory.messages_and_choices):
        if isinstance(item, Choice):
            if item.prompt_token_ids[: len(seen)] != seen:
                del trajectory.messages_and_choices[i:]
                break
            seen = item.prompt_token_ids + item.token_ids


async def measure_ours(
    folder: str, base: str, count: int, shortest: int, longest: int, repeats: int
) -> tuple[dict, list[TokenSequence]]:
    """Median seconds of a step after one to warm up, the first step's gradient norm; and what was trained on."""
    model = await registered(folder, base, "model")
    say(f"gathering {count} conversations of {shortest} to {longest} turns")
    groups = await conversations(model, count, shortest, longest)
    say("ours: training")
    steps = [(await model.train(groups, CONFIG)).metrics for _ in range(1 + repeats)]
    sequences, _ = build_sequences(groups, AutoTokenizer.from_pretrained(base), CONFIG)
    seconds = statistics.median(step["train_s"] for step in steps[1:])
    return {"seconds": seconds, "grad_norm": steps[0]["grad_norm"]}, sequences


class FedTrainer(GRPOTrainer):
    """Stock TRL that is given `gathered` where it would generate."""

    gathered: dict[str, torch.Tensor]

    def _generate_and_score_completions(self, inputs: list) -> dict[str, torch.Tensor]:
        return dict(self.gathered)


class StepClock(TrainerCallback):
    """Seconds of each optimizer step, all its micro-batches included."""

    def __init__(self):
        self.seconds: list[float] = []

    def on_step_begin(self, args, state, control, **_):
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        self.seconds.append(time.perf_counter() - self.started)


def measure_stock(folder: str, base: str, sequences: list[TokenSequence], batch_size: int, repeats: int) -> dict:
    """The same for steps of stock TRL on all sequences, `batch_size` of them through the model at a time."""
    say(f"stock TRL: training, {batch_size} sequences at a time")
    policy, clock = stock_policy(base, seed=0), StepClock()
    trainer = stock_trainer(
        policy, folder, [{"prompt": ""}] * len(sequences), trainer_class=FedTrainer,
        per_device_train_batch_size=batch_size, gradient_accumulation_steps=len(sequences) // batch_size,
        num_generations=2, learning_rate=CONFIG.learning_rate, max_steps=1 + repeats,
        max_completion_length=policy.model.config.max_position_embeddings,
        logging_strategy="steps", logging_steps=1,
    )  # fmt: skip
    trainer.gathered = stock_inputs(sequences, policy)
    trainer.add_callback(clock)
    trainer.train()
    return {"seconds": statistics.median(clock.seconds[1:]), "grad_norm": trainer.state.log_history[0]["grad_norm"]}


def stock_inputs(sequences: list[TokenSequence], policy: Policy) -> dict[str, torch.Tensor]:
    """All sequences in TRL's input format: prompts padded on the left, the rest on the right; an advantage for each."""
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


def measure(base: str, count: int, shortest: int, longest: int, batch_sizes: list[int], repeats: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        ours, sequences = asyncio.run(measure_ours(folder, base, count, shortest, longest, repeats))
        need_a_loss()
        stock = {size: measure_stock(folder, base, sequences, size, repeats) for size in batch_sizes}
    for size, numbers in stock.items():
        if abs(numbers["grad_norm"] / ours["grad_norm"] - 1) > 0.01:
            raise SystemExit(f"gradient norms differ: ours {ours}, stock TRL {numbers} at batch size {size}")
    tokens, longest_sequence = sum(len(s.ids) for s in sequences), max(len(s.ids) for s in sequences)
    best = min(stock, key=lambda size: stock[size]["seconds"])
    return {
        "ratio": stock[best]["seconds"] / ours["seconds"],
        "ours_tokens_per_s": tokens / ours["seconds"],
        "stock_tokens_per_s": tokens / stock[best]["seconds"],
        "stock_batch_size": best,
        "stock_tokens_per_s_by_batch_size": {size: tokens / n["seconds"] for size, n in stock.items()},
        "tokens": tokens,
        "trained_tokens": sum(sum(s.trained) for s in sequences),
        "padding_of_stock": 1 - tokens / (count * longest_sequence),
        "grad_norm": {"ours": ours["grad_norm"], "stock": stock[best]["grad_norm"]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default=str(BASE), help="folder or hub name of the base model")
    parser.add_argument("--conversations", type=int, default=64, help=f"a multiple of {GROUP}")
    parser.add_argument("--turns", type=int, nargs=2, default=[5, 60], help="of the shortest and of the longest")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 64], help="stock TRL's, to choose from")
    parser.add_argument("--repeats", type=int, default=3, help="steps measured, after one to warm up")
    a = parser.parse_args()
    print_result("learner", lambda: measure(a.base, a.conversations, *a.turns, a.batch_sizes, a.repeats))


if __name__ == "__main__":
    main()
