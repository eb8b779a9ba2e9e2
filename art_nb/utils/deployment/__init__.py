"""`art.utils.deployment`: a checkpoint on a machine of others, under ART's names; `hub` is ours.

Keys come from the environment and are in no message. What is refused is said in the words of whoever refused; the checkpoint
is only read.
"""

from art_nb.utils.deployment.common import DeploymentConfig
from art_nb.utils.deployment.deploying import DeploymentResult, Provider, deploy_model
from art_nb.utils.deployment.hub import push_to_hub
from art_nb.utils.deployment.on_together import TogetherDeploymentConfig
from art_nb.utils.deployment.on_wandb import WandbDeploymentConfig, deploy_wandb

__all__ = [
    "DeploymentConfig", "DeploymentResult", "Provider", "TogetherDeploymentConfig", "WandbDeploymentConfig", "deploy_model",
    "deploy_wandb", "push_to_hub",
]  # fmt: skip
