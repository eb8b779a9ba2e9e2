"""RayBackend: the same rollouts and the same weights as in process."""

import asyncio
import os

import pytest
import torch
from test_backend import gather

import art_nb as art
from art_nb.backend import LocalBackend
from art_nb.inference.chat import RequestError

ray = pytest.importorskip("ray", reason="Ray has no wheel for this system, or the extra `ray` is not installed")

CONFIG = {"peft_args": {"r": 4, "lora_alpha": 8}}
WHAT_A_CLOCK_SAYS = {"time", "rollout_s", "train_s", "save_s", "rollout_tokens_per_s", "train_tokens_per_s", "duration"}


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine for all tests here, its actors on one thread each, as this process is meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
    torch.set_num_threads(threads)


async def registered(backend, base, name="m"):
    model = art.TrainableModel(name=name, project="p", base_model=str(base), _internal_config=CONFIG)
    await model.register(backend)
    return model


def turn(choice):
    return choice.policy, choice.prompt_token_ids, choice.token_ids, choice.token_logprobs


async def loop(model, steps):
    """The training loop of a notebook; what every rollout said, token by token."""
    said = []
    for step in range(await model.get_step(), steps):
        groups = await gather(model, step, groups=3, size=4)
        said.append([[turn(c) for c in t.choices()] for g in groups for t in g])
        await model.train(groups, art.TrainConfig(learning_rate=5e-2))
    await gather(model, 99)  # what is only looked at changes nothing
    return said


def without_clock(row):
    return {k: v for k, v in row.items() if k not in WHAT_A_CLOCK_SAYS and not k.startswith(("time/", "throughput/"))}


async def check_refusals(backend, model, base):
    """What can't be done is said as in process, and changes nothing."""
    groups = await gather(model, 3, groups=2, size=3)
    groups[1].trajectories[2].reward = float("nan")
    with pytest.raises(ValueError, match="^group 1, trajectory 2: reward is nan"):
        await model.train(groups)
    ask, asked = model.openai_client().chat.completions.create, [{"role": "user", "content": "a"}]
    with pytest.raises(RequestError, match="model 'other' is not here"):
        await ask(model="other", messages=asked)
    with pytest.raises(RequestError, match="temperature is -1"):
        await ask(model="m", messages=asked, temperature=-1)
    with pytest.raises(RequestError, match="stream=True"):
        await ask(model="m", messages=asked, stream=True)
    names = ["m", "m@0", str(base)]
    said = [(await ask(model=name, messages=asked, max_tokens=2)).choices[0].policy for name in names]
    assert said == ["m@3", "m@0", str(base)]
    assert await model.get_step() == 3


def test_a_loop_on_one_sampler_gives_what_it_gives_in_process(cluster, tiny_base, tmp_path):
    async def run(backend):
        async with backend:
            model = await registered(backend, tiny_base)
            said = await loop(model, 3)
            rows = [without_clock(row) for row in model.history().to_dict("records")]
            if isinstance(backend, art.RayBackend):
                await check_refusals(backend, model, tiny_base)
            return said, rows, model.records()

    said, rows, records = asyncio.run(run(LocalBackend(path=tmp_path / "here", engine="transformers")))
    there = asyncio.run(run(art.RayBackend(samplers=1, path=tmp_path / "there", engine="transformers")))
    assert there[0] == said
    assert there[1] == rows and len(rows) == 3
    assert there[2] == records
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        here, there = ((tmp_path / path / f"p/models/m/checkpoints/0003/{name}").read_bytes() for path in ("here", "there"))
        assert here == there, name
