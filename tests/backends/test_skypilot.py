"""Renting through SkyPilot: its own parser reads every task; this machine stands in for the rented one, with a real server."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from email.message import Message
from pathlib import Path

import pytest
import yaml
from filelock import FileLock
from running_server import free_port
from test_backend import gather
from test_remote import registered

import art_nb as art
from art_nb.backends import skypilot
from art_nb.backends.skypilot import server_task
from art_nb.skypilot import SkyPilotBackend

VERSION = "0.14.1"
BASES = {"qwen": "Qwen/Qwen3-0.6B", "odd": "a b; c"}


@pytest.fixture(scope="session")
def sky_python():
    """Return a Python with SkyPilot in its own environment, because it requires another uvicorn. Created once, which takes a minute."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "art_nb" / f"skypilot-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if not (folder / "bin/sky").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "-q", f"skypilot=={VERSION}"], check=True)
    return str(folder / "bin/python")


PARSE = """
import json, sys
import sky
found = []
for path in sys.argv[1:]:
    try:
        task = sky.Task.from_yaml(path)
        found.append({"resources": sorted(map(str, task.resources)), "run": task.run, "setup": task.setup, "secrets": sorted(task.secrets)})
    except Exception as error:
        found.append({"refused": f"{type(error).__name__}: {error}"})
print("FOUND" + json.dumps(found))
"""


def run_in_sky(sky_python, code, *paths):
    """Run code beside the real SkyPilot. Returns the JSON that it prints after FOUND."""
    environment = os.environ | {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "ART_NB_TOKEN": "t", "HF_TOKEN": "t"}
    run = subprocess.run([sky_python, "-c", code, *map(str, paths)], capture_output=True, text=True, env=environment)
    assert "FOUND" in run.stdout, run.stderr[-2000:]
    return json.loads(run.stdout.split("FOUND")[1])


@pytest.fixture
def address(monkeypatch):
    monkeypatch.setattr(skypilot, "_source", lambda: "https://github.com/someone/art_nb")


def test_skypilot_parses_every_task(sky_python, tmp_path, address):
    made = [
        server_task(base_models=BASES, gpu="H100"),
        server_task(base_models=BASES, gpu="A100:4", art_version="fix/a-branch_2.1"),
        server_task(base_models=BASES, resources={"cpus": "8+", "infra": "gcp"}),
        server_task(base_models=BASES, gpu="L4", resources={"use_spot": True, "disk_size": 200}, envs=["HF_TOKEN"]),
        server_task(base_models=BASES, gpu="H200", art_version=str(Path(__file__).parents[2])),
        server_task(base_models=BASES, gpu="A100", resources={"infra": "k8s/my-context"}),
        server_task(base_models=BASES, gpu="A100:2", resources={"infra": "slurm/my-cluster/gpu-partition"}),
        server_task(base_models=BASES, gpu="H100") | {"resources": {"acelerators": "H100:1"}},
    ]
    paths = [tmp_path / f"{i}.yaml" for i in range(len(made))]
    for path, task in zip(paths, made, strict=True):
        path.write_text(yaml.safe_dump(task | {"secrets": dict.fromkeys(task["secrets"], "t")}))
    *taken, refused = run_in_sky(sky_python, PARSE, *paths)
    assert "did you mean 'accelerators'" in refused["refused"]
    assert ["H100" in str(t["resources"]) for t in taken[:1]] == [True] and "{'A100': 4}" in str(taken[1]["resources"])
    assert all("art-nb serve --host 127.0.0.1" in task["run"] for task in taken)
    assert all("--base-models qwen=Qwen/Qwen3-0.6B 'odd=a b; c'" in task["run"] for task in taken)
    assert "@fix/a-branch_2.1\"" in taken[1]["setup"] and '".[train,server]"' in taken[4]["setup"]
    assert "Kubernetes" in str(taken[5]["resources"]) and "Slurm" in str(taken[6]["resources"])
    assert taken[3]["secrets"] == ["ART_NB_TOKEN", "HF_TOKEN"] and "[Spot]" in str(taken[3]["resources"])


