"""The coding agent: find a bug in a function, repair it with tools, and pass tests that it never sees.

Code from a model runs in a sandbox, never in this process.
"""

from art_nb.tasks.code_repair.environment import (
    MAX_TURNS,
    OVER,
    TOOLS,
    CodeRepair,
    CodeRepairEnvironment,
    course_sandbox,
    first_message,
)
from art_nb.tasks.code_repair.problems import Problem, problems
from art_nb.tasks.code_repair.sandbox import Limits, MontySandbox, Sandbox
from art_nb.tasks.code_repair.trials import special_cases

__all__ = [
    "MAX_TURNS", "OVER", "TOOLS", "CodeRepair", "CodeRepairEnvironment", "Limits", "MontySandbox", "Problem", "Sandbox",
    "course_sandbox", "first_message", "problems", "special_cases",
]  # fmt: skip
