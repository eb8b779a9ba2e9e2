"""The wheel, installed with its declared dependencies alone into environments outside of the repository.

The core plays episodes for a server without torch. With the extra `train` it trains an environment written here. The commands
that SkyPilot runs on a rented machine install it and start a server, which trains a model.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest
from running_server import TOKEN, free_port
from test_remote import registered, remote

import art_nb as art
from art_nb.backends import skypilot
from course.setup_venv import CPU_INDEX, this_machine

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
HEAVY = ("torch", "transformers", "numpy", "pandas", "ipywidgets", "fastapi")

# An environment and its rollout, as a user of the package writes them.
LETTERS = '''
import art_nb as art

class EvenLetters:
    """Answer with letters whose character codes are even."""

    def reset(self, seed):
        return f"Say something, number {seed}."

    def reward(self, answer):
        return sum(ord(letter) % 2 == 0 for letter in answer) / max(len(answer), 1)

async def rollout(model, seed):
    environment = EvenLetters()
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": environment.reset(seed)}])
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=6)
    trajectory.messages_and_choices.append(answer.choices[0])
    trajectory.reward = environment.reward(answer.choices[0].message.content)
    return trajectory
'''
TRAIN = '''
import asyncio, sys
import art_nb as art
from letters import rollout

assert "site-packages" in art.__file__, art.__file__

async def main():
    model = art.TrainableModel(name="m", project="p", base_model=sys.argv[1])
    await model.register(art.LocalBackend(path="runs"))
    for step in range(2):
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(model, seed) for _ in range(4)) for seed in range(2)], pbar_desc=None)
        result = await model.train(groups, art.TrainConfig(learning_rate=1e-2))
    assert result.step == await model.get_step() == 2 and model.history()["reward"].notna().any()

asyncio.run(main())
print("trained")
'''
IMPORTS = f'''
import importlib, pkgutil, sys
import art_nb as art
for name in art.__all__:
    getattr(art, name)
for name in ("serving.worker", "rewards", "environments", "monitoring", "utils", "backends.skypilot"):
    importlib.import_module(f"art_nb.{{name}}")
missing = {{name for name in {HEAVY} if not importlib.util.find_spec(name)}}
assert missing == set({HEAVY}), missing
print("imported")
'''


def outside(folder: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a process that does not see the repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ART_NB_", "VIRTUAL_ENV"))}
    if this_machine().cpu_index:  # prefer the CPU build of torch, as `make setup` does
        variables["PIP_EXTRA_INDEX_URL"] = CPU_INDEX
    return kept | {"HOME": str(folder), "PIP_CACHE_DIR": pip_cache()} | variables


def pip_cache() -> str:
    return subprocess.check_output([sys.executable, "-m", "pip", "cache", "dir"], text=True).strip()


def run(*command, folder: Path, **variables: str) -> str:
    done = subprocess.run([str(part) for part in command], cwd=folder, env=outside(folder, **variables), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built without the network from a copy of what a release holds."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "art_nb", copy / "art_nb", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy, folder=copy)
    return next(out.glob("*.whl"))


def install(folder: Path, requirement: str) -> Path:
    """Install a requirement into a new environment in `folder`; return the folder of its scripts."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "art_nb")], check=True)
    scripts = folder / "art_nb" / SCRIPTS
    run(scripts / "python", "-m", "pip", "install", "--quiet", "--no-compile", requirement, folder=folder)
    return scripts


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    return install(tmp_path_factory.mktemp("core"), str(wheel))


@pytest.fixture(scope="module")
def rented(wheel, tmp_path_factory):
    """The home of a rented machine, where the wheel and what the extra `train` declares are installed."""
    home = tmp_path_factory.mktemp("rented")
    install(home, f"{wheel}[train]")
    return home


