"""Training while a server and two workers are killed by SIGKILL at random times, compared with an undisturbed run.

`python -m benchmarks.kills [kills] [seed]` prints one JSON line (default: 50 kills, seed 0). A run trains
the course's nano model on games that workers play for a server, over HTTP, until this number of
processes have been killed and restarted; then another server trains for as many steps undisturbed.

`lost` and `doubled`: episodes that are too few or too many in a step; `different`: steps whose tokens, rewards or
advantages differ from the undisturbed run, and rows of metrics; `adapter_equal`: whether the last adapters are equal byte
for byte, and the killed run's adapter gives the same answer when loaded in another process. `killed`: counts by process
and phase of the run; `leased_again`: how often an episode was leased again.

The sampled tokens do not depend on the worker, except for rounding, which depends on the batch. This changes about one
token in a million.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import art_nb as art
from benchmarks.result import print_result, say
from game_2048 import Game, outcome_reward, scenarios

TOKEN, LEASE = "a-token-of-the-benchmark", 3
ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "data/nano"
TIME_SUFFIXES = ("time", "_s")
QUESTION = {"messages": [{"role": "user", "content": Game(seed=7).render()}], "max_tokens": 4, "seed": 3}


async def rollout(model: Any, seed: int) -> art.Trajectory:
    """The workers' rollout: the game of notebook 11, but with 16 as the winning tile."""
    game, client = Game(seed, winning_tile=16), model.openai_client()
    trajectory = art.Trajectory(metadata={"seed": seed})
    while not game.over:
        board = {"role": "user", "content": game.render()}
        answer = await client.chat.completions.create(model=model.get_inference_name(), messages=[board], max_tokens=4)
        trajectory.messages_and_choices += [board, answer.choices[0]]
        game.move(answer.choices[0].message.content)
    trajectory.reward, trajectory.turn_rewards = outcome_reward(game), game.turn_rewards
    return trajectory


