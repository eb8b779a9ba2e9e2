"""Train data/nano_email, the nano base model for email search: `python -m data nano_email` (25 minutes on two cores).

The demonstrations (data/nano_email/demonstrations.py) mostly require copying: words of the question, ids of mails, values
from their text. The loss of the answers alone teaches that very slowly, so the model is initialised for it
(`initial_model`) and has auxiliary losses (`AuxiliaryLosses`). It is separate from data/nano because a model of this size
trained on both tasks knew the rules of 2048 less well (90% legal moves, against 99%).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from data import chat_format, nano_model
from data.chat_format import SPECIAL_TOKENS, Encoded, encode, render_text, train_tokenizer
from data.demonstration import Demonstration
from data.nano_email.demonstrations import DemonstrationsEmail
from email_search.environment import I_DONT_KNOW
from email_search.questions import MONTHS, PATTERNS, read_question

# Like chat_format's, but it shows only the names in a tool's schema: the descriptions would be most of a short
# conversation, and this model cannot read them.
CHAT_TEMPLATE = chat_format.CHAT_TEMPLATE.replace(
    "{%- for tool in tools %}{{- (tool.function if tool.function is defined else tool) | tojson + '\\n' }}{%- endfor %}",
    """\
{%- for tool in tools %}
{%- set function = tool.function if tool.function is defined else tool %}
{{- function.name + '(' + ((function.parameters or {}).get('properties') or {}) | join(', ') + ')\\n' }}
{%- endfor %}""",
)

# Copying is easier if the first token of a value shows its kind. Therefore a colon or space inside a value belongs to
# the word before it ("10:|30", "2 |October", "Kate |Winter", "room |31|7"); only amounts and counts share a form ("40|
# dollars"). Longer numbers are split into pairs of digits. Any other space before a capitalised word is a piece of its
# own, so that a word is the same token at the start of a value and inside a sentence. Each fixed part of a tool call is
# one token.
PIECES = (
    r'\{"name": "\w+", "arguments": \{(?:"\w+": (?:\["?|"?))?|"?, "\w+": (?:\["?|"?)|"?\]?\}\}|", "'
    rf"|(?:user|assistant|system|tool)\n|\d{{1,2}}(?::(?=\d)| (?=(?:{'|'.join(MONTHS)})))?|[A-Z][a-z]+ (?=[A-Z])"
    r"|room (?=\d)| (?=room \d)|[,:|>] (?=[A-Z\d])|\. (?=[A-Z])| (?=[A-Z])| ?[A-Za-z_]+|\n| ?[^\sA-Za-z0-9]|\s+"
)


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer of the base model."""
    task = DemonstrationsEmail(random.Random(seed), ordered=True)
    return build_tokenizer([task() for _ in range(4000)])


def build_tokenizer(demonstrations: list[Demonstration], vocab_size: int = 1856) -> PreTrainedTokenizerFast:
    """Train a tokenizer in which the words of the demonstrations and all pairs of digits are single tokens."""
    texts = [render_text(demonstration, CHAT_TEMPLATE) for demonstration in demonstrations]
    pairs = "".join(f"x{n:02}" for n in range(100))
    return train_tokenizer(texts + [pairs] * 200, PIECES, CHAT_TEMPLATE, vocab_size)


WHICH = ("", "first", "final")
CLASS_COUNTS = (len(PATTERNS), len(WHICH), 1 + len(MONTHS))
"""The numbers of classes of `question_classes`."""


def question_classes(question: str) -> tuple[int, int, int]:
    """Return the classes of a question: the kind of value (index in PATTERNS), which (in WHICH), the month or 0."""
    parsed = read_question(question)
    kind = [pattern for _, pattern in PATTERNS].index(parsed.pattern)
    return kind, WHICH.index(parsed.which), int(parsed.month[-2:] or 0)


