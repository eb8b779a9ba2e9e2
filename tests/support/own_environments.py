"""The five environments of this repository in TRL's contract: a row of each, and calls that a player could make."""

from dataclasses import dataclass
from functools import partial

from code_repair import CodeRepairEnvironment, problems
from customer_service import course_tasks
from customer_service.environment import RetailEnvironment
from email_search import scenarios
from email_search.environment import EmailSearchEnvironment
from game_2048 import Game2048Environment
from tic_tac_toe import TicTacToeEnvironment
from tic_tac_toe.players import perfect_player


@dataclass
class Own:
    factory: object
    row: dict
    calls: list

    def played(self):
        """(observations of the calls, the environment after them), without any adapter."""
        environment = self.factory()
        first = environment.reset(**self.row)
        return [first, *(getattr(environment, name)(**arguments) for name, arguments in self.calls)], environment


def own_environments() -> dict[str, Own]:
    scenario, problem = scenarios("val", 1)[0], problems("val")[0]
    bug = problem.bug
    lines = {"first": bug.line, "last": bug.line + len(bug.now) - 1, "code": "\n".join(bug.was)}
    task = next(task for task in course_tasks("retail", "test") if task.actions)
    return {
        "email_search": Own(
            EmailSearchEnvironment,
            {"scenario": scenario.id},
            [
                ("search_emails", {"keywords": " ".join(scenario.about)}),
                ("read_email", {"message_id": scenario.sources[0]}),
                ("return_final_answer", {"answer": scenario.answer, "sources": [scenario.sources[0]]}),
            ],
        ),
        "code_repair": Own(
            CodeRepairEnvironment, {"problem": problem.id}, [("run_tests", {}), ("replace_lines", lines), ("submit", {})]
        ),
        "customer_service": Own(RetailEnvironment, {"task": task.id}, [(a.name, dict(a.arguments)) for a in task.actions]),
        "game_2048": Own(partial(Game2048Environment, winning_tile=8), {"seed": 3}, [("move", {"direction": d}) for d in ("left", "down") * 4]),
        "tic_tac_toe": Own(partial(TicTacToeEnvironment, perfect_player), {"opening": "." * 9, "seed": 1}, [("move", {"square": "5"})]),
    }
