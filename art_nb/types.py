"""The shapes of messages, and what a training call takes (`TrainConfig`) and gives (`TrainResult`)."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pydantic
from openai.types.chat.chat_completion import Choice as Choice
from openai.types.chat.chat_completion_message_param import ChatCompletionMessageParam
from openai.types.chat.chat_completion_tool_param import ChatCompletionToolParam

# Messages are taken as they are: pydantic would turn their lazily typed parts into one-shot iterators.
Message = Annotated[ChatCompletionMessageParam, pydantic.SkipValidation]
MessageOrChoice = Message | Choice
Messages = list[Message]
MessagesAndChoices = list[MessageOrChoice]
Tools = list[Annotated[ChatCompletionToolParam, pydantic.SkipValidation]]

# Options of ART's own trainer that TRL's GRPOConfig has under the same name.
_SHARED_WITH_TRL = ("epsilon", "epsilon_high", "importance_sampling_level")


class TrainConfig(pydantic.BaseModel):
    """What one call of `model.train` may choose. The first three fields are ART's, with ART's defaults.

    learning_rate: of the optimizer. The default suits LoRA on billions of parameters. When it is not given
        (it is then not in `model_fields_set`), the backend takes the one measured for the policy's size.
    kl_penalty_coef: weight of the KL divergence from the base model (TRL's `beta`); 0 leaves the term out.
    grad_accumulation_sequences: sequences that go through the model at a time; None lets the backend choose.
    scale_rewards: divide advantages by the standard deviation of rewards in the group, the batch, or not.
    turn_discount: how much a later turn's reward counts for an earlier turn, per turn in between; in [0, 1].
        Used only for trajectories that carry `turn_rewards`.
    num_updates: optimizer passes over the batch; from the second on, the clip range matters.
    other_policies: train also on what other models sampled (the base model, say). Left alone, their trajectories are
        left out before advantages are computed, and their answers inside of others are read, not learnt. What an
        earlier step of the model sampled is always trained on, with its ratio to the policy that sampled it.
    grpo: any further fields of `trl.GRPOConfig`, e.g. `{"loss_type": "dr_grpo", "epsilon": 0.1}`.

    Raises: pydantic.ValidationError naming the field, what was given and what is allowed.
    """

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

    learning_rate: float = pydantic.Field(default=5e-6, gt=0)
    kl_penalty_coef: float = pydantic.Field(default=0.0, ge=0)
    grad_accumulation_sequences: int | None = pydantic.Field(default=None, ge=1)
    scale_rewards: Literal["group", "batch", "none"] = "group"
    turn_discount: float = pydantic.Field(default=0.95, ge=0, le=1)
    num_updates: int = pydantic.Field(default=1, ge=1)
    other_policies: bool = False
    grpo: dict[str, Any] = {}

    @pydantic.model_validator(mode="before")
    @classmethod
    def _point_to_grpo(cls, given: Any) -> Any:
        unknown = sorted(set(given) - set(cls.model_fields)) if isinstance(given, Mapping) else []
        if unknown:
            options = ", ".join(f"{name!r}: ..." for name in unknown)
            raise ValueError(
                f"unknown option {', '.join(unknown)}; this class has {', '.join(cls.model_fields)}. "
                f"A field of trl.GRPOConfig goes into grpo={{{options}}}."
            )
        return given

    def with_art_options(self, options: Mapping[str, Any]) -> "TrainConfig":
        """A copy with the options of ART's own trainer applied (`art.dev.TrainConfig`, `backend.train(...)`).

        Those without a meaning for TRL's trainer change nothing, and a warning names them.
        """
        known = {name: value for name, value in options.items() if name in type(self).model_fields}
        if isinstance(known.get("scale_rewards"), bool):
            known["scale_rewards"] = "group" if known["scale_rewards"] else "none"
        shared = {name: options[name] for name in _SHARED_WITH_TRL if options.get(name) is not None}
        ignored = sorted(set(options) - set(known) - set(_SHARED_WITH_TRL))
        if ignored:
            warnings.warn(f"options of ART's trainer without effect here: {', '.join(ignored)}", stacklevel=3)
        grpo = {**self.grpo, **known.pop("grpo", {}), **shared}
        return TrainConfig(**{**self.model_dump(include=self.model_fields_set), **known, "grpo": grpo})


class TrainSFTConfig(pydantic.BaseModel):
    """What one call of `model.train_sft` may choose. All fields but `sft` are ART's, with ART's defaults.

    learning_rate: of the optimizer; a list gives that of each batch. When it is not given, small models take the one
        measured for them, as in `TrainConfig`.
    batch_size: trajectories that one optimizer step learns from; "auto": 2.
    sft: any further fields of `trl.SFTConfig`, e.g. `{"loss_type": "dft"}`.

    Raises: pydantic.ValidationError naming the field, what was given and what is allowed.
    """

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

    learning_rate: Annotated[float, pydantic.Field(gt=0)] | list[Annotated[float, pydantic.Field(ge=0)]] = 5e-5
    batch_size: Annotated[int, pydantic.Field(ge=1)] | Literal["auto"] = "auto"
    sft: dict[str, Any] = {}


@dataclass
class TrainResult:
    """What a training call leaves: the step it reached and its metrics by name."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class LocalTrainResult(TrainResult):
    """A `TrainResult` of a `LocalBackend`; `checkpoint_path` is None when nothing was saved."""

    checkpoint_path: str | None = None
