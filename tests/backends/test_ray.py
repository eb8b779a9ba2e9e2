"""RayBackend: the same rollouts and the same weights as with a LocalBackend."""

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest
import torch
from pydantic import BaseModel
from safetensors.torch import load_file

import art_nb as art
from art_nb.backends.connection import Gone
from art_nb.backends.local import LocalBackend
from art_nb.backends.ray import backend as ray_backend
from art_nb.backends.ray.calls import connect
from art_nb.inference.chat import RequestError

ray = pytest.importorskip("ray", reason="Ray has no wheel for this system, or the extra `ray` is not installed")

ADAPTER = {"peft_args": {"r": 4, "lora_alpha": 8}}
CONFIG = art.TrainConfig(learning_rate=5e-2)
WHAT_A_CLOCK_SAYS = {"time", "rollout_s", "train_s", "save_s", "rollout_tokens_per_s", "train_tokens_per_s", "duration"}


@pytest.fixture(scope="module")
def cluster():
    """Start Ray on this machine for all tests here. Actors and this process use one thread each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    connect("local", 16)
    yield
    ray.shutdown()
    torch.set_num_threads(threads)


WORD = {"type": "json_schema", "json_schema": {"name": "word", "schema": {"type": "string", "pattern": "^[a-z]{6}$"}}}


async def rollout(model, scenario, answered=lambda: None):
    """Play a conversation that is rewarded for early letters. Two are hardly ever equal, and the text determines the tokens."""
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": f"say {scenario}"}])
    for _ in range(2):
        answer = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=12, response_format=WORD
        )
        answered()
        trajectory.messages_and_choices += [answer.choices[0], {"role": "user", "content": "more"}]
    trajectory.reward = sum(letter < "n" for choice in trajectory.choices() for letter in choice.message.content)
    return trajectory


async def gather(model, step, groups, size, answered=lambda: None):
    return await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(model, f"{step} {g}", answered) for _ in range(size)) for g in range(groups)],
        pbar_desc=None,
    )


async def registered(backend, base, name="m"):
    model = art.TrainableModel(name=name, project="p", base_model=str(base), _internal_config=ADAPTER)
    await model.register(backend)
    return model


def turn(choice):
    return choice.policy, choice.prompt_token_ids, choice.token_ids, choice.token_logprobs


def said_in(groups):
    return [[turn(choice) for choice in trajectory.choices()] for group in groups for trajectory in group]


async def loop(model, steps):
    """Run the training loop of a notebook. Returns the tokens of every rollout."""
    said = []
    for step in range(await model.get_step(), steps):
        groups = await gather(model, step, groups=3, size=4)
        said.append(said_in(groups))
        await model.train(groups, CONFIG)
    await gather(model, 99, groups=2, size=2)  # rollouts that are not trained on change nothing
    return said


def without_clock(row):
    return {k: v for k, v in row.items() if k not in WHAT_A_CLOCK_SAYS and not k.startswith(("time/", "throughput/"))}


async def check_refusals(backend, model, base):
    """Invalid requests raise as with a LocalBackend, and change nothing."""
    groups = await gather(model, 3, groups=2, size=3)
    groups[1].trajectories[2].reward = float("nan")
    with pytest.raises(ValueError, match="^group 1, trajectory 2: reward is nan"):
        await model.train(groups)
    ask, asked = model.openai_client().chat.completions.create, [{"role": "user", "content": "a"}]
    with pytest.raises(RequestError, match="unknown model 'other'"):
        await ask(model="other", messages=asked)
    with pytest.raises(RequestError, match="temperature is -1"):
        await ask(model="m", messages=asked, temperature=-1)
    with pytest.raises(RequestError, match="stream=True"):
        await ask(model="m", messages=asked, stream=True)
    names = ["m", "m@0", str(base)]
    said = [(await ask(model=name, messages=asked, max_tokens=2)).choices[0].policy for name in names]
    assert said == ["m@3", "m@0", str(base)]
    assert await model.get_step() == 3
    await check_sessions(backend.loaded(model).pool.samplers[0])


async def check_sessions(sampler):
    """A restarted sampler does not know the session; an exchange that arrives before its predecessor waits for it."""
    with pytest.raises(Gone):
        await sampler.exchange("of-before", {"number": 1, "requests": []})
    send = lambda number: sampler.exchange("new", {"number": number, "requests": []})  # noqa: E731
    assert await send(0) == []
    third = asyncio.create_task(send(2))
    assert (await asyncio.wait([third], timeout=0.1))[0] == set()
    assert await asyncio.gather(send(1), third) == [[], []]


async def check_an_interrupted_step(model, monkeypatch):
    """The learner has taken step 4, its answer is on the way, and `train` is cancelled: training goes on with step 5."""
    ask, taken = ray_backend.ask, asyncio.Event()

    async def slow(actor, name, *arguments, **options):
        answer = await ask(actor, name, *arguments, **options)
        if name == "take_step" and not taken.is_set():
            taken.set()
            await asyncio.sleep(60)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(ray_backend, "ask", slow)
        training = asyncio.create_task(model.train(await gather(model, 3, 2, 4), CONFIG))
        await taken.wait()
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        assert (await model.train(await gather(model, 4, 2, 4), CONFIG)).step == 5
    assert model.history().step.tolist() == [1, 2, 3, 4, 5]


def test_a_training_loop_with_one_sampler_equals_one_in_process(cluster, tiny_base, tmp_path, monkeypatch):
    async def run(backend):
        async with backend:
            model = await registered(backend, tiny_base)
            said = await loop(model, 3)
            rows = [without_clock(row) for row in model.history().to_dict("records")]
            if isinstance(backend, art.RayBackend):
                await check_refusals(backend, model, tiny_base)
            records = model.records()
            if isinstance(backend, art.RayBackend):
                await check_an_interrupted_step(model, monkeypatch)
            unlogged = await backend.train(model, await gather(model, 5, groups=2, size=4), config=CONFIG)
            assert backend.loaded(model).rollout_metrics() == {}
            return said, rows, records, unlogged.metrics.keys()

    said, rows, records, unlogged = asyncio.run(run(LocalBackend(path=tmp_path / "here", engine="transformers")))
    there = asyncio.run(run(art.RayBackend(samplers=1, path=tmp_path / "there", engine="transformers")))
    assert there[0] == said
    assert there[1] == rows and len(rows) == 3
    assert there[2:] == (records, unlogged)
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        here, there = ((tmp_path / path / f"p/models/m/checkpoints/0003/{name}").read_bytes() for path in ("here", "there"))
        assert here == there, name


async def process(actor):
    return psutil.Process(await actor.__ray_call__.remote(lambda _: os.getpid()))


async def until(seen, over):
    """Wait for a file that a learner writes, or until its step is over, because a fast machine may finish it before the check."""
    while not (seen.exists() or over.done()):
        await asyncio.sleep(0)


def without_probabilities(said):
    """Return the turns without log-probabilities, whose rounding depends on the batch."""
    return [[[turn[:3] for turn in rollout] for rollout in step] for step in said]


def test_killed_actors_are_replaced_without_changing_the_results(cluster, tiny_base, tmp_path):
    """Killed are a sampler with half of its conversations, and the learner before its checkpoint and, in the next step, after it."""

    async def quiet():
        async with LocalBackend(path=tmp_path / "quiet", engine="transformers") as backend:
            return await loop(await registered(backend, tiny_base), 2)

    async def disturbed():
        async with art.RayBackend(samplers=2, path=tmp_path / "disturbed", engine="transformers") as backend:
            model, said = await registered(backend, tiny_base), []
            actors, folder = backend.loaded(model), backend.output_dir(model)
            samplers = [sampler.actor for sampler in actors.pool.samplers]
            victims, seen = [await process(samplers[0])], ("trajectories/train/0001.jsonl", "checkpoints/0002")
            to_kill = victims.copy()
            for step in range(2):
                groups = await gather(model, step, 3, 4, answered=lambda: to_kill and to_kill.pop().kill())
                said.append(said_in(groups))
                learner = await process(actors.learners[0])
                training = asyncio.create_task(model.train(groups, CONFIG))
                await until(folder / seen[step], training)
                learner.kill()
                victims.append(learner)
                assert (await training).step == step + 1
            alive = [await process(actor) for actor in samplers]
            assert not {p.pid for p in victims} & {p.pid for p in alive}
            _, running = psutil.wait_procs(victims, timeout=30)  # on a busy machine Ray collects a dead process later
            assert not running
            history = model.history()
            assert list(history.step) == [1, 2] and set(history.trajectories) == {12}
            assert [len(model.records("train", step)) for step in (1, 2)] == [12, 12]
            return said

    said = asyncio.run(quiet())
    assert len({str(rollout) for step in said for rollout in step}) == 24
    assert without_probabilities(asyncio.run(disturbed())) == without_probabilities(said)
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        one, other = (tmp_path / path / f"p/models/m/checkpoints/0002/{name}" for path in ("quiet", "disturbed"))
        assert one.read_bytes() == other.read_bytes()


def relative(one, other):
    """Return the distance of two files of tensors, relative to the norm of the first."""
    one, other = (torch.cat([t.flatten() for _, t in sorted(load_file(file).items())]) for file in (one, other))
    return float((one - other).norm() / one.norm())


def test_two_learners_compute_the_gradient_of_one_and_survive_each_others_crashes(cluster, tiny_base, tmp_path):
    """After one step of Adam the first moment is the gradient times 0.1. Before the second step one learner is killed, in the
    third the other."""
    config = art.TrainConfig(learning_rate=5e-2, grad_accumulation_sequences=2, num_updates=2, kl_penalty_coef=0.1)

    async def run(backend):
        async with backend:
            model, said = await registered(backend, tiny_base), []
            for step in range(3):
                groups = await gather(model, step, groups=2, size=3)
                said.append(said_in(groups))
                once = config.model_copy(update={"num_updates": 1})
                if step and isinstance(backend, art.RayBackend):
                    victim = await process(backend.loaded(model).learners[-step])
                    if step == 1:
                        victim.kill()
                training = asyncio.create_task(model.train(groups, config if step else once))
                if step == 2 and isinstance(backend, art.RayBackend):
                    await until(backend.output_dir(model) / "trajectories/train/0003.jsonl", training)
                    victim.kill()
                await training
            return said, model.history().to_dict("records")

    said, rows = asyncio.run(run(LocalBackend(path=tmp_path / "one", engine="transformers")))
    backend = art.RayBackend(samplers=1, learners=2, path=tmp_path / "two", engine="transformers")
    said_by_two, rows_of_two = asyncio.run(run(backend))
    assert without_probabilities(said_by_two)[0] == without_probabilities(said)[0]
    for step, far in ((1, 1e-5), (3, 1e-3)):
        one, two = (tmp_path / path / f"p/models/m/checkpoints/{step:04d}/optimizer.safetensors" for path in ("one", "two"))
        assert 0 < relative(one, two) < far
    for one, two in zip(rows, rows_of_two, strict=True):
        one, two = ({k: v for k, v in without_clock(row).items() if isinstance(v, float | int)} for row in (one, two))
        assert two == pytest.approx(one, rel=1e-3, abs=1e-6, nan_ok=True)


class Settings(BaseModel):
    text: str


async def played(model, scenario, folder, lives):
    """Run `rollout` and record its process. The first call that finds the file `lives` kills its process, like a crash."""
    if lives.exists():
        lives.unlink()
        os.kill(os.getpid(), 9)
    trajectory = await rollout(model, scenario)
    trajectory.metadata |= {"process": os.getpid(), "step": await model.get_step(), "config": model.config.text}
    (folder / f"{scenario} {os.urandom(4).hex()}").touch()
    return trajectory


class Frail:
    """An actor whose first process is killed in `ready`."""

    def __init__(self, killed):
        self.killed = killed

    def ready(self):
        if not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), 9)
        return 7


def test_an_actor_that_is_killed_as_it_starts_is_waited_for(cluster, tmp_path):
    """A rollout may kill a worker while an earlier call still waits for all workers to start."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    make = ray.remote(Frail).options(max_restarts=-1, num_cpus=1)
    backend = art.RayBackend(path=tmp_path, engine="transformers")
    actors = [make.remote(tmp_path / "killed"), make.remote(tmp_path)]
    assert asyncio.run(backend._ready(actors)) == [7, 7]
    assert (tmp_path / "killed").exists()
    for actor in actors:
        ray.kill(actor)


