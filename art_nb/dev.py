"""`art.dev`: typed dictionaries for `TrainableModel(_internal_config=...)`, under ART's names.

`init_args` and `peft_args` are passed to the model's loader (without Unsloth, Unsloth-only `init_args` are dropped),
`trainer_args` to every GRPO step; `engine_args`, for ART's inference server, has no effect.
"""

from typing import Any, TypedDict


class InitArgs(TypedDict, total=False):
    max_seq_length: int
    load_in_4bit: bool
    dtype: str | None


class PeftArgs(TypedDict, total=False):
    r: int
    lora_alpha: int
    lora_dropout: float
    target_modules: list[str]
    random_state: int


class InternalModelConfig(TypedDict, total=False):
    """init_args: for loading the base model; peft_args: for its LoRA adapter; trainer_args: fields of `trl.GRPOConfig`."""

    init_args: InitArgs
    peft_args: PeftArgs
    trainer_args: dict[str, Any]
    engine_args: dict[str, Any]


# ART's names for open-ended dictionaries. `art_nb.types.TrainConfig.with_art_options` reads the options in `TrainConfig`.
# `TrainSFTConfig` and those for ART's inference server (`EngineArgs`, `OpenAIServerConfig`, `ServerArgs`) have no effect.
EngineArgs = dict
TrainerArgs = dict
TrainConfig = dict
TrainSFTConfig = dict
OpenAIServerConfig = dict
ServerArgs = dict