def test_a_task_contains_no_token(address):
    assert server_task(base_models=BASES, gpu="H100")["secrets"] == {"ART_NB_TOKEN": None}


@pytest.mark.parametrize(
    ("options", "words"), [({}, "pass one of them"), ({"gpu": "H100", "base_models": {}}, "name the models that the server may train"), ({"gpu": "H100", "art_version": "1.0; rm -rf /"}, "expected a tag, branch or commit"), ({"gpu": "H100", "art_version": "dist/missing.whl"}, "expected a tag, branch or commit")]
)
def test_invalid_task_options_raise(options, words, address):
    with pytest.raises(ValueError, match=words):
        server_task(**{"base_models": BASES} | options)


def test_without_a_repository_address_a_task_needs_a_folder(monkeypatch):
    monkeypatch.setattr(skypilot, "metadata", lambda name: Message())
    with pytest.raises(ValueError, match="pass a folder or wheel"):
        server_task(base_models=BASES, gpu="H100")


# A cloud of one machine, this one: `launch` runs the task here, and `down` ends it. HOME is set so that ~/art_nb is the
# environment of the tests. The last test has SkyPilot's own command line and parser read every logged command.
CLOUD = """#!{python}
import json, os, signal, subprocess, sys, yaml
folder = {folder!r}
command, rest = sys.argv[1], sys.argv[2:]
task = yaml.safe_load(open(rest[-1])) if command == "launch" else None
for path in (folder + "/calls", {every!r}):
    with open(path, "a") as log:
        log.write(json.dumps({{"argv": sys.argv[1:], "task": task}}) + "\\n")
if command == "launch":
    assert task["secrets"].keys() <= os.environ.keys()  # SkyPilot reads the values of `--secret NAME` there
    assert os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] == "1"
    print("the token is", os.environ["ART_NB_TOKEN"])
    if os.path.exists(folder + "/no-capacity"):
        sys.exit("no machine of this kind is available")
    job = subprocess.Popen(["sh", "-c", task["run"]], env=os.environ | {{"HOME": folder}}, start_new_session=True,
                           stdout=open(folder + "/log", "w"), stderr=subprocess.STDOUT)
    open(folder + "/job", "w").write(str(job.pid))
elif os.path.exists(folder + "/gone"):
    sys.exit(open(folder + "/gone").read())
else:
    os.killpg(int(open(folder + "/job").read()), signal.SIGKILL)
"""
# Equivalent to `ssh -N -L HERE:PORT:THERE:PORT HOST`, without a login.
TUNNEL = """#!{python}
import socket, sys, threading
here, port, there, to = sys.argv[sys.argv.index("-L") + 1].split(":")
def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
    except OSError:
        pass
    for end in (a, b):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
with socket.create_server((here, int(port))) as server:
    while True:
        a, _ = server.accept()
        try:
            b = socket.create_connection((there, int(to)))
        except OSError:
            a.close()
            continue
        for pair in ((a, b), (b, a)):
            threading.Thread(target=pump, args=pair, daemon=True).start()
"""


@pytest.fixture(scope="module")
def every_call(tmp_path_factory):
    """Return the path of the log of all calls of `sky` in this module."""
    return tmp_path_factory.mktemp("sky") / "calls"


@pytest.fixture
def cloud(every_call, tmp_path, tiny_base, monkeypatch, address):
    """Return arguments of `initialize_cluster` for a cloud that consists of this machine."""
    folder = tmp_path / "cloud"
    (folder / "art_nb/bin").mkdir(parents=True)
    root = Path(__file__).parents[2]
    scripts = {
        "sky": CLOUD.format(python=sys.executable, folder=str(folder), every=str(every_call)), "ssh": TUNNEL.format(python=sys.executable),
        "art_nb/bin/art-nb": f"#!/bin/sh\ncd {folder}\nexport PYTHONPATH={root}\nexec {sys.executable} -m art_nb \"$@\" --engine transformers\n",
    }  # fmt: skip
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setattr(skypilot, "PORT", free_port())
    yield {"gpu": "H100", "base_models": {"tiny": str(tiny_base)}, "path": tmp_path / "here", "sky": str(folder / "sky"), "ssh": (str(folder / "ssh"),)}
    if (folder / "job").exists():
        subprocess.run(["sh", "-c", f"kill -9 -{(folder / 'job').read_text()}"], capture_output=True)


