"""A notebook opened on Colab: an empty folder, an environment with torch and Jupyter, no course yet.

Colab itself is not available here. It is simulated by a module `google.colab` that records its calls; by a virtual environment
that sees the packages of this one except those that Colab lacks, and Colab's old ipywidgets; and by the repository as a clone
of its files, or as the zip that `python -m art_nb colab` writes. pip downloads what is missing.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from course import setup_cell
from course.setup_cell import first_code_cell

ROOT = Path(__file__).parents[2]
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
UPLOAD = """
import os, shutil
def upload():
    shutil.copy(os.environ["ART_NB_ZIP"], "art_nb (1).zip")
    return {"art_nb (1).zip": b"..."}
"""


def run(*command, cwd=None):
    subprocess.run([str(part) for part in command], cwd=cwd, check=True, capture_output=True)


def repository(folder: Path) -> str:
    """Make a repository with one commit of this one's files, tagged as this version, in `folder`, and return its address."""
    for name in setup_cell.tracked_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    run("git", "init", "-q", cwd=folder)
    run("git", "add", "-A", cwd=folder)
    run("git", "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-q", "-m", "x", cwd=folder)
    run("git", "tag", f"v{setup_cell.project_table(ROOT)['version']}", cwd=folder)
    return folder.as_uri()


def environment(folder: Path) -> Path:
    """Make a virtual environment like Colab's, and return its Python."""
    packages = folder / "packages"  # outside of the environment, so that pip does not change them
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
    (site / "google/colab/files.py").write_text(UPLOAD, encoding="utf-8")
    return folder / "python/bin/python"


@pytest.fixture
def colab(tmp_path, monkeypatch):
    """Return the folder that stands in for /content, and a function that runs cells there in a new kernel of such an environment."""
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


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return setup_cell.write_zip(tmp_path_factory.mktemp("zip"))


@pytest.mark.skipif(sys.platform != "linux", reason="Colab is Linux")
@pytest.mark.parametrize("way", ["clone", "upload"])
def test_the_first_notebook_runs_on_colab(way, colab, archive, tmp_path, monkeypatch):
    content, execute = colab
    cells = nbformat.read(ROOT / "notebooks/00_start_here.ipynb", as_version=4).cells
    first = first_code_cell({"cells": cells})
    if way == "clone":
        (tmp_path / "repository").mkdir()
        address = repository(tmp_path / "repository")
        monkeypatch.setattr(setup_cell, "repository", lambda: address)
    else:
        monkeypatch.setenv("ART_NB_ZIP", str(archive))
        monkeypatch.setattr(setup_cell, "repository", lambda: None)
    first.source = setup_cell.setup_cell()
    until = "GroupView(" if way == "clone" else "doctor()"  # both ways install the same; a clone is trained on, too
    last = next(i for i, cell in enumerate(cells) if cell.cell_type == "code" and until in cell.source)
    look = new_code_cell(
        "import os, anywidget, ipywidgets, art_nb\n"
        "from google.colab import output\n"
        "print(os.getcwd(), ipywidgets.__version__, anywidget.__file__, art_nb.__file__, *output.calls, sep='\\n')"
    )
    printed = execute([*cells[: last + 1], new_code_cell(first.source), look])
    where, widgets, new, course, *calls = printed[-1].splitlines()
    assert where == str(content / "course/notebooks") and course == str(content / "course/art_nb/__init__.py")
    assert widgets == "7.7.1" and Path(new).is_relative_to(tmp_path / "python") and "custom widgets" in calls
    assert "a few minutes" in printed[0] and printed[-2] == ""  # the setup cell once more
    assert ("Cloning" in printed[0]) == (way == "clone") and ("Upload art_nb.zip" in printed[0]) == (way == "upload")
    assert "MISSING" not in printed[1] and "intact" in printed[1]
    assert {path.name for path in content.iterdir()} == {"course"} | ({"art_nb (1).zip"} if way == "upload" else set())

    printed = execute([first, look])  # after a restart
    assert "Cloning" not in printed[0] and "Upload" not in printed[0] and printed[-1].splitlines()[0] == where
    assert printed[-1].splitlines()[4:] == ["custom widgets"]


def test_the_zip_holds_what_the_notebooks_read_and_no_outputs(archive):
    with zipfile.ZipFile(archive) as opened:
        names = set(opened.namelist())
        notebook = json.loads(opened.read("notebooks/02_2048.ipynb"))
    assert {"pyproject.toml", "README.md", "art_nb/model.py", "notebooks/course/setup_venv.py"} <= names
    assert {"data/nano/model.safetensors", "environments/game_2048/game_2048/__init__.py"} <= names
    assert not any(name.startswith(("tests/", ".git")) for name in names)
    assert not any(cell.get("outputs") for cell in notebook["cells"]) and "widgets" not in notebook["metadata"]
