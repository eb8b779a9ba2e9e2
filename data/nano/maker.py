"""Builds data/nano, the tiny base model that plays 2048: tokenizer, chat template, supervised training, model card.

`make data` makes all of it from demonstrations (data/nano/demonstrations.py), and then the base
model of the email task (data/nano_email/maker.py). This one is a Qwen3 causal LM of under a million parameters that knows the rules and formats of the tasks and plays them badly,
which is the state in which reinforcement learning is interesting.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from art_nb.inference.chat import parse_tool_calls
from art_nb.storage.checkpoints import write_folder
from data.nano.demonstration import Demonstration
from data.nano.demonstrations import Demonstrations2048

DEMONSTRATIONS = {"game_2048": Demonstrations2048}  # task: rng -> (turns -> Demonstration)

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

# A word, a number or a line break is never glued to its neighbour; the fixed parts of a tool call may be.
PIECES = (
    r'\{"name": "\w+", "arguments": \{(?:"\w+": "?)?|"?\}\}|(?:user|assistant|system|tool)\n'
    r"| ?[A-Za-z]+| ?\d{1,6}|\n| ?[^\sA-Za-z0-9]|\s+"
)


def build_tokenizer(demonstrations: list[Demonstration], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """A tokenizer for these demonstrations and any board."""
    tiles = " ".join(str(2**k) for k in range(1, 18))
    texts = [render_text(demonstration) for demonstration in demonstrations]
    return train_tokenizer(texts + [tiles + "\n" + "\n".join(tiles.split())] * 200, PIECES, CHAT_TEMPLATE, vocab_size)


def train_tokenizer(texts: list[str], pieces: str, chat_template: str, vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-fallback BPE tokenizer trained on the texts; any Unicode text survives a round trip."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 256,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=["\n"] + [chr(c) for c in range(32, 127)],
        show_progress=False,
    )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), "isolated")
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
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
    )
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer


def render_text(demonstration: Demonstration, chat_template: str = CHAT_TEMPLATE) -> str:
    """The demonstration as the chat template renders it (jinja run directly: it is called a million times)."""
    return _compiled(chat_template).render(
        messages=demonstration.messages, tools=demonstration.tools, add_generation_prompt=False
    )


@cache
def _compiled(chat_template: str) -> Any:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return _compile_jinja_template(chat_template)


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
        # Only the last layer sees the whole conversation, the others about eight turns, so that late turns stay cheap.
        use_sliding_window=True,
        sliding_window=256,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 1_000.0},
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=True,
        dtype="float32",
    )


def encode(tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration]) -> list[tuple[list, list, list]]:
    """Token ids, and for each demonstration what to tell where.

    Returns per demonstration (ids, answers, hints): `answers` holds (position, [(token id, probability), ...]) for
    every token the assistant says, predicted from the ids before it; `hints` holds (position, labels).
    """
    start, end = tokenizer.convert_tokens_to_ids("<|im_start|>"), tokenizer.eos_token_id
    (assistant,) = tokenizer.encode("assistant\n", add_special_tokens=False)
    (newline,) = tokenizer.encode("\n", add_special_tokens=False)
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(
        [render_text(d) for d in demonstrations], add_special_tokens=False
    )
    rows = []
    for demonstration, encoding in zip(demonstrations, encodings, strict=True):
        ids = encoding.ids
        turns = [i for i, token in enumerate(ids) if token == start]
        # With tools the template opens with a system turn that is no message of the demonstration.
        turns = turns[len(turns) - len(demonstration.messages) :]
        choices = iter(demonstration.choices)
        answers, hints = [], []
        for message, i in enumerate(turns):
            stop = ids.index(end, i)
            if ids[i + 1] == assistant:
                choice = next(choices)
                soft = _soft_target(tokenizer, choice) if choice else {}
                targets = [list(soft.items()) if token in soft else [(token, 1.0)] for token in ids[i + 2 : stop + 1]]
                answers += zip(range(i + 2, stop + 1), targets, strict=True)
            if labels := demonstration.hints.get(message):
                words = [p for p in range(i + 2, stop) if ids[p] != newline]
                hints += zip(words, labels, strict=True)
        rows.append((ids, answers, hints))
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
    """Endless batches: ids (B, T); where answers are predicted (N, 2) and their targets (N, V); where the probe
    reads (M, 2) and what it must say (M, H)."""
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
        target = torch.zeros(len(answers), vocab)
        for i, pairs in enumerate(pairs for _, answers, _ in rows for _, pairs in answers):
            for token, probability in pairs:
                target[i, token] = probability
        hints = [(b, p) for b, (_, _, hints) in enumerate(rows) for p, _ in hints]
        labels = [bits for _, _, hints in rows for _, bits in hints]
        yield ids, torch.tensor(answers), target, torch.tensor(hints), torch.tensor(labels, dtype=torch.float32)


def train(tokenizer, *, steps: int, seed: int, learning_rate: float = 3e-3, device: str = "cpu", report=print):
    """Supervised training on all tasks' demonstrations. Returns (model, final loss of the answers over 100 batches)."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(build_config(tokenizer)).to(device).train()
    for name, parameter in model.named_parameters():
        # Attention that starts sharper learns sooner which neighbour to look at.
        if "q_norm" in name or "k_norm" in name:
            torch.nn.init.constant_(parameter, 2.0)
    middle: dict[str, torch.Tensor] = {}
    layer = model.model.layers[model.config.num_hidden_layers // 2 - 1]
    layer.register_forward_hook(lambda _, __, out: middle.update(hidden=out[0] if isinstance(out, tuple) else out))
    probe = torch.nn.LazyLinear(len(next(batches(tokenizer, seed))[4][0])).to(device)
    probe(torch.zeros(1, model.config.hidden_size, device=device))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1] + list(probe.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}],
        lr=learning_rate, betas=(0.9, 0.98), fused=True,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps, pct_start=0.05, final_div_factor=100
    )
    recent, started = [], time.time()
    for step, batch in zip(range(1, steps + 1), batches(tokenizer, seed), strict=False):
        ids, answers, target, hints, labels = (tensor.to(device) for tensor in batch)
        hidden = model.model(input_ids=ids).last_hidden_state
        logits = model.lm_head(hidden[answers[:, 0], answers[:, 1]])
        # Less the targets' own entropy: zero is a perfect knowledge of the rules.
        answer_loss = F.cross_entropy(logits, target) - torch.special.entr(target).sum(-1).mean()
        hint_loss = F.binary_cross_entropy_with_logits(probe(middle["hidden"][hints[:, 0], hints[:, 1]]), labels)
        loss = answer_loss + hint_loss
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
    layer._forward_hooks.clear()
    return model.eval(), sum(recent) / len(recent)


