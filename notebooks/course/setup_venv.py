"""Make .venv: the locked packages, the build of torch that fits this machine, this repository's packages, Unsloth.

    python notebooks/course/setup_venv.py               what the notebooks need
    python notebooks/course/setup_venv.py dev           also what the tests need (or another extra of pyproject.toml)
    python notebooks/course/setup_venv.py --unlocked    the newest versions that pyproject.toml allows
    python notebooks/course/setup_venv.py --here        install into this Python, and keep its torch and Jupyter (Colab)

The system's Python runs this file, also on Windows, so it imports only the standard library. It does nothing when .venv
was made from the same pyproject.toml, lock and version of this file, for this folder, Python and GPU, with these extras.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = (3, 11), (3, 14)  # inclusive, exclusive
VENV = ROOT / ".venv"
STAMP = VENV / "art_nb.json"
PINS = VENV / "pins.txt"  # the versions of dev.txt, as constraints
UNFINISHED = {"unfinished": True}
LOCKS = ROOT / "requirements"  # course.txt, and dev.txt with most extras; `make lock` writes them (notebooks/course/lock.py)
ENVIRONMENTS = sorted(f"environments/{each.parent.name}" for each in ROOT.glob("environments/*/pyproject.toml"))
EDITABLE = (".", *ENVIRONMENTS, "notebooks")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
JUPYTER = {"jupyterlab", "jupyter-server-proxy", "ipywidgets", "nbclient", "nbconvert"}  # Colab brings its own


@dataclass(frozen=True)
class Machine:
    """The properties that decide which packages fit: operating system, NVIDIA GPU, and whether CPU_INDEX is reachable."""

    system: str
    nvidia: bool
    cpu_index: bool


def this_machine() -> Machine:
    """Describe this machine. CPU_INDEX matters, and is requested, only on Linux without a GPU."""
    system, nvidia = platform.system(), has_nvidia_gpu()
    return Machine(system, nvidia, system == "Linux" and not nvidia and is_reachable(f"{CPU_INDEX}/torch/"))


def has_nvidia_gpu() -> bool:
    """Return whether NVIDIA's driver is installed: its first device exists or, on WSL and Windows, its command."""
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def is_reachable(url: str, timeout: float = 5.0) -> bool:
    """Return whether `url` can be read within `timeout` seconds. pip would retry a dead index for minutes."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as page:
            return page.status == 200
    except (OSError, http.client.HTTPException):  # URLError and TimeoutError are OSErrors
        return False


def torch_arguments(torch: str, machine: Machine) -> list[str]:
    """Return pip's arguments for the build of torch that fits `machine`; `torch` is pyproject's pin, "torch==x.y.z".

    On Linux, PyPI holds the CUDA build. Without a GPU the CPU build is requested by its local version: where neither
    CPU_INDEX nor an index in pip's own configuration has it, pip fails instead of fetching gigabytes of CUDA. For macOS
    and Windows, PyPI holds the CPU build.
    """
    if machine.system != "Linux" or machine.nvidia:
        return [torch]
    return [f"{torch}+cpu", *(["--extra-index-url", CPU_INDEX] if machine.cpu_index else [])]


def unsloth_arguments(pins: list[str], torch: str, machine: Machine) -> list[str]:
    """Return pip's arguments for Unsloth, [] where it is not used; `pins` is pyproject's extra `unsloth`.

    Its CPU backend needs no packages beyond ours, and does not start if the torchvision and xformers that Unsloth
    requires are installed, hence --no-deps. With a GPU it needs those, built for our torch.
    """
    if machine.system != "Linux":
        return []
    return [*pins, torch] if machine.nvidia else ["--no-deps", *pins]


def name_of(requirement: str) -> str:
    """Return the package's name in a requirement: "trl>=1.13,<=1.15.0" -> "trl"."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def project_table(root: Path) -> dict:
    """Return the table `project` of the pyproject.toml in `root`."""
    import tomllib  # missing in Python 3.10, which `main` refuses

    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(project: dict, extras: list[str]) -> list[str]:
    """Return what `project` requires with `extras`; an extra's "art-nb[a,b]" is replaced by the extras a and b."""
    found = list(project["dependencies"])
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            nested = re.fullmatch(r"art-nb\[([\w,-]+)\]", requirement)
            found += requirements(project, nested[1].split(",")) if nested else [requirement]
    return sorted(set(found))


