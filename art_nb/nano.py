"""Builds data/nano, the tiny base model of the course: tokenizer, chat template, supervised training, model card.

`python -m art_nb build-nano` makes all of it from the tasks' demonstrations (art_nb/tasks/demonstrations.py). The model
is a Qwen3 causal LM of under a million parameters that knows the rules and formats of the tasks and plays them badly,
which is the state in which reinforcement learning is interesting.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from art_nb.checkpoints import write_folder
from art_nb.tasks.demonstrations import DEMONSTRATIONS, Demonstration

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]

# ChatML, one piece of text per message, so that a conversation's prompt always extends its earlier prompts.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
{%- for tool in tools %}{{- (tool.function if tool.function is defined else tool) | tojson + '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function if call.function is defined else call %}
{{- '<tool_call>{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# How transformers (>= 5.13) and TRL read an answer back into content and tool calls.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}

REPLY_WEIGHT = 0.3  # of foreseeing the environment's reply, against the model's own answers

# A word, a number or a line break is never glued to its neighbour; the fixed parts of a tool call may be.
PIECES = (
    r'\{"name": "\w+", "arguments": \{(?:"\w+": "?)?|"?\}\}|(?:user|assistant|system|tool)\n'
    r"| ?[A-Za-z]+| ?\d{1,6}|\n| ?[^\sA-Za-z0-9]|\s+"
)


def build_tokenizer(demonstrations: list[Demonstration], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """A byte-fallback BPE tokenizer trained on the demonstrations' text; any Unicode text survives a round trip."""
    texts = [render_text(demonstration) for demonstration in demonstrations]
    tiles = " ".join(str(2**k) for k in range(1, 18))
    texts += [tiles + "\n" + "\n".join(tiles.split())] * 200
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 256,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=["\n"] + [chr(c) for c in range(32, 127)],
        show_progress=False,
    )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "isolated")
    bpe.train_from_iterator(texts, trainer)
    learnt = json.loads(bpe.to_str())["model"]
    vocab = dict(learnt["vocab"])
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    full = Tokenizer(models.BPE(vocab, [tuple(m) for m in learnt["merges"]], byte_fallback=True, fuse_unk=False))
    full.pre_tokenizer = bpe.pre_tokenizer
    full.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    full.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS[:3]])
    full.add_tokens([AddedToken(t, special=False, normalized=False) for t in SPECIAL_TOKENS[3:]])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=full,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
    )
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer


def render_text(demonstration: Demonstration) -> str:
    """The demonstration as the chat template renders it (jinja run directly: it is called a million times)."""
    return _compiled_template().render(
        messages=demonstration.messages, tools=demonstration.tools, add_generation_prompt=False
    )


def _compiled_template(cache: list = []) -> object:  # noqa: B006 - compiled once per process
    if not cache:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        cache.append(_compile_jinja_template(CHAT_TEMPLATE))
    return cache[0]


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Qwen3's architecture at the smallest size that learns the rules of 2048."""
    return Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=True,
        dtype="float32",
    )


def encode(tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration]) -> list[tuple[list, list, list]]:
    """Token ids, and for each demonstration what to predict where.

    Returns per demonstration (ids, answers, replies): `answers` holds (position, [(token id, probability), ...]) for
    every token the assistant says, `replies` the positions of what the environment says back. The token at a position
    is predicted from the ids before it.
    """
    start, end = tokenizer.convert_tokens_to_ids("<|im_start|>"), tokenizer.eos_token_id
    header = tokenizer.encode("assistant\n", add_special_tokens=False)
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(
        [render_text(d) for d in demonstrations], add_special_tokens=False
    )
    rows = []
    for demonstration, encoding in zip(demonstrations, encodings, strict=True):
        ids = encoding.ids
        choices = iter(demonstration.choices)
        answers, replies = [], []
        starts = [i for i, token in enumerate(ids) if token == start]
        for i in starts:
            stop = ids.index(end, i) + 1
            if ids[i + 1 : i + 1 + len(header)] == header:
                choice = next(choices)
                soft = _soft_target(tokenizer, choice) if choice else {}
                answers += [
                    (p, list(soft.items()) if ids[p] in soft else [(ids[p], 1.0)])
                    for p in range(i + 1 + len(header), stop)
                ]
            elif answers:
                replies += range(i + 2, stop)
        rows.append((ids, answers, replies))
    return rows


