"""Rewards from a judge: a language model (`ruler`), or a rubric worked out by rule (`RubricJudge`).

Knows trajectories and how to ask a judge. Knows nothing about tasks (each brings its own criteria), policies or training.
"""

import importlib

# Not lazy: a submodule has the function's name and would take its place if it were imported later.
from art_nb.rewards.ruler import ruler, ruler_score_group

# public name -> the module that defines it
_HOME = {
    "JudgeError": "judges",
    "Judgement": "judges",
    "LLMJudge": "judges",
    "Criterion": "rubric",
    "RubricJudge": "rubric",
    "TrajectoryScore": "judge_answers",
    "JudgeReport": "report",
    "judge_report": "report",
}

__all__ = ["ruler", "ruler_score_group", *_HOME]


def __getattr__(name: str):
    if name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
