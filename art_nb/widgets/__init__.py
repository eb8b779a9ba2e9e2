"""What a notebook shows live: training, trajectories, groups; and drawings to drag that explain GRPO.

Knows records, the tasks whose tools it draws, and the browser. Knows nothing about models or backends.
"""

from .advantage_explorer import AdvantageExplorer
from .chat_widget import ChatWidget
from .group_view import GroupView
from .judge_view import JudgeView
from .kl_explorer import KLExplorer
from .live_page import LivePage
from .repair_view import RepairView
from .surrogate_explorer import SurrogateExplorer
from .token_lens import TokenLens
from .training_view import TrainingView
from .trajectory_viewer import TrajectoryViewer

__all__ = [
    "AdvantageExplorer", "ChatWidget", "GroupView", "JudgeView", "KLExplorer", "LivePage", "RepairView", "SurrogateExplorer",
    "TokenLens", "TrainingView", "TrajectoryViewer",
]  # fmt: skip
