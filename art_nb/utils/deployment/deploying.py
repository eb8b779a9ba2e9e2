"""`deploy_model`: a checkpoint to Together or Weights & Biases, which serve adapters on base models of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel

from art_nb.utils.deployment.common import DeploymentConfig, adapter_files
from art_nb.utils.deployment.on_together import TogetherDeploymentConfig, deploy_together
from art_nb.utils.deployment.on_wandb import WandbDeploymentConfig, deploy_wandb

if TYPE_CHECKING:
    from art_nb.model import TrainableModel

Provider = Literal["together", "wandb"]


class DeploymentResult(BaseModel):
    """inference_model_name: what to ask the provider for, as `model` of an OpenAI client."""

    inference_model_name: str


async def deploy_model(
    model: TrainableModel,
    checkpoint_path: str,
    step: int,
    provider: Provider,
    config: DeploymentConfig | None = None,
    verbose: bool = False,
) -> DeploymentResult:
    """Let a provider serve a checkpoint.

    Args:
        checkpoint_path: its folder, as `checkpoints/0007` of the model's or an export `--as adapter`.
        step: its number, which becomes part of its name there.
        provider: "together" (key: TOGETHER_API_KEY) or "wandb" (key: WANDB_API_KEY).
        config: TogetherDeploymentConfig, needed; WandbDeploymentConfig, or None.
        verbose: print what is done.

    Raises:
        FileNotFoundError: there is no adapter. ValueError: a key or setting is missing, or the provider can't know the base
        model. TypeError: the config of the other provider. PermissionError: the key is refused. RuntimeError: the provider
        refuses the model. TimeoutError: it takes more than five minutes over it.
    """
    if provider not in get_args(Provider):
        raise ValueError(f"provider is {provider!r}: expected 'together' or 'wandb'")
    adapter_files(checkpoint_path)
    if Path(model.base_model).exists() or model.base_model.count("/") != 1:
        raise ValueError(
            f"{provider} serves adapters on base models that it has itself, by their names on the Hugging Face hub; "
            f"{model.base_model!r} is none. Export the model as `merged` and serve it yourself: art-nb export"
        )
    wanted: Any = TogetherDeploymentConfig if provider == "together" else WandbDeploymentConfig
    if config is not None and not isinstance(config, wanted):
        raise TypeError(f"config is a {type(config).__name__}: provider {provider!r} takes a {wanted.__name__}")
    if provider == "wandb":
        return DeploymentResult(inference_model_name=deploy_wandb(model, checkpoint_path, step, config, verbose))
    if config is None:
        raise ValueError("config: Together fetches the adapter from somewhere; give TogetherDeploymentConfig(s3_bucket=...)")
    return DeploymentResult(inference_model_name=await deploy_together(model, checkpoint_path, step, config, verbose))
