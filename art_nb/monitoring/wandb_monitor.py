"""Metrics, tables of trajectories and checkpoints in Weights & Biases, a run for each model."""

from __future__ import annotations

import os
import secrets
import time
from typing import Any

from art_nb.metrics import SUMMED
from art_nb.monitoring.entry import Entry
from art_nb.monitoring.monitor import Monitor
from art_nb.storage import logbook

SECTIONS = (*SUMMED, "throughput")  # names that begin so are the same in every split, as in ART

OMITTED = ["turns", "additional_turns", "turn_rewards", "started"]  # fields of a record that are no cells of a table


class WandbMonitor(Monitor):
    """Logs to Weights & Biases under ART's names: "train/reward", "val/reward", ..., over "training_step".

    With a key it logs to the service, without one to files: {folder of the model}/wandb/offline-run-*, which `wandb leet`
    shows and `wandb sync` sends. If the service cannot be reached when the run begins, it goes on with files.

    Of the machine nothing is sent: no code, no git state, no list of packages, no use of processor or memory.

    Args:
        api_key: None takes WANDB_API_KEY.
        mode: "online" or "offline"; None: WANDB_MODE, else online if there is a key.
        base_url: of a server of one's own; None takes WANDB_BASE_URL, else the public one.
        trajectories: log "trajectories/{split}", a table with a line for each, its conversation as plain text.
        answer_in: seconds that the service has when the run begins.
        checkpoints: log each checkpoint as an artifact of type "model", "{model}-checkpoint:step{step}".
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
        answer_in: float = 20.0,
        patience: float = 10.0,
        backlog: int = 64,
    ):
        super().__init__(patience=patience, backlog=backlog)
        key = api_key or os.environ.get("WANDB_API_KEY")
        mode = mode or os.environ.get("WANDB_MODE") or ("online" if key else "offline")
        if mode not in ("online", "offline"):
            raise ValueError(f"mode is {mode!r}: expected 'online' or 'offline'")
        if mode == "online" and not key:
            raise ValueError("mode 'online' needs a key: give api_key, or set WANDB_API_KEY")
        self.mode, self.base_url, self.answer_in = mode, base_url, answer_in
        self.trajectories, self.checkpoints = trajectories, checkpoints
        self._secrets = [key] if key else []
        self._runs: dict[tuple[str, str], Any] = {}

    def send(self, entry: Entry) -> None:
        import wandb

        run = self._run(entry)
        values: dict[str, Any] = {
            name if name.split("/")[0] in SECTIONS else f"{entry.split}/{name}": value
            for name, value in entry.row.items()
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

    def end(self, until: float) -> None:
        for run in self._runs.values():
            run.settings.finish_timeout = max(0.1, until - time.monotonic())
            run.finish()
        self._runs.clear()

    def _run(self, entry: Entry) -> Any:
        key = entry.project, entry.model
        if key not in self._runs:
            try:
                self._runs[key] = self._begun(entry, self.mode)
            except Exception as error:
                if self.mode == "offline":
                    raise
                self._note_trouble(error)
                self.mode = "offline"
                self._runs[key] = self._begun(entry, "offline")
            self._close_at_exit()
        return self._runs[key]

    def _begun(self, entry: Entry, mode: str) -> Any:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when the package is imported
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")  # it would send every call of openai, where it is installed
        import wandb

        of_server = {"base_url": self.base_url} if self.base_url else {}
        settings = wandb.Settings(
            mode=mode, api_key=self._secrets[0] if mode == "online" else None, root_dir=str(entry.folder),
            init_timeout=self.answer_in, login_timeout=self.answer_in, x_graphql_retry_max=3, finish_timeout=self.patience,
            console="off", silent=True, disable_git=True, disable_code=True, save_code=False, disable_job_creation=True,
            x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True, x_save_requirements=False, host="",
            **of_server,
        )  # fmt: skip
        # A run of the service goes on under its id, as in ART; each file is a run of its own until `wandb sync` sends it.
        online, end = mode == "online", "" if mode == "online" else f"-{secrets.token_hex(4)}"
        run = wandb.init(
            project=entry.project, entity=entry.entity, name=entry.model, id=(entry.run or entry.model) + end,
            resume="allow" if online else None, reinit="create_new", settings=settings,
        )  # fmt: skip
        run.define_metric("training_step")
        for section in (*SECTIONS, "train", "val", "test", "sft", "trajectories"):
            run.define_metric(f"{section}/*", step_metric="training_step")
        return run


def table(trajectories: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns and lines: numbers and facts of each trajectory, and what was said. Text stays text, whatever it holds."""
    frame = logbook.trajectory_table(trajectories).drop(columns=OMITTED, errors="ignore")
    frame["logs"] = ["\n".join(each["logs"]) for each in trajectories]
    frame["conversation"] = ["\n\n".join(map(said, each["turns"])) for each in trajectories]
    return list(map(str, frame.columns)), frame.astype(object).where(frame.notna(), None).values.tolist()


def said(turn: dict[str, Any]) -> str:
    """A turn of a record, as text."""
    calls = [f"{call['name']}({call['arguments']})" for call in turn.get("tool_calls", ())]
    return "\n".join([f"{turn['role']}: {turn['content']}", *calls])
