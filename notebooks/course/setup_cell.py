"""The first code cell of every notebook: working folder, pictures below the cells, and on Colab the installation.

It changes to the folder `notebooks` of the repository if the notebook was opened from another one (VS Code starts in the
workspace's folder), and chooses matplotlib's inline backend: with another one in MPLBACKEND, plots are lost silently.

Colab opens a notebook in /content, without its repository. The cell brings the repository to /content/course, installs what
Colab lacks and changes to /content/course/notebooks, so that all paths are those of the repository. It can run again, in the
same kernel or after a restart.

Where the repository comes from depends on its address, `project.urls.Repository` in pyproject.toml: with an address the
cell clones it, without one it asks for an upload of the zip that `python -m art_nb colab` writes. `python -m art_nb address
URL` sets the address there, in the cells and in the README's badges.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

from art_nb.storage.checkpoints import write_file
from course.setup_venv import ROOT, project_table

FIRST_LINE = "# Prepares this notebook. On Colab it also fetches the course and installs what is missing there."
EARLIER_FIRST_LINES = ("# On Colab this fetches the course and installs what is missing there.",)
CLONE = """\
        commands.insert(0, ["git", "clone", "--depth=1", "--branch={tag}", "{repository}", "course"])"""
UPLOAD = """\
        import shutil

        from google.colab import files

        print("Upload art_nb.zip. In your copy of the course `python -m art_nb colab` writes it into the folder out.")
        for name in files.upload():
            shutil.unpack_archive(name, "course", "zip")
        assert os.path.exists("course"), "No file was uploaded. Run this cell again and choose art_nb.zip."
"""
TEMPLATE = (
    FIRST_LINE
    + """
import glob
import os
import subprocess
import sys

if "COLAB_RELEASE_TAG" in os.environ and not os.path.exists("../art_nb"):
    commands = [[sys.executable, "-I", "course/notebooks/course/setup_venv.py", "--here"]]
    if not os.path.exists("course"):
{fetch}
    print("Installing what the course needs: a few minutes, once.", flush=True)
    for command in commands:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            for line in run.stdout:
                print(line, end="", flush=True)
        assert run.returncode == 0, "The installation failed; the lines above say why."
    os.chdir("course/notebooks")
    sys.path[:0] = [os.path.abspath(place) for place in ("..", ".", *glob.glob("../environments/*"))]
    from google.colab import output

    output.enable_custom_widget_manager()
if not os.path.exists("../data/nano"):  # the notebook was opened from another folder
    from importlib.util import find_spec

    os.chdir(os.path.dirname(find_spec("course").submodule_search_locations[0]))
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # pictures below the cells"""
)
# No notebook reads these.
NOT_ON_COLAB = (".", "tests/", "benchmarks/", "book/", "requirements/", "data/policy_", "data/nano_service/start/")
LARGEST = 25 * 2**20  # bytes of the zip; five models of about 4 MB and two adapters of 5 MB are most of it
BADGE = re.compile(r" \[!\[Open in Colab\]\([^)]*\)\]\([^)]*\)")
NOTEBOOK_LINK = re.compile(r"(?<=^\| )\[(\w+)\]\((\S*notebooks/\1\.ipynb)\)", re.MULTILINE)


def repository() -> str | None:
    """Return the repository's address, None as long as none is set."""
    return project_table(ROOT).get("urls", {}).get("Repository")


def tag() -> str:
    """Return the tag of this version, so that the files a notebook fetches do not change later."""
    return f"v{project_table(ROOT)['version']}"


def setup_cell() -> str:
    """Return the cell's source: with an address in pyproject.toml it clones the version's tag, else it takes an upload."""
    url = repository()
    return TEMPLATE.format(fetch=CLONE.format(repository=url, tag=tag()) if url else UPLOAD.rstrip())


def first_code_cell(notebook: dict, name: str = "the notebook") -> dict:
    """Return the first code cell of a notebook that was read as JSON. Raises: ValueError when it has none."""
    if not (found := [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]):
        raise ValueError(f"{name} has no code cell; add an empty one for the setup cell")
    return found[0]


