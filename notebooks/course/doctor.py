"""Check whether this machine has what the course needs, and advise on the rest: `python -m art_nb doctor`."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course.setup_venv import (
    JUPYTER,
    ROOT,
    environment_requirements,
    has_nvidia_gpu,
    lock_file,
    pins,
    project_table,
    requirements,
)

SETUP = f"{'python' if os.name == 'nt' else 'python3'} notebooks/course/setup_venv.py"
NANO, NANO_EMAIL, NANO_CODE, NANO_SERVICE, NANO_TIC_TAC_TOE = (
    ROOT / "data" / name for name in ("nano", "nano_email", "nano_code", "nano_service", "nano_tic_tac_toe")
)
SHOWN = ("transformers", "trl", "peft", "openai", "jupyterlab", "ipywidgets", "anywidget")
ON_COLAB = "COLAB_RELEASE_TAG" in os.environ
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
UNSLOTH_PROBE = "import unsloth; print(f'{unsloth.__version__}, {unsloth.DEVICE_TYPE} backend')"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table. `needed`: the course does not run without it. `advice`: what to do."""

    subject: str
    found: str
    ok: bool
    needed: bool = True
    advice: str = ""

    @property
    def mark(self) -> str:
        return "ok" if self.ok else "MISSING" if self.needed else "-"


def doctor(nano: Path = NANO) -> list[Finding]:
    """Run all checks, print each finding as soon as it is known, and return all. Importing Unsloth takes a few seconds.

    The course can run when every finding with `needed` is `ok` (see `can_run`).
    """
    findings = []
    for finding in examine(nano):
        print(f"{finding.mark:<8} {finding.subject:<13} {finding.found}", flush=True)
        if finding.advice:
            print(f"{'':<22} -> {finding.advice}", flush=True)
        findings.append(finding)
    return findings


def can_run(findings: list[Finding]) -> bool:
    """Return whether everything that the course needs is there."""
    return all(finding.ok for finding in findings if finding.needed)


def examine(nano: Path = NANO) -> Iterator[Finding]:
    """Yield the findings, one by one."""
    yield python()
    yield torch()
    yield from packages()
    yield lock()
    yield nano_model(nano)
    yield nano_model(NANO_EMAIL, "email model")
    yield nano_model(NANO_CODE, "code model")
    yield nano_model(NANO_SERVICE, "service model")
    yield nano_model(NANO_TIC_TAC_TOE, "tic-tac-toe")
    yield unsloth()
    yield chromium()


def python() -> Finding:
    return Finding("Python", platform.python_version(), True)  # an older one cannot even import this package


def torch() -> Finding:
    """Check torch, and name the device it will train on."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: its shared libraries do not load
        return Finding("torch", f"does not import: {error}", False, advice=f"run `{SETUP}`")
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        return Finding("torch", f"{torch.__version__}, {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB", True)
    advice = f"this torch cannot use the GPU of this machine: delete .venv, run `{SETUP}`" if has_nvidia_gpu() else ""
    from art_nb.training.precision import multiplies_bfloat16_faster

    products = "fast" if multiplies_bfloat16_faster() else "no fast"
    found = f"{torch.__version__}, CPU with {torch.get_num_threads()} threads, {products} bfloat16"
    return Finding("torch", found, True, advice=advice)


def packages() -> Iterator[Finding]:
    """Compare the installed packages with pyproject.toml. Yields those in SHOWN, and any missing or out of bounds.

    Colab's own Jupyter is older, runs the notebooks, and is not checked.
    """
    from packaging.requirements import Requirement

    for requirement in map(Requirement, [*requirements(project_table(ROOT), ["course"]), *environment_requirements()]):
        if requirement.name == "torch" or requirement.name in JUPYTER and ON_COLAB:
            continue
        version = installed(requirement.name)
        ok = bool(version) and requirement.specifier.contains(version, prereleases=True)
        if ok and requirement.name in SHOWN:
            yield Finding(requirement.name, version, True)
        elif not ok:
            bounds = f"{version or 'not installed'} (needed: {requirement.specifier})"
            yield Finding(requirement.name, bounds, False, advice=f'pip install "{requirement}"')


def lock() -> Finding:
    """Compare the installed packages with the lock. Other versions run the course too, so a deviation is not an error."""
    from packaging.requirements import Requirement

    if ON_COLAB:
        return Finding("lock", "not compared: Colab brings packages of its own", True, needed=False)
    locked = [each for each in map(Requirement, pins(lock_file([]))) if not each.marker or each.marker.evaluate()]
    differing = [
        f"{each.name} {version or 'not installed'} (locked: {str(each.specifier).removeprefix('==')})"
        for each in locked
        if not ((version := installed(each.name)) and each.specifier.contains(version, prereleases=True))
    ]
    if not differing:
        return Finding("lock", f"{len(locked)} packages as in requirements/course.txt", True, needed=False)
    listed = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
    found = f"{len(differing)} of {len(locked)} packages differ: {listed}"
    advice = f"the course was tested with the locked versions: delete .venv, run `{SETUP}`"
    return Finding("lock", found, False, needed=False, advice=advice)


def installed(name: str) -> str:
    """Return the version of an installed package, "" when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def nano_model(folder: Path, subject: str = "nano model") -> Finding:
    """Compare a base model's files with `SHA256SUMS` in its folder (in the format of `sha256sum`)."""
    sums = folder / "SHA256SUMS"
    advice = f"restore it with `git checkout -- data/{folder.name}`, or build it with `python -m data {folder.name}`"
    text = sums.read_text(encoding="utf-8", errors="replace") if sums.exists() else ""
    listed = [line.partition("  ") for line in text.splitlines() if line]
    if not listed:
        return Finding(subject, f"{sums.name} is not in {folder}, or is empty", False, advice=advice)
    wrong = [file or sums.name for digest, _, file in listed if sha256(folder / file) != digest]
    if wrong:
        return Finding(subject, f"changed or missing: {', '.join(wrong)}", False, advice=advice)
    return Finding(subject, f"intact, {len(listed)} files", True)


def sha256(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal, "" when there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def unsloth() -> Finding:
    """Check in another process that Unsloth imports, because importing it changes classes of TRL."""
    without = "plain transformers and PEFT are used instead"
    probe = [sys.executable, "-X", "utf8", "-c", UNSLOTH_PROBE]
    try:
        run = subprocess.run(probe, capture_output=True, encoding="utf-8", errors="replace", timeout=300)
    except subprocess.TimeoutExpired:
        return Finding("Unsloth", "does not import within 300 s", False, needed=False, advice=without)
    if run.returncode == 0:
        return Finding("Unsloth", run.stdout.splitlines()[-1], True, needed=False)
    reason = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
    if "No module named 'unsloth" in reason:
        advice = f"{without}; on Linux `{SETUP}` installs it"
        return Finding("Unsloth", "not installed", False, needed=False, advice=advice)
    return Finding("Unsloth", f"does not import: {reason}", False, needed=False, advice=without)


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome for the browser tests: $CHROMIUM, or the first on PATH; None if not found."""
    candidates = [os.environ.get("CHROMIUM", ""), *CHROMIUM]
    return next((path for path in map(shutil.which, filter(None, candidates)) if path), None)


def chromium() -> Finding:
    path = find_chromium()
    advice = "" if path else "only the browser tests need it: `apt-get install chromium`, or set $CHROMIUM"
    return Finding("Chromium", path or "not found", path is not None, needed=False, advice=advice)
