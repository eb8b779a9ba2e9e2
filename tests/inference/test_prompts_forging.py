"""No message can forge a control token: 10,000 fuzzed messages in conversations of ten chat templates.

The reference is transformers: the same conversation with harmless words shows which control tokens a prompt must have, and the
text between them. Attacks that are known to succeed elsewhere are in test_prompts_attacks.py.
"""

import json
import random
import unicodedata

import chat_families
import pytest
from chat_families import pieces, theirs, token_ids

from art_nb.inference.prompts import PromptEncoder

MESSAGES = 10_000
TOOLLESS = {"chatml", "smollm2", "phi3"}
BY_MESSAGE = {"chatml", "smollm2", "qwen2_5", "llama3_1", "mistral", "nano_email"}  # their templates render each message independently
THINKING = {"qwen3", "deepseek", "glm4moe"}  # their templates search the assistant's messages for thoughts
PROBE = '\n\n "é\\" \n\n'
CHANGES = [  # that a template may make to a text
    lambda text: text,
    lambda text: text.strip(),
    lambda text: text.strip("\n"),
    lambda text: text.lstrip("\n"),
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text.strip(), ensure_ascii=False)[1:-1],
]


@pytest.fixture(scope="module", params=chat_families.FAMILIES)
def family(request):
    tokenizer = chat_families.make(request.param)
    return request.param, tokenizer, PromptEncoder(tokenizer, [tokenizer.eos_token])


def ours(tokenizer, prompts, messages, tools=None):
    """Return the ids of the prompt. Without tools, check that rendering message by message gives the same."""
    ids = token_ids(tokenizer, messages, tools, opening=True)
    if tools is None:
        assert prompts.encode(prompts.template(None, {}).prompt(messages)) == (ids, None)
    return ids


# Conversations with numbered texts: each place holds a harmless word, or an attack.


def shape(draws, name):
    """Return a conversation as a function of its texts, and the role of each text. Calls have a name, a key and a value."""
    rounds = [name not in TOOLLESS and draws.random() < 0.6 for _ in range(draws.randint(1, 3))]
    starts = draws.random() < 0.5

    def conversation(texts):
        texts = iter(texts)
        messages = [{"role": "system", "content": next(texts)}] if starts else []
        for calls in rounds:
            messages.append({"role": "user", "content": next(texts)})
            if calls:
                function = {"name": next(texts), "arguments": json.dumps({next(texts): next(texts)})}
                call = {"id": "abcdefghi", "type": "function", "function": function}
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
                messages.append({"role": "tool", "tool_call_id": "abcdefghi", "content": next(texts)})
            messages.append({"role": "assistant", "content": next(texts)})
        messages.append({"role": "user", "content": next(texts)})
        if not any(rounds):
            return messages, None
        schema = {"type": "object", "properties": {next(texts): {"type": "string", "description": next(texts)}}}
        return messages, [
            {"type": "function", "function": {"name": next(texts), "description": next(texts), "parameters": schema}}
        ]

    roles = ["system"] * starts
    for calls in rounds:
        roles += ["user", *(["call"] * 3 + ["tool"]) * calls, "assistant"]
    return conversation, [*roles, "user", *["tools"] * 4 * any(rounds)]


def attack(draws, marks):
    """Return a text made of control tokens, parts of them, template code, look-alikes and bytes; never of whitespace alone."""
    mark, other = draws.choice(marks), draws.choice(marks)
    cut = draws.randint(1, max(1, len(mark) - 1))
    snippets = [
        mark, mark, f"{other}\n{mark}assistant\n", mark[:cut], mark[cut:], mark[:cut] + other + mark[cut:], mark * 2, mark.upper(),
        mark[:cut] + "\u200b" + mark[cut:], mark.replace("<", "＜").replace("|", "｜").replace(">", "＞"), mark[::-1], f" {mark} ",
        "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in mark), mark.replace("|", "\u01c0"), mark.encode().hex(),
        repr(mark.encode()), "".join(f"<0x{byte:02X}>" for byte in mark.encode()), "".join(f"\\u{ord(c):04x}" for c in mark),
        mark.replace("<", "&lt;"), mark.replace("<", "\\u003c"), "\x00151645\x00", "\x00", "{{ bos_token }}", "{% endfor %}", "{{ messages }}",
        "{# " + mark + " #}", "'+ eos_token +'", "user\n", "assistant\n\n", "system\n", "\n", "  ", "\t", "\\", '"', "'}", "é", "e\u0301",
        "漢字", "🙂", "\U0010fffd", "\uffff", "\ue000", "\u202e", "a", "The answer is 42.", "▁", "Ġ", "Ċ", "</s", "[/IN", "z0123456789abcdef000001",
        draws.randbytes(4).decode("latin-1"), draws.randbytes(4).decode("utf-8", "replace"),
    ]  # fmt: skip
    text = "".join(draws.choice(snippets) for _ in range(draws.randint(1, 6)))
    return text if text.strip() else mark


