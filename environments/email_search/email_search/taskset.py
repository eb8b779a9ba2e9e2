"""The email task as a taskset for `verifiers`, with the id `email_search`. Importing it needs `verifiers` 0.4."""

from __future__ import annotations

import verifiers.v1 as vf  # type: ignore[import-not-found]

from art_nb.environments.adapters.to_verifiers import EnvironmentTask, EnvironmentTaskset, EnvironmentTools
from email_search.environment import EmailSearchEnvironment
from email_search.scenarios import scenarios


class EmailTools(EnvironmentTools):
    """The tools of one episode."""

    environment_factory = EmailSearchEnvironment


class EmailTask(EnvironmentTask):
    """One episode."""

    tools = EmailTools


class EmailTaskset(EnvironmentTaskset, vf.Taskset[EmailTask, vf.TasksetConfig]):
    """One episode for each question of the validation split."""

    rows = tuple({"scenario": scenario.id} for scenario in scenarios("val"))


if __name__ == "__main__":  # verifiers runs this module to start the tools in a process of their own
    EmailTools.run()