async def failing(model, scenario):
    raise KeyError(scenario)


def test_rollouts_run_in_worker_processes_and_survive_their_crashes(cluster, tiny_base, tmp_path):
    """One of two workers is killed. Every rollout is returned exactly once, no two are equal, and training uses them."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as Ray does for functions of a notebook
    ended, lives = tmp_path / "ended", tmp_path / "lives"
    ended.mkdir()

    async def run():
        async with art.RayBackend(samplers=2, workers=2, path=tmp_path, engine="transformers") as backend:
            model, said = await registered(backend, tiny_base), []
            model.config = Settings(text="of the caller")
            for step in range(2):
                lives.touch()
                groups = [
                    art.TrajectoryGroup(backend.rollout(played, model, f"{step} {g}", ended, lives) for _ in range(4))
                    for g in range(3)
                ]
                groups = await art.gather_trajectory_groups(groups, pbar_desc=None)
                assert [len(group) for group in groups] == [4, 4, 4] and not lives.exists()
                trajectories = [trajectory for group in groups for trajectory in group]
                assert {(each.metadata["step"], each.metadata["config"]) for each in trajectories} == {(step, "of the caller")}
                assert len({trajectory.metadata["process"] for trajectory in trajectories} - {os.getpid()}) >= 2
                said.append(said_in(groups))
                assert (await model.train(groups, CONFIG)).step == step + 1
            with pytest.raises(KeyError, match="nobody"):
                await backend.rollout(failing, model, "nobody")
            assert list(model.history().trajectories) == [12, 12]
            return said

    said = asyncio.run(run())
    for step, rollouts in enumerate(said):
        assert len({str(turns) for turns in rollouts}) == 12
        assert {policy for turns in rollouts for policy, *_ in turns} == {f"m@{step}"}
    assert len(list(ended.iterdir())) >= 24  # one that had ended may have died before its word was out


CLUSTER = """
import os, sys
import psutil
from art_nb.backends.ray.calls import connect
assert connect("local", 2) and not connect("local", 2)
import ray
processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
sockets = [c for process in processes for c in process.net_connections("tcp") if c.status == "LISTEN"]
print(ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"], *{c.laddr.ip for c in sockets}, flush=True)
sys.stdin.read()
"""
STRANGER = "import ray, sys; ray.init(address=sys.argv[1]); print(ray.get(ray.remote(lambda: 'code ran').remote()))"
MINUTE = 60  # a process with the token needs 5 s; one without asks again and again, for up to 14 minutes


def joins(address: str, env: dict[str, str], seconds: int) -> subprocess.CompletedProcess:
    command = ["timeout", str(seconds), sys.executable, "-c", STRANGER, address]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_a_process_without_the_token_cannot_join_a_cluster_that_was_started_here(tmp_path):
    """Nor can another machine reach it. `ray` must not have been imported before: hence another process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {"HOME": str(tmp_path)}
    owner = subprocess.Popen([sys.executable, "-c", CLUSTER], env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        address, token, *listening = owner.stdout.readline().split()
        assert listening and set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        # Look for the node on the loopback interface; without the token, try three times in place of twenty, a second each.
        here = clean | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_NUM_REDIS_GET_RETRIES": "3"}
        started = time.monotonic()
        friend = joins(address, here | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}, 3 * MINUTE)
        enough = max(MINUTE, 3 * round(time.monotonic() - started))  # two at once, each longer than the friend needed
        assert "code ran" in friend.stdout, friend.stderr
        wrong = here, here | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        with ThreadPoolExecutor() as pool:
            strangers = list(pool.map(partial(joins, address, seconds=enough), wrong))
        for stranger in strangers:
            assert stranger.returncode != 0 and "code ran" not in stranger.stdout, stranger.stdout
    finally:
        owner.communicate("")
    assert owner.returncode == 0 and not list(tmp_path.rglob("auth_token"))
