"""Train data/nano_service, the tiny base model for customer service: `python -m data nano_service`.

Its training data, from data/nano_service/demonstrations.py, show which calls can be executed, with words copied from the
conversation: an item of the order, a variant, a payment method. Copying takes longest to learn, so the layers start from
those of a model that can copy: start/, the data/nano_email of 2026-11-21.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from data import nano_model
from data.chat_format import encode, render_text, train_tokenizer
from data.demonstration import Demonstration
from data.nano_email.maker import CHAT_TEMPLATE, AuxiliaryLosses
from data.nano_email.maker import initial_model as untrained_model
from data.nano_service.demonstrations import WORKPLACES, DemonstrationsService, opening_of

START = Path(__file__).resolve().with_name("start")
DESKS = [place.desk for place in WORKPLACES.values()]
ARGUMENT_WORDS = [place.words for place in WORKPLACES.values()] + [tuple(desk.payment_sources) for desk in DESKS]
COPIED = sorted({word for words in ARGUMENT_WORDS for word in words})
WORDS = sorted({*COPIED, *(about for desk in DESKS for about in desk.questions)})
_LOWER = "|".join(word for word in WORDS if not word.istitle())

# Each fixed part of a tool call and each word of an argument is one token, without the space before it, so that copying a
# word means repeating one token. Numbers are split into pairs of digits.
PIECES = (
    r'\{"name": "\w+", "arguments": \{(?:"\w+": ")?|", "\w+": "|"?\}\}|(?:user|assistant|system|tool)\n'
    rf"|(?:{_LOWER})(?!\w)|(?: ?[a-z]+|[,:.])? (?=(?:{_LOWER})(?!\w))|(?: ?[a-z]+|[,:.])? (?=[A-Z#\d])"
    r"| ?[a-z]+(?=_[a-z]+_\d)|_[a-z]+(?=_\d)|_(?=\d)"
    r"|###STOP###|\d{1,2}|@example\.com| ?[A-Za-z_]+| ?[^\sA-Za-z0-9]|\s+"
)


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Return the base model's tokenizer."""
    task = DemonstrationsService(random.Random(seed), worlds=1)
    return build_tokenizer([task() for _ in range(2000)])


def build_tokenizer(demonstrations: list[Demonstration], vocab_size: int = 1280) -> PreTrainedTokenizerFast:
    """Return a tokenizer in which words of the demonstrations and arguments and pairs of digits are single tokens."""
    texts = [render_text(demonstration, CHAT_TEMPLATE) for demonstration in demonstrations]
    tools = [tool["function"] for desk in DESKS for tool in desk.tools]
    openings = [opening_of(tool["name"], next(iter(tool["parameters"]["properties"]), None)) for tool in tools]
    whole = "\n".join((*openings, *WORDS, *(f"x{n:02}" for n in range(100))))
    return train_tokenizer(texts + [whole] * 500, PIECES, CHAT_TEMPLATE, vocab_size)


