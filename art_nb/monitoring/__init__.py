"""Send a run's log to Weights & Biases and Langfuse.

    model = art.TrainableModel(..., monitors=[art.monitoring.WandbMonitor(), art.monitoring.LangfuseMonitor()])

Nothing is sent unless a model has a monitor or `report_metrics=["wandb"]`; a key in the environment alone sends nothing.
Does not depend on models, backends or training. A failing service neither stops nor slows training, and the model's folder
contains everything that was logged.
"""

from art_nb.monitoring.langfuse_monitor import LangfuseMonitor
from art_nb.monitoring.monitor import LogEntry, Monitor, ServiceRejected, ServiceUnavailable
from art_nb.monitoring.wandb_monitor import WandbMonitor

SERVICES: dict[str, type[Monitor]] = {"wandb": WandbMonitor, "langfuse": LangfuseMonitor}  # names for `report_metrics`

__all__ = ["SERVICES", "LangfuseMonitor", "LogEntry", "Monitor", "ServiceRejected", "ServiceUnavailable", "WandbMonitor"]
