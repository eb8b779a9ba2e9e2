"""The house: setup fits the machine, files that repeat a fact agree, imports are light and point down."""

import ast
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml

from art_nb.course import setup_cell, setup_venv
from art_nb.course.setup_venv import CPU_INDEX, Machine, torch_arguments, unsloth_arguments

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TORCH = "torch==2.13.0"

# The rooms of art_nb, top first: what lies in one imports only from its own room and from lower ones, for type
# checking as well. A room is a folder, or a module on the ground floor.
ROOMS = [
    "__main__", "course", "skypilot", "cluster", "server", "remote", "widgets", "tasks", "rewards", "local", "backend", "utils", "model", "gather",
    "training", "inference", "real_model", "monitoring", "storage", "trajectories", "rollouts", "metrics", "api_costs", "dev", "types",
]  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "arguments"),
    [
        (Machine("Linux", nvidia=False, cpu_index=True), [TORCH + "+cpu", "--extra-index-url", CPU_INDEX]),
        (Machine("Linux", nvidia=False, cpu_index=False), [TORCH + "+cpu"]),
        (Machine("Linux", nvidia=True, cpu_index=False), [TORCH]),
        (Machine("Darwin", nvidia=False, cpu_index=False), [TORCH]),
        (Machine("Windows", nvidia=True, cpu_index=False), [TORCH]),
    ],
)
def test_torch_fits_the_machine(machine, arguments):
    assert torch_arguments(TORCH, machine) == arguments


def test_unsloth_comes_alone_on_the_cpu_with_its_needs_on_a_gpu_and_not_outside_linux():
    pins = PROJECT["optional-dependencies"]["unsloth"]
    assert unsloth_arguments(pins, TORCH, Machine("Linux", False, True)) == ["--no-deps", *pins]
    assert unsloth_arguments(pins, TORCH, Machine("Linux", True, False)) == [*pins, TORCH]
    assert unsloth_arguments(pins, TORCH, Machine("Darwin", False, False)) == []


def test_a_dead_index_is_noticed_in_seconds():
    assert setup_venv.answers("http://127.0.0.1:9/whl/cpu") is False


@pytest.fixture
def house(tmp_path, monkeypatch):
    """setup_venv in an empty folder, with what it would run as a list of commands."""
    monkeypatch.setattr(setup_venv, "ROOT", tmp_path)
    monkeypatch.setattr(setup_venv, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup_venv, "STAMP", tmp_path / ".venv/art_nb.json")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    monkeypatch.setattr(setup_venv, "look", lambda: Machine("Linux", False, False))
    commands = []

    monkeypatch.setattr(setup_venv.subprocess, "run", lambda command, check: commands.append(command[1:3]))
    monkeypatch.setattr(setup_venv, "pip", lambda python, what, arguments, log: commands.append(arguments))
    return tmp_path, commands


def test_setup_installs_torch_first_and_a_second_run_does_nothing(house):
    root, commands = house
    setup_venv.main([])
    pins = PROJECT["optional-dependencies"]["unsloth"]
    assert commands == [["-m", "venv"], [TORCH + "+cpu"], ["-e", f"{root}"], ["--no-deps", *pins]]
    commands.clear()
    setup_venv.main([])
    assert commands == []


def test_extras_come_when_they_are_asked_for_and_stay(house):
    root, commands = house
    setup_venv.main([])
    commands.clear()
    setup_venv.main(["dev"])
    assert ["-e", f"{root}[dev]"] in commands
    commands.clear()
    setup_venv.main([])
    setup_venv.main(["dev"])
    assert commands == []
    setup_venv.main(["judge"])
    assert ["-e", f"{root}[dev,judge]"] in commands


def test_setup_says_what_it_takes_and_refuses_the_rest(house, capsys, monkeypatch):
    with pytest.raises(SystemExit):
        setup_venv.main(["--help"])
    assert "EXTRA" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        setup_venv.main(["deve"])
    assert "no extra 'deve'" in capsys.readouterr().err
    lowest, above = re.fullmatch(r">=(\d+\.\d+),<(\d+\.\d+)", PROJECT["requires-python"]).groups()
    assert setup_venv.PYTHONS == tuple(tuple(map(int, version.split("."))) for version in (lowest, above))
    for version in (3, 10, 9), (3, 14, 0):
        monkeypatch.setattr(setup_venv.sys, "version_info", version)
        with pytest.raises(SystemExit, match="3.11, 3.12 or 3.13 is needed"):
            setup_venv.main([])
    assert house[1] == []


