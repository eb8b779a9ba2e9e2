"""Interactive figures: advantages, clipped surrogate, KL estimators, a completion's tokens, a judge's scores, a policy."""

from .advantage_explorer import AdvantageExplorer
from .judge_view import JudgeView
from .kl_explorer import KLExplorer
from .policy_explorer import PolicyExplorer
from .surrogate_explorer import SurrogateExplorer
from .token_lens import TokenLens

__all__ = ["AdvantageExplorer", "JudgeView", "KLExplorer", "PolicyExplorer", "SurrogateExplorer", "TokenLens"]
