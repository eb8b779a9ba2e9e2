"""The policy: a base model with a LoRA adapter, loaded through Unsloth where it imports, else transformers + PEFT.

Both ways give the same model (tests/test_policy.py trains both and compares). The module also makes the sampler's
view of the policy: a plain transformers model whose weights are the base's with the adapter merged in.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

# Taken before Unsloth can be imported: on a GPU it rebinds trl's trainer to a rewritten one (see learner.py).
from trl import GRPOTrainer  # noqa: F401

from art_nb.kv_cache import ATTENTION


@dataclass
class Policy:
    """A trainable model and what is needed to use it.

    model: peft.PeftModel with one adapter, "default"; tokenizer: its tokenizer; engine: "unsloth" or "transformers";
    parameters: size of the base model, in parameters.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    engine: str
    parameters: int
    _sampling: PreTrainedModel | None = field(default=None, repr=False)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def sampling_model(self) -> PreTrainedModel:
        """A plain transformers model that computes what the policy computes, with the adapter merged.

        Parameters without an adapter share their storage with the policy's; merged ones are copies, refreshed here.
        """
        base = self.model.get_base_model()
        if self._sampling is None:
            self._sampling = _plain_twin(base)
        layers = dict(base.named_modules())
        with torch.no_grad():
            for name, parameter in self._sampling.named_parameters():
                path, _, leaf = name.rpartition(".")
                layer = layers[path]
                if leaf == "weight" and hasattr(layer, "lora_A"):
                    parameter.copy_(_merged_weight(layer))
                else:
                    original = getattr(getattr(layer, "base_layer", layer), leaf)
                    parameter.data = original.data
        return self._sampling


def load_policy(
    base_model: str | os.PathLike,
    *,
    engine: str = "auto",
    init_args: dict | None = None,
    peft_args: dict | None = None,
    seed: int = 0,
) -> Policy:
    """Load `base_model` (a checkpoint folder, an adapter's folder or a hub name) and put a LoRA adapter on it.

    Args:
        engine: "unsloth", "transformers", or "auto" (Unsloth where it imports).
        init_args: passed to `from_pretrained` (for Unsloth: load_in_4bit, max_seq_length, dtype, fast_inference, ...).
        peft_args: passed to LoraConfig (r, lora_alpha, target_modules, ...). The defaults depend on the model's size.
        seed: of the adapter's random start.

    Raises:
        FileNotFoundError: a path that does not exist. ValueError: an unknown engine.
    """
    name = _checked_name(base_model)
    if engine not in ("auto", "unsloth", "transformers"):
        raise ValueError(f"engine is {engine!r}: expected 'auto', 'unsloth' or 'transformers'")
    if engine == "auto":
        engine = "unsloth" if importlib.util.find_spec("unsloth") else "transformers"
    load = _load_with_unsloth if engine == "unsloth" else _load_with_transformers
    model, tokenizer = load(name, dict(init_args or {}), dict(peft_args or {}), seed)
    parameters = sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n)
    return Policy(model, tokenizer, engine, parameters)


