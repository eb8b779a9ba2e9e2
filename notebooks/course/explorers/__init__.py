"""Interactive figures: advantages, the clipped surrogate, the KL estimators, a completion's tokens, a judge's scores."""

from .advantage_explorer import AdvantageExplorer
from .judge_view import JudgeView
from .kl_explorer import KLExplorer
from .surrogate_explorer import SurrogateExplorer
from .token_lens import TokenLens

__all__ = ["AdvantageExplorer", "JudgeView", "KLExplorer", "SurrogateExplorer", "TokenLens"]
