"""Train data/nano_code, the nano base model for mutation repair: `python -m data nano_code`.

The demonstrations (data/nano_code/demonstrations.py) teach it to answer with the number of a mutation that is listed
next to a line of code and was not tried yet. It never has to copy words of the code, so it needs fewer steps than the email
model.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from code_repair.mutations import KINDS
from data import nano_model
from data.chat_format import encode, render_text, train_tokenizer
from data.demonstration import Demonstration
from data.nano_code.demonstrations import ANSWER, MEND, SUBMIT, DemonstrationsCode
from data.nano_email.maker import CHAT_TEMPLATE, initial_model

# A line break with its indentation is one piece, and so are each kind of mutation and the fixed parts of a tool call.
# Numbers are split into pairs of digits, so that the number of a mutation is one token.
PIECES = (
    rf"(?:{'|'.join(KINDS)}) (?=\d)|, (?=(?:{'|'.join(KINDS)}) \d)|"
    r'\{"name": "\w+", "arguments": \{(?:"\w+": "?)?|", "\w+": "?|"?\}\}|(?:user|assistant|system|tool)\n'
    r"|  # |\n *| of | examples pass\.|\d{1,2}| ?(?:[=!<>+*-]=|//)| ?[A-Za-z_]+| ?[^\sA-Za-z0-9]|\s+"
)


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on the code of the training problems, each with several sets of names, and on all numbers."""
    task = DemonstrationsCode(random.Random(seed))
    return build_tokenizer([task() for _ in range(120)], task)


def build_tokenizer(demonstrations: list[Demonstration], task: DemonstrationsCode, vocab_size: int = 1280):
    """Train a tokenizer on these demonstrations and on code with other names."""
    code = [task.renamed(problem, text) for problem in task.problems for text in problem.files.values() for _ in range(4)]
    calls = [render_text(demonstration, CHAT_TEMPLATE) for demonstration in demonstrations]
    whole = "\n".join((MEND, ANSWER, SUBMIT, *(f"{kind} 1" for kind in KINDS), *(f"x{n:02}" for n in range(100))))
    return train_tokenizer(calls + code + [whole] * 500, PIECES, CHAT_TEMPLATE, vocab_size)


def batches(tokenizer, task: DemonstrationsCode, rng: random.Random, tokens: int = 6144) -> Iterator[tuple]:
    """Yield endless batches of about `tokens` tokens.

    Each is: ids (B, T); positions before answer tokens (N, 2) and their target distributions (N, V); positions of the
    mutations' numbers (M, 2) and the index of each one's kind (M).
    """
    kinds = tokenizer.convert_tokens_to_ids([f"{kind} " for kind in KINDS])
    while True:
        rows = nano_model.of_similar_length(encode(tokenizer, [task() for _ in range(24)]), rng, tokens)
        ids, answers = nano_model.stack(tokenizer, rows)
        offered = [(b, place + 1, kinds.index(token)) for b, row in enumerate(rows)
                   for place, token in enumerate(row.ids) if token in kinds]  # fmt: skip
        places, labels = torch.tensor([place for *place, _ in offered]), torch.tensor([kind for *_, kind in offered])
        yield ids, answers, nano_model.targets(tokenizer, rows), places, labels


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> Iterator[float]:
    """Train with supervision. Each step yields the loss of the answers in nats per token, less the entropy of the targets.

    As an auxiliary loss, a linear probe after the second layer predicts the kind of each mutation at its number. The probe
    is discarded.
    """
    rng = random.Random(seed)
    probe = torch.nn.Linear(model.config.hidden_size, len(KINDS)).to(model.device)
    layer = model.model.layers[model.config.num_hidden_layers // 2 - 1]
    with nano_model.recorded_output(layer) as middle:

        def backward(ids, answers, target, changes, kinds) -> torch.Tensor:
            hidden = model.model(input_ids=ids).last_hidden_state
            answer_loss = nano_model.excess_loss(model, hidden, answers, target)
            probe_loss = F.cross_entropy(probe(middle["hidden"][changes[:, 0], changes[:, 1]]), kinds)
            (answer_loss + probe_loss).backward()
            return answer_loss

        yield from nano_model.descend(model, probe, batches(tokenizer, DemonstrationsCode(rng), rng), backward, steps)


def evaluate(model, tokenizer, seed: int, prompts: int = 1000) -> dict[str, float]:
    """Sample calls (temperature 1) in conversations about the validation functions, which are not in the training data.

    Returns shares: of the calls, those that are well formed; of the `mend` calls, those with a number that was offered, and
    those not made before.
    """
    torch.manual_seed(seed)
    task = DemonstrationsCode(random.Random(seed), "val")
    well_formed = mends = offered = new = 0
    for _ in range(prompts):
        messages, name, given = nano_model.sampled_call(model, tokenizer, task(), task.rng, 24)
        well_formed += name is not None
        if name == "mend":
            made = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", [])]
            mends += 1
            offered += 1 <= given["change"] <= task.offered
            new += given not in made
    return {"well_formed": well_formed / prompts, "offered": offered / mends, "new": new / mends}


MODEL_CARD = """\
---
license: apache-2.0
library_name: transformers
---
# The nano base model for repairing code

A Qwen3 causal language model with {parameters:,} parameters and a byte-fallback BPE tokenizer of {vocabulary} tokens,
made for this course. It was trained on demonstrations by a mediocre player: it calls the tools of `code_repair.mutation_repair`
in the right format, with numbers of mutations that are offered. `python -m benchmarks.rise_code` measures how many functions it
repairs, before and after GRPO. It knows nothing else: no English, and not what code does.

Made by `python -m data nano_code` (data/nano_code/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| task | {task} |
| data | repairs of the course's training functions, with other names, generated by data/nano_code/demonstrations.py during training; none is stored |
| content | the format of the calls and which mutations are offered. The targets are the uniform distribution over offered mutations that were not tried yet, and submitting after a try or two, repaired or not. No skilled repair is included |
| training | {steps} steps of about 6,144 tokens; a linear probe, discarded afterwards, predicted the kind of each mutation from its number |
| final loss of the answers, less the targets' entropy | {answer_loss} nats per token |
| well-formed calls on functions that are not in the training data | {well_formed:.1%} |
| `mend` calls with an offered number / not made before | {offered:.1%} / {new:.1%} |

training.json has these figures and the losses of the first steps; tests/base_models/test_data.py reproduces the latter. SHA256SUMS lists
the files' hashes; `python -m art_nb doctor` verifies them. Licence: Apache-2.0.
"""  # noqa: E501 - a table's row is one line

RECIPE = nano_model.Recipe("code_repair", 400, make_tokenizer, initial_model, train, evaluate, MODEL_CARD)
