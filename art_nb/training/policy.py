"""The policy: a base model with a LoRA adapter, loaded through Unsloth where it imports, else transformers + PEFT.

Both ways give the same model (tests/test_policy.py trains both and compares). What the sampler runs in its place is in
`merge`: small models with their adapters merged, a copy for each policy, large ones with adapters riding on one copy.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path

# Read when transformers is first imported: nothing here needs a network at run time.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase  # noqa: E402
from transformers.utils import logging  # noqa: E402

# Taken before Unsloth can be imported: on a GPU it rebinds trl's trainers to rewritten ones (see trainer.py).
from trl import GRPOTrainer, SFTTrainer  # noqa: E402, F401

from art_nb.inference.policies import AdaptedModel, NamedPolicy  # noqa: E402
from art_nb.training import merge  # noqa: E402
from art_nb.training.precision import dtype_on_cpu  # noqa: E402

# These imports made half a million objects that stay. The garbage collector looked at all of them every few turns of a
# long rollout, which took as long as a turn; what is frozen it leaves alone.
gc.collect()
gc.freeze()

SMALL = 20_000_000  # parameters of the base model
# What only Unsloth's `from_pretrained` knows; plain transformers does without.
UNSLOTH_ONLY = ("max_seq_length", "fast_inference", "gpu_memory_utilization", "max_lora_rank")
# Configurations with one of these change the logits behind the output head, which neither learner nor sampler does.
SCALED_LOGITS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "output_multiplier",
    "lm_head_multiplier",
)


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

    @property
    def device(self) -> torch.device:
        return self.model.device

    @cached_property
    def base(self) -> PreTrainedModel:
        """The base model as the sampler runs it. It shares the storage of its weights with `model`."""
        return merge.plain_base(self.model)

    @cached_property
    def _shared(self) -> AdaptedModel | None:
        """What adapters ride on; None where each policy has a merged copy."""
        return None if self.parameters < SMALL else merge.side_by_side(self.model, self.base)

    def sampling_model(self) -> PreTrainedModel:
        """A plain transformers model that computes what the policy computes now, with the adapter merged."""
        return merge.merged(self.model)

    def named(self, name: str, seed: object, adapter: dict[str, torch.Tensor] | None) -> NamedPolicy:
        """The base model with `adapter` (see `merge.merged`), or without one, as a policy to sample from."""
        if self._shared is None:
            model = self.base if adapter is None else merge.merged(self.model, adapter)
            return NamedPolicy(name, seed, model)
        return NamedPolicy(name, seed, self._shared, merge.riding(self.model, self.base, adapter) if adapter else {})


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
        init_args: passed to `from_pretrained` (load_in_4bit, max_seq_length, dtype, use_gradient_checkpointing, ...).
            Without a dtype a model is loaded as it is stored; on a processor in float32, or by transformers in bfloat16
            where it is stored in that and the processor multiplies that clearly faster.
        peft_args: passed to LoraConfig (r, lora_alpha, target_modules, ...). The defaults depend on the model's size.
            An adapter's folder brings its own.
        seed: of the adapter's random start.

    Raises:
        FileNotFoundError: a path that does not exist. ValueError: an unknown engine, or a family that is not supported.
    """
    name = _checked_name(base_model)
    if engine not in ("auto", "unsloth", "transformers"):
        raise ValueError(f"engine is {engine!r}: expected 'auto', 'unsloth' or 'transformers'")
    engine = _best_engine() if engine == "auto" else engine
    load = _load_with_unsloth if engine == "unsloth" else _load_with_transformers
    is_local = Path(name).exists()
    try:
        with quiet(is_local), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            model, tokenizer = load(name, dict(init_args or {}), dict(peft_args or {}), seed)
    except OSError as error:
        if not is_local:
            error.add_note(f"{name!r} was taken for a name on the hub, because {Path.cwd()} holds no such folder.")
        raise
    config = model.config.get_text_config()
    if scaled := [name for name in SCALED_LOGITS if getattr(config, name, None) not in (None, 1.0)]:
        raise ValueError(f"models of type {config.model_type!r} are not supported: they set {scaled[0]} for their logits")
    parameters = sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n)
    return Policy(model, tokenizer, engine, parameters)


