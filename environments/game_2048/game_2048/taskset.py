"""2048 as a verifiers taskset: its id is `game_2048`. Importing it needs `verifiers` 0.4."""

from __future__ import annotations

import verifiers.v1 as vf  # type: ignore[import-not-found]

from art_nb.environments.adapters.to_verifiers import EnvironmentTask, EnvironmentTaskset, EnvironmentTools
from game_2048.environment import Game2048Environment, scenarios


class Game2048Tools(EnvironmentTools):
    """The tools of one episode."""

    environment_factory = Game2048Environment


class Game2048Task(EnvironmentTask):
    """One episode."""

    tools = Game2048Tools


class Game2048Taskset(EnvironmentTaskset, vf.Taskset[Game2048Task, vf.TasksetConfig]):
    """One episode for each of 100 seeds of the validation split."""

    rows = tuple({"seed": seed} for seed in scenarios("val", 100))


if __name__ == "__main__":  # verifiers runs this module to start the tools in a process of their own
    Game2048Tools.run()
