"""Customer service as a taskset for `verifiers`, with the id `customer_service`. Importing it needs version 0.4."""

from __future__ import annotations

import verifiers.v1 as vf  # type: ignore[import-not-found]

from art_nb.environments.adapters.to_verifiers import EnvironmentTask, EnvironmentTaskset, EnvironmentTools
from customer_service.course import course_tasks
from customer_service.environment import RetailEnvironment


class RetailTools(EnvironmentTools):
    """The tools of one episode."""

    environment_factory = RetailEnvironment


class RetailTask(EnvironmentTask):
    """One episode."""

    tools = RetailTools


class RetailTaskset(EnvironmentTaskset, vf.Taskset[RetailTask, vf.TasksetConfig]):
    """One episode for each task of the validation split."""

    rows = tuple({"task": task.id} for task in course_tasks("retail", "val"))


if __name__ == "__main__":  # verifiers runs this module to start the tools in a process of their own
    RetailTools.run()