def initial_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Return the initial model: the layers of START, and its embeddings for tokens with the same text.

    Each other token gets the embedding of a token of START that does not exist here, so that the layers can process it.
    """
    model, start = untrained_model(tokenizer, seed), AutoModelForCausalLM.from_pretrained(START)
    vocabulary = AutoTokenizer.from_pretrained(START).get_vocab()
    free = sorted(vocabulary[text] for text in vocabulary.keys() - tokenizer.get_vocab().keys())
    random.Random(seed).shuffle(free)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "model.embed_tokens.weight":
                parameter.copy_(start.get_parameter(name))
        for text, token in sorted(tokenizer.get_vocab().items()):
            source = vocabulary[text] if text in vocabulary else free.pop()
            model.model.embed_tokens.weight[token] = start.model.embed_tokens.weight[source]
    return model


def batches(tokenizer, task: DemonstrationsService, rng: random.Random, tokens: int = 4096) -> Iterator[tuple]:
    """Yield batches of about `tokens` tokens: ids (B, T), positions of answer predictions (N, 2), their targets (N, V)."""
    while True:
        rows = nano_model.of_similar_length(encode(tokenizer, [task() for _ in range(32)]), rng, tokens)
        ids, answers = nano_model.stack(tokenizer, rows)
        yield ids, answers, nano_model.targets(tokenizer, rows)


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> Iterator[float]:
    """Train with supervision. Yields each step's answer loss in nats per token, minus the entropy of the targets.

    The tokens that choose a tool or copy a word are few, so they get an additional weight. An auxiliary loss makes the last
    layer attend to the copied words.
    """
    auxiliary, rng = AuxiliaryLosses(model, tokenizer, seed), random.Random(seed)
    copied = torch.zeros_like(auxiliary.fixed)
    copied[tokenizer.convert_tokens_to_ids(COPIED)] = True
    auxiliary.fixed = ~copied

    def backward(ids, answers, target) -> torch.Tensor:
        hidden = model.model(input_ids=ids).last_hidden_state
        logits = model.lm_head(hidden[answers[:, 0], answers[:, 1]])
        losses = F.cross_entropy(logits, target, reduction="none") - torch.special.entr(target).sum(-1)
        chosen = copied[ids[answers[:, 0], answers[:, 1] + 1]] | (target.amax(-1) < 1)
        aside = auxiliary.reading_loss(hidden, ids, answers)
        (losses.mean() + 3 * losses[chosen].mean() + 0.5 * aside).backward()
        return losses.mean()

    data = batches(tokenizer, DemonstrationsService(rng), rng)
    yield from nano_model.descend(model, auxiliary.before, data, backward, steps)
    for hook in auxiliary.hooks:
        hook.remove()


def evaluate(model, tokenizer, seed: int, prompts: int = 500) -> dict[str, float]:
    """Sample calls at temperature 1 in worlds that were not used in training.

    Returns the share of well-formed calls, and the share of words in their arguments that occur in the conversation.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    task = DemonstrationsService(rng, worlds=1)
    well_formed = copied = words = 0
    for _ in range(prompts):
        messages, name, given = nano_model.sampled_call(model, tokenizer, task(), rng, 24)
        text = "\n".join(message.get("content") or "" for message in messages)
        arguments = [word for parameter, word in given.items() if parameter in ("item", "variant", "payment")]
        well_formed += name is not None
        words += len(arguments)
        copied += sum(word in text for word in arguments)
    return {"well_formed": well_formed / prompts, "copied": copied / words}


MODEL_CARD = """\
---
license: apache-2.0
library_name: transformers
---
# The nano base model for customer service

A Qwen3 causal language model with {parameters:,} parameters and a byte-fallback BPE tokenizer of {vocabulary} tokens,
made for this course. It was trained on conversations of a mediocre clerk. It makes well-formed calls of the tools of the desks in
`customer_service` and copies words from the conversation; `python -m benchmarks.rise_service` measures how many tasks it solves
before and after training. It knows nothing else, not even English.

Made by `python -m data nano_service` (data/nano_service/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| task | {task} |
| data | conversations generated during training by data/nano_service/demonstrations.py, with customers of a fictional shop and airline other than the course's; not stored |
| content | the tools, and which calls can be executed. The target is a distribution over these calls: 0.15 extra for a careful clerk's call, 0.45 extra for a hurried clerk's, the rest uniform. Where both make the same call, it gets at least 0.6. Customers who want another variant of an item are twice as frequent as in the course |
| initial weights | the layers of the model in start/, the data/nano_email of 2026-11-21, which can copy words; its embeddings for tokens with the same text, and random ones of its other embeddings for the rest |
| training | {steps} steps of about 4,096 tokens |
| final answer loss minus the entropy of the targets | {answer_loss} nats per token |
| well-formed calls in worlds that were not used in training | {well_formed:.1%} |
| items, variants and payment methods in its calls that occur in the conversation | {copied:.1%} |

training.json has these figures and the losses of the first steps, which tests/base_models/test_data.py reproduces. SHA256SUMS lists the
files' hashes; `python -m art_nb doctor` checks them. Licence: Apache-2.0, like the project.
"""  # noqa: E501 - a table's row is one line

RECIPE = nano_model.Recipe("customer_service", 1100, make_tokenizer, initial_model, train, evaluate, MODEL_CARD)
