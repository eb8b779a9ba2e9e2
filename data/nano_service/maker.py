"""Makes data/nano_service, the tiny base model that has watched somebody serve customers: `python -m data nano_service`.

What it is taught, by data/nano_service/demonstrations.py, is which calls make sense in form, and to say the words that stand
in the conversation: an item of the order, a variant, a way to pay. To repeat a word is what takes longest to learn, so its
layers start as those of data/nano_email, which can.
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
from data.nano_email.maker import CHAT_TEMPLATE, Asides
from data.nano_email.maker import initial_model as untaught_model
from data.nano_service.demonstrations import WORKPLACES, DemonstrationsService, opening_of

EMAIL = Path(__file__).resolve().parents[1] / "nano_email"
DESKS = [place.desk for place in WORKPLACES.values()]
SAID = [place.words for place in WORKPLACES.values()] + [tuple(desk.sources) for desk in DESKS]
COPIED = sorted({word for words in SAID for word in words})
WORDS = sorted({*COPIED, *(about for desk in DESKS for about in desk.questions)})
_LOWER = "|".join(word for word in WORDS if not word.istitle())

# The fixed parts of a tool call are one piece each, and so is each word of an argument, with the space before it apart: to
# copy one means repeating a token. Numbers are cut into pairs of digits.
PIECES = (
    r'\{"name": "\w+", "arguments": \{(?:"\w+": ")?|", "\w+": "|"?\}\}|(?:user|assistant|system|tool)\n'
    rf"|(?:{_LOWER})(?!\w)|(?: ?[a-z]+|[,:.])? (?=(?:{_LOWER})(?!\w))|(?: ?[a-z]+|[,:.])? (?=[A-Z#\d])"
    r"| ?[a-z]+(?=_[a-z]+_\d)|_[a-z]+(?=_\d)|_(?=\d)"
    r"|###STOP###|\d{1,2}|@example\.com| ?[A-Za-z_]+| ?[^\sA-Za-z0-9]|\s+"
)


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """The base model's tokenizer."""
    task = DemonstrationsService(random.Random(seed), worlds=1)
    return build_tokenizer([task() for _ in range(2000)])


def build_tokenizer(demonstrations: list[Demonstration], vocab_size: int = 1280) -> PreTrainedTokenizerFast:
    """A tokenizer that keeps the demonstrations' words, all words of arguments and all pairs of digits whole."""
    texts = [render_text(demonstration, CHAT_TEMPLATE) for demonstration in demonstrations]
    tools = [tool["function"] for desk in DESKS for tool in desk.tools]
    opened = [opening_of(tool["name"], next(iter(tool["parameters"]["properties"]), None)) for tool in tools]
    whole = "\n".join((*opened, *WORDS, *(f"x{n:02}" for n in range(100))))
    return train_tokenizer(texts + [whole] * 500, PIECES, CHAT_TEMPLATE, vocab_size)


def initial_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """The model before training: the layers of data/nano_email, and for each token the embedding of the same text there.

    A text that is no token there takes the embedding of one that is none here: the layers know what to do with it, not what
    it says.
    """
    model, taught = untaught_model(tokenizer, seed), AutoModelForCausalLM.from_pretrained(EMAIL)
    there = AutoTokenizer.from_pretrained(EMAIL).get_vocab()
    free = sorted(there[text] for text in there.keys() - tokenizer.get_vocab().keys())
    random.Random(seed).shuffle(free)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "model.embed_tokens.weight":
                parameter.copy_(taught.get_parameter(name))
        for text, token in sorted(tokenizer.get_vocab().items()):
            source = there[text] if text in there else free.pop()
            model.model.embed_tokens.weight[token] = taught.model.embed_tokens.weight[source]
    return model


