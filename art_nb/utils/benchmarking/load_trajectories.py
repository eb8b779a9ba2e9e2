"""Load the logged trajectories of a project's models as one table."""

from pathlib import Path
from typing import TYPE_CHECKING

from art_nb.storage.run_log import RunLog, number

if TYPE_CHECKING:
    import pandas


async def load_trajectories(
    project_name: str, models: list[str] | None = None, debug: bool = False, art_path: str | None = None
) -> "pandas.DataFrame":
    """Return one row per trajectory: model, split, step, group_number, reward, messages, logs, metric_* and metadata_*.

    A pandas DataFrame (ART: polars); group_number is unique, from 1; messages: the turns; metric_reward: the reward.

    Args:
        models: names of models; None: all of the project.
        debug: print the number of trajectories.
        art_path: the backend's `path`; None: ".art".
    """
    import pandas

    rows = []
    for folder in sorted((Path(art_path or ".art") / project_name / "models").glob("*")):
        if not folder.is_dir() or (models is not None and folder.name not in models):
            continue
        for record in RunLog(folder).records():
            reward = number(record["reward"])
            rows.append({
                "model": folder.name, "split": record["split"], "step": record["step"], "group_number": record["group"],
                "reward": reward, "messages": record["turns"], "logs": record["logs"], "metric_reward": reward,
                **{f"metric_{name}": number(value) for name, value in record["metrics"].items()},
                **{f"metadata_{name}": number(value) for name, value in record["metadata"].items()},
            })  # fmt: skip
    if debug:
        print(f"{len(rows)} trajectories of {len({row['model'] for row in rows})} models in {project_name!r}")
    table = pandas.DataFrame(rows)
    if rows:  # number the groups uniquely over all models, splits and steps
        table["group_number"] = table.groupby(["model", "split", "step", "group_number"], sort=False).ngroup() + 1
    return table
