"""`art.dev`: the typed dictionaries that ART's examples fill in for `TrainableModel(_internal_config=...)`.

Only the keys named here are read; `engine_args`, for ART's inference server, is accepted without effect.
"""

from typing import Any, TypedDict


class InitArgs(TypedDict, total=False):
    """How the base model is loaded."""

    max_seq_length: int
    load_in_4bit: bool
    dtype: str | None


class PeftArgs(TypedDict, total=False):
    """How its LoRA adapter is made."""

    r: int
    lora_alpha: int
    lora_dropout: float
    target_modules: list[str]
    random_state: int


class InternalModelConfig(TypedDict, total=False):
    """`trainer_args` takes any field of `trl.GRPOConfig`."""

    init_args: InitArgs
    peft_args: PeftArgs
    trainer_args: dict[str, Any]
    engine_args: dict[str, Any]


# Open-ended parts under ART's names. Of `TrainConfig` is read what `TrainConfig.with_art_options` knows; what is meant for
# ART's inference server (`EngineArgs`, `OpenAIServerConfig`, `ServerArgs`) is accepted without effect.
EngineArgs = dict
TrainerArgs = dict
TrainConfig = dict
TrainSFTConfig = dict
OpenAIServerConfig = dict
ServerArgs = dict
