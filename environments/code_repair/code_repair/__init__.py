"""Code repair: find and repair a bug with tools, and pass hidden tests.

Code that a model wrote runs in a sandbox, never in this process.
"""

from importlib.util import find_spec
from typing import Any

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

if find_spec("verifiers"):  # its loader finds the taskset in `__all__`
    __all__ += ["CodeRepairTaskset"]


def __getattr__(name: str) -> Any:
    if name == "CodeRepairTaskset":
        from code_repair import taskset

        return taskset.CodeRepairTaskset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
