"""A checkpoint in the form in which others load it: adapter, merged, GGUF. Proved before it gets its name.

An export is a folder, there whole or not at all. The checkpoint is only read.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from art_nb.cluster.checkpoint import Checkpoint
from art_nb.storage.checkpoints import write_folder

if TYPE_CHECKING:
    from art_nb.cluster.proof import Proof
    from art_nb.training.policy import Policy

Form = Literal["adapter", "merged", "gguf"]
FORMS: tuple[Form, ...] = get_args(Form)
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")


def export_checkpoint(
    checkpoint: Checkpoint,
    form: Form,
    out: str | Path,
    *,
    conversations: Sequence[Sequence[dict[str, Any]]] | None = None,
    base: str | None = None,
) -> Proof:
    """Write `checkpoint` into the new folder `out`; returns how it compares with the checkpoint in process.

    Args:
        form: "adapter": PEFT's layout, which PEFT, TRL, Unsloth and vLLM load beside the base model; "merged": an ordinary
            transformers folder; "gguf": `model.gguf` for llama.cpp.
        conversations: messages up to where the model is to answer, to compare answers on; None: what it was asked while it
            was trained. Where they are fewer than 50, short requests are added.
        base: what the export calls its base model; None: as the checkpoint does.

    Raises:
        FileExistsError: `out` is there and not empty. ValueError: llama.cpp has no way to hold this model.
        proof.Differs: the export does not answer as the checkpoint. OSError: the disk is full.
        In all cases `out` is as it was.
    """
    from art_nb.cluster.proof import CONVERSATIONS, greedy_answers
    from art_nb.training.policy import load_policy, quiet

    out = Path(out)
    if form not in FORMS:
        raise ValueError(f"form is {form!r}: expected one of {', '.join(FORMS)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} is there already: give a folder that is new or empty")
    asked = list(conversations or checkpoint.conversations(CONVERSATIONS))
    asked += [[{"role": "user", "content": f"Say {number}."}] for number in range(CONVERSATIONS - len(asked))]
    policy = load_policy(checkpoint.folder, engine="transformers")
    answers = _finished(greedy_answers(policy, asked))
    proofs: list[Proof] = []

    def fill(folder: Path) -> None:
        from art_nb.cluster.card import write_card

        proofs.append(_WRITERS[form](policy, checkpoint, answers, folder))
        if form == "adapter" and base is not None:
            _say_base(folder, base)
        write_card(folder, checkpoint, form, base or checkpoint.base_model(), proofs[0])

    with quiet():
        write_folder(out, fill)
    return proofs[0]


def _adapter(policy: Policy, checkpoint: Checkpoint, answers: list, folder: Path) -> Proof:
    from peft import AutoPeftModelForCausalLM

    from art_nb.cluster.proof import compare, torch_engine

    for name in ADAPTER_FILES:
        shutil.copyfile(checkpoint.folder / name, folder / name)
    policy.tokenizer.save_pretrained(folder)
    model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=policy.base.dtype).eval()
    return compare(answers, torch_engine(model.to(policy.device)), policy.base.dtype)


def _merged(policy: Policy, checkpoint: Checkpoint, answers: list, folder: Path) -> Proof:
    from transformers import AutoModelForCausalLM

    from art_nb.cluster.proof import compare, torch_engine

    write_merged(policy, folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    return compare(answers, torch_engine(model.to(policy.device)), policy.base.dtype)


def _gguf(policy: Policy, checkpoint: Checkpoint, answers: list, folder: Path) -> Proof:
    from art_nb.cluster.llama_cpp import LlamaCpp, convert
    from art_nb.cluster.proof import compare

    parts = folder / "parts"
    parts.mkdir()
    write_merged(policy, parts)
    convert(parts, folder / "model.gguf")
    shutil.rmtree(parts)
    with LlamaCpp(folder / "model.gguf") as engine:
        return compare(answers, engine.judge, policy.base.dtype)


_WRITERS = {"adapter": _adapter, "merged": _merged, "gguf": _gguf}


def write_merged(policy: Policy, folder: Path) -> None:
    """The policy as transformers stores a model, with its tokenizer, in an existing folder."""
    policy.tokenizer.save_pretrained(folder)
    policy.sampling_model().save_pretrained(folder)


def _say_base(folder: Path, base: str) -> None:
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"base_model_name_or_path": base}
    path.write_text(json.dumps(settings, indent=2), encoding="utf-8", newline="\n")


def _finished(coroutine: Any) -> Any:
    """What a coroutine returns, also where a loop is running: in a notebook's cell."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
