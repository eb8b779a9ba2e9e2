"""Rewards from a judge: a language model (`ruler`), or weighted criteria computed by rules (`RubricJudge`).

Does not depend on tasks (each has its own criteria), policies or training.
"""

from art_nb.rewards.judge_answers import TrajectoryScore
from art_nb.rewards.judges import JudgeError, Judgement, LLMJudge
from art_nb.rewards.rubric import Criterion, RubricJudge
from art_nb.rewards.ruler import ruler, ruler_score_group

__all__ = [
    "Criterion", "JudgeError", "Judgement", "LLMJudge", "RubricJudge", "TrajectoryScore", "ruler", "ruler_score_group",
]  # fmt: skip
