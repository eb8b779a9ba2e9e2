"""Makes .venv: the right build of torch first, then the package with its needs, then Unsloth.

    python art_nb/course/setup_venv.py            what a learner needs
    python art_nb/course/setup_venv.py dev        the tests' needs as well (or another extra of pyproject.toml)
    python art_nb/course/setup_venv.py --here     the needs alone, into the Python that runs it, whose torch and Jupyter stay

Run by the system's Python, on Windows too, so it knows only the standard library. It does nothing when .venv fits
pyproject.toml, this file, this folder and this Python, and holds the extras.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = (3, 11), (3, 14)  # from, below
VENV = ROOT / ".venv"
STAMP = VENV / "art_nb.json"
UNFINISHED = {"unfinished": True}
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
JUPYTER = {"jupyterlab", "jupyter-server-proxy", "ipywidgets", "nbclient", "nbconvert"}  # Colab has its own


@dataclass(frozen=True)
class Machine:
    """What decides which packages fit: the operating system, an NVIDIA GPU, and whether CPU_INDEX answers."""

    system: str
    nvidia: bool
    cpu_index: bool


def look() -> Machine:
    """Looks at this machine. Asks CPU_INDEX only where its answer matters (Linux without a GPU)."""
    system, nvidia = platform.system(), has_nvidia_gpu()
    return Machine(system, nvidia, system == "Linux" and not nvidia and answers(f"{CPU_INDEX}/torch/"))


def has_nvidia_gpu() -> bool:
    """True where NVIDIA's driver is: its first device, or its command, which WSL and Windows have alone."""
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def answers(url: str, timeout: float = 5.0) -> bool:
    """True when `url` can be read within `timeout` seconds: pip would retry a dead index for minutes."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as page:
            return page.status == 200
    except (urllib.error.URLError, TimeoutError):
        return False


def torch_arguments(torch: str, machine: Machine) -> list[str]:
    """pip's arguments for the build of torch that fits `machine`; `torch` is pyproject's pin, "torch==x.y.z".

    On Linux, PyPI holds the CUDA build. Without a GPU the CPU build is asked for by its local version, so
    that pip fails, rather than fetches gigabytes of CUDA, where neither CPU_INDEX nor an index of pip's own
    configuration has it. Elsewhere (macOS, Windows) PyPI holds the CPU build.
    """
    if machine.system != "Linux" or machine.nvidia:
        return [torch]
    return [f"{torch}+cpu", *(["--extra-index-url", CPU_INDEX] if machine.cpu_index else [])]


def unsloth_arguments(pins: list[str], torch: str, machine: Machine) -> list[str]:
    """pip's arguments for Unsloth, [] where it is not used; `pins` is pyproject's extra `unsloth`.

    Its CPU backend needs nothing beyond ours, and refuses to start beside the torchvision and xformers that a
    normal install would bring, hence --no-deps. With a GPU it needs those, built for our torch.
    """
    if machine.system != "Linux":
        return []
    return [*pins, torch] if machine.nvidia else ["--no-deps", *pins]


def name_of(requirement: str) -> str:
    """The package's name in a requirement: "trl>=1.13,<=1.15.0" -> "trl"."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def wanted_stamp(project: bytes, script: bytes, extras: list[str]) -> dict:
    """What a fitting .venv was made from; compared with the stamp that it holds."""
    return {
        "extras": extras,
        "python": platform.python_version(),
        "folder": str(ROOT),
        "nvidia": has_nvidia_gpu(),
        "content": hashlib.sha256(project + script).hexdigest(),
    }


def pip(python: Path | str, what: str, arguments: list[str], log: Path) -> None:
    """Runs pip with its output in `log` and a sign of life here; ends the program when pip fails."""
    print(f"  {what} ", end="", flush=True)
    start = time.monotonic()
    with log.open("a", encoding="utf-8") as out:
        # --no-compile: compiling all modules now, not the few that are imported, doubles the time.
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
    """Builds or renews .venv.

    Until the end its stamp is UNFINISHED. Such a .venv is built anew, since pip takes a package that it was
    stopped in for whole.
    """
    machine, inside = look(), Path(sys.prefix) == VENV
    if found == UNFINISHED or any(found.get(key, stamp[key]) != stamp[key] for key in ("python", "folder")):
        if inside:
            sys.exit(f"{VENV.name} has to be made anew, which its own Python can't do: `deactivate` it, and try again.")
        shutil.rmtree(VENV)
    VENV.mkdir(exist_ok=True)
    STAMP.write_text(json.dumps(UNFINISHED), encoding="utf-8")
    print(f"Setting up {VENV.name} with Python {stamp['python']} (a few minutes, once):", flush=True)
    if not inside:
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    python = venv_python(platform.system())
    torch, log = project["dependencies"][0], VENV / "setup.log"
    pip(python, "torch", torch_arguments(torch, machine), log)
    extras = f"[{','.join(stamp['extras'])}]" if stamp["extras"] else ""
    pip(python, "the package and its needs", ["-e", f"{ROOT}{extras}"], log)
    unsloth = unsloth_arguments(project["optional-dependencies"]["unsloth"], torch, machine)
    if unsloth:
        pip(python, "Unsloth", unsloth, log)
    STAMP.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    print(f"Ready: {python.relative_to(ROOT)} -m art_nb lab opens the notebooks.", flush=True)


def venv_python(system: str) -> Path:
    """The Python of .venv; `system` as platform.system() names it."""
    return VENV / "Scripts" / "python.exe" if system == "Windows" else VENV / "bin" / "python"


def install_here(project: dict) -> None:
    """Installs into the running Python what the package needs and it lacks; a torch that is there stays."""
    machine = look()
    torch, *others = project["dependencies"]
    python, log = sys.executable, ROOT / "setup.log"
    if importlib.util.find_spec("torch") is None:
        pip(python, "torch", torch_arguments(torch, machine), log)
    else:
        torch = f"torch=={importlib.metadata.version('torch')}"
    needs = [requirement for requirement in others if name_of(requirement) not in JUPYTER]
    pip(python, "what the package needs", [*needs, torch], log)
    unsloth = unsloth_arguments(project["optional-dependencies"]["unsloth"], torch, machine)
    if unsloth:
        pip(python, "Unsloth", unsloth, log)


def main(arguments: list[str]) -> None:
    if not PYTHONS[0] <= sys.version_info[:2] < PYTHONS[1]:
        sys.exit(f"Python 3.11, 3.12 or 3.13 is needed, not {platform.python_version()}: https://www.python.org/downloads/")
    import tomllib  # which older ones lack

    project_file = (ROOT / "pyproject.toml").read_bytes()
    project = tomllib.loads(project_file.decode())["project"]
    wanted = parse(arguments, set(project["optional-dependencies"]))
    if wanted.here:
        install_here(project)
        return
    found = json.loads(STAMP.read_text("utf-8")) if STAMP.exists() else {}
    extras = sorted({*wanted.extras, *found.get("extras", [])})
    stamp = wanted_stamp(project_file, Path(__file__).read_bytes(), extras)
    if found != stamp:
        make_venv(project, found, stamp)


def parse(arguments: list[str], known: set[str]) -> argparse.Namespace:
    """The command line; `known` are the extras of pyproject.toml."""
    parser = argparse.ArgumentParser(
        prog="setup_venv.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--here", action="store_true", help="install the needs into this Python, and make no .venv")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=", ".join(sorted(known)))
    wanted = parser.parse_args(arguments)
    if unknown := set(wanted.extras) - known:
        parser.error(f"no extra {sorted(unknown)[0]!r} in pyproject.toml; there are {', '.join(sorted(known))}")
    return wanted


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