def default_peft_args(parameters: int) -> dict:
    """LoRA settings by model size: a tiny model needs its adapter to be nearly as wide as itself."""
    rank = 32 if parameters < 20_000_000 else 16
    return {"r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0}


def default_learning_rate(parameters: int) -> float:
    """Learning rate by model size (Adam on LoRA weights): measured on the nano model, usual values above it."""
    if parameters < 20_000_000:
        return 1e-3
    return 1e-5 if parameters < 3_000_000_000 else 5e-6


def linear_names(model: torch.nn.Module) -> list[str]:
    """The names of the linear layers that take an adapter: all but the output head. Works for every family."""
    names = {name.rsplit(".", 1)[-1] for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    return sorted(names - {"lm_head"})


def _checked_name(base_model: str | os.PathLike) -> str:
    name = os.fspath(base_model)
    looks_like_a_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or isinstance(base_model, Path)
    if not looks_like_a_path and not Path(name).exists():
        return name
    folder = Path(name).expanduser()
    if not (folder / "config.json").exists() and not (folder / "adapter_config.json").exists():
        raise FileNotFoundError(
            f"no model at {name!r}: expected a folder with config.json (a checkpoint) or adapter_config.json "
            "(an adapter), or the name of a model on the Hugging Face hub"
        )
    return str(folder)


def _load_with_transformers(name: str, init_args: dict, peft_args: dict, seed: int):
    from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model

    init_args.setdefault("dtype", torch.float32 if not torch.cuda.is_available() else "auto")
    if torch.cuda.is_available():
        init_args.setdefault("device_map", {"": torch.cuda.current_device()})
    for only_unsloth in ("max_seq_length", "use_gradient_checkpointing", "fast_inference"):
        init_args.pop(only_unsloth, None)
    if init_args.pop("load_in_4bit", False):
        from transformers import BitsAndBytesConfig

        init_args["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    tokenizer = AutoTokenizer.from_pretrained(name)
    if (Path(name) / "adapter_config.json").exists():
        return AutoPeftModelForCausalLM.from_pretrained(name, is_trainable=True, **init_args), tokenizer
    model = AutoModelForCausalLM.from_pretrained(name, **init_args)
    settings = default_peft_args(model.num_parameters()) | {"target_modules": linear_names(model)} | peft_args
    torch.manual_seed(seed)
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)), tokenizer


def _load_with_unsloth(name: str, init_args: dict, peft_args: dict, seed: int):
    unsloth = _import_unsloth()
    on_gpu = torch.cuda.is_available()
    init_args.setdefault("dtype", None if on_gpu else torch.float32)
    init_args.setdefault("load_in_4bit", False)
    init_args.setdefault("use_gradient_checkpointing", "unsloth" if on_gpu else False)
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(name, **init_args)
    if (Path(name) / "adapter_config.json").exists():
        return model, tokenizer
    settings = default_peft_args(model.num_parameters()) | {"target_modules": linear_names(model)} | peft_args
    settings.setdefault("use_gradient_checkpointing", init_args["use_gradient_checkpointing"])
    model = unsloth.FastLanguageModel.get_peft_model(model, random_state=seed, **settings)
    return model, tokenizer


def _import_unsloth():
    """Import Unsloth without its statistics download, and with its compiled files out of the working folder."""
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(Path.home() / ".cache" / "art_nb" / "unsloth"))
    import warnings
    from contextlib import redirect_stdout
    from io import StringIO

    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        # It asks to be imported before transformers; on the CPU nothing differs between the two orders.
        warnings.filterwarnings("ignore", message=".*should be imported before")
        import unsloth
    return unsloth


def _plain_twin(base: PreTrainedModel) -> PreTrainedModel:
    """A model of the same class and configuration, from a fresh import of its module.

    Unsloth rewrites methods of transformers' classes on a GPU; the fresh import keeps the sampler's forward the
    published one, with its cache interface.
    """
    config = copy.deepcopy(base.config)
    module_name = type(base).__module__
    fresh_name = f"{module_name}_art_nb"
    if fresh_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(fresh_name, sys.modules[module_name].__file__)
        sys.modules[fresh_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[fresh_name])
    twin_class = getattr(sys.modules[fresh_name], type(base).__name__)
    config._attn_implementation = ATTENTION
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    dtype = next(p.dtype for p in base.parameters() if p.is_floating_point())
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(base.device):
            twin = twin_class(config)
    finally:
        torch.set_default_dtype(before)
    twin.generation_config = copy.deepcopy(base.generation_config)
    return twin.requires_grad_(False).eval()


def _merged_weight(layer) -> torch.Tensor:
    """The base weight (dequantised where it is 4-bit) plus the adapter's product, in the shape of the base weight."""
    from peft.utils.integrations import dequantize_module_weight

    weight = dequantize_module_weight(layer.base_layer)
    for adapter in layer.active_adapters:
        weight = weight + layer.get_delta_weight(adapter).to(weight.dtype)
    return weight
