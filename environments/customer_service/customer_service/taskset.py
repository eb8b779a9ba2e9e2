"""Customer service as a taskset for `verifiers` 0.4, which must be installed to import it. Its id is `customer_service`."""

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
    """The episodes of held-out rows."""

    rows = tuple({"task": task.id} for task in course_tasks("retail", "val"))


if __name__ == "__main__":  # verifiers runs this module to start the tools in a process of their own
    RetailTools.run()
