"""`art.utils.deploy_model`: an older import path of `art.utils.deployment`."""

from art_nb.utils.deployment import *  # noqa: F403
