"""Memory of serving three policies of the real model at once, and whether their answers stay the same.

`python -m benchmarks.policies`. The model, an older step of it and its base model answer eight emails of notebook 06
each: each alone in its own process, then all three at once in another. The two steps have different adapters. `ratio`:
resident bytes of the process with three policies over those of the process with one, after all answers;
`ratio_of_weights`: the same for all tensors except keys and values. `same_tokens`: the share of answers with the same
tokens as in the process of one policy; in float32, because in bfloat16 the rounding depends on the batch. `--dtype` sets
the dtype of the memory measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import art_nb as art
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.rollout_real import prompt, scenario
from course.real_model import smollm2

QUESTIONS = 8
MAX_TOKENS = 12


async def answers(folder: str, base: str, names: list[str], dtype: str | None) -> dict:
    """Return the answers of these policies in this process, and its memory afterwards."""
    import psutil

    model = await registered(folder, base, "m", engine="transformers", **({"dtype": dtype} if dtype else {}))
    policy_names = {"latest": model.get_inference_name(), "older": model.get_inference_name(1), "base": model.base_model}

    async def one(name: str, number: int) -> art.Trajectory:
        messages = prompt(scenario("train", number)[0])
        create = model.openai_client().chat.completions.create
        completion = await create(model=policy_names[name], messages=messages, max_tokens=MAX_TOKENS)
        return art.Trajectory(messages_and_choices=[*messages, completion.choices[0]])

    requests = [(name, number) for number in range(QUESTIONS) for name in names]
    answered = await art.gather_trajectories((one(*each) for each in requests), pbar_desc=None)
    tokens = {f"{name} {number}": t.choices()[0].token_ids for (name, number), t in zip(requests, answered, strict=True)}
    running = model.backend().loaded(model)
    held = {"weights": weights(running.sampler.decoder.slots.cache), "resident": psutil.Process().memory_info().rss}
    return {"tokens": tokens, "by": sorted({t.choices()[0].policy for t in answered}), **held}


def weights(cache: object) -> int:
    """Return the bytes of all live tensors, each storage once, without the cache's keys and values."""
    import torch

    gc.collect()
    kept = {t.untyped_storage()._cdata for each in vars(cache).values() for t in tensors_in(each)}
    alive = {}
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor) and thing.device.type != "meta":
            alive[thing.untyped_storage()._cdata] = thing.untyped_storage().nbytes()
    return sum(size for storage, size in alive.items() if storage not in kept)


def tensors_in(thing: object) -> list:
    import torch

    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, list | tuple):
        return [t for each in thing for t in tensors_in(each)]
    return [thing] if isinstance(thing, torch.Tensor) else []


def add_steps(folder: str, base: str, steps: int = 2) -> None:
    """Write checkpoints of `steps` steps with random instead of trained adapters."""
    import torch
    from safetensors.torch import load_file, save_file

    asyncio.run(registered(folder, base, "m", engine="transformers"))
    root = Path(folder) / "benchmarks/models/m/checkpoints"
    for step in range(1, steps + 1):
        shutil.copytree(root / "0000", root / f"{step:04d}")
        path = root / f"{step:04d}/adapter_model.safetensors"
        draws = torch.Generator().manual_seed(step)
        adapter = load_file(path)
        for name in [name for name in sorted(adapter) if "lora_B" in name]:
            adapter[name] = adapter[name] + 0.01 * torch.randn(adapter[name].shape, generator=draws).to(adapter[name])
        save_file(adapter, path)
        state = root / f"{step:04d}/state.json"
        state.write_text(json.dumps(json.loads(state.read_text(encoding="utf-8")) | {"step": step}), encoding="utf-8")


def in_a_process(folder: str, base: str, names: list[str], dtype: str | None) -> dict:
    say(f"answers of {', '.join(names)}")
    command = [sys.executable, "-m", "benchmarks.policies", "--folder", folder, "--base", base, "--names", *names]
    done = subprocess.run([*command, *(["--dtype", dtype] if dtype else [])], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(base: str = "", dtype: str | None = None) -> dict:
    """base: by default SmolLM2. dtype: of the weights; None: the default."""
    base = base or smollm2()
    names = ["latest", "older", "base"]
    with tempfile.TemporaryDirectory() as folder:
        add_steps(folder, base)
        one, three = (in_a_process(folder, base, each, dtype) for each in (["latest"], names))
        exact = [in_a_process(folder, base, each, "float32") for each in (names, *([name] for name in names))]
    together, alone = exact[0]["tokens"], {key: tokens for each in exact[1:] for key, tokens in each["tokens"].items()}
    return {
        "ratio": three["resident"] / one["resident"],
        "ratio_of_weights": three["weights"] / one["weights"],
        "resident_mb": [each["resident"] / 1e6 for each in (one, three)],
        "weights_mb": [each["weights"] / 1e6 for each in (one, three)],
        "same_tokens": sum(together[key] == alone[key] for key in alone) / len(alone),
        "answers": len(together),
        "different_answers_to_one_question": len({str(together[f"{name} 0"]) for name in names}),
    }


def main() -> None:
    """Measure, or run as one of the processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--folder", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--base", default="", help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        print(json.dumps(asyncio.run(answers(arguments.folder, arguments.base, arguments.names, arguments.dtype))))
    else:
        print_result("policies", lambda: measure(arguments.base, arguments.dtype))


if __name__ == "__main__":
    main()
