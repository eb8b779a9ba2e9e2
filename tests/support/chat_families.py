"""Tokenizers of many families with their public chat templates, trained quickly by the tests that need them; no download."""

import copy
import json
import re
from importlib.resources import files
from pathlib import Path

from tiny_models import CHATML

from art_nb.inference.messages import normalize
from art_nb.inference.prompts import IncrementalTemplate

DATA = Path(__file__).parents[2] / "data"
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}"
    "{% elif m.role == 'system' %}{{ '[SYSTEM_PROMPT] ' + m.content + '[/SYSTEM_PROMPT]' }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS] {\"content\": ' + (m.content | string | tojson) + '}[/TOOL_RESULTS]' }}"
    "{% elif m.tool_calls %}{{ '[TOOL_CALLS] [' }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{{ ']' + eos_token }}"
    "{% else %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}"
)
CALLS, THINK = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"], ["<think>", "</think>"]
# Name: where the template is from, special tokens (padding, bos and eos first), structural ones that are not flagged special.
FAMILIES = {
    "chatml": (CHATML, ["<|endoftext|>", "<|endoftext|>", "<|im_end|>", "<|im_start|>"], []),
    "smollm2": (SMOLLM2, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>", "<repo_name>"], []),
    "qwen2_5": ("qwen2_5", ["<|endoftext|>", "<|endoftext|>", "<|im_end|>", "<|im_start|>"], CALLS),
    "qwen3": ("qwen3", ["<|endoftext|>", "<|endoftext|>", "<|im_end|>", "<|im_start|>"], CALLS + THINK),
    "llama3_1": (
        "llama3_1",
        ["<|finetune_right_pad_id|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>"],
        [],
    ),
    "deepseek": (
        "deepseek_r1_distill",
        ["<｜▁pad▁｜>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
        ["<｜User｜>", "<｜Assistant｜>", *THINK]
        + [f"<｜tool▁{kind}▁{end}｜>" for kind in ("calls", "call", "outputs", "output") for end in ("begin", "end")] + ["<｜tool▁sep｜>"],
    ),
    "glm4moe": (
        "glm4moe",
        ["<|endoftext|>", "[gMASK]", "<|user|>", "<sop>", "<|system|>", "<|assistant|>", "<|observation|>"],
        [*CALLS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", *THINK],
    ),
    "phi3": ("phi3", ["<|endoftext|>", "<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], []),
    "mistral": (
        MISTRAL, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"],
        ["[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"],
    ),
    "nano_email": (DATA / "nano_email", [], []),
}  # fmt: skip


def make(family: str):
    """The family's tokenizer, with an alphabet of bytes or, as SentencePiece's, of characters."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    source, special, structural = FAMILIES[family]
    if isinstance(source, Path):
        return AutoTokenizer.from_pretrained(source)
    if "{" not in source:
        source = (files("trl") / "chat_templates" / f"{source}.jinja").read_text(encoding="utf-8")
    backend = _from_characters(source, special) if family == "mistral" else _byte_level(source, family)
    _add(backend, special, structural, rstrip=family == "phi3")
    pad, bos, eos = (special + special)[:3]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=pad, bos_token=bos, eos_token=eos)
    tokenizer.chat_template = source
    return tokenizer


def _add(backend, special, structural, rstrip):
    from tokenizers import AddedToken

    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False, rstrip=rstrip) for t in dict.fromkeys(special)]
    )
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in structural])


def _byte_level(source, family):
    """Return a tokenizer like GPT's, with merges within words, also within control tokens. Qwen's normalises text to NFC first."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE(ignore_merges=family == "llama3_1"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if family.startswith("qwen"):
        backend.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([source, *re.split(r"\W", source)] * 2, trainer)
    return backend


def _from_characters(source, special):
    """Return a tokenizer like SentencePiece's: spaces belong to words, a space is prepended, unknown characters become bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    letters = sorted(set(source) | set("abcdefghijklmnopqrstuvwxyz"))
    learned.train_from_iterator(
        [source] * 2, trainers.BpeTrainer(vocab_size=300, initial_alphabet=letters, show_progress=False)
    )
    known = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    words = [t for t, _ in sorted(learned.get_vocab().items(), key=lambda item: item[1])]
    merges = [tuple(pair) for pair in json.loads(learned.to_str())["model"]["merges"]]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys([*known, *words]))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def theirs(tokenizer, messages, tools=None, opening=True, **how):
    """Return transformers' own token ids. Chat templates expect a call's arguments as an object; the API has a string."""
    messages = copy.deepcopy(messages)
    for call in [call for message in messages for call in message.get("tool_calls", [])]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=opening, return_dict=False, **how)


def token_ids(tokenizer, messages, tools=None, opening=False, **arguments):
    """Return this package's token ids of a conversation. opening: with the generation prompt."""
    template = IncrementalTemplate(tokenizer, tools, arguments)
    return template.control.ids(template.render(normalize(messages), opening))


def pieces(tokenizer, ids):
    """Return the control tokens in order, and the text before, between and after them."""
    control, texts, run, known = [], [], [], set(tokenizer.added_tokens_encoder.values())
    for token in ids:
        if token in known:
            control.append(token)
            texts.append(tokenizer.decode(run))
            run = []
        else:
            run.append(token)
    return control, [*texts, tokenizer.decode(run)]
