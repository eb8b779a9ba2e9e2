"""Workflows that GitHub accepts, and hooks that run the first checks of `make test`."""

import subprocess
import sys
from pathlib import Path

import yaml

from course.commands import CHECKS

ROOT = Path(__file__).parents[2]


def test_github_accepts_the_workflows():
    files = [str(path) for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *files]
    run = subprocess.run(check, capture_output=True, text=True)
    assert files and run.returncode == 0, run.stdout + run.stderr


def test_the_hooks_are_the_first_checks_of_make_test():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    hooks = [hook["entry"].split()[2] for hook in repository["hooks"]]
    assert hooks == [check[0] for check in CHECKS if check[0] != "pytest"] == ["ruff", "mypy"]
