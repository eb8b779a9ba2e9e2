"""The policy: a base model with a LoRA adapter, loaded with Unsloth if it can be imported, else with transformers and PEFT.

Both engines give the same model (tests/training/test_policy.py compares them). `sampling_models` converts it for the
sampler.
"""

import functools
import gc
import importlib.util
import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

# Imported before Unsloth, which on a GPU replaces trl's trainers with rewritten ones (see trainer.py).
from trl import GRPOTrainer, SFTTrainer  # noqa: F401

from art_nb.inference.policies import MultiLoraModel, NamedPolicy
from art_nb.storage.checkpoints import holds_model
from art_nb.training import sampling_models
from art_nb.training.precision import dtype_on_cpu, dtype_on_gpu

SMALL_MODEL = 20_000_000  # base models with fewer parameters have defaults of their own
# Arguments of Unsloth's `from_pretrained` that transformers does not have.
UNSLOTH_ONLY = ("max_seq_length", "fast_inference", "gpu_memory_utilization", "max_lora_rank", "use_exact_model_name")
# Models whose configuration sets one of these change the logits after the output head. The learner and sampler do not.
SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier", "lm_head_multiplier")
LAYER_TYPES = {"full_attention", "sliding_attention"}  # supported by the sampler
ADAPTER_MATRIX = re.compile(r"\.lora_(embedding_)?[AB]\.default(\.weight)?$")  # weights that the sampler merges or adds


@dataclass
class Policy:
    """A trainable model with its tokenizer.

    model: PeftModel with one adapter, "default". engine: "unsloth" or "transformers". parameters: number in the base model.
    gradient_scaler: shared by the policy's float16 learners, so that a new one starts at its scale; None until the first.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    engine: str
    parameters: int
    gradient_scaler: Any = None

    @property
    def device(self) -> torch.device:
        return self.model.device

    @functools.cached_property
    def base(self) -> PreTrainedModel:
        """The base model as the sampler runs it. It shares its weights' storage with `model`, unless those are 4-bit."""
        return sampling_models.plain_base_model(self.model)

    @functools.cached_property
    def _multi_lora(self) -> MultiLoraModel | None:
        """`base` with the adapters of all policies side by side; None if each policy gets a merged copy."""
        return None if self.parameters < SMALL_MODEL else sampling_models.multi_lora_model(self.model, self.base)

    def sampling_model(self) -> PreTrainedModel:
        """Return a plain transformers model with the current adapter merged in."""
        return sampling_models.merged_model(self.model)

    def named(self, name: str, seed: object, adapter: dict[str, torch.Tensor] | None) -> NamedPolicy:
        """Return a policy to sample from: the base model with `adapter` (see `merged_model`), or without one."""
        if self._multi_lora is None:
            model = self.base if adapter is None else sampling_models.merged_model(self.model, adapter)
            return NamedPolicy(name, seed, model)
        unmerged = sampling_models.unmerged_adapter(self.model, self.base, adapter) if adapter else {}
        return NamedPolicy(name, seed, self._multi_lora, unmerged)


