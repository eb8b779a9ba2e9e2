"""The doctor: what it finds, what it advises, and that a course with a missing need does not pass."""

import hashlib
import importlib.metadata
import subprocess
import sys

import pytest

from course import doctor


@pytest.fixture
def nano(tmp_path):
    """A folder `nano` with two files and their sums, as `data/nano` has."""
    folder, sums = tmp_path / "nano", ""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(name)
        sums += f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n"
    (folder / "SHA256SUMS").write_text(sums)
    return folder


def test_finds_everything_here_and_imports_no_unsloth(nano):
    code = (
        "import sys; from pathlib import Path; from course.doctor import can_run, doctor\n"
        "findings = doctor(Path(sys.argv[1]))\n"
        "print(can_run(findings), 'unsloth' in sys.modules, *(f.subject for f in findings), sep='|')"
    )
    printed = subprocess.check_output([sys.executable, "-c", code, str(nano)], encoding="utf-8")
    can_run, imported, *subjects = printed.splitlines()[-1].split("|")
    assert (can_run, imported) == ("True", "False")
    others = {"Python", "torch", "lock", "nano model", "email model", "code model", "service model", "tic-tac-toe", "Unsloth", "Chromium"}
    assert set(subjects) == others | set(doctor.SHOWN)
    assert "intact, 2 files" in printed and "MISSING" not in printed


def test_a_changed_or_missing_file_of_the_nano_model_is_reported(nano):
    (nano / "config.json").write_text("other")
    (nano / "model.safetensors").unlink()
    finding = doctor.nano_model(nano)
    assert not finding.ok and finding.needed and "python -m data nano" in finding.advice
    assert "config.json, model.safetensors" in finding.found


@pytest.mark.parametrize("sums", [None, "", "\n", "0" * 40, f"{'0' * 64}  "])
def test_without_whole_sums_the_nano_model_is_missing(tmp_path, sums):
    """A full disk or an interrupted checkout leaves an empty or truncated file."""
    if sums is not None:
        (tmp_path / "SHA256SUMS").write_text(sums)
    finding = doctor.nano_model(tmp_path)
    assert not finding.ok and "SHA256SUMS" in finding.found


def test_a_missing_torch_is_reported(nano, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # what `import torch` meets where there is none
    finding = doctor.torch()
    assert not finding.ok and "notebooks/course/setup_venv.py" in finding.advice
    assert not doctor.can_run([finding])


def test_versions_out_of_bounds_and_missing_packages_come_with_pip_commands(monkeypatch):
    def version(name):
        if name == "openai":
            raise importlib.metadata.PackageNotFoundError(name)
        return {"trl": "1.99.0", "peft": "0.21.2"}.get(name, installed(name))

    installed = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", version)
    findings = {finding.subject: finding for finding in doctor.packages()}
    assert findings["peft"].ok
    assert findings["trl"].found.startswith("1.99.0") and "pip install" in findings["trl"].advice
    assert findings["openai"].found.startswith("not installed") and not findings["openai"].ok


def test_deviations_from_the_lock_are_listed_and_no_error(monkeypatch):
    others, installed = {"trl": "1.14.0", "peft": ""}, doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda name: others[name] if name in others else installed(name))
    pins = ["trl==1.15.0", "peft==0.21.2", "pytest==0.1 ; sys_platform == 'none'", f"psutil=={installed('psutil')}"]
    monkeypatch.setattr(doctor, "pins", lambda lock: pins)
    finding = doctor.lock()
    assert not finding.ok and doctor.can_run([finding]) and "notebooks/course/setup_venv.py" in finding.advice
    assert finding.found == "2 of 3 packages differ: trl 1.14.0 (locked: 1.15.0), peft not installed (locked: 0.21.2)"
    monkeypatch.setattr(doctor, "pins", lambda lock: pins[2:])
    assert doctor.lock().ok


@pytest.mark.parametrize(
    ("stderr", "found"),
    [
        ("ModuleNotFoundError: No module named 'unsloth'", "not installed"),
        ("RuntimeError: operator torchvision::nms does not exist", "torchvision::nms does not exist"),
    ],
)
def test_an_unsloth_that_does_not_import_is_optional_and_explained(monkeypatch, stderr, found):
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr=f"Traceback\n{stderr}\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    finding = doctor.unsloth()
    assert found in finding.found and "PEFT" in finding.advice and doctor.can_run([finding])


def test_unsloths_output_need_not_be_utf_8(monkeypatch):
    monkeypatch.setattr(doctor, "UNSLOTH_PROBE", "import sys; sys.stderr.buffer.write(b'no\\xff'); sys.exit(1)")
    assert doctor.unsloth().found == "does not import: no\ufffd"


def test_chromium_is_found_by_its_variable_and_optional(monkeypatch):
    monkeypatch.setenv("CHROMIUM", sys.executable)
    assert doctor.find_chromium() == sys.executable
    monkeypatch.setenv("CHROMIUM", "")
    monkeypatch.setenv("PATH", "")
    finding = doctor.chromium()
    assert not finding.ok and doctor.can_run([finding]) and "apt-get install chromium" in finding.advice
