"""The format of the nano base models: chat template, tokenizer, and the tokens of the assistant's messages.

Each model trains its own tokenizer (`train_tokenizer`) and may have another template; the tokens that open and close a turn
are the same for all.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from data.demonstration import Demonstration

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


def train_tokenizer(texts: list[str], pieces: str, chat_template: str, vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-fallback BPE tokenizer on the texts; any Unicode text survives a round trip."""
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
    """Render the demonstration with the chat template (by jinja directly, which is fast enough for a million calls)."""
    return _compiled(chat_template).render(
        messages=demonstration.messages, tools=demonstration.tools, add_generation_prompt=False
    )


@cache
def _compiled(chat_template: str) -> Any:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return _compile_jinja_template(chat_template)


class Encoded(NamedTuple):
    """A demonstration as tokens with its targets.

    ids: the token ids. answers: (position, {token id: probability}) for every token of the assistant.
    hints: (position, labels for the probe).
    """

    ids: list[int]
    answers: list[tuple[int, dict[int, float]]]
    hints: list[tuple[int, tuple[int, ...]]]


def encode(tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration]) -> list[Encoded]:
    """Tokenize demonstrations.

    Raises: ValueError for a choice between words that are not single tokens.
    """
    texts = [render_text(demonstration, tokenizer.chat_template) for demonstration in demonstrations]
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    pairs = zip(demonstrations, encodings, strict=True)
    return [_encoded(tokenizer, demonstration, encoding.ids) for demonstration, encoding in pairs]


def _encoded(tokenizer: PreTrainedTokenizerFast, demonstration: Demonstration, ids: list[int]) -> Encoded:
    known = ("<|im_start|>", "<|im_end|>", "assistant\n", "\n")
    start, end, assistant, newline = (token_id(tokenizer, text) for text in known)
    turns = [i for i, token in enumerate(ids) if token == start]
    # With tools the template begins with a system turn that is not a message of the demonstration.
    turns = turns[len(turns) - len(demonstration.messages) :]
    choices = iter(demonstration.choices)
    answers, hints = [], []
    for message, i in enumerate(turns):
        stop = ids.index(end, i)
        if ids[i + 1] == assistant:
            choice = next(choices) or ()
            softs = [
                {token_id(tokenizer, word): p for word, p in shares.items()}
                for shares in ((choice,) if isinstance(choice, dict) else choice)
            ]
            for p in range(i + 2, stop + 1):
                answers.append((p, next((soft for soft in softs if ids[p] in soft), {ids[p]: 1.0})))
        if labels := demonstration.hints.get(message):
            hints += zip([p for p in range(i + 2, stop) if ids[p] != newline], labels, strict=True)
    return Encoded(ids, answers, hints)


def token_id(tokenizer: PreTrainedTokenizerFast, text: str) -> int:
    """Return the id of the token with this text. Raises: ValueError if the text is not a single token."""
    if (token := tokenizer.convert_tokens_to_ids(text)) is None:
        raise ValueError(f"{text!r} is not one token of this tokenizer; add it to the texts that it is trained on")
    return token
