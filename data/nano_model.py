"""Make a nano base model: a tokenizer, a tiny Qwen3, supervised training, an evaluation on held-out prompts, a card.

It does not depend on tasks: a `Recipe` has the parts that differ between models. The makers are data/nano*/maker.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from art_nb.environments import MalformedCall, parse_arguments
from art_nb.inference.chat import parse_tool_calls
from data.chat_format import Encoded
from data.demonstration import Demonstration
from data.item import write_described

FIRST = 5  # steps whose losses are recorded, so that a test can reproduce them


@dataclass(frozen=True)
class Recipe:
    """The parts of a base model that depend on its task.

    task: its name, for the card.
    steps: of training.
    tokenizer: seed -> the tokenizer.
    initial_model: (tokenizer, seed) -> the model before training.
    train: (model, tokenizer, steps, seed) -> iterator that trains a step each and yields the loss of the answers.
    evaluate: (model, tokenizer, seed, prompts=...) -> shares of the model's answers to held-out prompts.
    card: template of README.md, with the facts of `build` in braces.
    """

    task: str
    steps: int
    tokenizer: Callable[[int], PreTrainedTokenizerFast]
    initial_model: Callable[[PreTrainedTokenizerFast, int], Qwen3ForCausalLM]
    train: Callable[[Qwen3ForCausalLM, PreTrainedTokenizerFast, int, int], Iterator[float]]
    evaluate: Callable[..., dict[str, float]]
    card: str


def build(recipe: Recipe, folder: Path, *, steps: int | None = None, seed: int = 0, report=print) -> dict:
    """Make a base model and write it to `folder`, whole or not at all. Returns the facts of the card and training.json."""
    device, steps, started = "cuda" if torch.cuda.is_available() else "cpu", steps or recipe.steps, time.time()
    report("building the tokenizer")
    tokenizer = recipe.tokenizer(seed)
    model = recipe.initial_model(tokenizer, seed).to(device).train()
    losses = run_training(recipe.train(model, tokenizer, steps, seed), steps, report)
    minutes = (time.time() - started) / 60
    report("evaluating on held-out prompts")
    shares = recipe.evaluate(model.eval(), tokenizer, seed + 1)
    facts = {
        "task": recipe.task, "seed": seed, "steps": steps, "answer_loss": round(mean(losses[-100:]), 4),
        "first_losses": [round(loss, 4) for loss in losses[:FIRST]], "minutes": round(minutes, 1),
        "device": f"{device}, {torch.get_num_threads()} threads", "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer), "torch": torch.__version__,
        **{name: round(share, 4) for name, share in shares.items()},
    }  # fmt: skip
    write(folder, model, tokenizer, facts, recipe.card)
    return facts


def vocabulary(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the model's vocabulary size V: that of the tokenizer, rounded up to a multiple of 64."""
    return -(-len(tokenizer) // 64) * 64


def nano_config(tokenizer: PreTrainedTokenizerFast, rope_theta: float, **attention) -> Qwen3Config:
    """Return the Qwen3 configuration of the smallest size that learns the rules of 2048."""
    return Qwen3Config(
        vocab_size=vocabulary(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=True,
        dtype="float32",
        **attention,
    )


def sharpen_attention(model: Qwen3ForCausalLM) -> None:
    """Increase the scale of queries and keys: sharper initial attention learns sooner which tokens matter."""
    for layer in model.model.layers:
        torch.nn.init.constant_(layer.self_attn.q_norm.weight, 2.0)
        torch.nn.init.constant_(layer.self_attn.k_norm.weight, 2.0)


def stack(tokenizer: PreTrainedTokenizerFast, rows: Sequence[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (padded ids (B, T), (row, position before) of each answer token (N, 2))."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [tokenizer.pad_token_id] * (longest - len(row.ids)) for row in rows])
    return ids, torch.tensor([(b, place - 1) for b, row in enumerate(rows) for place, _ in row.answers])


def targets(tokenizer: PreTrainedTokenizerFast, rows: Sequence[Encoded]) -> torch.Tensor:
    """Return the target distributions (N, V) of the answer tokens."""
    wanted = [target for row in rows for _, target in row.answers]
    found = torch.zeros(len(wanted), vocabulary(tokenizer))
    for i, target in enumerate(wanted):
        for token, probability in target.items():
            found[i, token] = probability
    return found


def of_similar_length(rows: Sequence[Encoded], rng: random.Random, tokens: int, fewest: int = 0) -> list[Encoded]:
    """Return a random run of rows that are neighbours by length, so that little of a batch is padding.

    The run has about `tokens` tokens including the padding, and at least `fewest` rows.
    """
    rows = sorted(rows, key=lambda row: len(row.ids))[rng.randrange(len(rows) // 2) :]
    return rows[: max(fewest, next((n for n, row in enumerate(rows) if (n + 1) * len(row.ids) > tokens), len(rows)))]


def excess_loss(
    model: Qwen3ForCausalLM, hidden: torch.Tensor, answers: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """Return the cross-entropy of the answers minus the entropy of their targets, a scalar: 0 is perfect knowledge.

    hidden: (B, T, H), output of the last layer. answers: (N, 2), from `stack`. target: (N, V).
    """
    logits = model.lm_head(hidden[answers[:, 0], answers[:, 1]])
    return F.cross_entropy(logits, target) - torch.special.entr(target).sum(-1).mean()


@contextmanager
def recorded_output(layer: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Store the layer's latest output under "hidden" in the yielded dict, for a probe."""
    recorded: dict[str, torch.Tensor] = {}
    hook = layer.register_forward_hook(
        lambda _, __, out: recorded.update(hidden=out[0] if isinstance(out, tuple) else out)
    )
    try:
        yield recorded
    finally:
        hook.remove()


def descend(
    model: Qwen3ForCausalLM,
    probe: torch.nn.Module,
    batches: Iterable[tuple[torch.Tensor, ...]],
    backward: Callable[..., torch.Tensor],
    steps: int,
    learning_rate: float = 3e-3,
) -> Iterator[float]:
    """Train the model and the probe, one step per batch. Each step yields the loss of the answers.

    backward(*batch): calls `.backward()` on every loss and returns that of the answers, ().
    """
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1] + list(probe.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}],
        lr=learning_rate, betas=(0.9, 0.98), fused=True,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps, pct_start=0.05, final_div_factor=100
    )
    for _, batch in zip(range(steps), batches, strict=False):
        optimizer.zero_grad(set_to_none=True)
        loss = backward(*(tensor.to(model.device) for tensor in batch))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()


def run_training(training: Iterator[float], steps: int, report=print, every: int = 50) -> list[float]:
    """Run a training. Returns all losses; reports progress every `every` steps."""
    losses, started = [], time.time()
    for step, loss in enumerate(training, start=1):
        losses.append(loss)
        if step % every == 0 or step == steps:
            elapsed = time.time() - started
            left = elapsed / step * (steps - step)
            report(f"step {step}/{steps}  loss {mean(losses[-100:]):.4f}  {elapsed:.0f} s  about {left:.0f} s left")
    return losses


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@torch.inference_mode()
def sample(model, tokenizer, messages: list[dict], tools: list[dict] | None, max_tokens: int) -> str:
    """Sample the model's next message at temperature 1, as text."""
    prompt = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    ids = model.generate(**prompt, max_new_tokens=max_tokens, do_sample=True, top_k=0)[0, prompt["input_ids"].shape[1] :]
    return tokenizer.decode(ids).removesuffix(tokenizer.eos_token)


def sampled_call(
    model, tokenizer, demonstration: Demonstration, rng: random.Random, max_tokens: int
) -> tuple[list[dict], str | None, dict]:
    """Sample a call (temperature 1) in place of one of the demonstration's calls, drawn at random.

    Returns (messages before it; the tool's name, or None if the answer is not one well-formed call; its arguments).
    """
    assert demonstration.tools is not None
    calling = [i for i, message in enumerate(demonstration.messages) if message.get("tool_calls")]
    messages = demonstration.messages[: rng.choice(calling)]
    calls, rest = parse_tool_calls(sample(model, tokenizer, messages, demonstration.tools, max_tokens))
    if len(calls) != 1 or rest:
        return messages, None, {}
    function = calls[0]["function"]
    try:
        return messages, function["name"], parse_arguments(demonstration.tools, function["name"], function["arguments"])
    except MalformedCall:
        return messages, None, {}


def write(folder: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, facts: dict, card: str) -> None:
    """Write weights, tokenizer, facts, card and hashes, whole or not at all."""
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id

    def save(new: Path) -> None:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)

    write_described(folder, save, facts, card)
