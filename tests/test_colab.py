"""A notebook opened on Colab: an empty folder, an environment with torch and Jupyter, no course yet.

Colab itself can't be had here. What stands in for it: `google.colab` as a module that notes its calls; a virtual
environment that sees the packages of this one but those that Colab lacks, and Colab's old ipywidgets; the repository
as a clone of the files that lie here. pip reaches the package index for what is missing.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from art_nb.course.setup_cell import first_code_cell, setup_cell

ROOT = Path(__file__).parent.parent
LACKING = ("art_nb", "__editable__", "trl", "anywidget", "psygnal", "jupyterlab-", "ipywidgets")
UNUSABLE = ("unsloth", "unsloth_zoo")  # installed, but its CPU backend does not start beside Colab's torchvision
OLD_WIDGETS = ["ipywidgets==7.7.1", "ipython_genutils==0.2.0"]
GOOGLE = """
from types import SimpleNamespace
calls = []
_widgets = SimpleNamespace(_installed_url=None)  # anywidget looks at it
def enable_custom_widget_manager():
    calls.append("custom widgets")
"""


def run(*command, cwd=None):
    subprocess.run([str(part) for part in command], cwd=cwd, check=True, capture_output=True)


def repository(folder: Path) -> str:
    """The address of a repository with one commit: the files of this one as they lie here."""
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT).decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    run("git", "init", "-q", cwd=folder)
    run("git", "add", "-A", cwd=folder)
    run("git", "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-q", "-m", "x", cwd=folder)
    return folder.as_uri()


def environment(folder: Path) -> Path:
    """A virtual environment like Colab's; returns its Python."""
    packages = folder / "packages"  # outside of the environment, so pip changes nothing of it
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", packages, *OLD_WIDGETS)
    (metadata,) = packages.glob("ipywidgets-*/METADATA")
    lines = metadata.read_text(encoding="utf-8").splitlines(keepends=True)
    metadata.write_text("".join(line for line in lines if not line.startswith("Requires-Dist")), encoding="utf-8")
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.startswith(LACKING) and path.name not in UNUSABLE:
            (packages / path.name).symlink_to(path)
    venv.create(folder / "python", symlinks=True)
    (site,) = (folder / "python").glob("lib/*/site-packages")
    (site / "packages.pth").write_text(str(packages), encoding="utf-8")
    (site / "google/colab").mkdir(parents=True)
    (site / "google/colab/__init__.py").touch()
    (site / "google/colab/output.py").write_text(GOOGLE, encoding="utf-8")
    return folder / "python/bin/python"


@pytest.fixture
def colab(tmp_path, monkeypatch):
    """Runs cells in a new kernel of such an environment; returns the folder that stands for /content, and that function."""
    content = tmp_path / "Jörgs Laufwerk" / "content"
    content.mkdir(parents=True)
    argv = [str(environment(tmp_path)), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (tmp_path / "jupyter/kernels/colab").mkdir(parents=True)
    spec = {"argv": argv, "display_name": "Colab", "language": "python"}
    (tmp_path / "jupyter/kernels/colab/kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab-external")

    def execute(cells):
        notebook = new_notebook(cells=cells)
        NotebookClient(notebook, kernel_name="colab", resources={"metadata": {"path": str(content)}}, timeout=600).execute()
        return ["".join(out.get("text", "") for out in cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]

    return content, execute


@pytest.mark.skipif(sys.platform != "linux", reason="Colab is Linux")
def test_the_first_notebook_runs_on_colab(colab, tmp_path):
    content, execute = colab
    address = setup_cell().partition('REPOSITORY = "')[2].partition('"')[0]
    (tmp_path / "repository").mkdir()
    cells = nbformat.read(ROOT / "notebooks/00_start_here.ipynb", as_version=4).cells
    first = first_code_cell({"cells": cells})
    first.source = setup_cell().replace(address, repository(tmp_path / "repository"))
    last = next(i for i, cell in enumerate(cells) if "GroupView(" in cell.source)
    look = new_code_cell(
        "import os, anywidget, ipywidgets, art_nb\n"
        "from google.colab import output\n"
        "print(os.getcwd(), ipywidgets.__version__, anywidget.__file__, art_nb.__file__, *output.calls, sep='\\n')"
    )
    said = execute([*cells[: last + 1], new_code_cell(first.source), look])
    where, widgets, new, course, *calls = said[-1].splitlines()
    assert where == str(content / "course/notebooks") and course == str(content / "course/art_nb/__init__.py")
    assert widgets == "7.7.1" and Path(new).is_relative_to(tmp_path / "python") and "custom widgets" in calls
    assert "a few minutes" in said[0] and said[-2] == ""  # the setup cell once more
    assert "MISSING" not in said[1] and "intact" in said[1]
    assert [path.name for path in content.iterdir()] == ["course"]

    said = execute([first, look])  # after a restart
    assert "Cloning" not in said[0] and said[-1].splitlines()[0] == where
    assert said[-1].splitlines()[4:] == ["custom widgets"]
