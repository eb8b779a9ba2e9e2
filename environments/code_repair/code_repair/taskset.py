"""The code repair task as a verifiers taskset: its id is `code_repair`. Importing it needs `verifiers` 0.4."""

from __future__ import annotations

import verifiers.v1 as vf  # type: ignore[import-not-found]

from art_nb.environments.adapters.to_verifiers import EnvironmentTask, EnvironmentTaskset, EnvironmentTools
from code_repair.environment import CodeRepairEnvironment
from code_repair.problems import problems


class CodeRepairTools(EnvironmentTools):
    """The tools of one episode."""

    environment_factory = CodeRepairEnvironment


class CodeRepairTask(EnvironmentTask):
    """One episode."""

    tools = CodeRepairTools


class CodeRepairTaskset(EnvironmentTaskset, vf.Taskset[CodeRepairTask, vf.TasksetConfig]):
    """One episode for each problem of the validation split."""

    rows = tuple({"problem": problem.id} for problem in problems("val"))


if __name__ == "__main__":  # verifiers runs this module to start the tools in a process of their own
    CodeRepairTools.run()