def test_the_wheel_holds_every_module_the_browser_code_and_nothing_else(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    kinds = (".py", ".js", ".css", ".html", ".typed")
    wanted = {p.relative_to(ROOT).as_posix() for p in (ROOT / "art_nb").rglob("*") if p.suffix in kinds or p.name == "py.typed"}
    assert packed == wanted and "art_nb/py.typed" in packed and any(name.endswith("training_view.js") for name in packed)


def test_the_core_needs_neither_torch_nor_jupyter(core, tmp_path):
    assert run(core / "python", "-c", IMPORTS, folder=tmp_path).strip() == "imported"
    failed = subprocess.run([core / "art-nb", "serve"], cwd=tmp_path, env=outside(tmp_path), capture_output=True, text=True)
    assert failed.returncode == 1 and "pip install 'art-nb[train,server]'" in failed.stderr
    shown = subprocess.run([core / "art-nb", "lab"], cwd=tmp_path, env=outside(tmp_path), capture_output=True, text=True)
    assert shown.returncode == 2 and "worker" in shown.stderr and "repository" in shown.stderr


def test_a_worker_of_the_core_plays_for_a_server(core, server, tiny_base, tmp_path):
    (tmp_path / "letters.py").write_text(LETTERS)

    async def main():
        async with remote(server, tmp_path / "here") as backend:
            model = await registered(backend, tiny_base, "core_worker")
            groups = await backend.gather_by_workers(model, [0, 1], 2)
            return [[each.reward for each in group] for group in groups], [len(group.exceptions) for group in groups]

    command = [core / "art-nb", "worker", server.url, "--rollout", "letters:rollout"]
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, env=outside(tmp_path, ART_NB_TOKEN=TOKEN), stdout=log, stderr=log)
    try:
        rewards, failures = asyncio.run(asyncio.wait_for(main(), 120))
    finally:
        worker.kill()
        worker.wait()
    assert [len(group) for group in rewards] == [2, 2] and failures == [0, 0], (tmp_path / "log").read_text()


def test_the_extra_train_trains_an_environment_written_elsewhere(rented, tiny_base, tmp_path):
    (tmp_path / "letters.py").write_text(LETTERS)
    (tmp_path / "train.py").write_text(TRAIN)
    base = shutil.copytree(tiny_base, tmp_path / "base")
    assert run(rented / "art_nb" / SCRIPTS / "python", "train.py", base, folder=tmp_path).strip().endswith("trained")


@pytest.mark.skipif(os.name == "nt", reason="rented machines run Linux")
def test_the_commands_of_the_rented_machine_start_a_server_that_trains(rented, wheel, tiny_base, tmp_path, monkeypatch):
    """`setup` and `run` of the task that SkyPilot gets, in the order and with the files that it has on the machine."""
    monkeypatch.setattr(skypilot, "PORT", free_port())
    (tmp_path / "letters.py").write_text(LETTERS)
    monkeypatch.syspath_prepend(tmp_path)
    task = skypilot.server_task(gpu="H100", art_version=str(wheel), base_models={"tiny": str(tiny_base)})
    for target, source in task["file_mounts"].items():
        shutil.copy(source, rented / target.removeprefix("~/"))
    path = os.pathsep.join([str(Path(sys.base_prefix) / "bin"), os.environ["PATH"]])  # "python3" is that of `install`
    run("bash", "-c", task["setup"], folder=rented, PATH=path)
    command = {"args": ["bash", "-c", task["run"]], "cwd": rented, "env": outside(rented, ART_NB_TOKEN=TOKEN)}
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(**command, stdout=log, stderr=log, start_new_session=True)
    try:
        url = wait_for_server(job, tmp_path / "log")
        assert asyncio.run(asyncio.wait_for(train_on(url, tmp_path / "here"), 240)) == 1
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def wait_for_server(job: subprocess.Popen, log: Path, seconds: float = 240) -> str:
    url, until = f"http://127.0.0.1:{skypilot.PORT}", time.monotonic() + seconds
    while time.monotonic() < until and job.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=5)
            return url
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(log.read_text())


async def train_on(url: str, path: Path) -> int:
    """Train one step on the server, as a notebook on this machine does; return the model's step."""
    from letters import rollout

    async with art.RemoteBackend(url, TOKEN, path=path) as backend:
        model = art.TrainableModel(name="m", project="p", base_model="tiny")
        await model.register(backend)
        groups = [art.TrajectoryGroup(rollout(model, seed) for _ in range(4)) for seed in range(2)]
        await model.train(await art.gather_trajectory_groups(groups, pbar_desc=None), art.TrainConfig(learning_rate=1e-2))
        return await model.get_step()