def batches(tokenizer, task: DemonstrationsEmail, rng: random.Random, tokens: int) -> Iterator[tuple]:
    """Yield batches of about `tokens` tokens.

    Each has ids (B, T), positions before answer tokens (N, 2), these tokens (N), the classes of their questions (N, 3).
    """
    while True:
        rows: list[Encoded] = []
        while sum(len(row.ids) for row in rows) < 2 * tokens:
            searches = [task() for _ in range(8)]
            questions = [search.messages[0]["content"].splitlines()[-1] for search in searches]
            encoded = zip(encode(tokenizer, searches), questions, strict=True)
            rows += [row._replace(hints=[(0, question_classes(question))]) for row, question in encoded]  # of the whole row
        rows = nano_model.of_similar_length(rows, rng, tokens, fewest=2)
        ids, answers = nano_model.stack(tokenizer, rows)
        classes = torch.tensor([found for row in rows for _, found in row.hints])
        yield ids, answers, ids[answers[:, 0], answers[:, 1] + 1], classes[answers[:, 0]]


def initial_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Return the model before training, with attention close to the identity.

    Query weights equal key weights, and the output projection is the transpose of the value projection, so that a token
    attends to equal tokens (Trockman and Kolter, Mimetic Initialization of Self-Attention Layers, 2023). All embeddings
    share a constant component, without which layers without biases could not attend by position; it shifts all logits
    equally. Unlike in data/nano, every layer attends to the whole conversation.
    """
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(nano_model.nano_config(tokenizer, rope_theta=100_000.0))
    nano_model.sharpen_attention(model)
    config = model.config
    size, shared = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    with torch.no_grad():
        model.model.embed_tokens.weight[:, :8] = 0.3
        for depth, layer in enumerate(model.model.layers):
            attention = layer.self_attn
            attention.v_proj.weight.copy_(torch.nn.init.orthogonal_(torch.empty_like(attention.v_proj.weight)))
            for head in range(config.num_attention_heads):
                own, group = (slice(i * size, (i + 1) * size) for i in (head, head // shared))
                attention.o_proj.weight[:, own] = 0.5 * attention.v_proj.weight[group].T
                if depth > 0:
                    attention.q_proj.weight[own] = attention.k_proj.weight[group]
    return model


class AuxiliaryLosses:
    """Auxiliary losses with which the model learns early to copy. They are not part of the trained model.

    The model also predicts the text that it reads, and two heads of the last layer must attend to earlier occurrences of the
    next token. The same is trained on texts that repeat random words, where a linear probe on the first layer must predict
    the previous token. These are the steps of copying (Olsson et al., In-context Learning and Induction Heads, 2022), which
    the loss of the answers alone takes far longer to find.
    """

    def __init__(self, model: Qwen3ForCausalLM, tokenizer, seed: int):
        self.model, self.pad, self.rng = model, tokenizer.pad_token_id, random.Random(seed)
        config, layers = model.config, model.model.layers
        self.before = torch.nn.Linear(config.hidden_size, config.vocab_size).to(model.device)
        self.words = range(len(SPECIAL_TOKENS), len(tokenizer) - 256)
        texts = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        fixed = ["<" in text or '"' in text for text in texts] + [True] * (config.vocab_size - len(texts))
        self.fixed = torch.tensor(fixed, device=model.device)  # parts of the format, never copied
        self.seen: dict[str, Any] = {}
        self.hooks = [
            layers[0].register_forward_hook(lambda _, __, out: self.seen.update(first=out)),
            layers[-1].register_forward_pre_hook(
                lambda _, args, named: self.seen.update(last=args[0], places=named["position_embeddings"]), with_kwargs=True
            ),
        ]

    def reading_loss(self, hidden: torch.Tensor, ids: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting and attending in the text. hidden: (B, T, H), ids: (B, T), answers: (N, 2)."""
        following = ids[:, 1:]
        real = following != self.pad
        read = F.cross_entropy(self.model.lm_head(hidden[:, :-1][real]), following[real])
        return 0.25 * read + self._attention_loss(ids, answers, self.fixed)

    def copying_loss(self, rows: int = 32, length: int = 64, groups: int = 5) -> torch.Tensor:
        """Return the loss on texts that repeat a few groups of words: all but first occurrences are predictable."""
        ids = torch.tensor([self._repeated(length, groups) for _ in range(rows)], device=self.model.device)
        hidden = self.model.model(input_ids=ids).last_hidden_state
        known = occurrences(ids).any(-1)
        copied = F.cross_entropy(self.model.lm_head(hidden[:, :-1][known]), ids[:, 1:][known])
        before = F.cross_entropy(self.before(self.seen["first"][:, 1:]).flatten(0, 1), ids[:, :-1].flatten())
        attention = self._attention_loss(ids, torch.zeros(0, 2, dtype=torch.long), torch.zeros_like(self.fixed))
        return 0.5 * (copied + 0.5 * before + attention)

    def _repeated(self, length: int, groups: int) -> list[int]:
        words: list[int] = []
        drawn = [self.rng.choices(self.words, k=self.rng.randint(1, 5)) for _ in range(groups)]
        while len(words) < length:
            words += self.rng.choice(drawn)
        return words[:length]

    def _attention_loss(self, ids: torch.Tensor, answers: torch.Tensor, fixed: torch.Tensor) -> torch.Tensor:
        """Return minus the log of the attention to earlier occurrences of the next token, averaged over both heads."""
        layer, (cos, sin) = self.model.model.layers[-1], self.seen["places"]
        attention, hidden = layer.self_attn, layer.input_layernorm(self.seen["last"])
        heads = (*hidden.shape[:2], -1, attention.head_dim)
        queries = attention.q_norm(attention.q_proj(hidden).view(heads)[:, :, :2]).transpose(1, 2)
        keys = attention.k_norm(attention.k_proj(hidden).view(heads)[:, :, :1]).transpose(1, 2)
        queries, keys = apply_rotary_pos_emb(queries, keys, cos, sin)
        scores = (queries @ keys.transpose(2, 3) * attention.scaling)[:, :, :-1]
        past = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
        may_copy = ~fixed[ids[:, 1:]][..., None]
        after_same = occurrences(ids) & may_copy
        answered = torch.zeros_like(ids[:, 1:], dtype=torch.bool)
        answered[answers[:, 0], answers[:, 1]] = True
        # At the start of a copied piece the previous tokens do not determine the occurrence: any one counts.
        anywhere = (ids[:, None, :] == ids[:, 1:, None]) & past & may_copy & answered[..., None]
        there = torch.where(after_same.any(-1, keepdim=True), after_same, anywhere)
        share = scores.masked_fill(~past, -1e9).log_softmax(-1).masked_fill(~there[:, None], -1e9).logsumexp(-1)
        return -share.mean(1)[there.any(-1)].mean()


