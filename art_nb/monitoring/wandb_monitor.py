"""`WandbMonitor`: log metrics, trajectory tables and checkpoints to Weights & Biases, one run per model."""

from __future__ import annotations

import os
import secrets
from typing import Any

from art_nb.metrics import CUMULATIVE_SECTIONS
from art_nb.monitoring.monitor import LogEntry, Monitor
from art_nb.storage.run_log import trajectory_table
from art_nb.trajectories.records import turn_text

SECTIONS = (*CUMULATIVE_SECTIONS, "throughput")  # metrics in these sections get no split prefix, as in ART

# Arguments of `wandb.Settings`. By default wandb also uploads a description of the machine, its load and name, its packages
# and the git repository.
PRIVATE: dict[str, Any] = {
    "console": "off", "host": "", "disable_git": True, "disable_code": True, "disable_job_creation": True,
    "save_code": False, "x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True,
    "x_save_requirements": False,
}  # fmt: skip
OMITTED = ["turns", "additional_turns", "turn_rewards", "started"]  # fields of a record that do not become columns


class WandbMonitor(Monitor):
    """Logs to Weights & Biases under ART's names: "train/reward", "val/reward", ..., with "training_step" as x-axis.

    With a key it logs to the service; without one, to files in {model's folder}/wandb/offline-run-*, which `wandb leet`
    displays and `wandb sync` uploads. If the run cannot be started online, it logs to these files instead.

    W&B receives the platform, the Python version and the imported libraries that it recognises; no code or system metrics.

    Args:
        api_key: None uses WANDB_API_KEY. A key that `wandb login` has stored is not used.
        mode: "online", "offline" or "disabled" (log nothing). None uses WANDB_MODE, else "online" if there is a key.
        base_url: of a self-hosted server. None uses WANDB_BASE_URL, else the public service.
        trajectories: log "trajectories/{split}", a table with a row per trajectory and its conversation as plain text.
        checkpoints: log each checkpoint as an artifact of type "model", "{model}-checkpoint:step{step}".
        start_timeout: timeout in seconds for starting the run.
        patience, backlog: see `Monitor`.
    """

    service, package = "Weights & Biases", "wandb"

    def __init__(
        self,
        *,
        api_key: str | None = None,
        mode: str | None = None,
        base_url: str | None = None,
        trajectories: bool = True,
        checkpoints: bool = False,
        start_timeout: float = 20.0,
        patience: float = 10.0,
        backlog: int = 64,
    ):
        super().__init__(patience=patience, backlog=backlog)
        key = api_key or os.environ.get("WANDB_API_KEY")
        mode = mode or os.environ.get("WANDB_MODE") or ("online" if key else "offline")
        if mode not in ("online", "offline", "disabled"):
            raise ValueError(f"mode is {mode!r}: expected 'online', 'offline' or 'disabled'")
        if mode == "online" and not key:
            raise ValueError("mode 'online' needs a key: give api_key, or set WANDB_API_KEY")
        self.mode, self.base_url, self.start_timeout = mode, base_url, start_timeout
        self.trajectories, self.checkpoints = trajectories, checkpoints
        self.secrets = [key] if key else []
        self._runs: dict[tuple[str, str], Any] = {}

    def send(self, entry: LogEntry) -> None:
        import wandb

        run = self._run(entry)
        values: dict[str, Any] = {
            name if name.split("/")[0] in SECTIONS else f"{entry.split}/{name}": value
            for name, given in entry.row.items()
            for value in (given.item() if hasattr(given, "item") else given,)  # a numpy or torch scalar
            if isinstance(value, int | float)
        }
        if self.trajectories and entry.trajectories:
            columns, data = table(entry.trajectories)
            values[f"trajectories/{entry.split}"] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
        run.log(values | {"training_step": entry.step})
        if self.checkpoints and entry.checkpoint is not None:
            artifact = wandb.Artifact(f"{entry.model}-checkpoint", type="model", metadata={"step": entry.step})
            for path in sorted(entry.checkpoint.iterdir()):
                artifact.add_file(str(path))
            run.log_artifact(artifact, aliases=["latest", f"step{entry.step}"])

    def end(self) -> None:
        for run in self._runs.values():
            run.finish()
        self._runs.clear()

    def _run(self, entry: LogEntry) -> Any:
        key = entry.project, entry.model
        if key not in self._runs:
            try:
                self._runs[key] = self._start_run(entry, self.mode)
            except Exception as error:
                if self.mode != "online":
                    raise
                self.report_trouble(error)
                self.mode = "offline"
                self._runs[key] = self._start_run(entry, "offline")
            self.close_at_exit()
        return self._runs[key]

    def _start_run(self, entry: LogEntry, mode: str) -> Any:
        wandb = import_wandb()
        base_url = {"base_url": self.base_url} if self.base_url else {}
        settings = wandb.Settings(
            mode=mode, api_key=self.secrets[0] if mode == "online" else None, root_dir=str(entry.folder),
            init_timeout=self.start_timeout, login_timeout=self.start_timeout, x_graphql_retry_max=3, silent=True,
            finish_timeout=max(0.1, self.patience), **PRIVATE, **base_url,
        )  # fmt: skip
        # An online run is resumed under its id, as in ART; each offline start is a new run (see `wandb sync --id`).
        online, suffix = mode == "online", "" if mode == "online" else f"-{secrets.token_hex(4)}"
        run = wandb.init(
            project=entry.project, entity=entry.entity, name=entry.model, id=(entry.run or entry.model) + suffix,
            resume="allow" if online else None, reinit="create_new", settings=settings,
        )  # fmt: skip
        run.define_metric("training_step")
        run.define_metric("*", step_metric="training_step")
        return run


def import_wandb() -> Any:
    """Import and return `wandb`, without its error reports and weave. Raises: ImportError when it is not installed."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb's own process starts
    os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")  # weave, if installed, would upload every OpenAI call
    import wandb

    return wandb


def table(trajectories: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return column names and a row per trajectory: numbers, metadata, logs, and the conversation as plain text."""
    frame = trajectory_table(trajectories).drop(columns=OMITTED, errors="ignore")
    frame["logs"] = ["\n".join(each["logs"]) for each in trajectories]
    frame["conversation"] = ["\n\n".join(map(turn_text, each["turns"])) for each in trajectories]
    return list(map(str, frame.columns)), frame.astype(object).where(frame.notna(), None).values.tolist()
