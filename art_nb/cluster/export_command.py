"""`art-nb export MODEL --as FORM OUT`: a checkpoint for others, and if asked for, pushed to where they find it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from art_nb.cluster.checkpoint import Checkpoint, find_checkpoint
from art_nb.cluster.export import FORMS, export_checkpoint


def export(options: Sequence[str]) -> int:
    """Runs the command; returns the exit code. What can go wrong from outside is one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="art-nb export", description="Write a checkpoint in the form in which others load it; it is compared with the "
        "checkpoint on 50 answers first. Keys come from HF_TOKEN, TOGETHER_API_KEY and WANDB_API_KEY in the environment.",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="NAME or PROJECT/NAME, with @STEP for another than the latest")
    parser.add_argument("out", metavar="OUT", type=Path, help="a folder that is not there yet")
    parser.add_argument("--as", dest="form", choices=FORMS, default="merged", help="merged unless another is given")
    parser.add_argument("--path", default=".art", help="folder of the backend that trained it (.art)")
    parser.add_argument("--base", help="what to call the base model, as on the hub")
    parser.add_argument("--conversations", type=Path, metavar="FILE", help="what to compare on, a list of messages a line")
    parser.add_argument("--push", metavar="hub:OWNER/NAME", help="upload it to the Hugging Face hub as well")
    asked = parser.parse_args(options)
    try:
        return asyncio.run(_export(asked))
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        print(f"art-nb export: {error}", file=sys.stderr)
        return 1


async def _export(asked: argparse.Namespace) -> int:
    repository = _repository(asked.push)
    checkpoint: Checkpoint = find_checkpoint(asked.model, asked.path)
    conversations = _read(asked.conversations) if asked.conversations else None
    proof = export_checkpoint(checkpoint, asked.form, asked.out, conversations=conversations, base=asked.base)
    print(f"{checkpoint} as {asked.form} is in {asked.out}\n{proof}")
    if repository:
        from art_nb.utils.deployment.hub import push_to_hub

        print(f"pushed to {push_to_hub(asked.out, repository)}")
    return 0


def _repository(push: str | None) -> str | None:
    where, _, name = (push or "").partition(":")
    if push and (where != "hub" or name.count("/") != 1):
        raise ValueError(f"--push {push}: expected hub:OWNER/NAME. art.utils.deploy_model brings it to Together or W&B.")
    return name or None


def _read(path: Path) -> list[list[dict[str, Any]]]:
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            messages = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, is not JSON: {error}") from error
        if not (isinstance(messages, list) and messages and all(isinstance(m, dict) and "role" in m for m in messages)):
            example = '[{"role": "user", "content": "hello"}]'
            raise ValueError(f"{path}, line {number}: expected a list of messages, as {example}")
        found.append(messages)
    return found
