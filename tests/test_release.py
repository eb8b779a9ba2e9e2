"""What others get: a wheel that works by itself, workflows that GitHub accepts, hooks that are the checks of `make test`."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from art_nb.__main__ import CHECKS

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of what a release holds, without the network."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "art_nb", copy / "art_nb", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    run = subprocess.run(build, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    return next(out.glob("*.whl"))


def test_the_wheel_brings_every_module_the_browser_code_and_nothing_else(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    kinds = (".py", ".js", ".css", ".html", ".typed")
    wanted = {p.relative_to(ROOT).as_posix() for p in (ROOT / "art_nb").rglob("*") if p.suffix in kinds or p.name == "py.typed"}
    assert packed == wanted and "art_nb/py.typed" in packed and any(name.endswith("training_view.js") for name in packed)


def test_the_wheel_works_by_itself(wheel, tmp_path):
    """Its widgets find their JavaScript, though nothing of the repository is in reach."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, 'site'); import art_nb as art; from art_nb.widgets import TrainingView; "
        "assert art.__file__.startswith(sys.argv[1]), art.__file__; view = TrainingView(total_steps=2); "
        "assert 'export default' in view._esm and '.art-nb' in view._css; print(art.TrainConfig().learning_rate)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.strip() == "5e-06", run.stderr[-2000:]


def test_github_accepts_the_workflows():
    files = [str(path) for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *files]
    run = subprocess.run(check, capture_output=True, text=True)
    assert files and run.returncode == 0, run.stdout + run.stderr


def test_the_hooks_are_the_checks_with_which_make_test_begins():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    hooks = [hook["entry"].split()[2] for hook in repository["hooks"]]
    assert hooks == [check[0] for check in CHECKS if check[0] != "pytest"] == ["ruff", "mypy"]