def occurrences(ids: torch.Tensor) -> torch.Tensor:
    """Return (B, T-1, T): whether token j <= i equals token i + 1 and follows the same token.

    If some j also follow the same two tokens, only those count.
    """
    previous, earlier = F.pad(ids, (1, 0), value=-1)[:, :-1], F.pad(ids, (2, 0), value=-1)[:, :-2]
    same = (ids[:, None, :] == ids[:, 1:, None]) & (previous[:, None, :] == ids[:, :-1, None])
    same &= torch.ones_like(same[0]).tril()
    closer = same & (earlier[:, None, :] == previous[:, :-1, None])
    return torch.where(closer.any(-1, keepdim=True), closer, same)


def train(model: Qwen3ForCausalLM, tokenizer, steps: int, seed: int, tokens: int = 6144) -> Iterator[float]:
    """Train with supervision. Each step yields the loss of the answers in nats per token.

    A linear probe on the second layer predicts at each answer token what the question asks for. So the model reads the
    question, and GRPO can learn in few steps which search and which value each kind of question needs.
    """
    auxiliary, rng = AuxiliaryLosses(model, tokenizer, seed), random.Random(seed)
    question_probe = torch.nn.Linear(model.config.hidden_size, sum(CLASS_COUNTS)).to(model.device)

    def backward(ids, answers, tokens, classes) -> torch.Tensor:
        hidden = model.model(input_ids=ids).last_hidden_state
        loss = F.cross_entropy(model.lm_head(hidden[answers[:, 0], answers[:, 1]]), tokens)
        logits = question_probe(layer_2["hidden"][answers[:, 0], answers[:, 1]]).split(CLASS_COUNTS, dim=-1)
        question_loss = sum(map(F.cross_entropy, logits, classes.unbind(-1)))
        (loss + 0.5 * question_loss + auxiliary.reading_loss(hidden, ids, answers)).backward()
        auxiliary.copying_loss().backward()
        return loss

    data = batches(tokenizer, DemonstrationsEmail(rng, ordered=True), rng, tokens)
    probes = torch.nn.ModuleList([auxiliary.before, question_probe])
    with nano_model.recorded_output(model.model.layers[1]) as layer_2:
        yield from nano_model.descend(model, probes, data, backward, steps)
    for hook in auxiliary.hooks:
        hook.remove()