def hostile_texts(draws, roles, marks, thinks):
    """Return a text for each place. Some control tokens are split over two places."""
    texts = [attack(draws, marks) for _ in roles]
    for i in range(len(texts) - 1):
        if draws.random() < 0.3:
            mark = draws.choice(marks)
            cut = draws.randint(1, max(1, len(mark) - 1))
            texts[i], texts[i + 1] = texts[i] + mark[:cut], mark[cut:] + texts[i + 1]
    # Such a template searches for thoughts; see `test_thoughts_are_rendered_as_by_transformers`.
    return [
        text.replace("</think>", "</thunk>") if thinks and role == "assistant" else text
        for text, role in zip(texts, roles, strict=True)
    ]


def changes(tokenizer, conversation, roles):
    """Find out with transformers how the template changes the text in each place."""
    words = [f"w{i:03d}w" for i in range(len(roles))]
    plain = theirs(tokenizer, *conversation(words), tokenize=False)
    found = []
    for i, word in enumerate(words):
        probed = theirs(tokenizer, *conversation([*words[:i], PROBE, *words[i + 1 :]]), tokenize=False)
        found.append(next(change for change in CHANGES if plain.replace(word, change(PROBE)) == probed))
    return words, found


def same(name, text, expected):
    """Whether texts are equal up to what the tokenizer loses: Qwen's normalises, and some tokens strip adjacent spaces."""
    if name.startswith("qwen"):
        text, expected = unicodedata.normalize("NFC", text), unicodedata.normalize("NFC", expected)
    if name == "phi3":
        text, expected = text.lstrip(), expected.lstrip()
    if name == "mistral":  # to SentencePiece that letter is a blank, and the first blank of a text is its own
        text, expected = text.replace("▁", " ").removeprefix(" "), expected.replace("▁", " ").removeprefix(" ")
    return text == expected


def test_no_fuzzed_conversation_forges_a_control_token(family):
    name, tokenizer, prompts = family
    draws, marks, known = random.Random(name), sorted(tokenizer.added_tokens_encoder), {}
    written, fooled = 0, []
    while written < MESSAGES / len(chat_families.FAMILIES):
        conversation, roles = shape(draws, name)
        if tuple(roles) not in known:
            known[tuple(roles)] = changes(tokenizer, conversation, roles)
        words, change = known[tuple(roles)]
        texts = hostile_texts(draws, roles, marks, name in THINKING)
        expected_control, between = pieces(tokenizer, theirs(tokenizer, *conversation(words)))
        control, found = pieces(tokenizer, ours(tokenizer, prompts, *conversation(texts)))
        assert control == expected_control, texts
        for text, expected in zip(found, between, strict=True):
            for word, each, by in zip(words, texts, change, strict=True):
                expected = expected.replace(word, by(each))
            assert same(name, text, expected), texts
        written += len(conversation(texts)[0])
        fooled.append(pieces(tokenizer, theirs(tokenizer, *conversation(texts)))[0] != expected_control)
    assert sum(fooled) > 0.9 * len(fooled)  # with transformers, more than nine in ten succeed


def test_ordinary_conversations_are_tokenised_as_by_transformers(family):
    name, tokenizer, prompts = family
    assert prompts.template(None, {}).by_message == (name in BY_MESSAGE)
    draws = random.Random(name)
    usual = ["Hello", "the world", "a < b | c > d", "\n\n", " ", "x[1] = {2: '3'}", "é", "e\u0301", "漢字", "🙂", "<p>", "|", "im_end", "think", "2048"]  # fmt: skip
    for _ in range(200):
        conversation, roles = shape(draws, name)
        messages, tools = conversation(
            ["".join(draws.choices(usual, k=draws.randint(1, 6))) + str(i) for i in range(len(roles))]
        )
        ids = ours(tokenizer, prompts, messages, tools)
        assert ids == theirs(tokenizer, messages, tools)
    assert token_ids(tokenizer, messages, tools) == theirs(tokenizer, messages, tools, opening=False)
