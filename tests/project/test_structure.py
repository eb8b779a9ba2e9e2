"""Setup fits the machine, files that repeat a fact agree, and imports point down the table of packages."""

import ast
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from course import lock, setup_cell, setup_venv
from course.setup_venv import CPU_INDEX, Machine, requirements, torch_arguments, unsloth_arguments

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TORCH = "torch==2.13.0"

MOST_LINES = 19_187  # of Python in art_nb, 1,093 of them adapters of environments. Lower it when the library shrinks.
MOST_LINES_OF_A_STEP = 9_000
TRAINING_STEP = ("art_nb.model", "art_nb.gather", "art_nb.backends.local")
# Underscore names that are not private: ART's public ones, and those that anywidget reads.
PUBLIC = {"_internal_config", "_experimental_fork_checkpoint", "_delete_checkpoint_files", "_esm", "_css"}

# The packages and modules of art_nb, top first: each imports only from itself and from lower ones, for type checking too.
PACKAGES = [
    "__main__", "utils", "export", "serving", "skypilot", "local", "backend", "backends", "widgets", "rewards", "environments", "langgraph", "mcp",
    "model", "gather", "training", "inference", "monitoring", "storage", "trajectories", "rollouts", "metrics", "api_costs", "dev", "types",
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


def test_unsloth_is_installed_alone_on_the_cpu_with_its_requirements_on_a_gpu_and_only_on_linux():
    pins = PROJECT["optional-dependencies"]["unsloth"]
    assert unsloth_arguments(pins, TORCH, Machine("Linux", False, True)) == ["--no-deps", *pins]
    assert unsloth_arguments(pins, TORCH, Machine("Linux", True, False)) == [*pins, TORCH]
    assert unsloth_arguments(pins, TORCH, Machine("Darwin", False, False)) == []


def test_an_unreachable_index_is_noticed_in_seconds():
    assert setup_venv.is_reachable("http://127.0.0.1:9/whl/cpu") is False


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """Return an empty folder for setup_venv, and the list of the commands that it would run there."""
    for name, place in (("ROOT", ""), ("VENV", ".venv"), ("STAMP", ".venv/art_nb.json"), ("PINS", ".venv/pins.txt"), ("LOCKS", "requirements")):
        monkeypatch.setattr(setup_venv, name, tmp_path / place)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "requirements").mkdir()
    for name in ("course", "dev"):
        (tmp_path / f"requirements/{name}.txt").write_text(f"trl==1.15.0 \\\n    --hash=sha256:0\n# {name}\n")
    monkeypatch.setattr(setup_venv, "ENVIRONMENTS", [])
    monkeypatch.setattr(setup_venv, "this_machine", lambda: Machine("Linux", False, False))
    commands = []

    monkeypatch.setattr(setup_venv.subprocess, "call", lambda command: commands.append(command[1:3]))
    monkeypatch.setattr(setup_venv, "pip", lambda python, what, arguments, log: commands.append(arguments))
    return tmp_path, commands


def locked(root, name):
    return ["--require-hashes", "--no-deps", "-r", str(root / f"requirements/{name}.txt")]


def test_setup_installs_the_lock_and_a_second_run_does_nothing(setup):
    root, commands = setup
    setup_venv.main([])
    pins = PROJECT["optional-dependencies"]["unsloth"]
    *first, ours, unsloth = commands
    assert first == [["-m", "venv"], locked(root, "course"), [TORCH + "+cpu"]] and unsloth == ["--no-deps", *pins]
    assert ours[:4] == ["--no-deps", "--no-build-isolation", "-e", f"{root}"] and ours[-1] == str(root / "notebooks")
    commands.clear()
    setup_venv.main([])
    assert commands == []


