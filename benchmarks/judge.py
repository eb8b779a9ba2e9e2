"""Agreement of a judge with known outcomes.

`python -m benchmarks.judge [--judge openai/o3]` prints one JSON line: for each task of data/judged_groups the figures of
`course.judge_report.JudgeReport` relative to the true reward, each with a 95% interval over groups; for the email task also
`pairwise_correct`, over pairs of a correct and a wrong search. The default is the offline judge.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import art_nb as art
from art_nb.rewards import RubricJudge, ruler_score_group
from art_nb.rewards.agreement import Estimate, mean, pairs_right
from art_nb.rewards.judges import Judge
from benchmarks.result import print_result, say
from course.judge_report import judge_report
from course.judged_groups import DATA, judged_groups


async def report(judge: str | Judge, groups: Sequence[art.TrajectoryGroup]) -> dict:
    """Return the figures of `JudgeReport` for one task's groups, as [value, low, high]."""
    found = await judge_report(judge, groups, truth=lambda trajectory: trajectory.reward)
    say(str(found))
    figures = {name: numbers(estimate) for name, estimate in found.estimates().items()}
    return {"groups": found.groups, "trajectories": found.trajectories, "failed": len(found.failed), **figures}


async def pairwise_correct(judge: str | Judge, groups: Sequence[art.TrajectoryGroup]) -> list[float] | None:
    """Return the share of pairs of a correct and a wrong search that the judge ranks correctly, with its interval."""
    scored = [await ruler_score_group(group, judge, swallow_exceptions=True) for group in groups]
    pairs = [pairs_right([t.metrics["correct"] for t in g], [t.reward for t in g]) for g in scored if g]
    varied = [(share, number) for share, number in pairs if number]
    return numbers(mean(*map(list, zip(*varied, strict=True)))) if varied else None


def numbers(estimate: Estimate) -> list[float]:
    return [estimate.value, estimate.low, estimate.high]


def measure(judge: str | Judge, path: Path = DATA) -> dict:
    found = {}
    for task in ("email_search", "game_2048"):
        say(task)
        found[task] = asyncio.run(report(judge, judged_groups(task, path=path)))
    correct = asyncio.run(pairwise_correct(judge, judged_groups("email_search", path=path)))
    return found | {"pairwise_correct": correct}


def main() -> None:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judge", default=RubricJudge(), help="LiteLLM model name (default: the offline judge)")
    a = parser.parse_args()
    print_result("judge", lambda: measure(a.judge))


if __name__ == "__main__":
    main()
