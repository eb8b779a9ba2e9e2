"""The files of a run other than its checkpoints: metrics, trajectories and the state of the training loop.

    history.jsonl                           one row of metrics per line
    trajectories/{split}/{step:04d}.jsonl   one trajectory record per line (see `trajectories.records`)
    state.json                              the training loop's own state

All are in the model's folder. Each write is atomic.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_nb.metrics import JUDGE, SCENARIOS, SUMMED_PREFIXES, UNIQUE, MetricsBuilder
from art_nb.storage.checkpoints import append_jsonl, read_jsonl, write_file
from art_nb.storage.summary import counts, scenario_ids
from art_nb.trajectories import TrajectoryGroup
from art_nb.trajectories.records import json_number
from art_nb.trajectories.usage import wall_seconds

if TYPE_CHECKING:
    import pandas

EVALUATION = ("val", "test")  # splits whose costs count as evaluation costs
AUTOMATIC = ("time/step_wall_s", "time/step_actor_s", "time/step_trainer_s", "data/step_trainer_tokens")  # from backends
COST_CONTEXTS = {**dict.fromkeys(EVALUATION, "eval"), "sft": "train"}  # other splits use their own name


@dataclass
class RunTotals:
    """One process's counters of a run."""

    builder: MetricsBuilder = field(default_factory=lambda: MetricsBuilder("train"))
    loaded: bool = False  # whether the builder contains the sums in history.jsonl
    logged_at: float = field(default_factory=time.monotonic)  # time of the last training row, initially of creation
    rows: int = 0  # appended by this process


