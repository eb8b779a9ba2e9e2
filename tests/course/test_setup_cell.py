"""The first cell of the notebooks, run by a kernel outside Colab."""

import json
import os
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from course.setup_cell import ROOT, setup_cell


def outputs(folder: Path, *sources: str) -> list[list[nbformat.NotebookNode]]:
    """Run cells in a kernel that starts in `folder`. Returns the outputs of each."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.parametrize("opened_in", ["notebooks", ".", "tests/course", "elsewhere"])
def test_the_course_is_found_from_any_folder(opened_in, tmp_path):
    folder = tmp_path if opened_in == "elsewhere" else ROOT / opened_in
    _, (found,) = outputs(folder, setup_cell(), "import json, os; print(json.dumps(os.getcwd()))")
    assert Path(json.loads(found.text)).samefile(ROOT / "notebooks")


def test_a_copy_of_the_course_keeps_its_folder(tmp_path):
    (tmp_path / "notebooks").mkdir()
    shutil.copytree(ROOT / "data/nano", tmp_path / "data/nano")
    _, (found,) = outputs(tmp_path / "notebooks", setup_cell(), "print(os.getcwd())")
    assert os.path.samefile(found.text.strip(), tmp_path / "notebooks")


def test_plots_appear_despite_the_shells_matplotlib_backend(monkeypatch):
    """With MPLBACKEND=agg and no screen, matplotlib's `show` returns silently, and notebooks lose their plots."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.delenv("DISPLAY", raising=False)
    draw = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
    (lost,) = outputs(ROOT / "notebooks", draw)
    _, shown = outputs(ROOT / "notebooks", setup_cell(), draw)
    assert lost == [] and "image/png" in shown[0].data
