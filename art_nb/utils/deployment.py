"""`art.utils.deployment`: ART's import path for `art_nb.export.deployment`, with `push_to_hub`."""

from art_nb.export.deployment import (
    DeploymentConfig,
    DeploymentResult,
    Provider,
    TogetherDeploymentConfig,
    WandbDeploymentConfig,
    deploy_model,
    deploy_wandb,
)
from art_nb.export.hub import push_to_hub

__all__ = [
    "DeploymentConfig", "DeploymentResult", "Provider", "TogetherDeploymentConfig", "WandbDeploymentConfig", "deploy_model",
    "deploy_wandb", "push_to_hub",
]  # fmt: skip