class RunLog:
    """Reads and writes the log of one run.

    Args:
        folder: the model's folder. Nothing is created until something is written.
        totals: the counters to continue with; None starts with the sums in history.jsonl.
        gpu_cost_per_hour_usd: the price of the machine; None logs no costs/gpu.
        on_row: called with (split, step, row, groups, checkpoint) after each row is on disk.
    """

    def __init__(
        self,
        folder: Path,
        totals: RunTotals | None = None,
        gpu_cost_per_hour_usd: float | None = None,
        on_row: Callable[[str, int, dict[str, Any], list[TrajectoryGroup], Path | None], None] | None = None,
    ) -> None:
        self.folder, self._totals = folder, totals or RunTotals()
        self._gpu_cost_per_hour_usd, self._on_row = gpu_cost_per_hour_usd, on_row

    def write_trajectories(self, groups: list[TrajectoryGroup], split: str, step: int) -> None:
        """Write trajectories/{split}/{step:04d}.jsonl, replacing an earlier one."""
        found = [
            trajectory.record(step=step, split=split, group=g, index=i)
            for g, group in enumerate(groups)
            for i, trajectory in enumerate(group)
        ]
        path = self.folder / "trajectories" / _checked(split) / f"{step:04d}.jsonl"
        write_file(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in found).encode())

    def metrics_builder(self, cost_context: str | None = None) -> MetricsBuilder:
        """Return the builder of a cost context ("train" by default); its sums continue those in history.jsonl."""
        builder = self._totals.builder
        if not self._totals.loaded:
            rows = self.rows()
            logged = ((name, value) for row in rows for name, value in row.items() if "/cum/" in name and name != UNIQUE)
            sums = {name: value for name, value in logged if isinstance(value, int | float)}
            scenarios = [each for row in rows for each in row.get(SCENARIOS, ())]
            builder.load_state_dict({"cum_state": sums, "unique_scenario_ids": scenarios}, keep_pending=True)
            self._totals.loaded = True
        return builder if cost_context is None else builder.for_cost_context(cost_context)

    @contextmanager
    def rollback_on_error(self, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Restore the counters if the block raises before appending a row. unless: whether the block took effect anyway."""
        totals, rows = self._totals, self._totals.rows
        before, logged_at, loaded = totals.builder.counters(), totals.logged_at, totals.loaded
        try:
            yield
        except BaseException:
            if totals.rows == rows and not unless():
                totals.builder.restore_counters(before)
                totals.logged_at, totals.loaded = logged_at, loaded
            raise

    async def complete_row(self, split: str, row: dict[str, Any], groups: list[TrajectoryGroup]) -> dict[str, Any]:
        """Return the row with all costs, seconds and counts since its cost context's last row, and their sums over the run.

        The context's counters are reset to 0. Metrics that are summed (see `art_nb.metrics`) are taken from the row, its
        groups and their trajectories. Seconds and counts that the user added to the builder replace the automatic ones.
        """
        builder = self.metrics_builder(COST_CONTEXTS.get(_checked(split), split))
        given, counted = builder.pending()[0], counts(groups, split)
        row = {name: value for name, value in row.items() if name not in given or name not in (*AUTOMATIC, *counted)}
        for metrics in (row, *(each.metrics for group in groups for each in (group, *group))):
            for name, value in metrics.items():
                if name.startswith(SUMMED_PREFIXES) and "/cum/" not in name:
                    builder.add_metric(name, value)
        for group in groups:
            if "judge_cost_usd" in group.metrics:
                builder.add_cost(f"{builder.cost_context}/{JUDGE}", group.metrics["judge_cost_usd"])
        trained = split in ("train", "sft") and (groups or "time/step_trainer_s" in {*row, *given})
        for name, value in {**(self._usage() if trained else {}), **counted}.items():
            if name not in row and name not in given:
                builder.add_metric(name, value)
        if split in EVALUATION and "time/step_eval_s" not in {*row, *given}:
            builder.add_user_timing(step_eval_s=wall_seconds(each for group in groups for each in group))
        builder.add_data(scenario_ids=scenario_ids(groups))
        scenarios = sorted(builder.pending()[1])
        averaged = {name: value for name, value in row.items() if not name.startswith(SUMMED_PREFIXES)}
        added = await builder.flush()
        if "time/step_actor_s" not in added:  # an average without this row's seconds would be too high
            added.pop("throughput/avg_actor_tok_per_s", None)
        return averaged | ({SCENARIOS: scenarios} if scenarios else {}) | added

    def _usage(self) -> dict[str, float]:
        """Return the seconds since training was last logged, and the machine's cost in that time; restart the clock."""
        seconds, self._totals.logged_at = time.monotonic() - self._totals.logged_at, time.monotonic()
        price = self._gpu_cost_per_hour_usd
        return {"time/step_wall_s": seconds} | ({} if price is None else {"costs/gpu": seconds * price / 3600})

    def append_row(
        self,
        split: str,
        step: int,
        row: dict[str, Any],
        groups: list[TrajectoryGroup] | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        """Append the row to history.jsonl, then call `on_row` with it, its groups and the folder of its checkpoint."""
        stamped = {**plain_numbers(row), "step": step, "split": _checked(split), "time": time.time()}
        append_jsonl(self.folder / "history.jsonl", [stamped])
        self._totals.rows += 1
        if self._on_row:
            self._on_row(split, step, row, groups or [], checkpoint)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows of history.jsonl in the order written; none when there is no such file."""
        return read_jsonl(self.folder / "history.jsonl")

    def history(self) -> pandas.DataFrame:
        """Return the rows as a table with one column per metric; step, split and time come first."""
        import pandas

        found = [{name: number(value) for name, value in row.items()} for row in self.rows()]
        table = pandas.DataFrame(found, columns=None if found else ["step", "split", "time"])
        first = ["step", "split", "time"]
        return table[first + [name for name in table.columns if name not in first]]

    def best_step(self, metric: str, among: Container[int] | None = None) -> int | None:
        """Return the step (in `among`) with the highest mean of "split/name", the latest if tied; None if there is none."""
        split, slash, name = metric.partition("/")
        if not slash:
            raise ValueError(f'metric {metric!r}: write it as "split/name", e.g. "val/{metric}".')
        values: dict[int, list[float]] = {}
        for row in self.rows():
            if row["split"] == split and isinstance(row.get(name), int | float):  # NaN and infinity are stored as strings
                values.setdefault(row["step"], []).append(row[name])
        steps = [step for step in values if among is None or step in among]
        return max(steps, key=lambda step: (statistics.fmean(values[step]), step), default=None)

    def records(self, split: str | None = None, step: int | None = None) -> list[dict[str, Any]]:
        """Return trajectory records, ordered by split, step, group and index. None: every split, every step."""
        paths = (self.folder / "trajectories").glob(f"{'*' if split is None else _checked(split)}/*.jsonl")
        chosen = [path for path in paths if step is None or int(path.stem) == step]
        ordered = sorted(chosen, key=lambda path: (path.parent.name, int(path.stem)))
        return [record for path in ordered for record in read_jsonl(path)]

    def read_state(self) -> Any:
        """Return the stored state; None when there is none."""
        path = self.folder / "state.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace the stored state."""
        write_file(self.folder / "state.json", json.dumps(state, indent=2).encode())


def trajectory_table(found: list[dict[str, Any]]) -> pandas.DataFrame:
    """Return records as a table: one row per trajectory, with its metrics and metadata as columns.

    Where a metric or an entry of the metadata has the name of a field (`step`, `reward`, ...), the field wins.
    """
    import pandas

    nested = ("metrics", "metadata")
    table = []
    for record in found:
        fields = {name: value for name, value in record.items() if name not in nested}
        numbers = {name: number(value) for name, value in record["metrics"].items()}
        fields["reward"], fields["advantage"] = number(record["reward"]), number(record["advantage"])
        metadata = {name: number(value) for name, value in record["metadata"].items()}
        table.append({**{n: fields[n] for n in ("step", "split")}, **metadata, **numbers, **fields})
    return pandas.DataFrame(table)


def merged(base: dict[str, Any], updates: dict[str, Any]) -> dict[str, Any]:
    """Return `base` updated by `updates`; nested dicts are merged, too."""
    both = {k: merged(base[k], v) for k, v in updates.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return {**base, **updates, **both}


def _checked(split: str) -> str:
    if not re.fullmatch(r"[\w-]+", split):
        raise ValueError(f"split is {split!r}: it names a folder, so use only letters, digits, _ and -.")
    return split


def plain_numbers(value: Any) -> Any:
    """Convert numbers, in dicts and lists too, to JSON: NaN and infinity as strings, numpy and torch scalars by `item`."""
    if isinstance(value, dict):
        return {name: plain_numbers(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(each) for each in value]
    if value is None or isinstance(value, str):
        return value
    try:
        return json_number(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises RuntimeError for several elements
        raise TypeError(f"cannot log {value!r:.80}: expected a number, text or None, or a list or dict of them") from error


def number(value: Any) -> Any:
    """Convert "NaN", "Infinity" and "-Infinity" back to floats, in lists too; return other values unchanged."""
    if isinstance(value, list):
        return [number(each) for each in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
