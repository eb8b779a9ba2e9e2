"""Request bodies for models and training steps: validated names, known options, no file paths."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from art_nb.inference.chat import is_sampled
from art_nb.storage.names import folder_name
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import TrainConfig, TrainSFTConfig

Name = Annotated[str, AfterValidator(lambda given: folder_name("name", given))]

# Fields of trl.GRPOConfig that a client may set. Others could name folders, services or models, which the server chooses.
GRPO_FIELDS = {
    "adam_beta1", "adam_beta2", "adam_epsilon", "beta", "delta", "epsilon", "epsilon_high", "importance_sampling_level",
    "loss_type", "mask_truncated_completions", "max_grad_norm", "scale_rewards", "temperature", "top_entropy_quantile",
    "weight_decay",
}  # fmt: skip
SFT_FIELDS = {"adam_beta1", "adam_beta2", "adam_epsilon", "loss_type", "max_grad_norm", "weight_decay"}  # of trl.SFTConfig


class Strict(BaseModel):
    """A request body that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


class LoadOptions(Strict):
    """How to load the base model, see `art.dev.InitArgs`."""

    max_seq_length: int | None = Field(None, ge=1, le=2**20)
    load_in_4bit: bool | None = None
    dtype: Literal["float32", "bfloat16", "float16", None] = None


class AdapterOptions(Strict):
    """How to create the LoRA adapter, see `art.dev.PeftArgs`."""

    r: int | None = Field(None, ge=1, le=1024)
    lora_alpha: int | None = Field(None, ge=1, le=4096)
    lora_dropout: float | None = Field(None, ge=0, lt=1)
    target_modules: list[Annotated[str, Field(pattern=r"^\w{1,64}$")]] | None = None
    random_state: int | None = Field(None, ge=0, lt=2**32)


def _check_options(allowed: set[str], options: dict[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if name not in allowed:
            raise ValueError(f"{name!r:.80} cannot be set by a client; allowed: {', '.join(sorted(allowed))}")
        if not isinstance(value, bool | int | float | str | None):
            raise ValueError(f"{name} is {value!r:.80}: expected a number, a boolean or a string")
    return options


GrpoOptions = Annotated[dict[str, Any], AfterValidator(partial(_check_options, GRPO_FIELDS))]
SFTOptions = Annotated[dict[str, Any], AfterValidator(partial(_check_options, SFT_FIELDS))]


class ModelOptions(Strict):
    """The part of `TrainableModel(_internal_config=...)` that a client may set."""

    init_args: LoadOptions = LoadOptions()
    peft_args: AdapterOptions = AdapterOptions()
    trainer_args: GrpoOptions = {}


class ModelSpec(Strict):
    """A model to train: its project and name, a base model as in `ModelRegistry.base_model`, and its options."""

    project: Name
    name: Name
    base_model: str = Field(max_length=500)
    config: ModelOptions = ModelOptions()

    @property
    def key(self) -> tuple[str, str]:
        return self.project, self.name


class ServedTrainConfig(TrainConfig):
    """A `TrainConfig` whose `grpo` contains only fields that a client may set."""

    grpo: GrpoOptions = {}


class ServedTrainSFTConfig(TrainSFTConfig):
    """A `TrainSFTConfig` whose `sft` contains only fields that a client may set."""

    sft: SFTOptions = {}


class StepBody(Strict):
    """One training step, applied at most once, however often it is sent."""

    key: str = Field(pattern=r"^[\w-]{8,64}$", description="an id of the step, chosen by the client")
    from_step: int = Field(ge=0, description="the model's step before the update")


class TrainRequest(StepBody):
    """One training step on trajectory groups."""

    groups: list[dict[str, Any]] = Field(description="TrajectoryGroup.model_dump(mode='json') of each group")
    config: ServedTrainConfig = ServedTrainConfig()


class TrainSFTRequest(StepBody):
    """One training step on demonstrations."""

    trajectories: list[dict[str, Any]] = Field(description="Trajectory.model_dump(mode='json') of each trajectory")
    config: ServedTrainSFTConfig = ServedTrainSFTConfig()


class ForkRequest(Strict):
    """Continue from another model's checkpoint, see `LocalBackend.fork`."""

    from_project: Name
    from_model: Name
    not_after_step: int | None = Field(None, ge=0)
    optimizer: bool = True


def read_step_data(request: TrainRequest | TrainSFTRequest, vocabulary: int, context: int) -> list[Any]:
    """Return the validated groups or demonstrations of a request. vocabulary, context: the model's, in tokens.

    Raises: ValueError if their form is wrong, or if their tokens are invalid (the message then names the trajectory).
    """
    on_groups, given = (True, request.groups) if isinstance(request, TrainRequest) else (False, request.trajectories)
    kind: type[BaseModel] = TrajectoryGroup if on_groups else Trajectory
    try:
        data: list[Any] = [kind.model_validate(each) for each in given]
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"expected a list of {kind.__name__}.model_dump(mode='json') ({error})") from error
    for g, group in enumerate(data if on_groups else [data]):
        for t, trajectory in enumerate(group):
            for choice in trajectory.all_choices():
                if fault := _token_fault(choice, vocabulary, context):
                    raise ValueError(f"group {g}, trajectory {t}: {fault}" if on_groups else f"trajectory {t}: {fault}")
    return data


def _token_fault(choice: Any, vocabulary: int, context: int) -> str | None:
    """Return a message about the invalid tokens of a choice; None if they are valid or not from art_nb's sampler."""
    if not is_sampled(choice):
        return None
    prompt, tokens, logprobs = choice.prompt_token_ids, choice.token_ids, choice.token_logprobs
    for name, ids in (("prompt_token_ids", prompt), ("token_ids", tokens)):
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < vocabulary for i in ids):
            return f"{name}: expected a list of token ids from 0 to {vocabulary - 1}"
    if not isinstance(logprobs, list) or not all(isinstance(p, float | int) for p in logprobs):
        return "token_logprobs: expected a list of numbers"
    if len(logprobs) != len(tokens):
        return f"{len(logprobs)} token_logprobs for {len(tokens)} token_ids"
    if len(prompt) + len(tokens) > context:
        return f"{len(prompt) + len(tokens)} tokens exceed the model's context of {context}"
    return None