def write_setup_cells() -> list[Path]:
    """Write the cell into every notebook where it differs; return the changed notebooks.

    Raises: ValueError when a notebook has no code cell, or its first is neither empty nor an earlier form of this one.
    """
    changed = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cell = first_code_cell(notebook, path.name)
        source = "".join(cell["source"])
        if source and not source.startswith((FIRST_LINE, *EARLIER_FIRST_LINES)):
            raise ValueError(f"{path.name}: the first code cell is not the setup cell; put an empty code cell before it")
        if source != setup_cell():
            cell["source"] = setup_cell().splitlines(keepends=True)
            path.write_text(dumped(notebook), encoding="utf-8", newline="\n")
            changed.append(path)
    return changed


def dumped(notebook: dict) -> str:
    """Return a notebook's JSON as the committed notebooks are written."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def colab_link(url: str, notebook: str) -> str:
    """Return the address that opens a notebook of the repository `url`, e.g. "02_2048.ipynb", on Colab."""
    return f"{url.replace('https://github.com', 'https://colab.research.google.com/github')}/blob/{tag()}/notebooks/{notebook}"


def write_badges() -> list[Path]:
    """Write a Colab badge next to each notebook in the README's table; without an address, remove all badges."""
    path, url = ROOT / "README.md", repository()
    readme = path.read_text(encoding="utf-8")
    written = BADGE.sub("", readme)
    if url:
        picture = "![Open in Colab](book/pictures/colab.svg)"
        written = NOTEBOOK_LINK.sub(lambda link: f"{link[0]} [{picture}]({colab_link(url, f'{link[1]}.ipynb')})", written)
    if written == readme:
        return []
    path.write_text(written, encoding="utf-8", newline="\n")
    return [path]


def set_address(url: str) -> list[Path]:
    """Write the repository's address to pyproject.toml, the setup cells and the README's badges; "" removes it.

    Returns the changed files. Raises: ValueError when `url` is not the address of a GitHub repository.
    """
    url = url.rstrip("/")
    if url and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", url):
        raise ValueError(f"{url!r} is not the address of a repository: expected https://github.com/OWNER/NAME")
    path = ROOT / "pyproject.toml"
    project = path.read_text(encoding="utf-8")
    written = re.sub(r"\n\[project\.urls\]\n(?:#.*\n)*Repository = .*\n", "", project)
    if url:
        table = f'\n[project.urls]\n# Set by `python -m art_nb address URL`.\nRepository = "{url.removesuffix(".git")}"\n'
        written = written.replace("\n[project.scripts]", f"{table}\n[project.scripts]", 1)
    if written == project:
        return [*write_setup_cells(), *write_badges()]
    path.write_text(written, encoding="utf-8", newline="\n")
    return [path, *write_setup_cells(), *write_badges()]


def write_zip(folder: Path) -> Path:
    """Write art_nb.zip to `folder`: what the notebooks need on Colab, with the notebooks' outputs removed. Returns its path.

    Raises: RuntimeError when it is larger than LARGEST bytes.
    """
    path, packed = folder / "art_nb.zip", io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as archive:
        for name in tracked_files():
            file = ROOT / name
            if name.startswith(NOT_ON_COLAB) or "/maker/" in name:
                continue
            content = file.read_bytes()
            archive.writestr(name, without_outputs(content) if file.suffix == ".ipynb" else content)
    if (size := packed.tell()) > LARGEST:
        raise RuntimeError(f"{path} would have {size:,} bytes, more than {LARGEST:,}: exclude files in NOT_ON_COLAB")
    write_file(path, packed.getvalue())
    return path


def tracked_files() -> list[str]:
    """Return the files that git does not ignore; if it lists none, the files outside of hidden and build folders."""
    try:
        command = ["git", "ls-files", "-coz", "--exclude-standard"]
        listed = subprocess.check_output(command, cwd=ROOT, stderr=subprocess.DEVNULL).decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = []
    found = [name for name in listed if name and (ROOT / name).is_file()]
    if not found:  # no git, or a repository around this folder ignores it
        hidden_or_built = re.compile(r"\.|out$|build$|__pycache__$|.*\.egg-info$")
        for place, folders, files in os.walk(ROOT):
            folders[:] = [each for each in folders if not hidden_or_built.match(each)]
            found += [(Path(place) / name).relative_to(ROOT).as_posix() for name in files]
    return sorted(found)


def without_outputs(notebook: bytes) -> bytes:
    """Return a notebook without its cells' outputs and its widgets' states."""
    content = json.loads(notebook)
    content["metadata"].pop("widgets", None)
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return dumped(content).encode()