def environment_requirements() -> list[str]:
    """Return what the packages in environments/ require apart from art-nb."""
    found = {each for place in ENVIRONMENTS for each in project_table(ROOT / place)["dependencies"]}
    return sorted(each for each in found if name_of(each) != "art-nb")


def torch_pin(project: dict) -> str:
    """Return pyproject's "torch==x.y.z"."""
    return next(each for each in project["optional-dependencies"]["train"] if name_of(each) == "torch")


def lock_file(extras: list[str]) -> Path:
    """Return the lock to install for `extras`."""
    return LOCKS / ("dev.txt" if "dev" in extras else "course.txt")


def pins(lock: Path) -> list[str]:
    """Return a lock's lines "name==version ; marker", without hashes."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    return [line.removesuffix("\\").strip() for line in lines if re.match(r"[\w.-]+==", line)]


def stamp_of(extras: list[str], unlocked: bool) -> dict:
    """Return the stamp of a .venv made now, a record of its inputs; an up-to-date .venv holds an equal one."""
    sources = [ROOT / "pyproject.toml", Path(__file__), *([] if unlocked else [lock_file(extras)])]
    return {
        "extras": extras,
        "unlocked": unlocked,
        "python": platform.python_version(),
        "folder": str(ROOT),
        "nvidia": has_nvidia_gpu(),
        "content": hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest(),
    }


def pip(python: Path | str, what: str, arguments: list[str], log: Path) -> None:
    """Run pip with its output in `log`, and print a dot every ten seconds; exit the program when pip fails."""
    print(f"  {what} ", end="", flush=True)
    start = time.monotonic()
    with log.open("a", encoding="utf-8") as out:
        # --no-compile: compiling every module now, instead of those that are imported later, doubles the time.
        command = [str(python), "-m", "pip", "install", "--no-compile", *arguments]
        out.write(f"\n$ {' '.join(command)}\n")
        out.flush()
        with subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as run:
            while True:
                try:
                    code = run.wait(timeout=10)
                    break
                except subprocess.TimeoutExpired:
                    print(".", end="", flush=True)
    print(f" {time.monotonic() - start:.0f} s", flush=True)
    if code:
        tail = "\n".join(f"    {line}" for line in log.read_text("utf-8", "replace").splitlines()[-15:])
        sys.exit(f"{tail}\nInstalling {what} failed; pip's whole output is in {log}.")


def make_venv(project: dict, found: dict, stamp: dict) -> None:
    """Make or update .venv.

    Its stamp is UNFINISHED until the end. An unfinished .venv is deleted by the next setup, because pip considers a
    package complete even if its installation was interrupted.
    """
    inside = Path(sys.prefix).resolve() == VENV.resolve()  # it may be activated through a symbolic link
    if found == UNFINISHED or any(found.get(key, stamp[key]) != stamp[key] for key in ("python", "folder")):
        if inside:
            sys.exit(f"{VENV.name} has to be recreated, but its own Python is running: `deactivate` it, then try again.")
        shutil.rmtree(VENV)
    VENV.mkdir(exist_ok=True)
    STAMP.write_text(json.dumps(UNFINISHED), encoding="utf-8")
    print(f"Setting up {VENV.name} with Python {stamp['python']} (a few minutes, once):", flush=True)
    if not inside and subprocess.call([sys.executable, "-m", "venv", str(VENV)]):
        sys.exit("Python's module venv failed; see its message above.")
    if not stamp["unlocked"]:
        PINS.write_text("\n".join(pins(LOCKS / "dev.txt")) + "\n", encoding="utf-8")
    python, log = venv_python(platform.system()), VENV / "setup.log"
    for what, arguments in steps(project, stamp["extras"], stamp["unlocked"], this_machine()):
        pip(python, what, arguments, log)
    STAMP.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    print(f"Ready: {python.relative_to(ROOT)} -m art_nb lab opens the notebooks.", flush=True)


def steps(project: dict, extras: list[str], unlocked: bool, machine: Machine) -> list[tuple[str, list[str]]]:
    """Return what to install, in order, as pairs of a description and pip's arguments.

    The lock holds what torch requires but not torch itself, whose build depends on the machine. dev.txt holds most
    extras, so an extra other than `dev` takes its versions from there.
    """
    torch = torch_pin(project)
    if unlocked:
        needs = requirements(project, ["course", *extras]) + environment_requirements()
        found = [("torch", torch_arguments(torch, machine)), ("the newest packages", needs)]
    else:
        lock = lock_file(extras)
        found = [
            ("the locked packages", ["--require-hashes", "--no-deps", "-r", str(lock)]),
            ("torch", torch_arguments(torch, machine)),
        ]
        if others := sorted({*extras} - {"dev", "unsloth"}):
            found.append((f"the extras {', '.join(others)}", ["-c", str(PINS), *requirements(project, others)]))
    found.append(("the package, its environments and the course", editable()))
    if unsloth := unsloth_arguments(project["optional-dependencies"]["unsloth"], torch, machine):
        found.append(("Unsloth", unsloth))
    return found


def editable() -> list[str]:
    """Return pip's arguments that install this repository's packages; what they require is there already."""
    return ["--no-deps", "--no-build-isolation", *(part for place in EDITABLE for part in ("-e", str(ROOT / place)))]


def venv_python(system: str) -> Path:
    """Return the path of .venv's Python; `system` as platform.system() names it."""
    return VENV / "Scripts" / "python.exe" if system == "Windows" else VENV / "bin" / "python"


