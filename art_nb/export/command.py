"""The command `art-nb export MODEL --as FORM OUT`: export a checkpoint, and optionally upload it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from art_nb.export.checkpoint import find_checkpoint
from art_nb.export.formats import FORMS, export_checkpoint
from art_nb.export.hub import push_to_hub, upload_key


def export(options: Sequence[str]) -> int:
    """Run the command; return its exit code: 0, or 1 after an expected error, which is printed to stderr."""
    parser = argparse.ArgumentParser(
        prog="art-nb export", description="Write a checkpoint in a format that other engines load, after comparing 50 "
        "greedy answers with the checkpoint's own. --push reads HF_TOKEN.",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="NAME or PROJECT/NAME; append @STEP for a step other than the latest")
    parser.add_argument("out", metavar="OUT", type=Path, help="a new or empty folder")
    parser.add_argument("--as", dest="form", choices=FORMS, default="merged", help="format (default: merged)")
    parser.add_argument("--path", default=".art", help="the path of the backend that trained the model (default: .art)")
    parser.add_argument("--base", help="hub name to record as the base model")
    parser.add_argument("--push", metavar="hub:OWNER/NAME", help="also upload the export to the Hugging Face hub")
    arguments = parser.parse_args(options)
    try:
        target, _, repository = (arguments.push or "").partition(":")
        if arguments.push and (target != "hub" or repository.count("/") != 1):
            other = "Together and W&B: art_nb.utils.deployment.deploy_model"
            raise ValueError(f"--push {arguments.push}: expected hub:OWNER/NAME; {other}")
        checkpoint = find_checkpoint(arguments.model, arguments.path)
        if repository:  # checked first, because an export takes minutes
            upload_key((arguments.base or checkpoint.base_model()) if arguments.form == "adapter" else None)
        parity = export_checkpoint(checkpoint, arguments.form, arguments.out, base=arguments.base)
        print(f"{checkpoint} as {arguments.form} is in {arguments.out}\n{parity}")
        if repository:
            print(f"pushed to {push_to_hub(arguments.out, repository)}")
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        print(f"art-nb export: {error}", file=sys.stderr)
        return 1
    return 0