def _soft_target(tokenizer: PreTrainedTokenizerFast, choice: dict[str, float], cache: dict = {}) -> dict[int, float]:  # noqa: B006
    """{token id: probability}; every word of a choice must be one token, or the target would not be well defined."""
    for word in choice:
        if word not in cache:
            ids = tokenizer.encode(word, add_special_tokens=False)
            if len(ids) != 1:
                raise ValueError(f"the choice {word!r} is {len(ids)} tokens; a soft target needs a single token")
            cache[word] = ids[0]
    return {cache[word]: p for word, p in choice.items()}


def batches(tokenizer, seed: int, tokens_per_batch: int = 8192) -> Iterator[tuple[torch.Tensor, ...]]:
    """Endless batches: ids (B, T); answers (N, 2), the positions that predict them, and their targets (N, V);
    replies (M, 2), the positions that predict a token of the environment's reply."""
    rng = random.Random(seed)
    tasks = [DEMONSTRATIONS[name](rng) for name in sorted(DEMONSTRATIONS)]
    vocab = -(-len(tokenizer) // 64) * 64
    while True:
        # Mostly short conversations; every tenth batch is long, so that turn 80 is answered as well as turn 1.
        turns = rng.choice((1, 1, 1, 2, 3, 4, 6, 8)) if rng.random() > 0.08 else rng.choice((24, 48, 80))
        count = max(2, tokens_per_batch // (28 * turns + 10))
        # A run of neighbours by length out of twice as many: little of the batch is padding.
        drawn = sorted((rng.choice(tasks)(turns) for _ in range(2 * count)), key=lambda d: len(render_text(d)))
        first = rng.randrange(count + 1)
        rows = encode(tokenizer, drawn[first : first + count])
        rows = rows[: max(2, tokens_per_batch // max(len(ids) for ids, _, _ in rows))]
        longest = max(len(ids) for ids, _, _ in rows)
        ids = torch.tensor([row[0] + [tokenizer.pad_token_id] * (longest - len(row[0])) for row in rows])
        answers = [(b, p - 1) for b, (_, answers, _) in enumerate(rows) for p, _ in answers]
        flat = [target for _, answers, _ in rows for _, target in answers]
        target = torch.zeros(len(flat), vocab)
        for i, pairs in enumerate(flat):
            for token, probability in pairs:
                target[i, token] = probability
        replies = [(b, p - 1) for b, (_, _, replies) in enumerate(rows) for p in replies]
        yield ids, torch.tensor(answers), target, torch.tensor(replies).reshape(-1, 2)


def train(tokenizer, *, steps: int, seed: int, learning_rate: float = 2e-3, device: str = "cpu", report=print):
    """Supervised training on all tasks' demonstrations. Returns (model, final loss of the answers over 100 batches).

    The model learns its own answers, and to foresee what the environment replies: that is where the rules are.
    """
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(build_config(tokenizer)).to(device).train()
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        lr=learning_rate, betas=(0.9, 0.98), fused=True,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps, pct_start=0.05, final_div_factor=100
    )
    recent, started = [], time.time()
    for step, (ids, answers, target, replies) in zip(range(1, steps + 1), batches(tokenizer, seed), strict=False):
        ids, target = ids.to(device), target.to(device)
        hidden = model.model(input_ids=ids).last_hidden_state
        logits = model.lm_head(hidden[answers[:, 0], answers[:, 1]])
        # Less the targets' own entropy: zero is a perfect knowledge of the rules.
        answer_loss = F.cross_entropy(logits, target) - torch.special.entr(target).sum(-1).mean()
        loss = answer_loss
        if len(replies):
            predicted = model.lm_head(hidden[replies[:, 0], replies[:, 1]])
            loss = loss + REPLY_WEIGHT * F.cross_entropy(predicted, ids[replies[:, 0], replies[:, 1] + 1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent = (recent + [answer_loss.item()])[-100:]
        if step % 50 == 0 or step == steps:
            elapsed = time.time() - started
            report(f"step {step}/{steps}  loss {sum(recent) / len(recent):.4f}  {elapsed:.0f} s  "
                   f"about {elapsed / step * (steps - step):.0f} s left")  # fmt: skip
    return model.eval(), sum(recent) / len(recent)
