"""Tool-calling environments: one base class for episodes, tool schemas from typed methods, the rollout loop.

Does not depend on tasks (they are the packages in environments/), and imports neither torch nor transformers.
"""

from art_nb.environments.contract import environment_tools, rollout_environment
from art_nb.environments.episode import ToolEnvironment, ToolEpisode
from art_nb.environments.isolation import BrokenEnvironment
from art_nb.environments.rollout import play, rollout
from art_nb.environments.tools import MalformedCall, RefusedCall, clean, parse_arguments, quoted, tool, tool_schema

__all__ = [
    "BrokenEnvironment", "MalformedCall", "RefusedCall", "ToolEnvironment", "ToolEpisode", "clean", "environment_tools",
    "parse_arguments", "play", "quoted", "rollout", "rollout_environment", "tool", "tool_schema",
]  # fmt: skip