def calls(cloud):
    return [json.loads(line)["argv"] for line in (Path(cloud["sky"]).parent / "calls").read_text().splitlines()]


def test_a_rented_machine_trains_and_is_returned(cloud, tmp_path, capfd):
    (tmp_path / "env").write_text("# keys\nHF_TOKEN='hf-secret'\n")

    async def main():
        backend = await SkyPilotBackend.initialize_cluster(**cloud, env_path=str(tmp_path / "env"))
        model = await registered(backend, "tiny")
        result = await model.train(await gather(model, 0), art.TrainConfig(learning_rate=1e-2))
        folder = await backend.download_checkpoint(model)
        await backend.close()
        again = await SkyPilotBackend.initialize_cluster(**cloud)  # the notebook was closed, but the machine is still running
        model = await registered(again, "tiny")
        step = await model.get_step()
        await again.down()
        return result.step, step, sorted(path.name for path in folder.iterdir())

    trained, found, names = asyncio.run(main())
    assert trained == found == 1 and "adapter_model.safetensors" in names
    launch, down = calls(cloud)
    assert launch[:5] == ["launch", "--yes", "--detach-run", "--cluster", "art"] and ["--secret", "HF_TOKEN"] == launch[-3:-1]
    assert down == ["down", "--yes", "art"]
    shown = capfd.readouterr()
    assert "the token is <ART_NB_TOKEN>" in shown.out and "hf-secret" not in shown.out + str(launch)
    assert not list((tmp_path / "here").glob(".*token"))


def test_missing_capacity_raises_with_the_secrets_masked(cloud, tmp_path):
    (tmp_path / "cloud/no-capacity").touch()
    with pytest.raises(RuntimeError, match="(?s)`sky launch` failed.*<ART_NB_TOKEN>.*no machine of this kind"):
        asyncio.run(SkyPilotBackend.initialize_cluster(**cloud, tail_logs=False))
    assert not list((tmp_path / "here").glob(".*token"))


def test_a_server_that_does_not_start_raises(cloud, tmp_path, monkeypatch):
    monkeypatch.setattr(skypilot, "READY_TIMEOUT", 0.5)
    (tmp_path / "cloud/art_nb/bin/art-nb").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(RuntimeError, match="has not answered for 0.5 s"):
        asyncio.run(SkyPilotBackend.initialize_cluster(**cloud, tail_logs=False))


def test_the_token_file_is_readable_by_its_owner_only(cloud, tmp_path):
    async def main():
        backend = await SkyPilotBackend.initialize_cluster(**cloud, tail_logs=False)
        (kept,) = (tmp_path / "here").glob(".*token")
        mode = stat.S_IMODE(kept.stat().st_mode)
        restarted = await SkyPilotBackend.initialize_cluster(**cloud, tail_logs=False, force_restart=True)
        await backend.close()
        await restarted.down()
        return mode

    assert asyncio.run(main()) == 0o600
    assert [call[0] for call in calls(cloud)] == ["launch", "cancel", "launch", "down"]


def test_an_interrupted_launch_is_not_repeated(cloud, monkeypatch, launch=skypilot._launch):
    async def interrupted(*arguments):
        await launch(*arguments)
        raise asyncio.CancelledError

    async def main():
        with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
            patch.setattr(skypilot, "_launch", interrupted)
            await SkyPilotBackend.initialize_cluster(**cloud, tail_logs=False)
        await (await SkyPilotBackend.initialize_cluster(**cloud, tail_logs=False)).close()

    asyncio.run(main())
    assert [call[0] for call in calls(cloud)] == ["launch"]


