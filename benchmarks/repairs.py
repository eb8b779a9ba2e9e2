"""What agents without a model repair, and what it costs: `python -m benchmarks.repairs` prints one JSON line.

For each player, on the first 200 test problems: `repaired` (all hidden tests pass), `visible` (all examples pass),
`only_visible` (these but not those), `special` (the code answers examples by comparing with them, `special_cases`), all in
percent with what a policy would be paid by hidden tests and by examples, and `runs`, the mean number of times that code was
run. `tries` tries every small change in the order of the text, `tries_8` eight at most in drawn order, `guesses` makes them
by its tools within their limit of turns, `special_cases` answers the failing examples, `knows` puts back what the bug took.
`ratio` is what the examples pay for special cases over what hidden tests do.
"""

from __future__ import annotations

import argparse
from statistics import fmean

from art_nb.tasks.code_repair.environment import CodeRepair
from art_nb.tasks.code_repair.players import (
    Player,
    guessing_player,
    knowing_player,
    mutation_player,
    play,
    special_case_player,
)
from art_nb.tasks.code_repair.problems import SIZES, Problem, problems
from art_nb.tasks.code_repair.sandbox import MontySandbox, Sandbox
from art_nb.tasks.code_repair.trials import special_cases
from benchmarks.result import print_result, say

PLAYERS: dict[str, Player] = {
    "tries": mutation_player(),
    "tries_8": mutation_player(seed=0, most=8),
    "guesses": guessing_player(0),
    "special_cases": special_case_player,
    "knows": knowing_player,
}


def played(player: Player, problem: Problem, sandbox: Sandbox) -> dict[str, float]:
    """What one repair came to."""
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
    """All players on the same problems."""
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