def test_a_venv_is_not_made_anew_by_its_own_python(house, monkeypatch):
    root, commands = house
    setup_venv.main([])
    monkeypatch.setattr(sys, "prefix", str(root / ".venv"))
    commands.clear()
    setup_venv.main(["judge"])
    assert ["-e", f"{root}[judge]"] in commands and ["-m", "venv"] not in commands
    (root / ".venv/art_nb.json").write_text(json.dumps(setup_venv.UNFINISHED))
    with pytest.raises(SystemExit, match="deactivate"):
        setup_venv.main([])


def test_the_python_of_windows_lies_elsewhere():
    assert setup_venv.venv_python("Windows").parts[-3:] == (".venv", "Scripts", "python.exe")
    assert setup_venv.venv_python("Darwin").parts[-3:] == (".venv", "bin", "python")


def test_setup_renews_a_stale_venv_and_clears_one_of_another_python_or_place(house):
    root, commands = house
    setup_venv.main([])
    (root / ".venv/package").touch()
    (root / "pyproject.toml").write_text((root / "pyproject.toml").read_text() + "# changed\n")
    commands.clear()
    setup_venv.main([])
    assert len(commands) == 4 and (root / ".venv/package").exists()
    stamp = root / ".venv/art_nb.json"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "python": "3.10.1"}))
    commands.clear()
    setup_venv.main([])
    assert len(commands) == 4 and not (root / ".venv/package").exists()


def test_an_interrupted_setup_starts_anew(house, monkeypatch):
    """pip believes the record of a package whose files it did not finish to write."""
    root, commands = house

    def stopped_pip(*arguments):
        (root / ".venv/half").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(setup_venv, "pip", stopped_pip)
        setup_venv.main([])
    commands.clear()
    setup_venv.main([])
    assert len(commands) == 4 and not (root / ".venv/half").exists()


def test_here_keeps_torch_and_jupyter(house, monkeypatch):
    """On Colab both are there already, and replacing them breaks what was built for them."""
    _, commands = house
    setup_venv.main(["--here"])
    names = [setup_venv.name_of(argument) for argument in commands[0]]
    assert "trl" in names and "anywidget" in names and not {"jupyterlab", "ipywidgets"} & set(names)
    assert commands[0][-1].startswith("torch==2.13.0")
    assert commands[1][0] == "--no-deps"


def test_a_failing_pip_shows_its_last_lines(tmp_path):
    with pytest.raises(SystemExit, match="(?s)no-such-option.*Installing it failed"):
        setup_venv.pip(sys.executable, "it", ["--no-such-option"], tmp_path / "setup.log")


def test_setup_knows_only_the_standard_library():
    names = imports_of(ROOT / "art_nb/course/setup_venv.py")
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_conda_installs_what_pyproject_says():
    text = (ROOT / "environment.yml").read_text()
    python, _, pip = yaml.safe_load(text)["dependencies"]
    assert python == "python=3.11" and PROJECT["requires-python"].startswith(">=3.11")
    assert pip["pip"] == [f"--extra-index-url {CPU_INDEX}", PROJECT["dependencies"][0], "-e .[dev]"]
    gpu = re.findall(r"^ +# - (.+)$", text, re.MULTILINE)
    assert gpu == [PROJECT["dependencies"][0], "-e .[dev,unsloth]"]


@pytest.mark.parametrize(
    ("notebook", "named", "extras"),
    [
        ("06_serve", "SERVER", ["server"]), ("07_monitor", "CLIENTS", ["wandb", "langfuse"]), ("09_scale_out", "RAY", ["ray"]),
        ("09_scale_out", "SERVER", ["server"]),
    ],
)
def test_a_notebook_installs_the_extras_that_it_needs(notebook, named, extras):
    cells = json.loads((ROOT / f"notebooks/{notebook}.ipynb").read_text("utf-8"))["cells"]
    (source,) = (text for cell in cells if f"{named} = [" in (text := "".join(cell["source"])))
    wanted = ast.literal_eval(re.search(rf"{named} = (\[.*?\])", source)[1])
    assert wanted == [need for extra in extras for need in PROJECT["optional-dependencies"][extra]]


