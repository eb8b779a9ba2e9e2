"""Types of messages, and the arguments and results of training calls (`TrainConfig`, `TrainResult`)."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Self

import pydantic
from openai.types.chat.chat_completion import Choice as Choice
from openai.types.chat.chat_completion_message_param import ChatCompletionMessageParam
from openai.types.chat.chat_completion_tool_param import ChatCompletionToolParam

# Not validated: pydantic would turn fields of type Iterable, such as `tool_calls`, into one-shot iterators.
Message = Annotated[ChatCompletionMessageParam, pydantic.SkipValidation]
MessageOrChoice = Message | Choice
Messages = list[Message]
MessagesAndChoices = list[MessageOrChoice]
Tools = list[Annotated[ChatCompletionToolParam, pydantic.SkipValidation]]


class PolicyName(NamedTuple):
    """The name of a policy: a model, and the training step of its checkpoint. Written "model@step"."""

    model: str
    step: int

    def __str__(self) -> str:
        return f"{self.model}@{self.step}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the parts of "model@step"; None for any other text, such as the name of a base model."""
        model, at, step = text.rpartition("@")
        name = cls(model, int(step)) if at and step.isdecimal() else None
        return name if str(name) == text else None


# Options of ART's own trainer that TRL's GRPOConfig has under the same name.
_SHARED_WITH_TRL = ("epsilon", "epsilon_high", "importance_sampling_level")


class _TrainingOptions(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

    @classmethod
    def of(cls, config: Any) -> Self:
        """Return `config`, or the defaults if it is None. Raises: TypeError for an object of another class."""
        if config is not None and not isinstance(config, cls):
            raise TypeError(f"config is {config!r:.80}: expected art.{cls.__name__}(...)")
        return config or cls()


class TrainConfig(_TrainingOptions):
    """Options of one `model.train` call. The first three fields are ART's, with ART's defaults.

    learning_rate: of the optimizer. If not given, the backend chooses one by the base model's size.
    kl_penalty_coef: weight of the KL divergence from the base model (TRL's `beta`); 0 omits the term. If `base_model` is an
        adapter's folder, the divergence is from the model without that adapter.
    grad_accumulation_sequences: maximum number of sequences per forward pass; None: only their tokens are limited.
    scale_rewards: divide advantages by the standard deviation of rewards in the group or the batch, or not at all.
    turn_discount: discount factor per turn for later rewards, in [0, 1]; used only with `turn_rewards`.
    trained_share: train only on this share of the sequences, at least one: those with the largest absolute advantages (a
        sequence of several turns is ranked by its largest); baselines are computed from all. Groups whose advantages are all
        0 are left out first, unless there is a KL penalty. Turns whose prompts do not extend each other are sequences of
        their own. Source: rollout down-sampling (arXiv 2504.13818), which keeps the subset of largest reward variance.
    num_updates: optimizer steps on the whole batch. On policy and in float32, clipping has no effect before the second.
    other_policies: also train on turns that other models sampled. By default trajectories with only such turns are removed
        before advantages are computed; in other trajectories such turns are context only.
    grpo: further fields of `trl.GRPOConfig`, e.g. `{"loss_type": "dr_grpo", "epsilon": 0.1}`. `{"temperature": 0.6}` is for
        answers that were sampled at that temperature.

    Raises: pydantic.ValidationError naming the field, the value and what is allowed.
    """

    learning_rate: float = pydantic.Field(default=5e-6, gt=0)
    kl_penalty_coef: float = pydantic.Field(default=0.0, ge=0)
    grad_accumulation_sequences: int | None = pydantic.Field(default=None, ge=1)
    scale_rewards: Literal["group", "batch", "none"] = "group"
    turn_discount: float = pydantic.Field(default=0.95, ge=0, le=1)
    trained_share: float = pydantic.Field(default=1.0, gt=0, le=1)
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
                f"unknown option {', '.join(unknown)}; expected one of {', '.join(cls.model_fields)}. "
                f"A field of trl.GRPOConfig goes into grpo={{{options}}}."
            )
        return given

    def with_art_options(self, options: Mapping[str, Any]) -> "TrainConfig":
        """Return a copy with options of ART's own trainer applied (`art.dev.TrainConfig`, `backend.train(...)`).

        Reads fields of `TrainConfig`, and TRL's epsilon, epsilon_high, importance_sampling_level; warns about others.
        """
        known = {name: value for name, value in options.items() if name in type(self).model_fields}
        if isinstance(known.get("scale_rewards"), bool):
            known["scale_rewards"] = "group" if known["scale_rewards"] else "none"
        shared = {name: options[name] for name in _SHARED_WITH_TRL if options.get(name) is not None}
        ignored = sorted(set(options) - set(known) - set(_SHARED_WITH_TRL))
        if ignored:
            warnings.warn(f"these options of ART's trainer have no effect here: {', '.join(ignored)}", stacklevel=3)
        grpo = {**self.grpo, **known.pop("grpo", {}), **shared}
        return TrainConfig(**{**self.model_dump(include=self.model_fields_set), **known, "grpo": grpo})


class TrainSFTConfig(_TrainingOptions):
    """Options of one `model.train_sft` call. All fields but `sft` are ART's, with ART's defaults.

    learning_rate: of the optimizer, or a list with one for each batch. If not given, small base models use the same
        measured default as with `TrainConfig`.
    batch_size: trajectories per optimizer step; "auto": 2.
    sft: further fields of `trl.SFTConfig`, e.g. `{"loss_type": "dft"}`.

    Raises: pydantic.ValidationError naming the field, the value and what is allowed.
    """

    learning_rate: Annotated[float, pydantic.Field(gt=0)] | list[Annotated[float, pydantic.Field(ge=0)]] = 5e-5
    batch_size: Annotated[int, pydantic.Field(ge=1)] | Literal["auto"] = "auto"
    sft: dict[str, Any] = {}


@dataclass
class TrainResult:
    """The step that a training call reached, and its metrics by name."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class LocalTrainResult(TrainResult):
    """The `TrainResult` of a `LocalBackend`; `checkpoint_path` is None when no checkpoint was written."""

    checkpoint_path: str | None = None
