"""Code repair: find and repair a bug with tools, and pass hidden tests.

Code that a model wrote runs in a sandbox, never in this process.
"""

from code_repair.environment import (
    MAX_TURNS,
    OVER,
    TOOLS,
    CodeRepair,
    CodeRepairEnvironment,
    course_sandbox,
    first_message,
)
from code_repair.problems import Problem, problems
from code_repair.sandbox import Limits, MontySandbox, Sandbox
from code_repair.trials import special_cases

__all__ = [
    "MAX_TURNS", "OVER", "TOOLS", "CodeRepair", "CodeRepairEnvironment", "Limits", "MontySandbox", "Problem", "Sandbox",
    "course_sandbox", "first_message", "problems", "special_cases",
]  # fmt: skip
