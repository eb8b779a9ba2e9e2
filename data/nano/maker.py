"""Train data/nano, the tiny base model for 2048: `python -m data nano` (5 minutes on two cores).

A Qwen3 causal LM with less than a million parameters that knows the rules and formats of the game and plays badly, as a
starting point for reinforcement learning. Its training data come from data/nano/demonstrations.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from art_nb.inference.chat import parse_tool_calls
from data import nano_model
from data.chat_format import CHAT_TEMPLATE, encode, render_text, train_tokenizer
from data.demonstration import Demonstration
from data.nano.demonstrations import HINTS, Demonstrations2048

DEMONSTRATIONS = {"game_2048": Demonstrations2048}  # task: rng -> (turns -> Demonstration)

# The tokenizer never merges a word, number or line break with its neighbour, except in the fixed parts of a tool call.
PIECES = (
    r'\{"name": "\w+", "arguments": \{(?:"\w+": "?)?|"?\}\}|(?:user|assistant|system|tool)\n'
    r"| ?[A-Za-z]+| ?\d{1,6}|\n| ?[^\sA-Za-z0-9]|\s+"
)


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Return the base model's tokenizer."""
    rng = random.Random(seed)
    tasks = [DEMONSTRATIONS[name](rng) for name in sorted(DEMONSTRATIONS)]
    return build_tokenizer([task(rng.choice((1, 2, 4, 8))) for task in tasks for _ in range(4000)])


