"""Makes data/nano_code, the tiny base model that has watched somebody mend functions: `python -m data nano_code`.

What it is taught, by data/nano_code/demonstrations.py, is to say the number of a change that stands beside a line of code
and was not tried yet. No word of the code is ever repeated, so it learns in fewer steps than the email model.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from art_nb.tasks.code_repair.mutations import KINDS
from data import nano_model
from data.chat_format import encode, render_text, train_tokenizer
from data.demonstration import Demonstration
from data.nano_code.demonstrations import ANSWER, MEND, SUBMIT, DemonstrationsCode
from data.nano_email.maker import CHAT_TEMPLATE, initial_model

# A line break and the indentation after it are one piece, each kind of change that is offered is one, and the fixed parts of
# a tool call are. Numbers are cut into pairs of digits, so that the number of a change is one token.
PIECES = (
    rf"(?:{'|'.join(KINDS)}) (?=\d)|, (?=(?:{'|'.join(KINDS)}) \d)|"
    r'\{"name": "\w+", "arguments": \{(?:"\w+": "?)?|", "\w+": "?|"?\}\}|(?:user|assistant|system|tool)\n'
    r"|  # |\n *| of | examples pass\.|\d{1,2}| ?(?:[=!<>+*-]=|//)| ?[A-Za-z_]+| ?[^\sA-Za-z0-9]|\s+"
)


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """The base model's tokenizer: the code of the training problems, each with several sets of names, and all numbers."""
    task = DemonstrationsCode(random.Random(seed))
    return build_tokenizer([task() for _ in range(120)], task)


def build_tokenizer(demonstrations: list[Demonstration], task: DemonstrationsCode, vocab_size: int = 1280):
    """A tokenizer for these demonstrations and for code with other names."""
    code = [task.renamed(problem, text) for problem in task.problems for text in problem.files.values() for _ in range(4)]
    calls = [render_text(demonstration, CHAT_TEMPLATE) for demonstration in demonstrations]
    whole = "\n".join((MEND, ANSWER, SUBMIT, *(f"{kind} 1" for kind in KINDS), *(f"x{n:02}" for n in range(100))))
    return train_tokenizer(calls + code + [whole] * 500, PIECES, CHAT_TEMPLATE, vocab_size)


def batches(tokenizer, task: DemonstrationsCode, rng: random.Random, tokens: int = 6144) -> Iterator[tuple]:
    """Endless batches of about `tokens` tokens.

    ids (B, T); where answers are predicted (N, 2) and their targets (N, V); where the numbers of changes stand (M, 2) and
    of which kind these are, counted from 0 (M).
    """
    kinds = tokenizer.convert_tokens_to_ids([f"{kind} " for kind in KINDS])
    while True:
        rows = sorted(encode(tokenizer, [task() for _ in range(24)]), key=lambda row: len(row.ids))
        # A run of neighbours by length out of twice as many: little of the batch is padding.
        rows = rows[rng.randrange(len(rows) // 2) :]
        rows = rows[: next((n for n, row in enumerate(rows) if (n + 1) * len(row.ids) > tokens), len(rows))]
        ids, answers = nano_model.stack(tokenizer, rows)
        offered = [(b, place + 1, kinds.index(token)) for b, row in enumerate(rows)
                   for place, token in enumerate(row.ids) if token in kinds]  # fmt: skip
        changes, told = torch.tensor([place for *place, _ in offered]), torch.tensor([kind for *_, kind in offered])
        yield ids, answers, nano_model.targets(tokenizer, rows), changes, told


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> Iterator[float]:
    """Supervised training. Each step yields its loss of the answers in nats a token, less the targets' own entropy.

    A linear probe behind the second layer must tell from the number of each change of which kind it is, and is thrown away.
    """
    rng = random.Random(seed)
    middle: dict[str, torch.Tensor] = {}
    layer = model.model.layers[model.config.num_hidden_layers // 2 - 1]
    hook = layer.register_forward_hook(lambda _, __, out: middle.update(hidden=out))
    probe = torch.nn.Linear(model.config.hidden_size, len(KINDS)).to(model.device)

    def backward(ids, answers, target, changes, kinds) -> torch.Tensor:
        hidden = model.model(input_ids=ids).last_hidden_state
        logits = model.lm_head(hidden[answers[:, 0], answers[:, 1]])
        answer_loss = F.cross_entropy(logits, target) - torch.special.entr(target).sum(-1).mean()
        told = F.cross_entropy(probe(middle["hidden"][changes[:, 0], changes[:, 1]]), kinds)
        (answer_loss + told).backward()
        return answer_loss

    yield from nano_model.descend(model, probe, batches(tokenizer, DemonstrationsCode(rng), rng), backward, steps)
    hook.remove()


def evaluate(model, tokenizer, seed: int, prompts: int = 1000) -> dict[str, float]:
    """Sampled calls (temperature 1) in conversations about the validation functions, which were not learnt from.

    The shares of calls that are well formed; of `mend`s, those that were offered, and those that were not made before.
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
made for this course. It has watched a mediocre mender. It calls the tools of `art_nb.tasks.code_repair.mending` as they want
to be called and says numbers of changes that are offered beside the lines of code; `python -m benchmarks.rise_code` measures how
much it repairs, before and after training. It knows nothing else: no English, and not what code does.

Made by `python -m data nano_code` (data/nano_code/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| task | {task} |
| data | repairs of the course's training functions, with other names, generated by data/nano_code/demonstrations.py while training; none is stored |
| what they teach | the tools, and what can be changed where. The target is the even distribution over what is offered and was not tried yet, and to hand in after a try or two whatever comes of it. No skilled repair is in them |
| training | {steps} steps of about 6,144 tokens; a linear probe had to tell from each number of which kind the change is and was then thrown away |
| final loss of the answers, less the targets' own entropy | {answer_loss} nats a token |
| well-formed calls about functions that it did not learn from | {well_formed:.1%} |
| of its `mend`s, those that were offered / that were not made before | {offered:.1%} / {new:.1%} |

training.json holds these figures and the losses of the first steps; tests/test_data.py makes those again. SHA256SUMS lists the
files' hashes; `python -m art_nb doctor` checks them. Licence: Apache-2.0, as all of the project.
"""  # noqa: E501 - a table's row is one line

RECIPE = nano_model.Recipe("code_repair", 400, make_tokenizer, initial_model, train, evaluate, MODEL_CARD)
