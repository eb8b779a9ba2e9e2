"""Makes data/real_email_trained, what GRPO makes of data/real_email: `python -m data real_email_trained`.

It is the training that benchmarks/rise_real_email.py measures, from seed 0, with the course's training questions.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path

import torch

from art_nb.training.policy import Policy
from benchmarks.rise_real_email import GROUPS, LEARNING_RATE, SIZE, STEPS, ready, train
from data.item import write_described
from data.real_email.maker import save


def build(folder: Path, *, base: str = "", steps: int = STEPS, seed: int = 0) -> dict:
    """Train the adapter and write it to `folder`, whole or not at all. Returns the card's facts, as in training.json.

    base: by default SmolLM2 with the adapter that goes before.
    """
    with tempfile.TemporaryDirectory() as files:
        policy, seconds = asyncio.run(_trained(files, base, steps, seed))
    facts = {
        "seed": seed, "steps": steps, "searches": GROUPS * SIZE, "group": SIZE, "learning_rate": LEARNING_RATE,
        "minutes": round(seconds / 60, 1),
        "device": f"{policy.device.type}, {torch.get_num_threads()} threads", "torch": torch.__version__,
    }  # fmt: skip
    write_described(folder, partial(save, policy), facts, MODEL_CARD)
    return facts


async def _trained(files: str, base: str, steps: int, seed: int) -> tuple[Policy, float]:
    model = await ready(files, seed, base)
    seconds = await train(model, steps)
    return model.backend()._of(model).learner.policy, seconds


MODEL_CARD = """\
---
license: apache-2.0
library_name: peft
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2 that was trained to search a mailbox

The adapter of data/real_email after {steps} steps of GRPO on {searches} searches each, in groups of {group}, on the training questions of
the course's mailbox. Each call was paid for what it did, see `gains` in benchmarks/rise_email.py. It goes with
SmolLM2-135M-Instruct as `art_nb.real_model.smollm2()` makes it; `smollm2(adapter=...)` with this folder gives a folder for
`base_model=`. `python -m benchmarks.rise_real_email` measures how many questions it answers, and how many the other.

Made by `python -m data real_email_trained` (data/real_email_trained/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| learning rate | {learning_rate}, falling in a line to a tenth of it |

training.json holds these figures, SHA256SUMS the files' hashes. Licence: Apache-2.0, as all of the project and the model that
it belongs to.
"""  # noqa: E501 - a sentence with a command in it is one line