def test_requested_extras_are_installed_and_kept(setup):
    root, commands = setup
    setup_venv.main([])
    commands.clear()
    setup_venv.main(["judge"])
    judge = ["-c", str(root / ".venv/pins.txt"), *requirements(PROJECT, ["judge"])]
    assert locked(root, "course") in commands and judge in commands
    assert (root / ".venv/pins.txt").read_text() == "trl==1.15.0\n"
    commands.clear()
    setup_venv.main(["dev"])
    assert locked(root, "dev") in commands and judge in commands
    commands.clear()
    setup_venv.main([])
    setup_venv.main(["dev"])
    assert commands == []


def test_unlocked_setup_installs_what_pyproject_allows(setup):
    root, commands = setup
    setup_venv.main(["--unlocked", "dev"])
    assert not any("--require-hashes" in command for command in commands)
    assert {"trl>=1.13,<=1.15.0", "pytest>=8.4", "litellm>=1.106"} <= set(commands[2]) and commands[1] == [TORCH + "+cpu"]
    commands.clear()
    setup_venv.main([])
    assert locked(root, "dev") in commands


@pytest.mark.parametrize(("name", "extras"), [("course", ["course"]), ("dev", ["dev"])])
def test_a_lock_satisfies_pyproject(name, extras):
    """Otherwise: `make lock`."""
    path = ROOT / f"requirements/{name}.txt"
    pinned = {}
    for pin in map(Requirement, setup_venv.pins(path)):
        pinned.setdefault(canonicalize_name(pin.name), []).append(pin)
    for need in map(Requirement, requirements(PROJECT, extras) + setup_venv.environment_requirements()):
        if need.name != "torch":
            versions = [str(pin.specifier).removeprefix("==") for pin in pinned[canonicalize_name(need.name)]]
            assert versions and all(need.specifier.contains(version) for version in versions), (need, versions)
    text = path.read_text("utf-8")
    assert "torch" not in pinned and "://" not in text and all(text.count("--hash=sha256:") >= len(each) for each in pinned.values())
    markers = {str(pin.marker) for pins in pinned.values() for pin in pins if pin.marker}
    assert any("win32" in marker for marker in markers) and any("darwin" in marker for marker in markers)


def test_the_locks_give_a_package_one_version():
    dev = set(setup_venv.pins(ROOT / "requirements/dev.txt"))
    assert {pin.partition(" ;")[0] for pin in setup_venv.pins(ROOT / "requirements/course.txt")} <= {pin.partition(" ;")[0] for pin in dev}


def test_torch_has_no_cuda_packages_in_the_lock():
    metadata = lock.torch_metadata(TORCH)
    assert 'version = "2.13.0"' in metadata and "sympy" in metadata and "nvidia" not in metadata


def test_setup_prints_its_options_and_refuses_others(setup, capsys, monkeypatch):
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
    assert setup[1] == []


def test_a_venv_is_not_recreated_by_its_own_python(setup, monkeypatch):
    root, commands = setup
    setup_venv.main([])
    monkeypatch.setattr(sys, "prefix", str(root / ".venv"))
    commands.clear()
    setup_venv.main(["judge"])
    assert locked(root, "course") in commands and ["-m", "venv"] not in commands
    (root / ".venv/art_nb.json").write_text(json.dumps(setup_venv.UNFINISHED))
    with pytest.raises(SystemExit, match="deactivate"):
        setup_venv.main([])


def test_a_venv_is_not_recreated_by_its_own_python_through_a_symbolic_link(setup, tmp_path_factory, monkeypatch):
    root, commands = setup
    setup_venv.main([])
    link = tmp_path_factory.mktemp("other") / "course"
    link.symlink_to(root)
    monkeypatch.setattr(sys, "prefix", str(link / ".venv"))
    (root / ".venv/art_nb.json").write_text(json.dumps(setup_venv.UNFINISHED))
    with pytest.raises(SystemExit, match="deactivate"):
        setup_venv.main([])
    assert (root / ".venv").exists()


def test_a_truncated_stamp_is_one_of_an_unfinished_venv(setup):
    """A full disk leaves an empty file."""
    root, commands = setup
    setup_venv.main([])
    (root / ".venv/art_nb.json").write_text("")
    (root / ".venv/half").touch()
    setup_venv.main([])
    assert not (root / ".venv/half").exists() and json.loads((root / ".venv/art_nb.json").read_text())["extras"] == []