def build_tokenizer(demonstrations: list[Demonstration], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Return a tokenizer trained on these demonstrations and all tiles."""
    tiles = " ".join(str(2**k) for k in range(1, 18))
    texts = [render_text(demonstration) for demonstration in demonstrations]
    return train_tokenizer(texts + [tiles + "\n" + "\n".join(tiles.split())] * 200, PIECES, CHAT_TEMPLATE, vocab_size)


def initial_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Return the untrained model. Only its last layer attends to the whole conversation, so that late turns are cheap."""
    torch.manual_seed(seed)
    layers = ["sliding_attention"] * 3 + ["full_attention"]  # 256 tokens are about eight turns
    config = nano_model.nano_config(
        tokenizer, rope_theta=1_000.0, use_sliding_window=True, sliding_window=256, layer_types=layers
    )
    model = Qwen3ForCausalLM(config)
    nano_model.sharpen_attention(model)
    return model


def batches(tokenizer: PreTrainedTokenizerFast, seed: int, tokens: int = 8192) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield batches of about `tokens` tokens without end.

    ids (B, T); positions at which answers are predicted (N, 2) and their targets (N, V); positions of the probe (M, 2) and
    its labels (M, HINTS).
    """
    rng = random.Random(seed)
    tasks = [DEMONSTRATIONS[name](rng) for name in sorted(DEMONSTRATIONS)]
    while True:
        # Mostly short conversations; 8% of the batches are long, so that the model also learns late turns.
        turns = rng.choice((1, 1, 1, 2, 3, 4, 6, 8)) if rng.random() > 0.08 else rng.choice((24, 48, 80))
        count = max(2, tokens // (28 * turns + 10))
        # A contiguous half of twice as many conversations sorted by length, for little padding.
        drawn = sorted((rng.choice(tasks)(turns) for _ in range(2 * count)), key=lambda d: len(render_text(d)))
        first = rng.randrange(count + 1)
        rows = encode(tokenizer, drawn[first : first + count])
        rows = rows[: max(2, tokens // max(len(row.ids) for row in rows))]
        ids, answers = nano_model.stack(tokenizer, rows)
        hints = [(b, place) for b, row in enumerate(rows) for place, _ in row.hints]
        labels = [bits for row in rows for _, bits in row.hints]
        targets = nano_model.targets(tokenizer, rows)
        yield ids, answers, targets, torch.tensor(hints), torch.tensor(labels, dtype=torch.float32)


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> Iterator[float]:
    """Train with supervision. Yields each step's answer loss in nats per token, minus the entropy of the targets."""
    probe = torch.nn.Linear(model.config.hidden_size, HINTS).to(model.device)
    layer = model.model.layers[model.config.num_hidden_layers // 2 - 1]
    with nano_model.recorded_output(layer) as middle:

        def backward(ids, answers, target, hints, labels) -> torch.Tensor:
            hidden = model.model(input_ids=ids).last_hidden_state
            answer_loss = nano_model.excess_loss(model, hidden, answers, target)
            hint_loss = F.binary_cross_entropy_with_logits(probe(middle["hidden"][hints[:, 0], hints[:, 1]]), labels)
            (answer_loss + hint_loss).backward()
            return answer_loss

        yield from nano_model.descend(model, probe, batches(tokenizer, seed), backward, steps)


def evaluate(model, tokenizer, seed: int, prompts: int = 400) -> dict[str, float]:
    """Return the shares of well-formed and of legal answers to held-out prompts, sampled at temperature 1."""
    rng = random.Random(seed)
    generator = DEMONSTRATIONS["game_2048"](rng)
    torch.manual_seed(seed)
    counts = {"text_well_formed": 0, "text_legal": 0, "tool_well_formed": 0, "tool_legal": 0}
    prompts_of = {"text": 0, "tool": 0}
    for _ in range(prompts):
        demonstration = generator(rng.choice((1, 2, 8, 20)))
        kind = "tool" if demonstration.tools else "text"
        prompts_of[kind] += 1
        last = max(i for i, targets in enumerate(demonstration.choices) if targets)
        answers = [i for i, message in enumerate(demonstration.messages) if message["role"] == "assistant"]
        answer = nano_model.sample(model, tokenizer, demonstration.messages[: answers[last]], demonstration.tools, 12)
        move = _tool_move(answer) if kind == "tool" else answer
        counts[f"{kind}_well_formed"] += move in demonstration.choices[last]
        counts[f"{kind}_legal"] += demonstration.choices[last].get(move, 0) > 0
    return {name: count / prompts_of[name.partition("_")[0]] for name, count in counts.items()}


def _tool_move(answer: str) -> str | None:
    calls, rest = parse_tool_calls(answer)
    if len(calls) != 1 or rest or calls[0]["function"]["name"] != "move":
        return None
    return json.loads(calls[0]["function"]["arguments"]).get("direction")


MODEL_CARD = """\
---
license: apache-2.0
library_name: transformers
---
# The nano base model for 2048

A Qwen3 causal language model with {parameters:,} parameters and a byte-fallback BPE tokenizer of {vocabulary} tokens,
made for this course. It knows the rules and formats of the game and plays badly. It knows nothing else, not even English.

Made by `python -m data nano` (data/nano/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| task | {task} |
| data | conversations generated during training by data/nano/demonstrations.py, not stored |
| content | rules and formats: the target is the uniform distribution over the legal moves, in games of random legal play. No skilled play |
| training | {steps} steps of about 8,192 tokens, with an auxiliary loss: a linear probe on the middle layer predicts how neighbouring tiles relate |
| final answer loss minus the entropy of the targets | {answer_loss} nats per token |
| well-formed answers on held-out prompts, as text / as tool call | {text_well_formed:.1%} / {tool_well_formed:.1%} |
| legal answers on held-out prompts, as text / as tool call | {text_legal:.1%} / {tool_legal:.1%} |

training.json has these figures and the losses of the first steps, which tests/base_models/test_data.py reproduces. SHA256SUMS lists the
files' hashes; `python -m art_nb doctor` checks them. Licence: Apache-2.0, like the project.
"""  # noqa: E501 - a table's row is one line

RECIPE = nano_model.Recipe(", ".join(DEMONSTRATIONS), 600, make_tokenizer, initial_model, train, evaluate, MODEL_CARD)