@torch.inference_mode()
def sample(model, tokenizer, messages: list[dict], tools: list[dict] | None, max_tokens: int) -> str:
    """The model's next message at temperature 1, as text."""
    prompt = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    ids = model.generate(**prompt, max_new_tokens=max_tokens, do_sample=True, top_k=0)[0, prompt["input_ids"].shape[1] :]
    return tokenizer.decode(ids).removesuffix(tokenizer.eos_token)


def evaluate(model, tokenizer, seed: int, prompts: int = 400) -> dict[str, float]:
    """Sampled answers (temperature 1) to held-out prompts: the share that is well-formed, and the share that is legal."""
    rng = random.Random(seed)
    generator = DEMONSTRATIONS["game_2048"](rng)
    torch.manual_seed(seed)
    counts = {"text_well_formed": 0, "text_legal": 0, "tool_well_formed": 0, "tool_legal": 0}
    asked = {"text": 0, "tool": 0}
    for _ in range(prompts):
        demonstration = generator(rng.choice((1, 2, 8, 20)))
        kind = "tool" if demonstration.tools else "text"
        asked[kind] += 1
        last = max(i for i, targets in enumerate(demonstration.choices) if targets)
        spoken = [i for i, message in enumerate(demonstration.messages) if message["role"] == "assistant"]
        answer = sample(model, tokenizer, demonstration.messages[: spoken[last]], demonstration.tools, 12)
        move = _tool_move(answer) if kind == "tool" else answer
        counts[f"{kind}_well_formed"] += move in demonstration.choices[last]
        counts[f"{kind}_legal"] += demonstration.choices[last].get(move, 0) > 0
    return {name: count / asked[name.partition("_")[0]] for name, count in counts.items()}


def _tool_move(answer: str) -> str | None:
    calls, rest = parse_tool_calls(answer)
    if len(calls) != 1 or rest or calls[0]["function"]["name"] != "move":
        return None
    return json.loads(calls[0]["function"]["arguments"]).get("direction")


def build(folder: Path, *, steps: int = 600, seed: int = 0, device: str | None = None, report=print) -> dict:
    """Make the base model and write it to `folder`, whole or not at all. Returns what the model card says."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    started = time.time()
    rng = random.Random(seed)
    tasks = [DEMONSTRATIONS[name](rng) for name in sorted(DEMONSTRATIONS)]
    report("building the tokenizer")
    tokenizer = build_tokenizer([task(rng.choice((1, 2, 4, 8))) for task in tasks for _ in range(4000)])
    model, loss = train(tokenizer, steps=steps, seed=seed, device=device, report=report)
    minutes = (time.time() - started) / 60
    report("evaluating on held-out prompts")
    facts = {
        "tasks": sorted(DEMONSTRATIONS), "seed": seed, "steps": steps, "answer_loss": round(loss, 4),
        "minutes": round(minutes, 1), "device": f"{device}, {torch.get_num_threads()} threads",
        "parameters": model.num_parameters(), "vocabulary": len(tokenizer), "torch": torch.__version__,
        **{name: round(share, 4) for name, share in evaluate(model, tokenizer, seed + 1).items()},
    }  # fmt: skip
    write(folder, model, tokenizer, facts, MODEL_CARD)
    return facts


def write(folder: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, facts: dict, card: str) -> None:
    """Weights, tokenizer, card (filled with the facts) and hashes, whole or not at all."""
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id

    def fill(new: Path) -> None:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        (new / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
        (new / "README.md").write_text(card.format(**facts))
        sums = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in sorted(new.iterdir())]
        (new / "SHA256SUMS").write_text("".join(sums))

    write_folder(folder, fill)


MODEL_CARD = """\
---
license: apache-2.0
library_name: transformers
---
# The nano base model for 2048

A Qwen3 causal language model with {parameters:,} parameters and a byte-fallback BPE tokenizer of {vocabulary} tokens,
made for this course. It knows the rules and the formats of the course's tasks and plays them badly. It knows nothing
else: no English, no facts.

Made by `make data` (data/nano/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| tasks | {tasks} |
| data | conversations generated by data/nano/demonstrations.py while training; none is stored |
| what they teach | rules and formats: for 2048 the target is the uniform distribution over the legal moves, along random legal play. No skilled play is in them |
| training | {steps} steps of about 8,192 tokens; a linear probe on the middle layer had to tell how neighbouring tiles relate and was then thrown away |
| final loss of the answers, less the targets' own entropy | {answer_loss} nats a token |
| well-formed answers on held-out prompts, as text / as tool call | {text_well_formed:.1%} / {tool_well_formed:.1%} |
| legal answers on held-out prompts, as text / as tool call | {text_legal:.1%} / {tool_legal:.1%} |

SHA256SUMS lists the files' hashes; `python -m art_nb doctor` checks them.
"""
