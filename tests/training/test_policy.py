"""The policy: model families, both engines, arguments passed to the libraries, and the model for sampling."""

import asyncio
import importlib.util
import random
import warnings
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftConfig, get_peft_model
from safetensors.torch import load_file
from tiny_models import FAMILIES, make_checkpoint, make_tokenizer

import art_nb as art
from art_nb.inference.sampler import Sampler
from art_nb.training import policy as policy_module
from art_nb.training import precision, state
from art_nb.training.learner import Learner
from art_nb.training.policy import load_policy
from art_nb.training.sequences import TokenSequence, build_sequences
from art_nb.training.trainer import tokens_that_fit, trl_settings
from art_nb.types import TrainConfig

needs_unsloth = pytest.mark.skipif(importlib.util.find_spec("unsloth") is None, reason="Unsloth is not installed")
ENGINES = ["transformers", pytest.param("unsloth", marks=needs_unsloth)]
PEFT_ARGS = {"r": 4, "lora_alpha": 8}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return {family: make_checkpoint(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


def move_adapter(policy, std=0.1):
    generator = torch.Generator().manual_seed(1)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std, generator=generator)
    return policy


def logits_of_both(policy, length=23):
    """Return the logits of the PEFT model and of the sampling model, which needs an explicit mask and positions."""
    ids = torch.randint(3, 250, (2, length), generator=torch.Generator().manual_seed(2))
    causal = torch.ones(length, length, dtype=torch.bool).tril().expand(2, 1, -1, -1)
    positions = torch.arange(length).expand(2, -1)
    with torch.no_grad():
        mine = policy.model.eval()(input_ids=ids, use_cache=False).logits
        theirs = policy.sampling_model()(
            input_ids=ids, attention_mask=causal, position_ids=positions, use_cache=False
        ).logits
    return mine, theirs


def assert_close(mine, theirs):
    assert mine.std() > 0.5  # a difference would show
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def random_sequences(seed=0, count=6):
    draw = random.Random(seed)
    sequences = []
    for _ in range(count):
        sequence = TokenSequence()
        for _ in range(draw.randrange(1, 4)):
            sequence.add([draw.randrange(3, 250) for _ in range(draw.randrange(2, 9))])
            sequence.add([draw.randrange(3, 250) for _ in range(3)], [-1.0] * 3, draw.gauss(0, 1))
        sequences.append(sequence)
    return sequences


def adapter_of(policy):
    return {n: p.detach().clone() for n, p in policy.model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_loads_samples_and_trains(checkpoints, family, engine):
    policy = load_policy(checkpoints[family], engine=engine, peft_args=PEFT_ARGS)
    assert policy.engine == engine and policy.model.config.model_type == family
    assert_close(*logits_of_both(policy))
    move_adapter(policy, std=0.05)
    assert_close(*logits_of_both(policy))
    groups = asyncio.run(sample(policy))
    sequences, _ = build_sequences(groups, policy.tokenizer, TrainConfig())
    before = adapter_of(policy)
    metrics = Learner(policy).learn(sequences, TrainConfig(learning_rate=1e-2))
    # The trainer sees what the sampler saw: on the first update the ratio is 1.
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-4) == metrics["ratio_max"]
    moved = [name for name, weight in adapter_of(policy).items() if not torch.equal(weight, before[name])]
    assert len(moved) == len(before) and metrics["grad_norm"] > 0
    assert_close(*logits_of_both(policy))


async def sample(policy):
    """Sample a group of conversations of two turns."""
    sampler = Sampler(policy.sampling_model(), policy.tokenizer, slots=8)

    async def converse(reward):
        trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "say"}], reward=reward)
        for _ in range(2):
            answer = await sampler.create(messages=trajectory.messages(), max_tokens=5)
            trajectory.messages_and_choices += [answer.choices[0], {"role": "user", "content": "more"}]
        return trajectory

    return [art.TrajectoryGroup(await asyncio.gather(*(converse(float(i)) for i in range(4))))]