@dataclass
class Process:
    """A process that is killed and restarted. kind: "server" or "worker"."""

    kind: str
    command: list[str]
    log: Path
    running: subprocess.Popen | None = None

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ART_NB_")}
        environment |= {"ART_NB_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "art_nb", *self.command]
        with self.log.open("a", encoding="utf-8") as log:
            self.running = subprocess.Popen(command, cwd=self.log.parent, env=environment, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill the process. Raises: RuntimeError if it had ended by itself."""
        assert self.running is not None
        self.running.kill()
        if self.running.wait() != (1 if os.name == "nt" else -9):  # the status of a killed process
            raise RuntimeError(f"a {self.kind} exited by itself; its log:\n{self.log.read_text('utf-8')[-3000:]}")


@dataclass
class TrainingRun:
    """A server in `folder`, its workers, and the training.

    phase: the current one. repeated_leases: of episodes. answer: the trained model's tokens at the end. exceptions:
    those of episodes, with their counts.
    """

    folder: Path
    groups: int
    size: int
    seed: int
    port: int
    phase: str = "begins"
    repeated_leases: int = 0
    step: int = 0
    answer: list[int] = field(default_factory=list)
    exceptions: Counter[str] = field(default_factory=Counter)
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder.mkdir()
        options = ["--port", f"{self.port}", "--path", f"{self.folder}/served", "--base-models", f"nano={BASE}"]
        commands = {
            "server": ["serve", *options, "--engine", "transformers", "--lease", f"{LEASE}"],
            "worker-0": (player := ["worker", self.url, "--rollout", "benchmarks.kills:rollout", "--at-once", "8"]),
            "worker-1": player,
        }
        self.processes = [Process(name[:6], each, self.folder / f"{name}.log") for name, each in commands.items()]

    async def train(self, enough: Callable[[int], bool]) -> None:
        """Train on episodes of the workers until `enough(step)`, and then for one more step."""
        for process in self.processes:
            process.start()
        async with art.RemoteBackend(self.url, TOKEN, path=self.folder / "here", patience=600) as backend:
            model = art.TrainableModel(name="m", project="kills", base_model="nano")
            await model.register(backend)
            over = False
            while not over:
                over = enough(self.step)
                self.phase = "plays"
                seeds = scenarios("train", 1000)[self.step * self.groups : (self.step + 1) * self.groups]
                groups = await backend.gather_by_workers(model, seeds, self.size, seed=self.seed, every=0.1)
                self.repeated_leases += self._leased_again()
                self.exceptions.update(f"{error.type}: {error.message}" for group in groups for error in group.exceptions)
                self.phase = "learns"
                await model.train(groups, art.TrainConfig(learning_rate=3e-3, turn_discount=0.5))
                self.step += 1
                say(f"{self.folder.name}: step {self.step}")
            await backend.download_checkpoint(model)
            completion = await model.openai_client().chat.completions.create(model=model.get_inference_name(), **QUESTION)
            self.answer = completion.choices[0].token_ids

    def _leased_again(self) -> int:
        with closing(sqlite3.connect(self.folder / "served/work.sqlite")) as queue:
            return queue.execute("SELECT SUM(leases - 1) FROM episodes").fetchone()[0]

    def stop(self) -> None:
        for process in self.processes:
            if process.running is not None and process.running.poll() is None:
                process.kill()

    @property
    def files(self) -> Path:
        """The model's folder on the server."""
        return self.folder / "served/kills/models/m"


async def killer(run: TrainingRun, kills: int, draw: random.Random, killed: Counter) -> None:
    """Kill and restart processes, half of the time the server; one time in five before the server is ready again."""
    while run.phase == "begins":
        await asyncio.sleep(0.1)
    for number in range(kills):
        early = draw.random() < 0.2
        while not early and not await _works(run.url):
            await asyncio.sleep(0.2)
        await asyncio.sleep(draw.uniform(0, 4))
        server, *workers = run.processes
        victim = server if draw.random() < 0.5 else draw.choice(workers)
        phase = run.phase if await _works(run.url) else "waits for the server to start"
        victim.kill()
        victim.start()
        killed[f"{victim.kind} while the run {phase}"] += 1
        say(f"kill {number + 1} of {kills}: {victim.kind} while the run {phase}")


async def _works(url: str) -> bool:
    """Return whether the server has loaded its model."""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=1, headers={"authorization": f"Bearer {TOKEN}"}) as client:
            status = (await client.get(f"{url}/status")).json()
            return status["sampling"]["tokens"] > 0 or status["last"].startswith(("training", "saving", "step"))
    except httpx.TransportError:
        return False


async def disturbed(run: TrainingRun, kills: int) -> Counter:
    """Train until all kills are done, and for one more step. Returns the kills by process and phase."""
    killed: Counter[str] = Counter()
    killing = asyncio.create_task(killer(run, kills, random.Random(run.seed), killed))
    training = asyncio.create_task(run.train(lambda _: killing.done()))
    try:
        await asyncio.wait([killing, training], return_when=asyncio.FIRST_EXCEPTION)
        if training.done():
            training.result()
        killing.result()
        await training
    finally:
        killing.cancel()
        training.cancel()
        run.stop()
    return killed


async def quiet(run: TrainingRun, steps: int) -> None:
    """Train for the same number of steps undisturbed."""
    try:
        await run.train(lambda step: step + 1 >= steps)
    finally:
        run.stop()


def measure(kills: int = 50, seed: int = 0, groups: int = 4, size: int = 8) -> dict:
    """Run both. groups: per step; size: episodes per group."""
    with tempfile.TemporaryDirectory() as folder:
        folders = (Path(folder, name) for name in ("killed", "quiet"))
        disturbed_run, quiet_run = (TrainingRun(place, groups, size, seed, port=_free_port()) for place in folders)
        killed = asyncio.run(disturbed(disturbed_run, kills))
        asyncio.run(quiet(quiet_run, disturbed_run.step))
        pairs = [*zip(_episodes(disturbed_run), _episodes(quiet_run), strict=True)]
        pairs += zip(_rows(disturbed_run), _rows(quiet_run), strict=True)
        learned = [sum(step.values()) for step in _episodes(disturbed_run)]
        return {
            "kills": sum(killed.values()), "killed": dict(sorted(killed.items())), "steps": disturbed_run.step,
            "episodes": sum(learned), "leased_again": disturbed_run.repeated_leases,
            "raised": dict(disturbed_run.exceptions),
            "lost": sum(max(groups * size - number, 0) for number in learned),
            "doubled": sum(max(number - groups * size, 0) for number in learned),
            "different": sum(one != other for one, other in pairs),
            "adapter_equal": _adapter(disturbed_run) == _adapter(quiet_run)
            and asyncio.run(_answer_when_loaded(disturbed_run)) == disturbed_run.answer == quiet_run.answer,
        }  # fmt: skip


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _episodes(run: TrainingRun) -> list[Counter]:
    """Return for each step of the server the episodes that it trained on, with their counts."""
    from art_nb.storage.run_log import RunLog

    def summary(record: dict) -> tuple:
        tokens = repr([turn.get("tokens") for turn in record["turns"]])
        return record["group"], record["metadata"]["seed"], record["reward"], record["advantage"], tokens

    steps = range(1, run.step + 1)
    return [Counter(summary(record) for record in RunLog(run.files).records("train", step)) for step in steps]


def _rows(run: TrainingRun) -> list[dict]:
    """Return the rows of metrics of server and client, without times, and with ratios rounded to four decimals, because
    sampling and training round differently."""
    from art_nb.storage.run_log import RunLog

    both = [*RunLog(run.files).rows(), *RunLog(run.folder / "here/kills/models/m").rows()]
    rounded = lambda name, value: round(value, 4) if name.startswith("ratio_") else value  # noqa: E731
    return [{name: rounded(name, value) for name, value in row.items() if not _is_time(name)} for row in both]


def _is_time(name: str) -> bool:
    return name.endswith(TIME_SUFFIXES) or name.startswith(("time/", "throughput/"))


def _adapter(run: TrainingRun) -> bytes:
    """Return the downloaded adapter."""
    return (run.folder / f"here/kills/models/m/checkpoints/{run.step:04d}/adapter_model.safetensors").read_bytes()


async def _answer_when_loaded(run: TrainingRun) -> list[int]:
    """Return the answer of the downloaded checkpoint in this process."""
    async with art.LocalBackend(path=run.folder / "here", engine="transformers") as backend:
        model = art.TrainableModel(name="m", project="kills", base_model=str(BASE))
        await model.register(backend)
        completion = await model.openai_client().chat.completions.create(model=model.get_inference_name(), **QUESTION)
        return completion.choices[0].token_ids


if __name__ == "__main__":
    print_result("kills", lambda: measure(*map(int, sys.argv[1:3])))