def test_an_extra_that_no_longer_exists_is_forgotten(setup):
    root, commands = setup
    setup_venv.main(["judge"])
    stamp = root / ".venv/art_nb.json"
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"extras": ["judge", "renamed"]}))
    (root / "pyproject.toml").write_text((root / "pyproject.toml").read_text() + "# changed\n")
    setup_venv.main([])
    assert json.loads(stamp.read_text())["extras"] == ["judge"]


def test_pythons_path_on_windows():
    assert setup_venv.venv_python("Windows").parts[-3:] == (".venv", "Scripts", "python.exe")
    assert setup_venv.venv_python("Darwin").parts[-3:] == (".venv", "bin", "python")


def test_setup_updates_an_outdated_venv_and_deletes_one_of_another_python_or_folder(setup):
    root, commands = setup
    setup_venv.main([])
    (root / ".venv/package").touch()
    (root / "pyproject.toml").write_text((root / "pyproject.toml").read_text() + "# changed\n")
    commands.clear()
    setup_venv.main([])
    assert len(commands) == 5 and (root / ".venv/package").exists()
    stamp = root / ".venv/art_nb.json"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "python": "3.10.1"}))
    commands.clear()
    setup_venv.main([])
    assert len(commands) == 5 and not (root / ".venv/package").exists()


def test_an_interrupted_setup_starts_again(setup, monkeypatch):
    """pip considers a package installed as soon as its record is there, before all files are."""
    root, commands = setup

    def stopped_pip(*arguments):
        (root / ".venv/half").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(setup_venv, "pip", stopped_pip)
        setup_venv.main([])
    commands.clear()
    setup_venv.main([])
    assert len(commands) == 5 and not (root / ".venv/half").exists()


def test_a_python_that_cannot_make_environments_is_one_line(setup, monkeypatch):
    """Debian's python3 without the package python3-venv: the module venv prints what to install, and fails."""
    monkeypatch.setattr(setup_venv.subprocess, "call", lambda command: 1)
    with pytest.raises(SystemExit, match="^Python's module venv failed; see its message above.$"):
        setup_venv.main([])


def test_here_keeps_torch_and_jupyter(setup, monkeypatch):
    """Colab has both, and replacing them breaks packages that were built for them."""
    _, commands = setup
    setup_venv.main(["--here"])
    names = [setup_venv.name_of(argument) for argument in commands[0]]
    assert {"trl", "anywidget", "openai", "setuptools"} <= set(names) and not {"jupyterlab", "ipywidgets"} & set(names)
    assert commands[0][-1].startswith("torch==2.13.0")
    assert commands[1][0] == "--no-deps"


def test_a_failing_pip_shows_its_last_lines(tmp_path):
    with pytest.raises(SystemExit, match="(?s)no-such-option.*Installing it failed"):
        setup_venv.pip(sys.executable, "it", ["--no-such-option"], tmp_path / "setup.log")


def test_setup_imports_only_the_standard_library():
    names = imports_of("course.setup_venv")
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_conda_installs_the_packages_of_this_repository():
    text = (ROOT / "environment.yml").read_text()
    python, _, pip = yaml.safe_load(text)["dependencies"]
    assert python == "python=3.11" and PROJECT["requires-python"].startswith(">=3.11")
    ours = [f"-e {place}" for place in setup_venv.EDITABLE[1:]]
    assert pip["pip"] == [f"--extra-index-url {CPU_INDEX}", TORCH, "-e .[dev]", *ours] and setup_venv.torch_pin(PROJECT) == TORCH