def load_policy(
    base_model: str | os.PathLike,
    *,
    engine: str = "auto",
    init_args: dict | None = None,
    peft_args: dict | None = None,
    seed: int = 0,
) -> Policy:
    """Load a base model and add a LoRA adapter to it, or load an adapter with its base model.

    The first call also excludes all existing objects from garbage collection, see `gc.freeze`.

    base_model: the folder of a model or of an adapter, or a name on the Hugging Face hub.
    engine: "unsloth", "transformers", or "auto": Unsloth if it can be imported, but on a GPU not for weights that are stored
        in float32, which it would convert to half precision.
    init_args: passed to `from_pretrained` (load_in_4bit, max_seq_length, dtype, use_gradient_checkpointing, revision, ...).
        Code that comes with a model is run only with trust_remote_code=True. Default dtype with transformers: see
        `dtype_on_gpu` and `dtype_on_cpu`; with Unsloth: its own choice on a GPU, float32 on a CPU.
    peft_args: passed to LoraConfig (r, lora_alpha, target_modules, ...), with defaults by model size. Ignored for adapters.
    seed: of the adapter's random initialisation.

    Raises: FileNotFoundError: a path that does not exist. ValueError: an unknown engine, an unsupported model family or kind
        of adapter. Some unsupported families raise it only at the first request.
    """
    _freeze_objects()
    name = _model_name(base_model)
    _model_name(_base_name(name))  # the base model of an adapter, whose missing folder PEFT would look for on the hub
    if engine not in ("auto", "unsloth", "transformers"):
        raise ValueError(f"engine is {engine!r}: expected 'auto', 'unsloth' or 'transformers'")
    is_local, init_args = Path(name).exists(), {"trust_remote_code": False, **(init_args or {})}
    try:
        engine = _best_engine(name, init_args) if engine == "auto" else engine
        load = _load_with_unsloth if engine == "unsloth" else _load_with_transformers
        with progress_bars(not is_local), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            model, tokenizer = load(name, init_args, dict(peft_args or {}), seed)
        if "revision" in init_args and not is_adapter(name):  # of the base model that PEFT loads with a saved adapter
            model.peft_config["default"].revision = init_args["revision"]
    except OSError as error:
        if not is_local:
            error.add_note(f"{name!r} was interpreted as a name on the hub, because {Path.cwd()} contains no such folder.")
        raise
    config = model.config.get_text_config()
    if scaled := [name for name in SCALED_LOGITS if getattr(config, name, None) not in (None, 1.0)]:
        raise ValueError(f"models of type {config.model_type!r} are not supported: they set {scaled[0]} for their logits")
    if kinds := set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES:
        raise ValueError(f"models of type {config.model_type!r} are not supported: they have layers of type {min(kinds)}")
    if not model.get_base_model()._supports_attention_backend:
        raise ValueError(f"models of type {config.model_type!r} are not supported: they bypass the attention interface")
    if others := [n for n, p in model.named_parameters() if p.requires_grad and not ADAPTER_MATRIX.search(n)]:
        raise ValueError(
            f"{min(others)} would be trained, but only LoRA's matrices A and B can be: leave out use_dora, lora_bias, bias, "
            "modules_to_save and trainable_token_indices in peft_args"
        )
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    if ends[0].weight is ends[1].weight and any(hasattr(end, "base_layer") for end in ends):
        raise ValueError("the adapter changes the tied embedding and output head: expected other layers in target_modules")
    if any(getattr(module, "lora_variant", None) for module in model.modules()):
        raise ValueError("the adapter is a variant of LoRA, which the sampler does not compute: use plain LoRA")
    trained, every = model.get_nb_trainable_parameters()  # counts two for each byte of 4-bit weights
    return Policy(model, tokenizer, engine, every - trained)


@functools.cache
def _freeze_objects() -> None:
    """Exclude existing objects from garbage collection: scanning half a million of them takes as long as a turn."""
    gc.collect()
    gc.freeze()


def default_learning_rate(parameters: int) -> float:
    """Return a learning rate by model size (Adam on LoRA weights): measured on the nano model, usual values above."""
    if parameters < SMALL_MODEL:
        return 1e-3
    return 1e-5 if parameters < 3_000_000_000 else 5e-6


def default_target_modules(model: PreTrainedModel) -> list[str]:
    """Return the names of the linear layers that get an adapter: all but the output head.

    In a mixture of experts only those of the attention: adapters on hundreds of experts would cost more than they help.
    """
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m != model.get_output_embeddings()]
    if any(".experts." in name for name, _ in model.named_parameters()):
        linear = [name for name in linear if ".self_attn." in name]
    return sorted({name.rsplit(".", 1)[-1] for name in linear})


def _model_name(base_model: str | os.PathLike) -> str:
    """Return a name on the hub, or the path of an existing model or adapter. Raises: FileNotFoundError."""
    name = os.fspath(base_model)
    is_a_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or isinstance(base_model, Path)
    if not is_a_path and not Path(name).exists():
        return name
    folder = Path(name).expanduser()
    if not holds_model(folder):
        raise FileNotFoundError(
            f"no model at {name!r}, seen from {Path.cwd()}: expected a folder with config.json (a checkpoint) or "
            "adapter_config.json (an adapter), or the name of a model on the Hugging Face hub"
        )
    return str(folder)


def _best_engine(name: str, init_args: dict) -> str:
    if importlib.util.find_spec("unsloth") is None:
        return "transformers"
    as_stored = not init_args.get("load_in_4bit") and init_args.get("dtype") is None
    if torch.cuda.is_available() and as_stored and _stored_dtype(name, init_args) == torch.float32:
        return "transformers"
    try:
        _import_unsloth()
    except Exception as error:  # Unsloth's own checks raise errors of many types; the other engine does the same work
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(f"Unsloth failed to start ({reason}); using transformers + PEFT", stacklevel=3)
        return "transformers"
    return "unsloth"


