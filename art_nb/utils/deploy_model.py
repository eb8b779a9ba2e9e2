"""`art.utils.deploy_model`: an older import path of `art.utils.deployment`."""

from art_nb.utils.deployment import *  # noqa: F403
from art_nb.utils.deployment import __all__ as __all__
