"""What three policies of the real model hold in memory that one does not, and whether each answers as it does alone.

`python -m benchmarks.policies`. The model, an older step of it and its base model are asked eight mails of notebook 05
each: each alone in a process of its own, then all three at once in one gathering, in another. The two older steps have
adapters of their own. `ratio`: resident bytes of the process with three over those of the process with one, after all is
answered; `ratio_of_weights`: the same of the bytes of all tensors alive but keys and values. `same_tokens`: of the answers,
the share that has the tokens, and is by the policy, of the process in which the policy was alone; in float32, for in
bfloat16 the others in a batch change roundings. `--dtype` says in which numbers memory is measured.
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
from art_nb.real_model import smollm2
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.rollout_real import prompt, scenario

ASKED = 8
MAX_TOKENS = 12


async def answers(folder: str, base: str, names: list[str], dtype: str | None) -> dict:
    """What this process gets from the policies of these names, and what it holds then."""
    import psutil

    model = await registered(folder, base, "m", engine="transformers", **({"dtype": dtype} if dtype else {}))
    known = {"latest": model.get_inference_name(), "older": model.get_inference_name(1), "base": model.base_model}

    async def one(name: str, number: int) -> art.Trajectory:
        messages = prompt(scenario("train", number)[0])
        create = model.openai_client().chat.completions.create
        completion = await create(model=known[name], messages=messages, max_tokens=MAX_TOKENS)
        return art.Trajectory(messages_and_choices=[*messages, completion.choices[0]])

    asked = [(name, number) for number in range(ASKED) for name in names]
    given = await art.gather_trajectories((one(*each) for each in asked), pbar_desc=None)
    said = {f"{name} {number}": t.choices()[0].token_ids for (name, number), t in zip(asked, given, strict=True)}
    running = model.backend()._of(model)
    held = {"weights": weights(running.sampler.cache), "resident": psutil.Process().memory_info().rss}
    return {"said": said, "by": sorted({t.choices()[0].policy for t in given}), **held}


def weights(cache: object) -> int:
    """Bytes of all tensors alive, each storage once, without the cache's keys and values."""
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
    """Checkpoints of so many steps whose adapters were drawn, not trained."""
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
    say(f"asking {', '.join(names)}")
    command = [sys.executable, "-m", "benchmarks.policies", "--folder", folder, "--base", base, "--names", *names]
    done = subprocess.run([*command, *(["--dtype", dtype] if dtype else [])], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(base: str = "", dtype: str | None = None) -> dict:
    """base: by default SmolLM2. dtype: of the weights; None: as it is loaded where nothing is said."""
    base = base or smollm2()
    names = ["latest", "older", "base"]
    with tempfile.TemporaryDirectory() as folder:
        add_steps(folder, base)
        one, three = (in_a_process(folder, base, each, dtype) for each in (["latest"], names))
        exact = [in_a_process(folder, base, each, "float32") for each in (names, *([name] for name in names))]
    together, alone = exact[0]["said"], {key: said for each in exact[1:] for key, said in each["said"].items()}
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
    """Measure, or be one of the processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--folder", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--base", default="", help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        print(json.dumps(asyncio.run(answers(given.folder, given.base, given.names, given.dtype))))
    else:
        print_result("policies", lambda: measure(given.base, given.dtype))


if __name__ == "__main__":
    main()