@pytest.mark.parametrize(
    ("notebook", "named", "extras"),
    [
        ("11_serve", "SERVER", ["server"]), ("10_monitor", "CLIENTS", ["wandb", "langfuse"]), ("12_scale_out", "RAY", ["ray"]),
        ("12_scale_out", "SERVER", ["server"]),
        ("13_other_environments", "PACKAGES", ["real", "reasoning-gym", "gymnasium", "langgraph"]),
    ],
)
def test_a_notebook_installs_the_extras_that_it_needs(notebook, named, extras):
    cells = json.loads((ROOT / f"notebooks/{notebook}.ipynb").read_text("utf-8"))["cells"]
    (source,) = (text for cell in cells if f"{named} = [" in (text := "".join(cell["source"])))
    wanted = ast.literal_eval(re.search(rf"{named} = (\[.*?\])", source)[1])
    assert wanted == [need for extra in extras for need in PROJECT["optional-dependencies"][extra]]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Return a folder with the files that `set_address` changes, as a stand-in for the repository."""
    (tmp_path / "notebooks").mkdir()
    for name in ("pyproject.toml", "README.md"):
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    monkeypatch.setattr(setup_cell, "ROOT", tmp_path)
    return tmp_path


def test_the_setup_cell_does_nothing_here():
    subprocess.run([sys.executable, "-W", "error", "-c", setup_cell.setup_cell()], check=True, env={"PATH": ""})


def test_setting_the_address_writes_project_cells_and_badges_and_removing_it_restores_them(copy):
    before = {name: (copy / name).read_text("utf-8") for name in ("pyproject.toml", "README.md")}
    notebook = copy / "notebooks/00_start_here.ipynb"
    notebook.write_text(json.dumps({"cells": [{"cell_type": "code", "source": []}]}))
    assert setup_cell.write_setup_cells() == [notebook] and "files.upload()" in notebook.read_text()
    changed = setup_cell.set_address("https://github.com/someone/art_nb")
    assert changed == [copy / "pyproject.toml", notebook, copy / "README.md"]
    project = tomllib.loads((copy / "pyproject.toml").read_text())["project"]
    assert project["urls"] == {"Repository": "https://github.com/someone/art_nb"} and project["scripts"]
    source = "".join(setup_cell.first_code_cell(json.loads(notebook.read_text()))["source"])
    tag = f"v{project['version']}"
    assert f'"--branch={tag}", "https://github.com/someone/art_nb", "course"' in source and "upload" not in source
    link = f"https://colab.research.google.com/github/someone/art_nb/blob/{tag}/notebooks/00_start_here.ipynb"
    assert f"(notebooks/00_start_here.ipynb) [![Open in Colab](book/pictures/colab.svg)]({link}) |" in (copy / "README.md").read_text("utf-8")
    assert setup_cell.set_address("https://github.com/someone/art_nb") == []
    assert setup_cell.set_address("") == changed
    assert {name: (copy / name).read_text("utf-8") for name in before} == before and "files.upload()" in notebook.read_text()
    with pytest.raises(ValueError, match="expected https://github.com/OWNER/NAME"):
        setup_cell.set_address("github.com/someone")


def test_a_first_code_cell_that_is_no_setup_cell_is_not_overwritten(copy):
    path = copy / "notebooks/00.ipynb"
    for source, written in (([], [path]), (setup_cell.setup_cell(), [])):
        path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": source}]}))
        assert setup_cell.write_setup_cells() == written
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": "x = 1"}]}))
    with pytest.raises(ValueError, match="00.ipynb"):
        setup_cell.write_setup_cells()
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "# Notes"}]}))
    with pytest.raises(ValueError, match="00.ipynb has no code cell"):
        setup_cell.write_setup_cells()


def test_files_that_a_surrounding_repository_ignores_are_listed(copy):
    inner = copy / "course"
    (inner / ".venv").mkdir(parents=True)
    for name in (".venv/python", "code.py"):
        (inner / name).touch()
    (copy / ".gitignore").write_text("course/\n")
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    setup_cell.ROOT = inner  # the fixture restores it
    assert setup_cell.tracked_files() == ["code.py"]


def test_readme_ci_and_makefile_use_the_same_commands():
    makefile = (ROOT / "Makefile").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "make test" in (ROOT / ".ci/run").read_text() and (ROOT / ".ci/run").stat().st_mode & 0o111
    for target in ("demo", "test", "lab"):
        assert f"\n{target}: setup" in makefile and f"make {target}" in readme


ENVIRONMENTS = sorted(path.parent.name for path in ROOT.glob("environments/*/pyproject.toml"))
OURS = {"art_nb", "course", *ENVIRONMENTS}


def modules_below(folder: str, root: str = "") -> dict[str, Path]:
    """Return the modules of a package by dotted name; `root` is the folder that it is imported from."""
    found = {}
    for path in sorted((ROOT / root / folder).rglob("*.py")):
        parts = path.relative_to(ROOT / root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


LIBRARY = modules_below("art_nb")
MODULES = LIBRARY | modules_below("course", "notebooks") | modules_below("data") | modules_below("benchmarks")
for _name in ENVIRONMENTS:
    MODULES |= modules_below(_name, f"environments/{_name}") | modules_below(f"environments/{_name}/maker")
SYNTAX = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports_of(name: str) -> set[str]:
    """Return the dotted names of everything that a module imports, at any depth; from a module also the names themselves."""
    package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(SYNTAX[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*above, *filter(None, [node.module])])
            found |= {start, *(f"{start}.{alias.name}" for alias in node.names)}
    return found


def lines(paths) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def test_the_library_is_small():
    assert lines(LIBRARY.values()) <= MOST_LINES


def test_what_one_training_step_needs_is_small():
    """The modules of TRAINING_STEP, all that they import, and their packages. art_nb/README.md leads through them."""
    needed, new = set(), set(TRAINING_STEP)
    while new:
        needed |= new
        used = {name for each in new for name in imports_of(each)} | {each.rpartition(".")[0] for each in new}
        new = (used & set(LIBRARY)) - needed - {"art_nb"}  # which names everything and imports nothing
    assert len(needed) > 30 and lines(LIBRARY[name] for name in needed) <= MOST_LINES_OF_A_STEP


def test_each_package_has_its_place_and_says_what_it_does_not_depend_on():
    inside = {name.split(".")[1] for name in LIBRARY if "." in name}
    assert inside == set(PACKAGES)
    for package in PACKAGES:
        first = ROOT / "art_nb" / package / "__init__.py"
        if first.exists() and package not in ("local", "utils"):  # import paths of ART
            text = " ".join(ast.get_docstring(SYNTAX[f"art_nb.{package}"]).split())
            assert re.search(r"[Nn]ot depend on|[Dd]epends on|nothing about|knows this one", text), package
            denied = {name for part in re.findall(r"not depend on ([^.]*)\.", text) for name in re.findall(r"`(\w+)`", part)}
            names = [name.split(".") for each in LIBRARY if each.startswith(f"art_nb.{package}") for name in imports_of(each)]
            assert not denied & {name[1] for name in names if name[0] == "art_nb" and len(name) > 1}, package


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_imports_downwards(name):
    names = [each.split(".") for each in imports_of(name)]
    assert not {each[0] for each in names} & {"data", "benchmarks", "tests", "environments", "course", *ENVIRONMENTS}
    if "." not in name:
        return
    package = name.split(".")[1]
    used = {each[1] for each in names if each[0] == "art_nb" and len(each) > 1}
    above = used & set(PACKAGES[: PACKAGES.index(package)])
    assert not above, f"{name} imports {above}, which are above {package} in PACKAGES"


def test_an_environment_imports_neither_the_course_nor_another_environment():
    for environment in ENVIRONMENTS:
        others = {"data", "benchmarks", "tests", "course", *ENVIRONMENTS} - {environment}
        used = {name.split(".")[0] for each in MODULES if each.split(".")[0] == environment for name in imports_of(each)}
        assert not used & others, environment


def test_no_import_cycle():
    needs = {name: (imports_of(name) & set(MODULES)) - {name} for name in MODULES}
    done: set[str] = set()
    while ready := {name for name, needed in needs.items() if name not in done and needed <= done}:
        done |= ready
    assert {name: needed - done for name, needed in needs.items() if name not in done} == {}


def test_a_class_name_occurs_once():
    names = [node.name for tree in SYNTAX.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert {name for name in names if names.count(name) > 1} <= {"Game"}  # the public name in two environments


CORE = """
import importlib, sys
import art_nb as art
for name in art.__all__:
    getattr(art, name)
