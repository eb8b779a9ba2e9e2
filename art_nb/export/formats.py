"""Export a checkpoint as a PEFT adapter, a merged transformers folder or a GGUF file, and compare the answers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from art_nb.export.checkpoint import Checkpoint, adapter_files
from art_nb.storage.checkpoints import write_folder

if TYPE_CHECKING:
    from art_nb.export.parity import GreedyAnswer, ParityReport
    from art_nb.training.policy import Policy

Form = Literal["adapter", "merged", "gguf"]
FORMS: tuple[Form, ...] = get_args(Form)


def export_checkpoint(checkpoint: Checkpoint, form: Form, out: str | Path, *, base: str | None = None) -> ParityReport:
    """Export `checkpoint` to `out`, a new or empty folder, completely or not at all. The checkpoint is not changed.

    Compares the export's greedy answers to 50 prompts (logged ones, then short requests) with the checkpoint's.

    Args:
        form: "adapter": PEFT's layout, which PEFT, TRL, Unsloth and vLLM load on top of the base model; "merged": an
            ordinary transformers folder; "gguf": `model.gguf` for llama.cpp.
        base: name of the base model to record; None: the name in the checkpoint.

    Raises:
        FileExistsError: `out` is a file, not empty, or the current folder. parity.ParityError: the answers differ.
        ValueError: `form` is unknown, or llama.cpp does not support the model. RuntimeError: its converter fails or cannot
            be downloaded. ImportError: "gguf" needs the package `xllamacpp`.
        OSError: the base model is missing, a file is damaged, or the disk is full. After any of these, `out` is unchanged.
    """
    from art_nb.export.model_card import write_card
    from art_nb.export.parity import CONVERSATIONS, greedy_answers
    from art_nb.training.policy import load_policy, progress_bars

    out = Path(out)
    if form not in FORMS:
        raise ValueError(f"form is {form!r}: expected one of {', '.join(FORMS)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir()) or out.samefile(".")):
        raise FileExistsError(f"{out} exists: expected a folder that is new or empty, and not the current one")
    with _as_os_error(f"{checkpoint.folder} cannot be read"):
        policy = load_policy(checkpoint.folder, engine="transformers")
    prompts = checkpoint.conversations(CONVERSATIONS)
    with ThreadPoolExecutor(1) as thread:  # asyncio.run fails in a thread with a running loop, such as a notebook's
        answers = thread.submit(asyncio.run, greedy_answers(policy, prompts, skip=True)).result()
        more = [[{"role": "user", "content": f"Say {number}."}] for number in range(CONVERSATIONS - len(answers))]
        answers += thread.submit(asyncio.run, greedy_answers(policy, more)).result()
    reports: list[ParityReport] = []

    def fill(folder: Path) -> None:
        reports.append(_write(form, policy, checkpoint, folder, answers))
        if form == "adapter" and base is not None:
            path = folder / "adapter_config.json"
            settings = {**checkpoint.settings(), "base_model_name_or_path": base, "revision": None}
            path.write_text(json.dumps(settings, indent=2), encoding="utf-8", newline="\n")
        write_card(folder, checkpoint, form, base or checkpoint.base_model(), reports[0])

    with progress_bars(False), _as_os_error(f"{out} cannot be written"):
        write_folder(out, fill)
    return reports[0]


@contextmanager
def _as_os_error(what: str) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{what}: {error}") from error


def _write(form: Form, policy: Policy, checkpoint: Checkpoint, folder: Path, answers: list[GreedyAnswer]) -> ParityReport:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    from art_nb.export.llama_cpp import LlamaCpp, convert
    from art_nb.export.parity import compare, torch_engine

    dtype = policy.base.dtype
    if form == "gguf":
        parts = folder / "parts"
        parts.mkdir()
        write_merged(policy, parts)
        convert(parts, folder / "model.gguf")
        shutil.rmtree(parts)
        context = max(len(answer.prompt) + len(answer.tokens) for answer in answers)
        with LlamaCpp(folder / "model.gguf", context=context) as engine:
            return compare(answers, engine.answer, dtype)
    if form == "adapter":
        for path in adapter_files(checkpoint.folder):
            shutil.copyfile(path, folder / path.name)
        policy.tokenizer.save_pretrained(folder)
    else:
        write_merged(policy, folder)
    loader: Any = AutoPeftModelForCausalLM if form == "adapter" else AutoModelForCausalLM
    model = loader.from_pretrained(folder, trust_remote_code=False, dtype=dtype if form == "adapter" else "auto").eval()
    return compare(answers, torch_engine(model.to(policy.device)), dtype)


def write_merged(policy: Policy, folder: Path) -> None:
    """Save the merged model and its tokenizer in an existing folder, in transformers' layout."""
    policy.tokenizer.save_pretrained(folder)
    policy.sampling_model().save_pretrained(folder)
