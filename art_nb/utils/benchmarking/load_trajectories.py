"""All logged trajectories of a project's models as one table."""

from pathlib import Path
from typing import TYPE_CHECKING

from art_nb.storage import logbook

if TYPE_CHECKING:
    import pandas

PLAIN = ("reward", "logs", "messages")


async def load_trajectories(
    project_name: str, models: list[str] | None = None, debug: bool = False, art_path: str | None = None
) -> "pandas.DataFrame":
    """One row per trajectory: model, split, step, group_number, reward, messages, logs, metric_* and metadata_*.

    It is a pandas frame (ART's is one of polars). metric_reward is the reward too.

    Args:
        models: names; None takes all of the project.
        debug: print how many were found.
        art_path: the backend's path; None: ".art".
    """
    import pandas

    folders = sorted(path for path in (Path(art_path or ".art") / project_name / "models").glob("*") if path.is_dir())
    rows = []
    for folder in folders:
        if models is not None and folder.name not in models:
            continue
        for record in logbook.records(folder):
            numbers = {f"metric_{name}": logbook.number(value) for name, value in record["metrics"].items()}
            facts = {f"metadata_{name}": value for name, value in record["metadata"].items()}
            place = {"model": folder.name, "split": record["split"], "step": record["step"], "group_number": record["group"]}
            reward = logbook.number(record["reward"])
            said = {"reward": reward, "messages": record["turns"], "logs": record["logs"]}
            rows.append({**place, **said, "metric_reward": reward, **numbers, **facts})
    if debug:
        print(f"{len(rows)} trajectories of {len({row['model'] for row in rows})} models in {project_name!r}")
    table = pandas.DataFrame(rows)
    if rows:  # a number of its own for each group
        table["group_number"] = table.groupby(["model", "split", "step", "group_number"], sort=False).ngroup() + 1
    return table