@needs_unsloth
@pytest.mark.parametrize("family", FAMILIES)
def test_unsloth_and_transformers_train_the_same_adapter(checkpoints, family):
    adapters = []
    for engine in ("transformers", "unsloth"):
        policy = load_policy(checkpoints[family], engine=engine, peft_args=PEFT_ARGS, seed=3)
        learner = Learner(policy)
        start = adapter_of(policy)
        for step in range(2):
            learner.learn(random_sequences(step), TrainConfig(learning_rate=1e-2), seed=step)
        adapters.append(adapter_of(policy))
        assert any((weight - start[name]).abs().max() > 1e-3 for name, weight in adapters[-1].items())
    assert adapters[0].keys() == adapters[1].keys()
    for name, weight in adapters[0].items():
        torch.testing.assert_close(adapters[1][name], weight, atol=1e-6, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_loading_an_adapters_folder_continues_from_that_adapter(checkpoints, tmp_path, engine):
    policy = move_adapter(load_policy(checkpoints["qwen3"], engine=engine, peft_args=PEFT_ARGS))
    policy.model.save_pretrained(tmp_path)  # as a checkpoint of ours: without a tokenizer
    again = load_policy(tmp_path, engine=engine)
    assert again.tokenizer.chat_template == policy.tokenizer.chat_template
    assert torch.equal(logits_of_both(again)[0], logits_of_both(policy)[0])
    assert adapter_of(again).keys() == adapter_of(policy).keys()  # trainable
    assert_close(*logits_of_both(again))
    Learner(again).learn(random_sequences(), TrainConfig(learning_rate=1e-2))
    assert not torch.equal(logits_of_both(again)[0], logits_of_both(policy)[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_an_adapter_keeps_the_revision_of_its_base_model(checkpoints, tmp_path, engine):
    """Transformers ignores the revision of a folder. PEFT loads a saved adapter's base model in the stored revision."""
    load_policy(checkpoints["qwen3"], engine=engine, init_args={"revision": "v1"}).model.save_pretrained(tmp_path)
    assert PeftConfig.from_pretrained(tmp_path).revision == "v1"
    load_policy(tmp_path, engine=engine).model.save_pretrained(tmp_path / "again")
    assert PeftConfig.from_pretrained(tmp_path / "again").revision == "v1"


def test_untied_heads_and_adapters_on_experts_are_merged_too(tmp_path):
    untied = make_checkpoint(tmp_path / "untied", "qwen3", tied=False)
    assert_close(*logits_of_both(move_adapter(load_policy(untied, engine="transformers"), std=0.02)))
    experts = make_checkpoint(tmp_path / "experts", "deepseek_v3")
    targets = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    policy = load_policy(experts, engine="transformers", peft_args=PEFT_ARGS | targets)
    assert any("experts" in name for name in adapter_of(policy))
    assert_close(*logits_of_both(move_adapter(policy, std=0.02)))


@pytest.mark.parametrize("layer", ["embed_tokens", "lm_head"])
def test_an_adapter_of_tied_embeddings_is_refused(checkpoints, tmp_path, layer):
    """The sampler's model would have one weight for both, with the adapter's change in both or in neither."""
    peft_args = PEFT_ARGS | {"target_modules": ["q_proj", layer]}
    with pytest.raises(ValueError, match="changes the tied embedding and output head: expected other layers"):
        load_policy(checkpoints["qwen3"], engine="transformers", peft_args=peft_args)
    untied = load_policy(make_checkpoint(tmp_path, tied=False), engine="transformers", peft_args=peft_args)
    for name, parameter in untied.model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    base_logits = logits_of_both(load_policy(tmp_path, engine="transformers"))[0]
    assert_close(*logits_of_both(untied))
    assert not torch.allclose(logits_of_both(untied)[0], base_logits, atol=0.1)


def test_two_weights_are_counted_for_a_byte_of_4_bit_weights(checkpoints, monkeypatch):
    class Params4bit(torch.nn.Parameter):
        """As in bitsandbytes: two weights in a byte."""

    plain = load_policy(checkpoints["qwen3"], engine="transformers", peft_args=PEFT_ARGS)
    model = plain.model.unload()
    assert plain.parameters == model.num_parameters()
    packed = torch.zeros(model.model.layers[0].mlp.up_proj.weight.numel() // 2, 1, dtype=torch.uint8)
    model.model.layers[0].mlp.up_proj.weight = Params4bit(packed, requires_grad=False)
    monkeypatch.setattr(policy_module.AutoModelForCausalLM, "from_pretrained", lambda name, **options: model)
    found = load_policy(checkpoints["qwen3"], engine="transformers", peft_args={"r": 4, "target_modules": ["q_proj"]})
    assert found.parameters == plain.parameters


@pytest.mark.parametrize("written_by", ["adamw_torch", "adafactor", "rmsprop", "adagrad", "sgd"])
@pytest.mark.parametrize("loaded_by", ["adamw_torch", "adafactor", "rmsprop", "adagrad", "sgd"])
def test_moments_of_another_optimizer_are_dropped(checkpoints, tmp_path, written_by, loaded_by):
    policy = load_policy(checkpoints["qwen3"], engine="transformers", peft_args=PEFT_ARGS)
    options = {"sgd": {"optim_args": "momentum=0.9"}}
    learners = [Learner(policy, grpo={"optim": each, **options.get(each, {})}) for each in (written_by, loaded_by)]
    learners[0].learn(random_sequences(), TrainConfig(learning_rate=1e-3))
    state.save_policy_state(policy, learners[0].optimizer, tmp_path)
    state.load_policy_state(policy, learners[1].optimizer, tmp_path)
    found, written = (learner.optimizer.state_dict()["state"] for learner in reversed(learners))
    if written_by == loaded_by:
        assert found.keys() == written.keys() and len(written) > 0
        for index, values in written.items():
            assert values.keys() == found[index].keys()
            assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(found[index][name])) for name, value in values.items())
    else:
        assert not found
    learners[1].learn(random_sequences(1), TrainConfig(learning_rate=1e-3))


def test_default_target_modules_leave_out_a_head_of_any_name():
    from transformers import BioGptConfig, BioGptForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64}
    model = BioGptForCausalLM(BioGptConfig(**sizes))
    assert isinstance(model.output_projection, torch.nn.Linear)
    expected = ["fc1", "fc2", "k_proj", "out_proj", "q_proj", "v_proj"]
    assert policy_module.default_target_modules(model) == expected


def test_default_target_modules(checkpoints):
    def targets(family):
        return load_policy(checkpoints[family], engine="transformers").model.peft_config["default"].target_modules

    mlp = {"gate_proj", "up_proj", "down_proj"}
    for family in ("qwen2", "qwen3", "llama"):
        assert targets(family) == {"q_proj", "k_proj", "v_proj", "o_proj", *mlp}
    assert targets("deepseek_v3") == {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}


def test_weights_without_an_adapter_are_shared_and_merged_ones_are_copies(checkpoints):
    policy = load_policy(checkpoints["qwen3"], engine="transformers", peft_args=PEFT_ARGS | {"target_modules": ["q_proj"]})
    sampling, base = policy.sampling_model(), policy.model.get_base_model()
    theirs, mine = sampling.model.layers[0], base.model.layers[0]
    assert theirs.mlp.up_proj.weight.data_ptr() == mine.mlp.up_proj.weight.data_ptr()
    assert sampling.lm_head.weight.data_ptr() == base.model.embed_tokens.weight.data_ptr()
    before = theirs.self_attn.q_proj.weight.clone()
    move_adapter(policy)
    assert torch.equal(theirs.self_attn.q_proj.weight, before)
    assert not torch.equal(policy.sampling_model().model.layers[0].self_attn.q_proj.weight, before)
    assert torch.equal(mine.self_attn.q_proj.base_layer.weight, before)
    assert not any(parameter.requires_grad for parameter in sampling.parameters())


def test_a_rewritten_class_does_not_reach_the_sampler(checkpoints, monkeypatch):
    """Unsloth rewrites forward methods of transformers' classes on a GPU."""
    from transformers.models.qwen3 import modeling_qwen3

    policy = load_policy(checkpoints["qwen3"], engine="transformers")
    expected = logits_of_both(policy)[1]
    again = load_policy(checkpoints["qwen3"], engine="transformers")

    def rewritten(*_, **__):
        raise AssertionError("the sampler runs a method of the original class")

    for name in ("Qwen3ForCausalLM", "Qwen3Model", "Qwen3DecoderLayer", "Qwen3Attention", "Qwen3MLP"):
        monkeypatch.setattr(getattr(modeling_qwen3, name), "forward", rewritten)
    ids = torch.randint(3, 250, (2, 23), generator=torch.Generator().manual_seed(2))
    with pytest.raises(AssertionError):
        again.model(input_ids=ids)
    causal = torch.ones(23, 23, dtype=torch.bool).tril().expand(2, 1, -1, -1)
    found = again.sampling_model()(
        input_ids=ids, attention_mask=causal, position_ids=torch.arange(23).expand(2, -1), use_cache=False
    ).logits
    assert torch.equal(found, expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_loading_preserves_the_callers_random_state(checkpoints, engine):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first = adapter_of(load_policy(checkpoints["qwen3"], engine=engine, seed=1))
    assert torch.equal(torch.rand(1), expected)
    again = adapter_of(load_policy(checkpoints["qwen3"], engine=engine, seed=1))
    other = adapter_of(load_policy(checkpoints["qwen3"], engine=engine, peft_args={"random_state": 2}))
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert any(not torch.equal(weight, other[name]) for name, weight in first.items())


@pytest.mark.parametrize("engine", ENGINES)
def test_loading_prints_nothing_and_raises_no_warning(checkpoints, capfd, engine):
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for family in FAMILIES:
            load_policy(checkpoints[family], engine=engine)
    out, err = capfd.readouterr()
    assert out == "" and err == ""
    assert logging.is_progress_bar_enabled() == shown


def test_wrong_names_are_refused(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "missing", str(tmp_path / "empty"), "./missing", "~/missing", "a/b/c"):
        with pytest.raises(FileNotFoundError, match="expected a folder with config.json"):
            load_policy(missing)
    with pytest.raises(ValueError, match="engine is 'unslot'"):
        load_policy("x", engine="unslot")


def test_a_hub_name_is_passed_to_transformers(monkeypatch):
    requested = []

    def offline(name, **options):
        requested.append((name, options))
        raise OSError("no network")

    monkeypatch.setattr(policy_module.AutoTokenizer, "from_pretrained", offline)
    for name in ("gpt2", "Qwen/Qwen2.5-0.5B-Instruct"):
        with pytest.raises(OSError, match="no network") as failed:
            load_policy(name, engine="transformers")
        assert "interpreted as a name on the hub" in failed.value.__notes__[0]
    with pytest.raises(OSError, match="no network"):
        load_policy("gpt2", engine="transformers", init_args={"revision": "607a30d", "trust_remote_code": True})
    never = {"trust_remote_code": False}
    trusted = {"trust_remote_code": True, "revision": "607a30d"}
    assert requested == [("gpt2", never), ("Qwen/Qwen2.5-0.5B-Instruct", never), ("gpt2", trusted)]


def test_a_family_that_scales_its_logits_is_refused(checkpoints, monkeypatch):
    monkeypatch.setattr(policy_module, "SCALED_LOGITS", ("hidden_size",))  # like Gemma's final_logit_softcapping
    with pytest.raises(ValueError, match="type 'qwen3' are not supported: they set hidden_size"):
        load_policy(checkpoints["qwen3"], engine="transformers")


def test_a_family_with_other_layers_than_attention_is_refused(checkpoints, monkeypatch):
    monkeypatch.setattr(policy_module, "LAYER_TYPES", {"sliding_attention"})  # like a model with layers of "linear_attention"
    with pytest.raises(ValueError, match="type 'qwen3' are not supported: they have layers of type full_attention"):
        load_policy(checkpoints["qwen3"], engine="transformers")


@pytest.mark.parametrize(
    "options", [{"use_dora": True}, {"lora_bias": True}, {"modules_to_save": ["lm_head"]}], ids=str
)
def test_adapters_that_the_sampler_would_leave_out_are_refused(checkpoints, options):
    with pytest.raises(ValueError, match="would be trained, but only LoRA's matrices"):
        load_policy(checkpoints["qwen3"], engine="transformers", peft_args={"r": 4, **options})


class LoadRecorder:
    """Replaces the loading functions of the libraries and records their arguments: there is no GPU."""

    def __init__(self, checkpoint):
        self.arguments, self.plain = {}, policy_module.AutoModelForCausalLM.from_pretrained
        self.checkpoint = checkpoint

    def from_pretrained(self, name, **options):
        self.arguments |= options
        model = self.plain(self.checkpoint, dtype=torch.float32)
        model.gradient_checkpointing_enable = lambda **options: self.arguments.update(options)
        return model


def test_arguments_reach_transformers_and_peft(checkpoints, monkeypatch):
    recorder = LoadRecorder(checkpoints["qwen3"])
    monkeypatch.setattr(policy_module.AutoModelForCausalLM, "from_pretrained", recorder.from_pretrained)
    init_args = {
        "dtype": "bfloat16", "load_in_4bit": True, "use_gradient_checkpointing": True, "max_seq_length": 99,
        "attn_implementation": "eager",
    }  # fmt: skip
    peft_args = {"r": 3, "lora_alpha": 5, "lora_dropout": 0.25, "target_modules": ["q_proj"]}
    policy = load_policy(checkpoints["qwen3"], engine="transformers", init_args=init_args, peft_args=peft_args)
    quantization = recorder.arguments.pop("quantization_config")
    assert quantization.load_in_4bit and quantization.bnb_4bit_quant_type == "nf4"
    assert recorder.arguments == {
        "dtype": "bfloat16", "attn_implementation": "eager", "trust_remote_code": False,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }  # fmt: skip
    config = policy.model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (3, 5, 0.25)
    assert config.target_modules == {"q_proj"}


def test_arguments_reach_unsloth(checkpoints, monkeypatch):
    recorder, added = LoadRecorder(checkpoints["qwen3"]), {}

    class FastLanguageModel:
        @staticmethod
        def from_pretrained(name, **options):
            print("a banner")
            return recorder.from_pretrained(name, **options), make_tokenizer()

        @staticmethod
        def get_peft_model(model, **options):
            added.update(options)
            return get_peft_model(model, LoraConfig(r=options["r"], target_modules=options["target_modules"]))

    stub = SimpleNamespace(FastLanguageModel=FastLanguageModel)
    monkeypatch.setattr(policy_module, "_import_unsloth", lambda: stub)
    init_args = {"dtype": "bfloat16", "load_in_4bit": True, "max_seq_length": 99, "fast_inference": True}
    load_policy(checkpoints["qwen3"], engine="unsloth", init_args=init_args, peft_args={"r": 3}, seed=4)
    local = {"local_files_only": True, "use_exact_model_name": True}  # a folder: nothing is looked up in the network
    assert recorder.arguments == init_args | local | {"use_gradient_checkpointing": False, "trust_remote_code": False}  # no GPU
    targets = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert added == {
        "r": 3, "lora_alpha": 64, "lora_dropout": 0.0, "target_modules": targets, "random_state": 4,
        "use_gradient_checkpointing": False,
    }  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    recorder.arguments.clear()
    load_policy(checkpoints["qwen3"], engine="unsloth", peft_args={"use_gradient_checkpointing": True})
    assert recorder.arguments == {
        "dtype": None, "load_in_4bit": False, "use_gradient_checkpointing": "unsloth", "trust_remote_code": False, **local,
    }  # fmt: skip
    assert added["use_gradient_checkpointing"] is True
    named = {"revision": "a1b2", "load_in_4bit": True}
    recorder.arguments.clear()
    monkeypatch.setattr(policy_module, "_base_name", lambda name: "owner/model")
    load_policy(checkpoints["qwen3"], engine="unsloth", init_args=named)
    assert recorder.arguments["use_exact_model_name"] is True and "local_files_only" not in recorder.arguments


def test_auto_uses_unsloth_if_it_can_be_imported(checkpoints, monkeypatch):
    def broken():
        raise NotImplementedError("needs a GPU")

    monkeypatch.setattr(policy_module.importlib.util, "find_spec", lambda name: None)
    assert load_policy(checkpoints["qwen3"]).engine == "transformers"
    monkeypatch.setattr(policy_module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(policy_module, "_import_unsloth", broken)
    with pytest.warns(UserWarning, match=r"Unsloth failed to start \(NotImplementedError: needs a GPU\)"):
        assert load_policy(checkpoints["qwen3"]).engine == "transformers"


@pytest.mark.parametrize(
    ("given", "stored", "engine"),
    [({}, torch.float32, "transformers"), ({}, torch.bfloat16, "unsloth"), ({"dtype": "float16"}, torch.float32, "unsloth")],
)
def test_on_a_gpu_auto_keeps_weights_in_float32_as_they_are(given, stored, engine, monkeypatch):
    monkeypatch.setattr(policy_module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(policy_module, "_import_unsloth", lambda: None)
    monkeypatch.setattr(policy_module, "_stored_dtype", lambda name, init_args: stored)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert policy_module._best_engine("a model", given) == engine
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert policy_module._best_engine("a model", given) == "unsloth"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_only_half_precision_on_a_gpu_is_trained_under_autocast(device, dtype):
    found = trl_settings(SimpleNamespace(device=torch.device(device), model=SimpleNamespace(dtype=dtype)), "out")
    bf16, fp16 = (device == "cuda" and dtype == each for each in (torch.bfloat16, torch.float16))
    assert (found["bf16"], found["fp16"], found["use_cpu"]) == (bf16, fp16, device == "cpu")


def test_auto_reads_the_stored_dtype_without_running_code_of_the_model(checkpoints, monkeypatch):
    given = []
    monkeypatch.setattr(policy_module, "_best_engine", lambda name, init_args: given.append(dict(init_args)) or "transformers")
    load_policy(checkpoints["qwen3"])
    assert given == [{"trust_remote_code": False}]


def test_on_a_gpu_without_bfloat16_models_are_loaded_in_float16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert precision.dtype_on_gpu(torch.bfloat16) == torch.float16
    assert precision.dtype_on_gpu(torch.float32) == precision.dtype_on_gpu(None) == "auto"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert precision.dtype_on_gpu(torch.bfloat16) == "auto"


@pytest.mark.parametrize(("gib", "tokens"), [(14, 3584), (79, 16384)])
def test_micro_batches_are_smaller_on_a_smaller_gpu(gib, tokens, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=gib << 30))
    assert tokens_that_fit(torch.device("cuda")) == tokens and tokens_that_fit(torch.device("cpu")) == 1536


def test_an_adapter_is_read_to_the_device_of_its_policy(checkpoints, tmp_path, monkeypatch):
    policy = load_policy(checkpoints["qwen3"], engine="transformers")
    policy.model.save_pretrained(tmp_path, selected_adapters=["default"], save_embedding_layers=False)
    devices = []
    monkeypatch.setattr(state, "load_file", lambda path, device: devices.append(device) or load_file(path))
    monkeypatch.setattr(type(policy), "device", torch.device("cuda:0"))
    state.read_adapter(policy, tmp_path)
    assert devices == ["cuda:0"]


@pytest.mark.parametrize(("seconds", "faster"), [(0.25, True), (0.9, False), (2.0, False)])
def test_whether_bfloat16_is_faster_is_measured(monkeypatch, seconds, faster):
    """Simulate a CPU that takes one second for a product in float32, and the given time in bfloat16."""
    clock = [0.0]

    def linear(factor, _):
        clock[0] += seconds if factor.dtype == torch.bfloat16 else 1.0

    monkeypatch.setattr(precision.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert precision.multiplies_bfloat16_faster.__wrapped__() is faster
    for instructions in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, instructions, lambda: False)
    assert precision.multiplies_bfloat16_faster.__wrapped__() is False


@pytest.mark.parametrize(("stored", "fast", "expected"), [
    (torch.bfloat16, True, torch.bfloat16), (torch.bfloat16, False, torch.float32), (torch.float32, True, torch.float32),
    (torch.float16, True, torch.float32),
])  # fmt: skip
def test_on_a_cpu_bfloat16_only_if_stored_and_faster(tmp_path, monkeypatch, stored, fast, expected):
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(precision, "multiplies_bfloat16_faster", lambda: fast)
    folder = make_checkpoint(tmp_path, "llama")
    AutoModelForCausalLM.from_pretrained(folder, dtype=stored).save_pretrained(folder)
    model = load_policy(folder, engine="transformers").model
    assert {p.dtype for n, p in model.named_parameters() if "lora_" not in n} == {expected}
    assert {p.dtype for n, p in model.named_parameters() if "lora_" in n} == {torch.float32}
    explicit = load_policy(folder, engine="transformers", init_args={"dtype": torch.float32}).model
    assert explicit.dtype == torch.float32