for name in ("serving.worker", "rewards", "environments", "monitoring", "utils", "backends.skypilot", "langgraph", "export.command"):
    importlib.import_module(f"art_nb.{name}")
for name in ("gymnasium", "mcp", "openenv", "reasoning_gym", "textarena", "to_mcp", "to_openenv", "verifiers"):
    importlib.import_module(f"art_nb.environments.adapters.{name}")  # the package that it adapts is imported when it is used
for name in ENVIRONMENTS:
    importlib.import_module(name)
print(*{"torch", "transformers", "trl", "numpy", "pandas", "psutil", "jinja2", "ipywidgets", "anywidget", "fastapi", "gymnasium", "textarena", "mcp", "langchain_openai", "litellm"} & set(sys.modules))
"""


def test_the_core_imports_nothing_heavy():
    """Neither the public names nor what a worker and an environment import. tests/project/test_wheel.py installs it so."""
    code = CORE.replace("ENVIRONMENTS", repr(ENVIRONMENTS))
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_names(tree: ast.AST) -> set[str]:
    """Return the underscore names that a module defines: functions, classes, variables and attributes of instances."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
    return set(filter(is_private, found))


def is_own(value: ast.expr) -> bool:
    """True of `self`, `cls` and `super()`."""
    return ast.unparse(value) in ("self", "cls", "super()")