def batches(tokenizer, task: DemonstrationsService, rng: random.Random, tokens: int = 4096) -> Iterator[tuple]:
    """Endless batches of about `tokens` tokens: ids (B, T); where answers are predicted (N, 2) and their targets (N, V)."""
    while True:
        rows = sorted(encode(tokenizer, [task() for _ in range(32)]), key=lambda row: len(row.ids))
        # A run of neighbours by length out of twice as many: little of the batch is padding.
        rows = rows[rng.randrange(len(rows) // 2) :]
        rows = rows[: next((n for n, row in enumerate(rows) if (n + 1) * len(row.ids) > tokens), len(rows))]
        ids, answers = nano_model.stack(tokenizer, rows)
        yield ids, answers, nano_model.targets(tokenizer, rows)


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> Iterator[float]:
    """Supervised training. Each step yields its loss of the answers in nats a token, less the targets' own entropy.

    Tools and words of arguments are few among the answers' tokens, so these choices count once more by themselves; the last
    layer must look at where the words stand.
    """
    asides, rng = Asides(model, tokenizer, seed), random.Random(seed)
    copied = torch.zeros_like(asides.fixed)
    copied[tokenizer.convert_tokens_to_ids(COPIED)] = True
    asides.fixed = ~copied

    def backward(ids, answers, target) -> torch.Tensor:
        hidden = model.model(input_ids=ids).last_hidden_state
        logits = model.lm_head(hidden[answers[:, 0], answers[:, 1]])
        losses = F.cross_entropy(logits, target, reduction="none") - torch.special.entr(target).sum(-1)
        chosen = copied[ids[answers[:, 0], answers[:, 1] + 1]] | (target.amax(-1) < 1)
        aside = asides.reading_loss(hidden, ids, answers)
        (losses.mean() + 3 * losses[chosen].mean() + 0.5 * aside).backward()
        return losses.mean()

    yield from nano_model.descend(model, asides.before, batches(tokenizer, DemonstrationsService(rng), rng), backward, steps)
    for hook in asides.hooks:
        hook.remove()


def evaluate(model, tokenizer, seed: int, prompts: int = 500) -> dict[str, float]:
    """Sampled calls (temperature 1) in conversations of worlds that were not learnt from.

    The shares of calls that are well formed, and of words in their arguments those that the conversation holds.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    task = DemonstrationsService(rng, worlds=1)
    well_formed = copied = words = 0
    for _ in range(prompts):
        messages, name, given = nano_model.sampled_call(model, tokenizer, task(), rng, 24)
        text = "\n".join(message.get("content") or "" for message in messages)
        said = [word for parameter, word in given.items() if parameter in ("item", "variant", "payment")]
        well_formed += name is not None
        words += len(said)
        copied += sum(word in text for word in said)
    return {"well_formed": well_formed / prompts, "copied": copied / words}


MODEL_CARD = """\
---
license: apache-2.0
library_name: transformers
---
# The nano base model for customer service

A Qwen3 causal language model with {parameters:,} parameters and a byte-fallback BPE tokenizer of {vocabulary} tokens,
made for this course. It has watched a mediocre clerk. It calls the tools of the desks in `art_nb.tasks.customer_service` as they
want to be called and repeats the words of a conversation; `python -m benchmarks.rise_service` measures how many customers it
serves well, before and after training. It knows nothing else: no English, and not what an order is.

Made by `python -m data nano_service` (data/nano_service/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| task | {task} |
| data | conversations generated by data/nano_service/demonstrations.py while training, with customers of a made-up shop and a made-up airline other than the course's; none is stored |
| what they teach | the tools, and which calls make sense in form. The target is a distribution over these: what a careful clerk would do has a little more weight than the rest, what a hurried one would do three times as much as that: where both would do the same it is done in three cases of five, else anything |
| start | the layers of data/nano_email, which can repeat words; embeddings of that model for texts that it knows, and any of the others for the rest |
| training | {steps} steps of about 4,096 tokens |
| final loss of the answers, less the targets' own entropy | {answer_loss} nats a token |
| well-formed calls in worlds that it did not learn from | {well_formed:.1%} |
| items, variants and ways to pay in its calls that the conversation holds | {copied:.1%} |

training.json holds these figures and the losses of the first steps; tests/test_data.py makes those again. SHA256SUMS lists the
files' hashes; `python -m art_nb doctor` checks them. Licence: Apache-2.0, as all of the project.
"""  # noqa: E501 - a table's row is one line

RECIPE = nano_model.Recipe("customer_service", 900, make_tokenizer, initial_model, train, evaluate, MODEL_CARD)
