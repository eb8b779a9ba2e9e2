"""Several policies at one client: isolation, memory, training on other policies' samples, and forking."""

import asyncio
import importlib.util
import json
import math
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import lru_cache

import openai
import pytest
import torch
from openai.types.chat.chat_completion import Choice
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save
from test_backend import adapter, gather, registered, run
from tiny_models import FAMILIES, make_checkpoint, make_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import art_nb as art
from art_nb.backends.ray import remote_policy_store
from art_nb.inference.policies import MultiLoraModel
from art_nb.inference.sampler import Sampler
from art_nb.storage import checkpoints
from art_nb.training import policy as policy_module
from art_nb.training import policy_store, sampling_models
from art_nb.training.learner import Learner
from art_nb.training.policy import Policy, load_policy
from art_nb.training.sequences import build_sequences
from art_nb.types import TrainConfig
from benchmarks.gathering import registered as benchmarked
from benchmarks.policies import add_steps
from course.real_model import smollm2

needs_unsloth = pytest.mark.skipif(importlib.util.find_spec("unsloth") is None, reason="Unsloth is not installed")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(make_checkpoint(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """Return the folder of a backend whose model "m" was trained for two steps."""
    path = tmp_path_factory.mktemp("trained")

    async def main():
        await run(await registered(base, path), 2)

    asyncio.run(main())
    return path


@pytest.fixture
def path(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture(params=["merged", "unmerged"])
def way(request, monkeypatch):
    """Run with merged copies and with unmerged adapters; the model's size decides which one is used."""
    if request.param == "unmerged":
        monkeypatch.setattr(policy_module, "SMALL_MODEL", 0)
    return request.param


def user(text):
    return {"role": "user", "content": text}


async def talk(model, name, scenario="a", turns=3):
    """A conversation with one policy."""
    trajectory = art.Trajectory(messages_and_choices=[user(f"say {scenario}")])
    for turn in range(turns):
        answer = await model.openai_client().chat.completions.create(
            model=name, messages=trajectory.messages(), max_tokens=4 + turn
        )
        trajectory.messages_and_choices += [answer.choices[0], user(f"more {turn}")]
    return trajectory


async def talks(model, names, each=3):
    """Run `each` conversations with each policy in one gather call. Returns the choices by policy."""
    pairs = [(name, i) for i in range(each) for name in names]
    found = await art.gather_trajectories((talk(model, name, f"{i % 2}") for name, i in pairs), pbar_desc=None)
    return {name: [c for (n, _), t in zip(pairs, found, strict=True) if n == name for c in t.choices()] for name in names}


@lru_cache(maxsize=4)
def peft_model(base, folder):
    model = AutoModelForCausalLM.from_pretrained(base)
    return model.eval() if folder is None else PeftModel.from_pretrained(model, folder).eval()


def by_peft(base, folder, choice):
    """Return the log-probabilities of a choice's tokens from PEFT's model. folder: of the adapter; None: no adapter."""
    ids = torch.tensor([choice.prompt_token_ids + choice.token_ids])
    with torch.no_grad():
        logprobs = peft_model(base, folder)(input_ids=ids).logits[0].log_softmax(-1)
    asked = len(choice.prompt_token_ids)
    return logprobs[asked - 1 : -1].gather(1, ids[0, asked:, None])[:, 0].tolist()


def folder_of(path, name):
    return path / f"p/models/m/checkpoints/{int(name[2:]):04d}" if name.startswith("m@") else None


def tokens(choices):
    return [choice.token_ids for choice in choices]


# Concurrent requests


def test_three_concurrent_policies_sample_like_each_alone(base, path, way):
    async def main():
        model = await registered(base, path)
        names = ["m", "m@1", base]
        together = await talks(model, names)
        assert len({str(tokens(choices)) for choices in together.values()}) == 3
        for name in names:
            alone = (await talks(model, [name]))[name]
            assert tokens(alone) == tokens(together[name])
            for one, other in zip(alone, together[name], strict=True):
                assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-4)
        again = await talks(model, ["m@2"])  # the latest policy under its other name
        assert tokens(again["m@2"]) == tokens(together["m"])
        return together, model.backend().loaded(model).policies.get().model

    together, answers = asyncio.run(main())
    assert isinstance(answers, MultiLoraModel) == (way == "unmerged")
    for name, sampled_by in [("m", "m@2"), ("m@1", "m@1"), (base, base)]:
        for choice in together[name]:
            assert choice.policy == sampled_by
            expected = by_peft(base, folder_of(path, sampled_by), choice)
            assert choice.token_logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("slots", [8, 1])
def test_policies_that_alternate_in_one_conversation_share_no_cache(base, path, way, slots):
    """Each turn equals one whose earlier answers were given as text."""

    async def main():
        model = await registered(base, path, slots=slots)
        turns, messages = [], [user("say " + "something long " * 8)]

        async def ask(name, messages):
            return await model.openai_client().chat.completions.create(model=name, messages=messages, max_tokens=5)

        for name in ["m@1", "m", base, "m@1", base, "m"]:
            answer = await ask(name, messages)
            assert answer.model == answer.choices[0].policy
            turns.append((name, messages, answer.choices[0]))
            messages = [*messages, {"role": "assistant", "content": answer.choices[0].message.content}, user("more")]
        for policy in ("m@1", "m", base):
            model.backend().loaded(model).sampler.forget()
            for name, messages, choice in turns:
                if name == policy:
                    alone = (await ask(name, messages)).choices[0]
                    assert alone.prompt_token_ids == choice.prompt_token_ids and alone.token_ids == choice.token_ids
        return [choice for _, _, choice in turns]

    for choice in asyncio.run(main()):
        expected = by_peft(base, folder_of(path, choice.policy), choice)
        assert choice.token_logprobs == pytest.approx(expected, abs=1e-4)


def test_a_slot_used_by_another_policy_is_not_continued(base, path, way):
    """Not even if the slot holds the same tokens."""

    async def main():
        model = await registered(base, path, slots=1)
        ask = model.openai_client().chat.completions.create
        answers = (await ask(model="m@1", messages=[user("say")], max_tokens=1, n=40)).choices
        said = next(c.message.content for c in answers if c.message.content.isascii() and c.message.content.strip())
        messages = [user("say"), {"role": "assistant", "content": said}, user("more")]
        others = (await ask(model="m", messages=messages, max_tokens=1)).choices[0]
        own = (await ask(model="m@1", messages=messages, max_tokens=4)).choices[0]
        assert own.prompt_token_ids == others.prompt_token_ids
        return own

    choice = asyncio.run(main())
    expected = by_peft(base, folder_of(path, "m@1"), choice)
    assert choice.token_logprobs == pytest.approx(expected, abs=1e-4)


def test_evicting_policies_from_memory_changes_no_result(base, path, way, monkeypatch):
    names = ["m@0", "m@1", "m@2"]

    async def main(most):
        monkeypatch.setattr(policy_store, "IN_MEMORY", most)
        model = await registered(base, path)
        found = await talks(model, names)
        read = model.backend().loaded(model).policies.load.cache_info()
        assert read.currsize == min(most, 3) and (read.misses > 3) == (most == 1)
        return {name: tokens(choices) for name, choices in found.items()}

    assert asyncio.run(main(1)) == asyncio.run(main(8))


def test_a_concurrent_gather_call_does_not_reset_the_draws(base, path):
    """The second call runs while no request of the first is in progress."""

    async def main():
        model = await registered(base, path)
        answered, other = asyncio.Event(), asyncio.Event()

        async def first():
            one = await talk(model, "m", turns=1)
            answered.set()
            await other.wait()
            two = await talk(model, "m", turns=1)
            assert tokens(one.choices()) != tokens(two.choices())
            return two

        async def second():
            await answered.wait()
            await art.gather_trajectories([talk(model, "m@1", turns=1)], pbar_desc=None)
            other.set()

        await asyncio.gather(art.gather_trajectories([first()], pbar_desc=None), second())

    asyncio.run(main())


def test_known_policy_names_are_accepted_and_others_raise(base, path):
    async def main():
        model = await registered(base, path)
        client = model.openai_client().with_options(timeout=300)
        ask = {"messages": [user("?")], "max_tokens": 1}
        assert await model.get_step() == 2 and model.get_inference_name() == "m@2"
        assert [m.id for m in (await client.models.list()).data] == ["m", "m@0", "m@1", "m@2", base]
        assert [m.id async for m in client.models.list()] == ["m", "m@0", "m@1", "m@2", base]
        for name in ("m", "m@0", "m@2", base, None):
            await client.chat.completions.create(model=name, **ask)
        await client.chat.completions.create(model=model.get_inference_name(1), **ask)
        await model.backend()._delete_checkpoint_files(model, [0])
        for wrong in ("gpt-4", "m@1", "m@3", "m@02", "m@", "m@x", "M", "m@-1", "../m@0"):
            with pytest.raises(ValueError, match=f"unknown model '{wrong}': this client serves 'm', 'm@0', 'm@2', '"):
                await client.chat.completions.create(model=wrong, **ask)
        with pytest.raises(openai.BadRequestError, match="Checkpoints of other steps were deleted"):
            await client.chat.completions.create(model="m@1", **ask)
        assert [m.id async for m in client.models.list()] == ["m", "m@0", "m@2", base]

    asyncio.run(main())


def test_the_base_policy_of_an_adapters_folder_is_that_adapter(base, trained, tmp_path):
    start = str(folder_of(trained, "m@2"))

    async def main():
        backend = art.LocalBackend(path=tmp_path, engine="transformers")
        model = art.TrainableModel(name="m", project="p", base_model=start)
        await model.register(backend)
        return (await talks(model, [start], each=1))[start]

    for choice in asyncio.run(main()):
        assert choice.token_logprobs == pytest.approx(by_peft(base, start, choice), abs=1e-4)


# Memory


def storages(*held):
    """Return the bytes of all distinct storages."""
    tensors = [t for each in held for t in (each.parameters() if isinstance(each, torch.nn.Module) else each)]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def meta_policy():
    """A model of the shape of SmolLM2-135M with an adapter of rank 16; its tensors have shapes and no content."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
        parameters = model.num_parameters()
        settings = {"r": 16, "lora_alpha": 32, "target_modules": policy_module.default_target_modules(model)}
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    return Policy(model, None, "transformers", parameters)


def adapter_tensors(policy):
    held = policy.model.state_dict()
    return {n.replace(".default", ""): t.clone() for n, t in held.items() if ".default" in n}


def test_two_more_policies_of_a_model_of_135m_parameters_share_the_base_weights():
    policy = meta_policy()
    assert policy.parameters == 134_515_008
    steps = [{name: torch.full(t.shape, float(i)) for name, t in adapter_tensors(policy).items()} for i in range(4)]
    found = [policy.named(f"m@{i}", i, steps[i]) for i in (1, 2, 3)] + [policy.named("base", 0, None)]
    assert len({id(each.model) for each in found}) == 1 and found[3].adapter == {}
    assert policy.named("m@0", 0, steps[0]).adapter == {}  # B is zero before the first step
    held = [[t for pair in each.adapter.values() for t in pair] for each in found]
    in_training, shared = policy.model, found[0].model.model
    one, three = storages(in_training, shared, held[0]), storages(in_training, shared, *held)
    lora = sum(p.numel() for n, p in policy.model.named_parameters() if "lora_" in n)
    assert lora == 4_884_480
    # bfloat16 base, once; float32 adapter in training; bfloat16 adapter of each policy that is sampled from
    assert one == 2 * 134_515_008 + 4 * lora + 2 * lora and three == one + 2 * 2 * lora
    assert three / one < 1.15


def test_three_policies_of_the_real_model_sample_like_each_alone_with_little_more_memory(tmp_path):
    base, names = smollm2(), ["m", "m@1"]
    add_steps(str(tmp_path), base)

    async def main():
        model = await benchmarked(str(tmp_path), base, "m", engine="transformers", dtype="float32")
        every = [*names, model.base_model]
        together = await talks(model, every, each=1)
        alone = {name: (await talks(model, [name], each=1))[name] for name in every}
        running = model.backend().loaded(model)
        return together, alone, running.policy.model, [running.policies.get(name) for name in every]

    together, alone, in_training, held = asyncio.run(main())
    assert len({str(tokens(choices)) for choices in together.values()}) == 3
    assert {name: tokens(choices) for name, choices in together.items()} == {name: tokens(choices) for name, choices in alone.items()}
    adapters = [[t for pair in each.adapter.values() for t in pair] for each in held]
    shared = held[0].model.model
    one, three = storages(in_training, shared, adapters[0]), storages(in_training, shared, *adapters)
    assert len({id(each.model) for each in held}) == 1 and 500e6 < one < three < 1.15 * one


def test_a_sampler_on_ray_keeps_the_adapters_that_an_exchange_needs(base, monkeypatch):
    monkeypatch.setattr(remote_policy_store, "IN_MEMORY", 2)
    policy = load_policy(base, engine="transformers", peft_args={"r": 4, "lora_alpha": 8})
    store = remote_policy_store.RemotePolicyStore(policy, "m", base, 0, base)
    for step in range(4):
        store.add(f"m@{step}", "1", save(adapter_tensors(policy)))
    store.drop_oldest({"m@0", "m@1", "m@3"})
    assert [store.has(f"m@{step}", "1") for step in range(4)] == [True, True, False, True]
    store.drop_oldest({"m@3"})
    assert [store.has(f"m@{step}", "1") for step in range(4)] == [False, True, False, True]


def test_an_adapter_of_the_output_head_is_merged(base, tmp_path, monkeypatch):
    monkeypatch.setattr(policy_module, "SMALL_MODEL", 0)
    peft_args = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "lm_head"]}
    policy = load_policy(make_checkpoint(tmp_path, tied=False), engine="transformers", peft_args=peft_args)
    named = policy.named("m@0", 0, adapter_tensors(policy))
    assert named.adapter is None and named.model is not policy.base
    assert load_policy(base, engine="transformers").named("m", 0, None).adapter == {}


def test_tokens_of_one_forward_use_their_own_adapters(base):
    """Compare segments of unequal lengths in mixed order, some without an adapter, with PEFT and one adapter at a time."""
    policy = load_policy(base, engine="transformers", peft_args={"r": 4, "lora_alpha": 8})
    shared = sampling_models.multi_lora_model(policy.model, policy.base)
    generator = torch.Generator().manual_seed(1)
    adapters = [
        {name: torch.randn(t.shape, generator=generator) * 0.2 for name, t in adapter_tensors(policy).items()} for _ in range(2)
    ]
    unmerged = [sampling_models.unmerged_adapter(policy.model, policy.base, each) for each in adapters] + [{}]
    which, counts = [0, 2, 1, 0, 1], [3, 2, 1, 5, 4]
    layer = policy.base.model.layers[1].mlp.up_proj
    x = torch.randn(1, sum(counts), 32, generator=generator)
    with torch.inference_mode():
        shared.model = lambda **_: layer(x)
        shared.model.device = x.device
        found = shared(adapters=[unmerged[i] for i in which], counts=counts)
        plain = layer(x)
    peft_layer, name = policy.model.get_base_model().model.layers[1].mlp.up_proj, "base_model.model.model.layers.1.mlp.up_proj"
    at = 0
    for i, count in zip(which, counts, strict=True):
        with torch.no_grad():
            if i < 2:
                peft_layer.lora_A["default"].weight.copy_(adapters[i][f"{name}.lora_A.weight"])
                peft_layer.lora_B["default"].weight.copy_(adapters[i][f"{name}.lora_B.weight"])
            segment = x[:, at : at + count]
            expected = peft_layer(segment) if i < 2 else peft_layer.base_layer(segment)
        torch.testing.assert_close(found[:, at : at + count], expected, atol=1e-5, rtol=1e-5)
        at += count
    assert not torch.allclose(found, plain, atol=0.1)


@pytest.mark.parametrize("engine", ["transformers", pytest.param("unsloth", marks=needs_unsloth)])
@pytest.mark.parametrize("family", FAMILIES)
def test_unmerged_adapters_work_on_every_family(tmp_path, monkeypatch, family, engine):
    """Compare two policies in the same forwards with the model in training, its adapter enabled and disabled."""
    monkeypatch.setattr(policy_module, "SMALL_MODEL", 0)
    policy = load_policy(make_checkpoint(tmp_path, family), engine=engine, peft_args={"r": 4, "lora_alpha": 8})
    generator = torch.Generator().manual_seed(1)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    asked = [policy.named("m@1", 1, adapter_tensors(policy)), policy.named("base", 0, None)]
    sampler = Sampler(policy.base, policy.tokenizer, slots=8)

    async def main():
        jobs = [sampler.create(messages=[user(f"say {i}")], policy=p, max_tokens=9) for i in range(3) for p in asked]
        return [answer.choices[0] for answer in await asyncio.gather(*jobs)]

    for choice in asyncio.run(main()):
        off = nullcontext() if choice.policy == "m@1" else policy.model.disable_adapter()
        ids = torch.tensor([choice.prompt_token_ids + choice.token_ids])
        with torch.no_grad(), off:
            logprobs = policy.model.eval()(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        at = len(choice.prompt_token_ids)
        expected = logprobs[at - 1 : -1].gather(1, ids[0, at:, None])[:, 0].tolist()
        assert choice.token_logprobs == pytest.approx(expected, abs=1e-4)


# Self-play, interrupted


async def game(model, names, scenario, interrupt=None):
    """Let two policies answer each other. Returns the trajectory of each; its reward depends on the other's answers, too."""
    trajectories = [art.Trajectory(messages_and_choices=[user(f"begin {scenario}")]) for _ in names]
    client = model.openai_client()
    for _ in range(2):
        for me, name in enumerate(names):
            answer = await client.chat.completions.create(model=name, messages=trajectories[me].messages(), max_tokens=5)
            trajectories[me].messages_and_choices.append(answer.choices[0])
            trajectories[1 - me].messages_and_choices.append(user(answer.choices[0].message.content))
        if interrupt:
            interrupt()
    for trajectory in trajectories:
        said = [ord(c) for choice in trajectory.choices() for c in choice.message.content]
        trajectory.reward = sum(x % 2 == 0 for x in said) / max(len(said), 1)
    return trajectories


async def play(model, interrupt=None):
    """Play a group of games against the base model and against the first step."""
    base = model.base_model
    games = [game(model, ["m", other], i % 2, interrupt) for i, other in enumerate([base, "m@1", base, "m@1"])]
    played = await art.gather_trajectories(games, pbar_desc=None)
    return [art.TrajectoryGroup([side for both in played for side in both])]


def test_interrupted_self_play_resumes_to_the_same_weights(base, path, tmp_path, way):
    async def go(folder, interrupts):
        calls = []

        def interrupt():
            calls.append(1)
            if len(calls) in interrupts:
                raise KeyboardInterrupt

        model = await registered(base, folder)
        while await model.get_step() < 4:
            groups = await play(model, interrupt)
            await model.train(groups, TrainConfig(learning_rate=5e-2))
        return model

    shutil.copytree(path, tmp_path / "whole")
    model = asyncio.run(go(tmp_path / "whole", []))
    assert list(model.history()["trajectories_of_others"])[-2:] == [2, 2]
    for interrupts in ([3], [10]):
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(go(path, interrupts))
    asyncio.run(go(path, []))
    assert adapter(path, 4) == adapter(tmp_path / "whole", 4) != adapter(path, 3)


# Training on samples of other policies


def sampled(policy, prompt, ids, logprobs=None):
    choice = Choice(index=0, finish_reason="stop", message={"role": "assistant", "content": "?"})
    choice.prompt_token_ids, choice.token_ids, choice.policy = prompt, ids, policy
    choice.token_logprobs = logprobs or [-1.0] * len(ids)
    return choice


def trajectory_by(policy, reward, *choices):
    choices = choices or (sampled(policy, [5, 6], [7, 8]),)
    return art.Trajectory(messages_and_choices=[x for c in choices for x in (user("?"), c)], reward=reward)


def build(*groups, policy="m@2", **config):
    groups = [art.TrajectoryGroup(group) for group in groups]
    return build_sequences(groups, make_tokenizer(), TrainConfig(**config), policy)


def test_other_models_trajectories_do_not_affect_advantages():
    mine = [trajectory_by("m@2", 1.0), trajectory_by("m@1", 0.0)]
    strangers = [trajectory_by("base", 7.0), trajectory_by("other@2", -3.0), trajectory_by("n", 2.0)]
    for scale in ("group", "batch", "none"):
        alone, counts = build(mine, scale_rewards=scale)
        assert counts == {"groups": 1, "groups_without_signal": 0}
        mixed, counts = build([strangers[0], mine[0], *strangers[1:], mine[1]], scale_rewards=scale)
        assert counts == {"groups": 1, "groups_without_signal": 0, "trajectories_of_others": 3}
        assert mixed == alone
    assert [s.off_policy for s in alone] == [[False] * 4, [False, False, True, True]]
    assert not hasattr(strangers[0].choices()[0], "token_advantages")


def test_turn_rewards_with_other_models_turns():
    def rewarded(policy, reward):
        trajectory = trajectory_by(policy, 0.0)
        trajectory.turn_rewards = reward
        return trajectory

    alone, _ = build([rewarded("m@2", [1.0]), rewarded("m@2", [0.0])])
    mixed, _ = build([rewarded("base", None), rewarded("m@2", [1.0]), rewarded("m@2", [0.0]), rewarded("n", [9.0, 9.0])])
    assert mixed == alone and alone[0].advantages[-1] > 0


def test_other_models_turns_in_a_trajectory_are_context_only():
    own, other = sampled("m@2", [5, 6], [7, 8]), sampled("base", [5, 6, 7, 8, 9], [10, 11])
    last = sampled("m@2", [5, 6, 7, 8, 9, 10, 11, 12], [13])
    [sequence, _], counts = build([trajectory_by("m@2", 1.0, own, other, last), trajectory_by("m@2", 0.0)])
    assert sequence.ids == [5, 6, 7, 8, 9, 10, 11, 12, 13] and "trajectories_of_others" not in counts
    assert [i for i, t in zip(sequence.ids, sequence.trained, strict=True) if t] == [7, 8, 13]


def test_other_policies_are_trained_on_if_requested():
    sequences, counts = build([trajectory_by("m@2", 1.0), trajectory_by("base", 0.0)], other_policies=True)
    assert [any(s.off_policy) for s in sequences] == [False, True] and len(counts) == 2
    assert sequences[1].advantages[-1] < 0


def test_a_batch_of_other_models_trajectories_raises():
    with pytest.raises(ValueError, match=r"nothing to train m@2 on: all 2 trajectories were sampled by base, n\. .*other_pol"):
        build([trajectory_by("base", 1.0)], [trajectory_by("n", 0.0)])
    sequences, counts = build([trajectory_by("m@2", 1.0), trajectory_by("m@2", 0.0)], [trajectory_by("n", 0.0)])
    assert len(sequences) == 2 and counts["groups_without_signal"] == 1


def test_choices_without_a_policy_count_as_the_models_own():
    unknown = sampled("", [5, 6], [7])
    named = sampled("m@9", [5, 6], [7])
    for choices, policy in [((unknown,), "m@2"), ((named,), None)]:
        sequences, _ = build([trajectory_by("", 1.0, *choices), trajectory_by("", 0.0)], policy=policy)
        assert not any(sequences[0].off_policy) and len(sequences) == 2


def trl_gradient(policy, rows, old, folder, **settings):
    """Return stock TRL's loss and gradient. rows: (prompt, completion, advantage). old: log-probabilities; None: the current ones."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def forward(model, input_ids, attention_mask, logits_to_keep, **_):
        logp = model(input_ids=input_ids, attention_mask=attention_mask).logits[:, -logits_to_keep - 1 : -1].log_softmax(-1)
        chosen = logp.gather(-1, input_ids[:, -logits_to_keep:, None])[..., 0]
        return chosen, -(logp.exp() * logp).sum(-1).detach(), None

    args = {"per_device_train_batch_size": 2, "num_generations": 2, "report_to": "none", "use_cpu": True, "bf16": False}
    trainer = GRPOTrainer(
        model=policy.model, reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(output_dir=str(folder), gradient_checkpointing=False, **args, **settings),
        train_dataset=Dataset.from_dict({"prompt": ["?"] * 4}), processing_class=policy.tokenizer,
    )  # fmt: skip
    trainer._get_per_token_logps_and_entropies = forward
    trainer.current_gradient_accumulation_steps = 1
    prompts, completions = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
    whole = torch.cat([prompts, completions], 1)
    with torch.no_grad():
        present = forward(policy.model, whole, torch.ones_like(whole), completions.shape[1])[0]
    inputs = {
        "prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "completion_ids": completions,
        "completion_mask": torch.ones_like(completions), "advantages": torch.tensor([row[2] for row in rows]),
        "old_per_token_logps": torch.stack([p if o is None else torch.tensor(o) for p, o in zip(present, old, strict=True)]),
        "num_items_in_batch": torch.tensor(completions.numel()),
    }  # fmt: skip
    policy.model.zero_grad()
    loss = trainer._compute_loss(policy.model, inputs)
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tokens_per_micro_batch", [64, 8])
def test_the_gradient_of_older_samples_equals_trls_with_the_samplers_logprobs(base, tmp_path, tokens_per_micro_batch):
    """Some ratios are clipped; rows of the current policy have the ratio 1."""
    policy = load_policy(base, engine="transformers", peft_args={"r": 4, "lora_alpha": 8})
    generator = torch.Generator().manual_seed(3)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    rows = [([5, 6, 7], [20 + i, 30 + i, 40 + i, 50 + i], r) for i, r in enumerate([1.0, -1.0, 1.0, -1.0])]
    whole = torch.tensor([prompt + completion for prompt, completion, _ in rows])
    with torch.no_grad():
        now = policy.model(input_ids=whole).logits.log_softmax(-1)[:, 2:-1].gather(-1, whole[:, 3:, None])[..., 0]
    shift = torch.tensor([[0.5, -0.5, 0.1, -0.1]])
    old = [None, None, *(now[2:] + shift).tolist()]
    loss, gradient = trl_gradient(policy, rows, old, tmp_path)

    names = ["m@2", "m@2", "m@1", "m@0"]
    trajectories = [
        trajectory_by(name, reward, sampled(name, prompt, completion, logprobs or [math.nan] * 4))
        for name, (prompt, completion, reward), logprobs in zip(names, rows, old, strict=True)
    ]
    config = TrainConfig(learning_rate=1.0, scale_rewards="none")
    sequences, _ = build_sequences([art.TrajectoryGroup(trajectories)], policy.tokenizer, config, "m@2")
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters() if p.requires_grad}
    learner = Learner(policy, grpo={"max_grad_norm": 0.0}, tokens_per_micro_batch=tokens_per_micro_batch)
    learner.optimizer = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad])
    metrics = learner.learn(sequences, config)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5) and metrics["clip_fraction"] > 0.1
    assert metrics["ratio_max"] == pytest.approx(math.exp(0.5), abs=1e-4)
    for name, start in before.items():
        moved = start - policy.model.get_parameter(name).detach()
        torch.testing.assert_close(moved, gradient[name], atol=1e-5, rtol=1e-4)
    assert max(each.abs().max() for each in gradient.values()) > 1e-2


def test_off_policy_through_the_backend(base, path):
    """A batch sampled by step 2 is trained on twice: the second time it is off-policy, and the ratios differ from 1."""

    async def main():
        model = await registered(base, path)
        groups = await gather(model, 0)
        first = await model.train(groups, TrainConfig(learning_rate=5e-3))
        second = await model.train(groups, TrainConfig(learning_rate=5e-3))
        return first.metrics, second.metrics

    first, second = asyncio.run(main())
    assert first["ratio_min"] == pytest.approx(1, abs=1e-3) == first["ratio_max"] and first["clip_fraction"] == 0
    assert second["ratio_min"] < 0.9 and second["ratio_max"] > 1.1 and second["clip_fraction"] > 0


# Forking


def checkpoint(path, name, step):
    return path / f"p/models/{name}/checkpoints/{step:04d}"


async def forked(base, path, name="n", **options):
    """Return a model forked from "m", registered before or after the fork."""
    early = options.pop("early", False)
    backend = art.LocalBackend(path=path, engine="transformers")
    internal = {"peft_args": {"r": 4, "lora_alpha": 8} | options.pop("peft", {})}
    model = art.TrainableModel(name=name, project="p", base_model=base, _internal_config=internal)
    if early:
        await model.register(backend)
    await backend._experimental_fork_checkpoint(model, "m", **options)
    if not early:
        await model.register(backend)
    return model


@pytest.mark.parametrize("early", [False, True])
def test_a_fork_trains_like_the_original(base, path, early, capsys):
    async def main():
        await run(await registered(base, path), 3)
        (path / "p/models/m/checkpoints/.tmp-999999999-0123abcd").touch()  # of a writer in another container, perhaps
        before = {f: f.read_bytes() for f in sorted(path.glob("p/models/m/**/*")) if f.is_file()}
        model = await forked(base, path, early=early, not_after_step=2, verbose=True)
        assert await model.get_step() == 2 and len(model.history()) == 0
        await run(model, 3)
        assert before == {f: f.read_bytes() for f in sorted(path.glob("p/models/m/**/*")) if f.is_file()}

    asyncio.run(main())
    assert adapter(path, 3, "n") == adapter(path, 3, "m")
    optimizers = [(checkpoint(path, name, 3) / "optimizer.safetensors").read_bytes() for name in "nm"]
    assert optimizers[0] == optimizers[1]
    assert json.loads((checkpoint(path, "n", 2) / "state.json").read_text())["forked_from"] == "p/m@2"
    assert "'n', forked from p/m, is at step 2" in capsys.readouterr().out


def test_a_fork_without_the_optimizer_starts_with_new_moments(base, path):
    async def main():
        model = await forked(base, path, optimizer=False)
        learner = model.backend().loaded(model).learner
        assert learner.optimizer.state_dict()["state"] == {} and await model.get_step() == 2
        await run(model, 3)

    asyncio.run(main())
    assert load_file(checkpoint(path, "m", 2) / "optimizer.safetensors")
    steps = {float(t) for n, t in load_file(checkpoint(path, "n", 3) / "optimizer.safetensors").items() if n.endswith("step")}
    assert adapter(path, 2, "n") == adapter(path, 2, "m") and steps == {1.0}


def test_fork_from_an_earlier_checkpoint(base, path, monkeypatch):
    async def main():
        model = await registered(base, path)
        await model.backend()._delete_checkpoint_files(model, [1])
        earlier = await forked(base, path, not_after_step=1)
        assert await earlier.get_step() == 1 and adapter(path, 1, "n") == adapter(path, 1, "m")
        for name, options, error, message in [
            ("x", {"not_after_step": 0}, ValueError, r"not_after_step is 0: the model only has checkpoints of steps \[1, 2\]"),
            ("x", {"from_project": "q"}, FileNotFoundError, "no checkpoint in .*q/models/m/checkpoints"),
            ("x", {"from_s3_bucket": "b"}, ValueError, "S3 is not supported"),
            ("n", {"not_after_step": 2}, ValueError, "model 'n' is already at step 1: fork into a model with another name"),
        ]:
            with pytest.raises(error, match=message):
                await forked(base, path, name, **options)
        assert not (path / "p/models/x").exists()
        again = await forked(base, path, not_after_step=1, early=True)  # the notebook is run again
        assert await again.get_step() == 1
        await run(again, 2)
        assert await again.backend().fork(again, "m", "p", not_after_step=1) == 2 == await again.get_step()
        await again.backend().close()
        assert await art.LocalBackend(path=path).fork(again, "m", "p", not_after_step=1) == 2  # before `register`
        monkeypatch.setattr(checkpoints, "LOCK_S", 0.1)
        code = f"from pathlib import Path; from art_nb.storage.checkpoints import lock_folder; lock = lock_folder(Path({str(path / 'p/models/z')!r}))"
        held = [sys.executable, "-c", f"{code}; print(1, flush=True); input()"]
        with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            with pytest.raises(RuntimeError, match="another process is using"):
                await art.LocalBackend(path=path).fork(art.Model(name="z", project="p"), "m", "p")
            other.kill()

    asyncio.run(main())


def test_a_failed_fork_leaves_no_files(base, path, monkeypatch):
    async def main():
        with pytest.raises(ValueError, match="does not fit this model: it was made with another base model"):
            await forked(base, path, peft={"r": 8}, early=True)
        assert [f.name for f in checkpoint(path, "n", 0).parent.iterdir()] == ["0000"]
        copy = shutil.copytree

        def interrupted(*args, **kwargs):
            copy(*args, **kwargs)
            raise KeyboardInterrupt

        monkeypatch.setattr(shutil, "copytree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            await forked(base, path, name="k")
        assert list(checkpoint(path, "k", 0).parent.iterdir()) == []
        monkeypatch.undo()
        model = await forked(base, path, name="k")
        assert await model.get_step() == 2

    asyncio.run(main())
