"""What a client may say of a model and of a training step: names that are checked, options that are known, no paths."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from art_nb.inference.chat import is_sampled
from art_nb.storage.names import folder_name
from art_nb.trajectories import TrajectoryGroup
from art_nb.types import TrainConfig

Name = Annotated[str, AfterValidator(lambda given: folder_name("name", given))]
Scalar = bool | int | float | None

# Fields of trl.GRPOConfig that decide how is learnt. Others name folders, services, other models: these are the server's.
GRPO = {
    "adam_beta1", "adam_beta2", "adam_epsilon", "beta", "delta", "epsilon", "epsilon_high", "importance_sampling_level",
    "loss_type", "mask_truncated_completions", "max_grad_norm", "scale_rewards", "temperature", "top_entropy_quantile",
    "weight_decay",
}  # fmt: skip


class InitArgs(BaseModel):
    """How the base model is loaded, see `art.dev.InitArgs`."""

    model_config = ConfigDict(extra="forbid")

    max_seq_length: int | None = Field(None, ge=1, le=2**20)
    load_in_4bit: bool | None = None
    dtype: Literal["float32", "bfloat16", "float16", None] = None


class PeftArgs(BaseModel):
    """How its adapter is made, see `art.dev.PeftArgs`."""

    model_config = ConfigDict(extra="forbid")

    r: int | None = Field(None, ge=1, le=1024)
    lora_alpha: int | None = Field(None, ge=1, le=4096)
    lora_dropout: float | None = Field(None, ge=0, lt=1)
    target_modules: list[Annotated[str, Field(pattern=r"^\w{1,64}$")]] | None = None
    random_state: int | None = Field(None, ge=0, lt=2**32)


def _known(options: dict[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if name not in GRPO:
            raise ValueError(f"{name!r:.80} is decided by the server; a client may choose {', '.join(sorted(GRPO))}")
        if not isinstance(value, Scalar | str):
            raise ValueError(f"{name} is {value!r:.80}: expected a number, a truth value or a word")
    return options


Grpo = Annotated[dict[str, Any], AfterValidator(_known)]


class InternalConfig(BaseModel):
    """`TrainableModel(_internal_config=...)` as far as a client decides it."""

    model_config = ConfigDict(extra="forbid")

    init_args: InitArgs = InitArgs()
    peft_args: PeftArgs = PeftArgs()
    trainer_args: Grpo = {}


class ModelSpec(BaseModel):
    """A model to train: its name, the name of a base model that this server has, and how its adapter is made."""

    model_config = ConfigDict(extra="forbid")

    project: Name
    name: Name
    base_model: str = Field(max_length=500)
    config: InternalConfig = InternalConfig()

    def internal(self) -> Any:
        """As `TrainableModel` takes it."""
        return self.config.model_dump(exclude_none=True)


class ServedTrainConfig(TrainConfig):
    """A `TrainConfig` whose further options are known ones."""

    grpo: Grpo = {}


class TrainRequest(BaseModel):
    """One training step: applied once, however often it is sent.

    key: of this request, made by the client; from_step: the step of the policy that the groups are meant for.
    """

    model_config = ConfigDict(extra="forbid")

    key: str = Field(pattern=r"^[\w-]{8,64}$")
    from_step: int = Field(ge=0)
    groups: list[dict[str, Any]] = Field(description="TrajectoryGroup.model_dump(mode='json') of each")
    config: ServedTrainConfig = ServedTrainConfig()


def read_groups(given: list[dict[str, Any]], vocabulary: int, context: int) -> list[TrajectoryGroup]:
    """The groups of a request. vocabulary, context: of the model, in tokens.

    Raises: ValueError where they are none, or hold tokens that the model does not have; it names the place.
    """
    try:
        groups = [TrajectoryGroup.model_validate(group) for group in given]
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"groups: expected what TrajectoryGroup.model_dump(mode='json') gives ({error})") from error
    for g, group in enumerate(groups):
        for t, trajectory in enumerate(group):
            for history in (trajectory, *trajectory.additional_histories):
                for choice in history.choices():
                    if wrong := _wrong_tokens(choice, vocabulary, context):
                        raise ValueError(f"group {g}, trajectory {t}: {wrong}")
    return groups


def _wrong_tokens(choice: Any, vocabulary: int, context: int) -> str | None:
    if not is_sampled(choice):
        return None
    tokens, logprobs = choice.token_ids, getattr(choice, "token_logprobs", None)
    prompt: Any = getattr(choice, "prompt_token_ids", None)
    for name, ids in (("prompt_token_ids", prompt), ("token_ids", tokens)):
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < vocabulary for i in ids):
            return f"{name} is no list of token ids from 0 to {vocabulary - 1}"
    if not isinstance(logprobs, list) or not all(isinstance(p, float | int) for p in logprobs):
        return "token_logprobs is no list of numbers"
    if len(logprobs) != len(tokens):
        return f"{len(logprobs)} token_logprobs for {len(tokens)} token_ids"
    if len(prompt) + len(tokens) > context:
        return f"{len(prompt) + len(tokens)} tokens, more than the context of {context}"
    return None


class ForkRequest(BaseModel):
    """Start where another model was, see `LocalBackend._experimental_fork_checkpoint`."""

    model_config = ConfigDict(extra="forbid")

    from_project: Name
    from_model: Name
    not_after_step: int | None = Field(None, ge=0)
    best_metric: str | None = Field(None, max_length=200)
    optimizer: bool = True
