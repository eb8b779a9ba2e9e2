"""The results of notebook 03, Tic-tac-toe, with other seeds: training on demonstrations, then self-play.

`python -m benchmarks.rise_self_play --seeds 0 1 2` executes the notebook's cells, up to the evaluation after self-play,
with another seed of the backend (initial adapter and all samples). It prints one JSON line: for each seed the columns of
`Comparison.summary` for draws against the perfect player (the rule is the tactical player), the notebook's results as
percentages of 448 test games, the seconds of self-play, and `claims`: "hold", or the notebook's first assertion that fails.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import io
import json
import os
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.result import print_result, say
from course import comparison

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks" / "03_tic_tac_toe.ipynb"
SHOW = "course.results.show"
BACKEND = 'LocalBackend(path=".art", '


def program(folder: str, seed: int) -> str:
    """Return the notebook's code up to the cell that shows the results, with its files in `folder`."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    last = next(i for i, cell in enumerate(cells) if "course.results" in "".join(cell["source"]))
    code = "\n".join("".join(cell["source"]) for cell in cells[1 : last + 1])  # the first cell is for Colab
    assert BACKEND in code
    code = code.replace(BACKEND, f"{BACKEND}seed={seed}, ").replace('".art', f'"{Path(folder).as_posix()}')
    return code.replace("../data", str(NOTEBOOK.parent.parent / "data"))


def measure_seed(seed: int) -> dict:
    """Return the results of the notebook with this seed."""
    say(f"seed {seed}")
    rows: list[dict] = []
    names: dict[str, Any] = {"display": lambda shown: None}  # the notebook's variables
    claims = "hold"
    showing = patch(SHOW, lambda *shown: rows.extend(shown))
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), showing:
        code = compile(program(folder, seed), str(NOTEBOOK), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        try:
            asyncio.run(eval(code, names))
        except AssertionError as error:
            claims = str(error)
    base, played, tactical = (names[name] for name in ("base", "played", "tactical"))
    found = comparison.compare(
        base["drawing"], played["drawing"], tactical[names["DRAWN"]], "tactical player", names["tries_of_base"]
    )
    results = {row["label"]: row["value"] for row in rows}
    return {"seed": seed, "claims": claims, **found.summary(), "seconds": names["seconds"], **results}


def measure(seeds: list[int]) -> dict:
    os.environ.setdefault("MPLBACKEND", "agg")
    return {"runs": [measure_seed(seed) for seed in seeds]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    print_result("rise_self_play", lambda: measure(seeds))


if __name__ == "__main__":
    main()
