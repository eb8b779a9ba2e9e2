"""Training while all are killed: a server and two workers, SIGKILL at random instants; and a run that is left in peace.

`python -m benchmarks.kills [kills] [seed]` prints one JSON line (50 kills, seed 0). A run trains the course's nano model on
games that workers play for a server, over HTTP, until so many processes were killed and started again; then another server
trains as many steps in peace.

`lost` and `doubled`: episodes that are missing from a step, or in it twice; `different`: steps whose tokens, rewards or
advantages are not those of the quiet run, and rows of metrics; `adapter_equal`: whether the last adapters are the same, byte
for byte, and that of the killed run answers as its server did when it is loaded in another process. `killed`: who, while
what went on; `leased_again`: how often an episode was given to a further worker.

The same tokens are drawn whoever plays, up to rounding: a sum depends on what else is in the batch. A draw so near to a
border that this decides it is one in about a million.
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
from art_nb.tasks.game_2048 import Game, outcome_reward, scenarios
from benchmarks.result import print_result, say

TOKEN, LEASE = "a-token-of-the-benchmark", 3
ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "data/nano"
WHAT_A_CLOCK_SAYS = ("time", "_s", "_per_s")
QUESTION = {"messages": [{"role": "user", "content": Game(seed=7).render()}], "max_tokens": 4, "seed": 3}


async def rollout(model: Any, seed: int) -> art.Trajectory:
    """What workers play: the game of notebook 06, won at 16."""
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
    """One that is killed and started again. kind: "server" or "worker"."""

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
        """Raises: RuntimeError when it had ended by itself."""
        assert self.running is not None
        self.running.kill()
        if self.running.wait() not in (-9, 1):  # 1 on Windows
            raise RuntimeError(f"a {self.kind} had ended by itself:\n{self.log.read_text('utf-8')[-3000:]}")


@dataclass
class Run:
    """A server in `folder`, its workers and who trains there.

    doing: what goes on; again: leases of episodes that were leased before; says: what the trained model says at the end;
    raised: what came of episodes in the place of a trajectory.
    """

    folder: Path
    groups: int
    size: int
    seed: int
    port: int
    doing: str = "begins"
    again: int = 0
    step: int = 0
    says: list[int] = field(default_factory=list)
    raised: Counter[str] = field(default_factory=Counter)
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
        """Steps, each on what workers played, until there are enough of them; a last one is taken in any case."""
        for process in self.processes:
            process.start()
        async with art.RemoteBackend(self.url, TOKEN, path=self.folder / "here", patience=600) as backend:
            model = art.TrainableModel(name="m", project="kills", base_model="nano")
            await model.register(backend)
            over = False
            while not over:
                over = enough(self.step)
                self.doing = "plays"
                seeds = scenarios("train", 1000)[self.step * self.groups : (self.step + 1) * self.groups]
                groups = await backend.gather_by_workers(model, seeds, self.size, seed=self.seed, every=0.1)
                self.again += self._leased_again()
                self.raised.update(f"{error.type}: {error.message}" for group in groups for error in group.exceptions)
                self.doing = "learns"
                await model.train(groups, art.TrainConfig(learning_rate=3e-3, turn_discount=0.5))
                self.step += 1
                say(f"{self.folder.name}: step {self.step}")
            await backend.download_checkpoint(model)
            said = await model.openai_client().chat.completions.create(model=model.get_inference_name(), **QUESTION)
            self.says = said.choices[0].token_ids

    def _leased_again(self) -> int:
        with closing(sqlite3.connect(self.folder / "served/work.sqlite")) as queue:
            return queue.execute("SELECT SUM(leases - 1) FROM episodes").fetchone()[0]

    def stop(self) -> None:
        for process in self.processes:
            if process.running is not None and process.running.poll() is None:
                process.kill()

    @property
    def files(self) -> Path:
        """Of the model on the server."""
        return self.folder / "served/kills/models/m"


async def killer(run: Run, kills: int, draw: random.Random, killed: Counter) -> None:
    """Kill as often, once the run has begun: the server every second time, and one time in five before it works again."""
    while run.doing == "begins":
        await asyncio.sleep(0.1)
    for number in range(kills):
        early = draw.random() < 0.2
        while not early and not await _works(run.url):
            await asyncio.sleep(0.2)
        await asyncio.sleep(draw.uniform(0, 4))
        server, *workers = run.processes
        victim = server if draw.random() < 0.5 else draw.choice(workers)
        doing = run.doing if await _works(run.url) else "waits for a server that starts"
        victim.kill()
        victim.start()
        killed[f"{victim.kind} while the run {doing}"] += 1
        say(f"kill {number + 1} of {kills}: {victim.kind} while the run {doing}")


async def _works(url: str) -> bool:
    """Whether the server has its model loaded."""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=1, headers={"authorization": f"Bearer {TOKEN}"}) as client:
            status = (await client.get(f"{url}/status")).json()
            return status["sampling"]["tokens"] > 0 or status["last"].startswith(("training", "saving", "step"))
    except httpx.TransportError:
        return False


async def disturbed(run: Run, kills: int) -> Counter:
    """Trains until everybody who is to be killed was, and one step more; who was killed while what went on."""
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


async def quiet(run: Run, steps: int) -> None:
    """The same number of steps in peace."""
    try:
        await run.train(lambda step: step + 1 >= steps)
    finally:
        run.stop()


def measure(kills: int = 50, seed: int = 0, groups: int = 4, size: int = 8) -> dict:
    """groups, size: of the episodes of a step."""
    with tempfile.TemporaryDirectory() as folder:
        hurt, calm = (Run(Path(folder, name), groups, size, seed, port=_free_port()) for name in ("killed", "quiet"))
        killed = asyncio.run(disturbed(hurt, kills))
        asyncio.run(quiet(calm, hurt.step))
        pairs = [*zip(_episodes(hurt), _episodes(calm), strict=True), *zip(_rows(hurt), _rows(calm), strict=True)]
        learned = [sum(step.values()) for step in _episodes(hurt)]
        return {
            "kills": sum(killed.values()), "killed": dict(sorted(killed.items())), "steps": hurt.step,
            "episodes": sum(learned), "leased_again": hurt.again, "raised": dict(hurt.raised),
            "lost": sum(max(groups * size - number, 0) for number in learned),
            "doubled": sum(max(number - groups * size, 0) for number in learned),
            "different": sum(one != other for one, other in pairs),
            "adapter_equal": _adapter(hurt) == _adapter(calm) and asyncio.run(_loaded_says(hurt)) == hurt.says == calm.says,
        }  # fmt: skip


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _episodes(run: Run) -> list[Counter]:
    """Of each step that the server took: every episode that it learned from, and how often."""
    from art_nb.storage import logbook

    def told(record: dict) -> tuple:
        tokens = repr([turn.get("tokens") for turn in record["turns"]])
        return record["group"], record["metadata"]["seed"], record["reward"], record["advantage"], tokens

    steps = range(1, run.step + 1)
    return [Counter(told(record) for record in logbook.records(run.files, "train", step)) for step in steps]


def _rows(run: Run) -> list[dict]:
    """The rows of metrics, on the server and here, without what a clock says, and without the sixth decimal of a ratio: it
    tells how sampling and training round."""
    from art_nb.storage import logbook

    both = [*logbook.rows(run.files), *logbook.rows(run.folder / "here/kills/models/m")]
    rounded = lambda name, value: round(value, 4) if name.startswith("ratio_") else value  # noqa: E731
    return [{name: rounded(name, value) for name, value in row.items() if not _of_a_clock(name)} for row in both]


def _of_a_clock(name: str) -> bool:
    return name.endswith(WHAT_A_CLOCK_SAYS) or name.startswith(("time/", "throughput/"))


def _adapter(run: Run) -> bytes:
    """As it was fetched from the server."""
    return (run.folder / f"here/kills/models/m/checkpoints/{run.step:04d}/adapter_model.safetensors").read_bytes()


async def _loaded_says(run: Run) -> list[int]:
    """What the fetched checkpoint answers in a process of ours."""
    async with art.LocalBackend(path=run.folder / "here", engine="transformers") as backend:
        model = art.TrainableModel(name="m", project="kills", base_model=str(BASE))
        await model.register(backend)
        said = await model.openai_client().chat.completions.create(model=model.get_inference_name(), **QUESTION)
        return said.choices[0].token_ids


if __name__ == "__main__":
    print_result("kills", lambda: measure(*map(int, sys.argv[1:3])))