PRIVATE = {name: private_names(tree) for name, tree in SYNTAX.items()}


def private_uses(name: str, tree: ast.AST, own: set[str], others: set[str]) -> list[str]:
    """Return the uses of other modules' underscore names: `from x import _y`, or `x._y` where this module defines no `_y`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] in OURS):
            found += [f"{name}:{node.lineno}: imports {alias.name}" for alias in node.names if is_private(alias.name)]
        elif isinstance(node, ast.Attribute) and node.attr in others - own and not is_own(node.value):
            found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_no_module_uses_another_modules_underscore_names():
    others = {each for names in PRIVATE.values() for each in names} - PUBLIC
    ours = [name for name in MODULES if name.split(".")[0] in OURS]
    assert [use for name in ours for use in private_uses(name, SYNTAX[name], PRIVATE[name], others)] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from art_nb.model import _a", True), ("from .model import _a", True), ("model._b()", True), ("self._b", False),
        ("def _b(): pass\nother._b()", False), ("library._unknown", False), ("from library import _a", False),
    ],
)  # fmt: skip
def test_a_use_of_another_modules_underscore_name_is_found(source, found):
    tree = ast.parse(source)
    assert bool(private_uses("x", tree, private_names(tree), {"_a", "_b"})) == found


def test_usage_names_every_command():
    run = subprocess.run([sys.executable, "-m", "art_nb"], capture_output=True, text=True)
    assert run.returncode == 2 and all(name in run.stderr for name in ("lab", "demo", "test", "doctor"))
    help_run = subprocess.run([sys.executable, "-m", "art_nb", "--help"], capture_output=True, text=True)
    assert help_run.returncode == 0 and help_run.stdout == run.stderr


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
        running = json.loads(next(path for path in tmp_path.glob("jpserver-*.json")).read_text())
        settings = "lab/api/settings/@jupyterlab/apputils-extension:notification"
        with urlopen(f"{running['url']}{settings}?token={running['token']}", timeout=30) as reply:
            defaults = json.load(reply)["schema"]["properties"]
        assert (defaults["fetchNews"]["default"], defaults["checkForUpdates"]["default"]) == ("false", False)
    finally:
        server.terminate()
        server.wait(30)
