"""Every notebook runs from top to bottom in a new kernel and an empty folder, as `make demo` runs one."""

from pathlib import Path

import nbformat
import pytest

from art_nb.course.demo import results, run_notebook, working_folder

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    run_notebook(notebook, working_folder(tmp_path))
    tagged = any("result" in cell.metadata.get("tags", []) for cell in notebook.cells)
    assert bool(results(notebook)) == tagged
