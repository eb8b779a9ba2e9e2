"""What a run logs, shown by services as well: Weights & Biases, Langfuse.

    model = art.TrainableModel(..., monitors=[art.monitoring.WandbMonitor(), art.monitoring.LangfuseMonitor()])

Nothing leaves the machine unless a model was given a monitor, or `report_metrics=["wandb"]`; a key in the environment
alone sends nothing. Knows what a row and a trajectory are. Knows nothing about models, backends and training: what fails
here stops and slows nothing there, and all of it lies in the model's folder whether or not it arrives.
"""

from art_nb.monitoring.entry import Entry
from art_nb.monitoring.langfuse_monitor import LangfuseMonitor
from art_nb.monitoring.monitor import Monitor, Refused, Unavailable
from art_nb.monitoring.wandb_monitor import WandbMonitor

SERVICES: dict[str, type[Monitor]] = {"wandb": WandbMonitor, "langfuse": LangfuseMonitor}  # names for `report_metrics`

__all__ = ["SERVICES", "LangfuseMonitor", "Entry", "Monitor", "Refused", "Unavailable", "WandbMonitor"]