def test_colab_cell_holds_the_one_address_and_does_nothing_here():
    cell = setup_cell.setup_cell()
    assert f'"{PROJECT["urls"]["Repository"]}"' in cell
    subprocess.run([sys.executable, "-W", "error", "-c", cell], check=True, env={"PATH": ""})


def test_a_lesson_in_the_place_of_the_setup_cell_is_not_overwritten(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    monkeypatch.setattr(setup_cell, "ROOT", tmp_path)
    path = tmp_path / "notebooks/00.ipynb"
    for source, written in (([], [path]), (setup_cell.setup_cell(), [])):
        path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": source}]}))
        assert setup_cell.write_setup_cells() == written
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": "x = 1"}]}))
    with pytest.raises(ValueError, match="00.ipynb"):
        setup_cell.write_setup_cells()


def test_readme_ci_and_makefile_speak_of_the_same_commands():
    makefile = (ROOT / "Makefile").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "make test" in (ROOT / ".ci/run").read_text() and (ROOT / ".ci/run").stat().st_mode & 0o111
    for target in ("demo", "test", "lab"):
        assert f"\n{target}: setup" in makefile and f"make {target}" in readme


def imports_of(path: Path) -> set[str]:
    """The dotted names of everything that a file imports, at any depth; from a module also the names themselves."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(filter(None, (*package[: len(package) - node.level + 1], node.module) if node.level else (node.module,)))
            found |= {start, *(f"{start}.{alias.name}" for alias in node.names)}
    return found


SOURCES = [path for folder in ("art_nb", "data", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_room_has_its_place_and_says_what_it_knows_nothing_about():
    inside = {path.stem if path.is_file() else path.name for path in (ROOT / "art_nb").iterdir()}
    assert inside - {"__init__", "__pycache__", "py"} - {"py.typed"} == set(ROOMS)
    for room in ROOMS:
        first = ROOT / "art_nb" / room / "__init__.py"
        if first.exists() and room != "utils":
            docstring = ast.get_docstring(ast.parse(first.read_text(encoding="utf-8")))
            assert re.search(r"nothing about|knows this one", docstring.lower().replace("\n", " ")), room


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parts[len(ROOT.parts)] == "art_nb"], ids=module_name)
def test_imports_point_down(path):
    inside = path.relative_to(ROOT / "art_nb").with_suffix("").parts
    names = [name.split(".") for name in imports_of(path)]
    assert not {name[0] for name in names} & {"data", "benchmarks", "tests"}
    if inside == ("__init__",):
        return
    ours = {name[1] for name in names if name[0] == "art_nb" and len(name) > 1}
    above = ours & set(ROOMS[: ROOMS.index(inside[0])])
    assert not above, f"{'/'.join(inside)} imports {above}, which stand above {inside[0]} in ROOMS"


def test_no_circle_of_imports():
    modules = {module_name(path): path for path in SOURCES}
    needs = {name: (imports_of(path) & set(modules)) - {name} for name, path in modules.items()}
    done: set[str] = set()
    while ready := {name for name, needed in needs.items() if name not in done and needed <= done}:
        done |= ready
    assert {name: needed - done for name, needed in needs.items() if name not in done} == {}


def test_usage_names_every_command():
    run = subprocess.run([sys.executable, "-m", "art_nb"], capture_output=True, text=True)
    assert run.returncode == 2 and all(name in run.stderr for name in ("lab", "demo", "test", "doctor"))
    asked = subprocess.run([sys.executable, "-m", "art_nb", "--help"], capture_output=True, text=True)
    assert asked.returncode == 0 and asked.stdout == run.stderr


def test_make_lab_opens_the_first_notebook(tmp_path):
    """The command of `make lab`, without a browser: JupyterLab starts, and what it would open is notebook 00."""
    recipe = subprocess.run(["make", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    command = next(line for line in recipe.splitlines() if " art_nb lab" in line).split()
    quiet = ["--no-browser", "--allow-root", "--ServerApp.port=0", "--ServerApp.ip=127.0.0.1"]
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path / "config")}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([sys.executable, *command[1:], *quiet], cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        page = ""
        while server.poll() is None and "</html>" not in page:
            time.sleep(0.1)
            page = "".join(path.read_text() for path in tmp_path.glob("jpserver-file-to-run-*-open.html"))
        assert server.poll() is None, (tmp_path / "log").read_text()
        assert "/lab/tree/00_start_here.ipynb" in page
    finally:
        server.terminate()
        server.wait(30)
