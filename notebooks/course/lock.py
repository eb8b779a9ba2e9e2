"""`python -m art_nb lock`: resolve pyproject.toml's requirements again and write requirements/course.txt and dev.txt.

The locks are requirements files with hashes, for Linux, macOS and Windows and for Python 3.11 to 3.13, resolved by uv.
They contain no index address. torch is not in them: its build depends on the machine, and pyproject.toml pins its version.
Neither is Unsloth, which is installed without its own requirements (notebooks/course/setup_venv.py).
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from art_nb.storage.checkpoints import write_file
from course.setup_venv import LOCKS, PYTHONS, ROOT, environment_requirements, project_table, requirements, torch_pin

# dev.txt is resolved first, and course.txt takes its versions from it: a package has one version in both.
EXTRAS = {"dev": ["dev"], "course": ["course"]}
ONLY_WITH_CUDA = re.compile(r"nvidia|triton|cuda")


def write_locks(folder: Path = LOCKS) -> list[Path]:
    """Write both locks to `folder` and return their paths. Versions of an existing lock are not kept.

    Raises: subprocess.CalledProcessError when uv finds no solution; uv prints why.
    """
    written: list[Path] = []
    for name, extras in EXTRAS.items():
        lock = resolve(extras, constraints=written[0] if written else None)
        written.append(folder / f"{name}.txt")
        write_file(written[-1], lock.encode())
    return written


def resolve(extras: list[str], constraints: Path | None = None) -> str:
    """Return the lock of the packages that art_nb with `extras`, its environments and the course require."""
    project = project_table(ROOT)
    needs = requirements(project, extras) + environment_requirements()
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "uv.toml"
        configuration.write_text(torch_metadata(torch_pin(project)), "utf-8")
        command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--quiet", "--config-file", str(configuration)]
        command += ["--universal", "--python-version", ".".join(map(str, PYTHONS[0])), "--generate-hashes", "--no-annotate"]
        command += ["--no-emit-package=torch", "--no-emit-index-url", "--custom-compile-command=python -m art_nb lock"]
        command += ["--constraints", str(constraints)] if constraints else []
        run = subprocess.run(command, input="\n".join(needs), stdout=subprocess.PIPE, text=True, check=True, cwd=folder)
    return run.stdout


def torch_metadata(pin: str) -> str:
    """Return the part of uv's configuration that gives torch the requirements of its CPU build on every system."""
    needs = [each for each in importlib.metadata.requires("torch") or [] if "extra ==" not in each]
    listed = ", ".join(f'"{each}"' for each in needs if not ONLY_WITH_CUDA.match(each) and '"' not in each)
    version = pin.partition("==")[2]
    return f'[[dependency-metadata]]\nname = "torch"\nversion = "{version}"\nrequires-dist = [{listed}]\n'