def _load_with_transformers(name: str, init_args: dict, peft_args: dict, seed: int):
    from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model

    on_gpu = torch.cuda.is_available()
    tokenizer = _load_tokenizer(name, **_source(init_args))
    if init_args.get("dtype") is None:
        init_args["dtype"] = (dtype_on_gpu if on_gpu else dtype_on_cpu)(_stored_dtype(name, init_args))
    if on_gpu:
        init_args.setdefault("device_map", {"": torch.cuda.current_device()})
    checkpointing = init_args.pop("use_gradient_checkpointing", False)
    for key in UNSLOTH_ONLY:
        init_args.pop(key, None)
    if init_args.pop("load_in_4bit", False):
        from transformers import BitsAndBytesConfig

        init_args["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    if is_adapter(name):
        folder = Path(name).absolute()  # as a relative path the hub would be asked for its tokenizer
        model = AutoPeftModelForCausalLM.from_pretrained(folder, is_trainable=True, **init_args)
    else:
        model = AutoModelForCausalLM.from_pretrained(name, **init_args)
        settings, seed, requested = _lora_settings(model, peft_args, seed)
        checkpointing = checkpointing or requested
        torch.manual_seed(seed)
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, tokenizer


def _load_with_unsloth(name: str, init_args: dict, peft_args: dict, seed: int):
    unsloth = _import_unsloth()
    on_gpu = torch.cuda.is_available()
    if init_args.get("dtype") is None:
        init_args["dtype"] = None if on_gpu else torch.float32
    init_args.setdefault("load_in_4bit", False)
    init_args.setdefault("use_gradient_checkpointing", "unsloth" if on_gpu else False)
    if Path(_base_name(name)).is_dir():  # else Unsloth would ask GitHub and the hub for a folder like data/nano
        init_args = {"local_files_only": True, "use_exact_model_name": True} | init_args
    elif "revision" in init_args:
        init_args.setdefault("use_exact_model_name", True)  # else Unsloth may load a mirror and ignore the revision
    with redirect_stdout(StringIO()):  # Unsloth prints a banner
        model, tokenizer = unsloth.FastLanguageModel.from_pretrained(name, **init_args)
    if is_adapter(name):
        return model, _load_tokenizer(name, **_source(init_args))
    settings, seed, requested = _lora_settings(model, peft_args, seed)
    checkpointing = requested or init_args["use_gradient_checkpointing"]
    model = unsloth.FastLanguageModel.get_peft_model(
        model, random_state=seed, use_gradient_checkpointing=checkpointing, **settings
    )
    return model, tokenizer


def _lora_settings(model: PreTrainedModel, peft_args: dict, seed: int) -> tuple[dict, int, bool | str]:
    """Return LoraConfig's fields, and Unsloth's two further arguments: random state and gradient checkpointing."""
    rank = 32 if model.num_parameters() < SMALL_MODEL else 16  # 32: a quarter of the nano models' width
    defaults = {"r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0, "target_modules": default_target_modules(model)}
    settings = defaults | peft_args
    return settings, settings.pop("random_state", seed), settings.pop("use_gradient_checkpointing", False)


def is_adapter(name: str | Path) -> bool:
    """Whether this is the folder of an adapter."""
    return (Path(name) / "adapter_config.json").exists()


def _load_tokenizer(name: str, **source: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; if an adapter's folder has none, that of its base model."""
    folder = name if (Path(name) / "tokenizer_config.json").exists() else _base_name(name)
    return AutoTokenizer.from_pretrained(folder, **{"trust_remote_code": False, **source})


def _source(init_args: dict) -> dict[str, Any]:
    return {key: init_args[key] for key in ("trust_remote_code", "revision") if key in init_args}


def _stored_dtype(name: str, init_args: dict) -> torch.dtype | None:
    return AutoConfig.from_pretrained(_base_name(name), **_source(init_args)).dtype


def _base_name(name: str) -> str:
    """Return the base model of an adapter's folder, or `name` itself if it is a model."""
    if not is_adapter(name):
        return name
    return json.loads((Path(name) / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]


def _import_unsloth():
    """Import Unsloth without its statistics download, and with its compiled files outside the working folder."""
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(Path.home() / ".cache" / "art_nb" / "unsloth"))
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        # Unsloth wants to be imported before transformers; on a CPU the order makes no difference.
        warnings.filterwarnings("ignore", message=".*should be imported before")
        import unsloth
    return unsloth


@contextmanager
def progress_bars(shown: bool) -> Iterator[None]:
    """Hide transformers' progress bars inside the `with` block, unless `shown`."""
    enabled = logging.is_progress_bar_enabled()
    if not shown:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if not shown and enabled:
            logging.enable_progress_bar()