def test_a_server_with_another_token_raises(cloud, tmp_path):
    async def main():
        async with await SkyPilotBackend.initialize_cluster(**cloud, tail_logs=False):
            (tmp_path / "here/.art.token").write_text("of an earlier start")
            with pytest.raises(RuntimeError, match="another token"):
                await SkyPilotBackend.initialize_cluster(**cloud, tail_logs=False)

    asyncio.run(main())


RETURNED = """
import json
from types import SimpleNamespace
from sky.backends import backend_utils as sky
found = []
sky.refresh_cluster_status_handle = lambda name: (None, None)
handle = SimpleNamespace(launched_resources=SimpleNamespace(use_spot=False))
for record in (None, {"status": "UP", "autostop": 60, "to_down": True, "handle": handle}):
    sky.global_user_state.get_cluster_from_name = lambda *_, **__: record
    try:
        sky.check_cluster_available("art", operation="cancelling jobs")
    except sky.exceptions.ClusterDoesNotExist as error:
        found.append(str(error))
print("FOUND" + json.dumps(found))
"""


def test_force_restart_rents_a_new_machine_when_skypilot_has_returned_it(sky_python, cloud, tmp_path):
    """With SkyPilot's own messages: the first call after the return has another one than later calls."""
    messages = run_in_sky(sky_python, RETURNED)
    assert len(messages) == 2

    async def main():
        for message in messages:
            (tmp_path / "cloud/gone").write_text(message)
            await (await SkyPilotBackend.initialize_cluster(**cloud, tail_logs=False, force_restart=True)).close()
            (tmp_path / "cloud/gone").unlink()
            await skypilot._run([cloud["sky"], "down", "--yes", "art"], {}, show=False)
        (tmp_path / "cloud/gone").write_text("no credentials")
        with pytest.raises(RuntimeError, match="(?s)`sky cancel` failed.*no credentials"):
            await SkyPilotBackend.initialize_cluster(**cloud, tail_logs=False, force_restart=True)

    asyncio.run(main())
    assert [call[0] for call in calls(cloud)] == ["cancel", "launch", "down"] * 2 + ["cancel"]


def test_the_tunnel_outlives_an_interrupt_and_ends_with_the_process():
    code = "tunnel, _ = open_tunnel('art', ['sh', '-c', 'exec sleep 60']); print(os.getpgid(tunnel.pid) != os.getpgid(0))"
    code = f"import os; from art_nb.backends.skypilot import open_tunnel; {code}"
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=30)  # until the tunnel, too, closes stdout
    assert ran.stdout == b"True\n"


def test_a_missing_sky_command_raises(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="uv tool install skypilot"):
        asyncio.run(SkyPilotBackend.initialize_cluster(gpu="H100"))


ACCEPT = """
import json, sys
import sky, yaml
from sky.client.cli import command as cli
accepted = []
for line in open(sys.argv[1]):
    call = json.loads(line)
    command, *rest = call["argv"]
    if task := call["task"]:
        rest[-1] = sys.argv[1] + ".yaml"  # the file that was given is deleted
        with open(rest[-1], "w") as file:
            yaml.safe_dump(task, file)
        assert sky.Task.from_yaml_config(task | {"secrets": dict.fromkeys(task["secrets"], "x")}).run == task["run"]
    getattr(cli, command).make_context(command, rest)
    accepted.append(command)
print("FOUND" + json.dumps(accepted))
"""


def test_skypilot_accepts_every_command_that_was_run(sky_python, every_call):
    """Once for all tests above, because importing SkyPilot takes seconds."""
    accepted = run_in_sky(sky_python, ACCEPT, every_call)
    assert len(accepted) == len(every_call.read_text().splitlines()) >= 8, "run all tests of this file"