def evaluate(model, tokenizer, seed: int, prompts: int = 300) -> dict[str, float]:
    """Sample answers (temperature 1) to held-out prompts. Returns the shares of well-formed calls, and of copied calls.

    A call is copied if the conversation so far contains its words, ids and value.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    generator = DemonstrationsEmail(rng, mailboxes=1, ordered=True)
    well_formed = copied = 0
    for _ in range(prompts):
        messages, name, given = nano_model.sampled_call(model, tokenizer, generator(), rng, 64)
        text = "\n".join(message.get("content") or "" for message in messages).lower()
        values = [given.get("keywords"), given.get("from_addr"), given.get("message_id"), given.get("answer")]
        words = [word for value in values if value and value != I_DONT_KNOW for word in value.split()]
        well_formed += name is not None
        copied += name is not None and all(word.lower() in text for word in [*words, *given.get("sources", [])])
    return {"well_formed": well_formed / prompts, "copied": copied / prompts}


MODEL_CARD = """\
---
license: apache-2.0
library_name: transformers
---
# The nano base model for the email task

A Qwen3 causal language model with {parameters:,} parameters and a byte-fallback BPE tokenizer of {vocabulary} tokens,
made for this course. It was trained on demonstrations by a mediocre player: it calls the tools in the right format and copies
words, ids and values; notebooks/04_email_search.ipynb measures how well it answers. It knows nothing else: no English, no facts.

Made by `python -m data nano_email` (data/nano_email/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| task | {task} |
| data | searches generated by data/nano_email/demonstrations.py during training, in made-up mailboxes other than the course's; none is stored |
| content | how to search, read, answer and give up. Where a question asks for the first or the final value, the player asks for the fitting order, oldest or newest first, in 65% of the searches, else for either equally often. It answers a value of the mail it read, not always of the right kind, and gives up more often than it answers; it answers 18% of the course's training questions correctly |
| training | {steps} steps of about 6,144 tokens, and 2,048 of texts that repeat random words; two linear probes were discarded: one predicts the previous token, the other what the question asks for (the kind of value; first, final or any; the month) |
| final loss of the answers, which includes the player's random choices | {answer_loss} nats per token |
| well-formed calls on held-out prompts | {well_formed:.1%} |
| calls that copy only from the conversation | {copied:.1%} |

training.json has these figures and the losses of the first steps; tests/base_models/test_data.py reproduces the latter. SHA256SUMS lists
the files' hashes; `python -m art_nb doctor` verifies them. Licence: Apache-2.0.
"""  # noqa: E501 - a table's row is one line

RECIPE = nano_model.Recipe("email_search", 1200, make_tokenizer, initial_model, train, evaluate, MODEL_CARD)