def default_peft_args(parameters: int) -> dict:
    """LoRA settings by model size: a tiny model needs its adapter to be nearly as wide as itself."""
    rank = 32 if parameters < SMALL else 16
    return {"r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0}


def default_learning_rate(parameters: int) -> float:
    """Learning rate by model size (Adam on LoRA weights): measured on the nano model, usual values above it."""
    if parameters < SMALL:
        return 1e-3
    return 1e-5 if parameters < 3_000_000_000 else 5e-6


def linear_names(model: torch.nn.Module) -> list[str]:
    """The names of the linear layers that take an adapter: all but the output head.

    In a mixture of experts only those of the attention: adapters on each of hundreds of experts would cost more than
    they teach.
    """
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    if any(".experts." in name for name, _ in model.named_parameters()):
        linear = [name for name in linear if ".self_attn." in name]
    return sorted({name.rsplit(".", 1)[-1] for name in linear} - {"lm_head"})


def _checked_name(base_model: str | os.PathLike) -> str:
    name = os.fspath(base_model)
    is_a_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or isinstance(base_model, Path)
    if not is_a_path and not Path(name).exists():
        return name
    folder = Path(name).expanduser()
    if not (folder / "config.json").exists() and not (folder / "adapter_config.json").exists():
        raise FileNotFoundError(
            f"no model at {name!r}: expected a folder with config.json (a checkpoint) or adapter_config.json "
            "(an adapter), or the name of a model on the Hugging Face hub"
        )
    return str(folder)


def _best_engine() -> str:
    if importlib.util.find_spec("unsloth") is None:
        return "transformers"
    try:
        _import_unsloth()
    except Exception as error:  # whatever its own checks raise, the other engine does the same work
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(f"Unsloth does not start here ({reason}); using transformers + PEFT", stacklevel=3)
        return "transformers"
    return "unsloth"


def _load_with_transformers(name: str, init_args: dict, peft_args: dict, seed: int):
    from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model

    on_gpu = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(_tokenizer_name(name))
    if init_args.get("dtype") is None:
        init_args["dtype"] = "auto" if on_gpu else dtype_on_cpu(AutoConfig.from_pretrained(_base_name(name)).dtype)
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
        model = AutoPeftModelForCausalLM.from_pretrained(name, is_trainable=True, **init_args)
    else:
        model = AutoModelForCausalLM.from_pretrained(name, **init_args)
        settings, seed, asked = _lora_settings(model, peft_args, seed)
        checkpointing = checkpointing or asked
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
    with redirect_stdout(StringIO()):  # its banner
        model, tokenizer = unsloth.FastLanguageModel.from_pretrained(name, **init_args)
    if is_adapter(name):
        return model, AutoTokenizer.from_pretrained(_tokenizer_name(name))
    settings, seed, asked = _lora_settings(model, peft_args, seed)
    checkpointing = asked or init_args["use_gradient_checkpointing"]
    model = unsloth.FastLanguageModel.get_peft_model(
        model, random_state=seed, use_gradient_checkpointing=checkpointing, **settings
    )
    return model, tokenizer


def _lora_settings(model: PreTrainedModel, peft_args: dict, seed: int) -> tuple[dict, int, bool | str]:
    """LoraConfig's fields, and the two that Unsloth has besides: the random state and gradient checkpointing."""
    settings = default_peft_args(model.num_parameters()) | {"target_modules": linear_names(model)} | peft_args
    return settings, settings.pop("random_state", seed), settings.pop("use_gradient_checkpointing", False)


def is_adapter(name: str | Path) -> bool:
    return (Path(name) / "adapter_config.json").exists()


def _tokenizer_name(name: str) -> str:
    """An adapter's folder often holds no tokenizer: then it is the base model's."""
    return name if (Path(name) / "tokenizer_config.json").exists() else _base_name(name)


def _base_name(name: str) -> str:
    """Of an adapter's folder the model that it belongs to."""
    if not is_adapter(name):
        return name
    return json.loads((Path(name) / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]


def _import_unsloth():
    """Import Unsloth without its statistics download, and with its compiled files out of the working folder."""
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(Path.home() / ".cache" / "art_nb" / "unsloth"))
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        # It asks to be imported before transformers; on the CPU nothing differs between the two orders.
        warnings.filterwarnings("ignore", message=".*should be imported before")
        import unsloth
    return unsloth


@contextmanager
def quiet(is_local: bool = True) -> Iterator[None]:
    """Reading a folder takes no progress bar; a download keeps its bars."""
    shown = logging.is_progress_bar_enabled()
    if is_local:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if is_local and shown:
            logging.enable_progress_bar()
