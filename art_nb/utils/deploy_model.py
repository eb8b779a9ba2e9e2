"""`art.utils.deploy_model`, the older home of `art.utils.deployment`."""

from art_nb.utils.deployment import (
    DeploymentConfig,
    DeploymentResult,
    Provider,
    TogetherDeploymentConfig,
    WandbDeploymentConfig,
    deploy_model,
    deploy_wandb,
)

__all__ = [
    "DeploymentConfig", "DeploymentResult", "Provider", "TogetherDeploymentConfig", "WandbDeploymentConfig", "deploy_model",
    "deploy_wandb",
]  # fmt: skip
