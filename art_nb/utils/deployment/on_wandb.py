"""An adapter on Weights & Biases: an artifact of type "lora", which W&B Inference serves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from art_nb.utils.deployment.common import DeploymentConfig, adapter_files, key_from_environment

if TYPE_CHECKING:
    from art_nb.model import TrainableModel

REGION = "coreweave-us"  # where W&B Inference runs


class WandbDeploymentConfig(DeploymentConfig):
    """provenance: how the adapter came to be, in order, as ["local-rl"]."""

    provenance: list[str]


def deploy_wandb(
    model: TrainableModel,
    checkpoint_path: str,
    step: int,
    config: WandbDeploymentConfig | None = None,
    verbose: bool = False,
) -> str:
    """What `deploy_model` does for W&B; returns the model's name there.

    Raises: as `deploy_model`.
    """
    try:
        import wandb
        from wandb.errors import AuthenticationError, CommError, UsageError
    except ImportError:
        raise ImportError("the package wandb is missing: python -m pip install wandb") from None

    files = adapter_files(checkpoint_path)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    # Left to itself it also sends what this machine is, what it is doing, its packages and where its git repository lies.
    settings = wandb.Settings(
        api_key=key_from_environment("WANDB_API_KEY"), silent=not verbose, console="off",
        disable_git=True, disable_code=True, save_code=False,
        x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True, x_save_requirements=False,
    )  # fmt: skip
    metadata: dict[str, Any] = {"wandb.base_model": model.base_model}
    if config is not None:
        metadata["wandb.provenance"] = config.provenance
    artifact = wandb.Artifact(model.name, type="lora", metadata=metadata, storage_region=REGION)
    for path in files:
        artifact.add_file(str(path), name=path.name)
    place: dict[str, Any] = {"name": f"{model.name} (deployment)", "entity": model.entity, "project": model.project}
    try:
        with wandb.init(**place, settings=settings) as run:
            try:
                run.log_artifact(artifact, aliases=[f"step{step}", "latest"]).wait()
            except ValueError as error:
                if "Unable to fetch artifact" not in str(error):  # it is there, and only not to be read yet
                    raise
            return f"wandb-artifact:///{run.entity}/{run.project}/{model.name}:step{step}"
    except (AuthenticationError, CommError, UsageError, ValueError) as error:
        if isinstance(error, AuthenticationError | UsageError) or "api key" in str(error).lower():
            raise PermissionError("W&B refuses the key in WANDB_API_KEY") from None
        raise RuntimeError(f"W&B refuses {model.project}/{model.name}: {error}") from None