def install_here(project: dict, extras: list[str]) -> None:
    """Install what the course and the extras need and the running Python lacks; an installed torch stays.

    The versions are not the locked ones: the other packages of this Python limit them.
    """
    machine, torch, log = this_machine(), torch_pin(project), ROOT / "setup.log"
    if importlib.util.find_spec("torch") is None:
        pip(sys.executable, "torch", torch_arguments(torch, machine), log)
    else:
        torch = f"torch=={importlib.metadata.version('torch')}"
    needs = [*requirements(project, ["course", *extras]), *environment_requirements(), "setuptools>=77"]
    needs = [each for each in needs if name_of(each) not in {"torch", *JUPYTER}]
    pip(sys.executable, "what the course needs", [*needs, torch], log)
    pip(sys.executable, "the package, its environments and the course", editable(), log)
    if unsloth := unsloth_arguments(project["optional-dependencies"]["unsloth"], torch, machine):
        pip(sys.executable, "Unsloth", unsloth, log)


def main(arguments: list[str]) -> None:
    if not PYTHONS[0] <= sys.version_info[:2] < PYTHONS[1]:
        sys.exit(f"Python 3.11, 3.12 or 3.13 is needed, not {platform.python_version()}: https://www.python.org/downloads/")
    project = project_table(ROOT)
    known = set(project["optional-dependencies"])
    wanted = parse(arguments, known)
    if wanted.here:
        install_here(project, wanted.extras)
        return
    try:
        found = json.loads(STAMP.read_text("utf-8")) if STAMP.exists() else {}
    except ValueError:  # a full disk or a kill truncated it
        found = UNFINISHED
    stamp = stamp_of(sorted({*wanted.extras, *found.get("extras", [])} & known), wanted.unlocked)
    if found != stamp:
        make_venv(project, found, stamp)


def parse(arguments: list[str], known: set[str]) -> argparse.Namespace:
    """Parse the command line; `known` are the extras of pyproject.toml."""
    parser = argparse.ArgumentParser(
        prog="setup_venv.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--here", action="store_true", help="install into this Python instead of .venv")
    parser.add_argument("--unlocked", action="store_true", help="install the newest versions that pyproject.toml allows")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=", ".join(sorted(known)))
    wanted = parser.parse_args(arguments)
    if unknown := set(wanted.extras) - known:
        parser.error(f"no extra {sorted(unknown)[0]!r} in pyproject.toml; the extras are {', '.join(sorted(known))}")
    return wanted


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
