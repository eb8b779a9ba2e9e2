"""Repairs by players without a model, and their cost: `python -m benchmarks.repairs` prints one JSON line.

For each player, on the first 200 test problems: `repaired` (all hidden tests pass), `visible` (all examples pass),
`only_visible` (examples pass, hidden tests do not) and `special` (the code compares with the examples, `special_cases`)
in percent, the rewards by hidden tests and by examples, and `runs`, the mean number of executions of the code. `tries`
tries every mutation in the order of the text, `tries_8` at most eight in random order, `guesses` makes random tool
calls, `special_cases` adds an `if` for each failing example, `knows` reverts the bug. `ratio` is the reward
of `special_cases` by examples, over its reward by hidden tests.
"""

from __future__ import annotations

import argparse
from statistics import fmean

from benchmarks.result import print_result, say
from code_repair.environment import CodeRepair
from code_repair.players import (
    Player,
    guessing_player,
    knowing_player,
    mutation_player,
    play,
    special_case_player,
)
from code_repair.problems import SIZES, Problem, problems
from code_repair.sandbox import MontySandbox, Sandbox
from code_repair.trials import special_cases

PLAYERS: dict[str, Player] = {
    "tries": mutation_player(),
    "tries_8": mutation_player(seed=0, most=8),
    "guesses": guessing_player(0),
    "special_cases": special_case_player,
    "knows": knowing_player,
}


def played(player: Player, problem: Problem, sandbox: Sandbox) -> dict[str, float]:
    """Return the numbers of one repair, percentages as 0 or 100."""
    repair = play(player, CodeRepair(problem, sandbox))
    runs, found = repair.runs, repair.metrics()
    paid = {}
    for paid_by in ("visible", "hidden"):
        repair.paid_by = paid_by
        paid[f"reward_{paid_by}"] = repair.reward()
    special = bool(special_cases(problem, repair.files))
    return {
        "repaired": 100 * found["repaired"], "visible": 100 * found["visible_pass"],
        "only_visible": 100 * found["only_visible"], "special": 100.0 * special, "runs": float(runs), **paid,
    }  # fmt: skip


def measure(split: str, size: str, count: int) -> dict[str, object]:
    """Run all players on the same problems."""
    chosen = problems(split, size=size)[:count]
    numbers: dict[str, object] = {"split": split, "size": size, "problems": len(chosen)}
    with MontySandbox() as sandbox:
        for name, player in PLAYERS.items():
            rows = [played(player, problem, sandbox) for problem in chosen]
            means = {metric: fmean(row[metric] for row in rows) for metric in rows[0]}
            if name == "special_cases":
                numbers["ratio"] = means["reward_visible"] / means["reward_hidden"]
            if name == "tries":
                repaired: dict[str, list[float]] = {}
                for row, problem in zip(rows, chosen, strict=True):
                    repaired.setdefault(problem.bug.kind if problem.bug else "", []).append(row["repaired"])
                numbers["tries_repaired_by_kind"] = {kind: fmean(shares) for kind, shares in sorted(repaired.items())}
            numbers[name] = means
            say(f"{name}: " + ", ".join(f"{metric} {value:.1f}" for metric, value in means.items()))
    return numbers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="test", choices=("train", "val", "test"))
    parser.add_argument("--size", default="function", choices=SIZES)
    parser.add_argument("--problems", type=int, default=200)
    given = parser.parse_args()
    print_result("repairs", lambda: measure(given.split, given.size, given.problems))
