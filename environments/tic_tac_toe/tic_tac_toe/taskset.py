"""Tic-tac-toe as a verifiers taskset: its id is `tic_tac_toe`. Importing it needs `verifiers` 0.4."""

from __future__ import annotations

import verifiers.v1 as vf  # type: ignore[import-not-found]

from art_nb.environments.adapters.to_verifiers import EnvironmentTask, EnvironmentTaskset, EnvironmentTools
from tic_tac_toe.environment import TicTacToeEnvironment, openings


class TicTacToeTools(EnvironmentTools):
    """The tools of one episode."""

    environment_factory = TicTacToeEnvironment


class TicTacToeTask(EnvironmentTask):
    """One episode."""

    tools = TicTacToeTools


class TicTacToeTaskset(EnvironmentTaskset, vf.Taskset[TicTacToeTask, vf.TasksetConfig]):
    """One episode for each opening of the validation split."""

    rows = tuple({"opening": opening, "seed": 0} for opening in openings("val"))


if __name__ == "__main__":  # verifiers runs this module to start the tools in a process of their own
    TicTacToeTools.run()
