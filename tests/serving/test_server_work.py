"""Episodes for workers: under kills none is lost or counted twice, and the trained adapter is the same."""

import asyncio
import json
import math
import os
import secrets
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.strategies import data, integers
from running_server import TOKEN
from test_remote import registered, remote

import art_nb as art
from art_nb.backends.connection import Connection, RequestRefused
from art_nb.serving import work_routes
from art_nb.serving.work import MAX_LEASES, WorkQueue
from art_nb.serving.worker import EpisodeSeeds, EpisodeWorker, load_rollout, work

ROLLOUT = '''
import asyncio, os
import art_nb as art

async def rollout(model, scenario):
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": scenario["say"]}], metadata={"pid": os.getpid()})
    client = model.openai_client()
    for turn in range(2):
        answer = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=6
        )
        trajectory.messages_and_choices += [answer.choices[0], {"role": "user", "content": f"more {turn}"}]
        await asyncio.sleep(scenario.get("pause", 0))
    if scenario["say"] == "raise":
        raise OSError("lost")
    letters = [ord(c) for choice in trajectory.choices() for c in choice.message.content]
    trajectory.reward = sum(x % 2 == 0 for x in letters) / max(len(letters), 1)
    return trajectory
'''


class Queue(RuleBasedStateMachine):
    """A queue compared with a plain dict; between two calls its process may be killed and the file reopened."""

    @initialize()
    def begin(self):
        self.folder = Path(os.environ["ART_NB_TEST_FOLDER"])
        self.path = self.folder / f"{secrets.token_hex(8)}.sqlite"  # hypothesis seeds `random`
        self.now, self.tasks, self.results, self.deadlines, self.taken, self.held = 1000.0, {}, {}, {}, {}, []
        self.queue = WorkQueue(self.path, lambda: self.now)

    @rule(size=integers(1, 5), batch=integers(0, 2))
    def add(self, size, batch):
        self.queue.add(f"b{batch}", "p/m", 1, [{"n": i} for i in range(size)], 1, 0)
        if (f"b{batch}", 0) not in self.tasks:  # a batch is added once
            self.tasks |= {(f"b{batch}", i): {"scenario": {"n": i}, "seed": f"0 1 {i} 0"} for i in range(size)}

    @rule(most=integers(1, 4))
    def lease(self, most):
        free = [k for k in self.tasks if k not in self.results and self.deadlines.get(k, 0) < self.now]
        free.sort(key=lambda key: (self.taken.get(key, 0), key))
        for key in [k for k in free if self.taken.get(k, 0) >= MAX_LEASES]:
            self.results[key] = "given up"
            free.remove(key)
        got = self.queue.lease("w", most, 10)
        assert [(e["batch"], e["place"]) for e in got] == free[:most] and all(e["task"] == self.tasks[e["batch"], e["place"]] for e in got)
        for key in free[:most]:
            self.deadlines[key], self.taken[key] = self.now + 10, self.taken.get(key, 0) + 1
        self.held += [(e["lease"], (e["batch"], e["place"])) for e in got]

    @rule(chosen=data())
    def finish(self, chosen):
        if self.held:
            _, key = self.held[chosen.draw(integers(0, len(self.held) - 1))]
            assert self.queue.finish(*key, len(self.held)) is (key not in self.results)
            self.results.setdefault(key, len(self.held))

    @rule(chosen=data())
    def renew(self, chosen):
        if self.held:
            lease, _ = self.held[chosen.draw(integers(0, len(self.held) - 1))]
            last = {}
            for each, key in self.held:
                last[key] = each
            mine = [key for key, each in last.items() if each == lease and key not in self.results]
            assert self.queue.renew([lease], 10) == len(mine)
            for key in mine:
                self.deadlines[key] = self.now + 10

    @rule(seconds=integers(1, 12))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def killed(self):
        self.queue = WorkQueue(self.path, lambda: self.now)

    @invariant()
    def nothing_is_lost_or_doubled(self):
        if not hasattr(self, "queue"):
            return
        counts = self.queue.counts()
        leased = [k for k in self.tasks if k not in self.results and self.deadlines.get(k, 0) >= self.now]
        assert counts["done"] == len(self.results) and sum(counts.values()) == len(self.tasks) and counts["leased"] == len(leased)
        for batch in {batch for batch, _ in self.tasks}:
            said = self.queue.results(batch)
            for place, result in enumerate(said):
                mine = self.results.get((batch, place))
                assert result == mine or (mine == "given up" and "exception" in result)


def test_the_queue_behaves_as_a_dict_with_deadlines(tmp_path, monkeypatch):
    monkeypatch.setenv("ART_NB_TEST_FOLDER", str(tmp_path))
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Queue, settings=settings(max_examples=15, stateful_step_count=25, deadline=None, derandomize=True))


def test_a_long_scenario_is_stored_once_and_leased_in_portions(tmp_path):
    queue = WorkQueue(tmp_path / "work.sqlite")
    queue.add("b", "p/m", 0, ["x" * 1_000_000, "y"], 512, 0)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4_000_000
    leases = [queue.lease("w", 512, 10) for _ in range(3)]
    assert all(0 < len(each) < 10 for each in leases)
    places = [episode["place"] for each in leases for episode in each]
    assert places == list(range(len(places))) and queue.counts()["leased"] == len(places)
    queue.add("c", "p/m", 1, ["z"], 1, 0)  # a later step: the earlier batch is deleted, with its scenarios
    with sqlite3.connect(tmp_path / "work.sqlite") as file:
        assert file.execute("SELECT batch, scenario FROM scenarios").fetchall() == [("c", '"z"')]


def test_numbers_and_texts_that_json_cannot_hold_come_back_as_they_were(tmp_path):
    queue = WorkQueue(tmp_path / "work.sqlite")
    queue.add("b", "p/m", 0, ["\ud800"], 2, 0)
    app = FastAPI()
    app.include_router(work_routes.routes(SimpleNamespace(work=queue, settings=SimpleNamespace(lease=10))))
    client = TestClient(app)
    leased = client.post("/api/work/leases", json={"worker": "w", "most": 2}).json()["episodes"]
    assert [each["task"]["scenario"] for each in leased] == ["\ud800"] * 2
    trajectory = art.Trajectory(messages_and_choices=[], metrics={"ratio": math.nan}, logs=["\ud800"]).model_dump(mode="json")
    content = json.dumps({"batch": "b", "place": 0, "trajectory": trajectory})
    assert client.post("/api/work/results", content=content, headers={"content-type": "application/json"}).json() == {"counted": True}
    returned = art.Trajectory.model_validate(client.get("/api/work/b/results").json()[0]["trajectory"])
    assert math.isnan(returned.metrics["ratio"]) and returned.logs == ["\ud800"]


def test_a_worker_reports_why_its_result_was_refused(capsys):
    """A long one, for example; without a reason the episode would be played again and again."""
    sent = []

    async def ask(method, path, body):
        sent.append(body)
        if "trajectory" in body:
            raise RequestRefused("the body exceeds the maximum", 413)

    async def rollout(model, scenario):
        return art.Trajectory(messages_and_choices=[])

    worker = EpisodeWorker(SimpleNamespace(ask=ask), rollout, "w", 1)
    worker._model = lambda episode: None
    asyncio.run(worker._run_episode({"batch": "b", "place": 3, "task": {"seed": "0", "scenario": {}}}))
    assert [each["place"] for each in sent] == [3, 3] and "exceeds the maximum" in sent[1]["exception"]["message"]
    assert "was refused: the body exceeds" in capsys.readouterr().err


@pytest.mark.parametrize("stopped", [False, True], ids=["the rollout's own", "the worker's"])
def test_a_cancellation_is_the_episodes_exception_unless_the_worker_is_cancelled(stopped):
    sent = []

    async def ask(method, path, body):
        sent.append(body)

    async def rollout(model, scenario):
        waiting = asyncio.create_task(asyncio.sleep(600))
        if not stopped:
            waiting.cancel()
        await waiting

    async def main():
        worker = EpisodeWorker(SimpleNamespace(ask=ask), rollout, "w", 1)
        worker._model = lambda episode: None
        running = asyncio.create_task(worker._run_episode({"batch": "b", "place": 3, "task": {"seed": "0", "scenario": {}}}))
        await asyncio.sleep(0)
        if stopped:
            running.cancel()
        await asyncio.wait([running])
        return running.cancelled()

    assert asyncio.run(main()) is stopped
    assert [each["exception"]["type"] for each in sent] == ([] if stopped else ["asyncio.exceptions.CancelledError"])


def test_an_internal_error_of_the_server_ends_a_worker_with_its_message(tmp_path, monkeypatch, capsys):
    (tmp_path / "idle.py").write_text("async def rollout(model, scenario): ...")
    monkeypatch.chdir(tmp_path)
    failing = httpx.MockTransport(lambda request: httpx.Response(500, json={"error": {"message": "database is locked"}}))
    monkeypatch.setattr(Connection, "_http", lambda self: httpx.AsyncClient(base_url=self.url, transport=failing))
    assert work(["http://a", "--rollout=idle:rollout", "--token=t"]) == 1
    assert capsys.readouterr().err == "database is locked\n"


def test_a_runtime_error_that_is_not_the_servers_keeps_its_traceback(tmp_path, monkeypatch):
    (tmp_path / "idle.py").write_text("async def rollout(model, scenario): ...")
    monkeypatch.chdir(tmp_path)

    def defect(request):
        raise RuntimeError("a defect of the client")

    broken = httpx.MockTransport(defect)
    monkeypatch.setattr(Connection, "_http", lambda self: httpx.AsyncClient(base_url=self.url, transport=broken))
    with pytest.raises(RuntimeError, match="a defect of the client"):
        work(["http://a", "--rollout=idle:rollout", "--token=t"])


def test_a_worker_that_cannot_work_ends_with_a_message(server, tmp_path, monkeypatch, capsys):
    (tmp_path / "idle.py").write_text("async def rollout(model, scenario): ...")
    monkeypatch.chdir(tmp_path)
    options = ["--rollout=idle:rollout", "--token=wrong"]
    assert work([server.url, *options]) == 1 and "token" in capsys.readouterr().err
    monkeypatch.delenv("ART_NB_TOKEN", raising=False)
    assert work([server.url, options[0]]) == 2 and "token: missing" in capsys.readouterr().err
    for url, token, words in (
        (server.url.removeprefix("http://"), "wrong", "expected something like http://"),
        ("http://127.0.0.1:99999", "wrong", "Port out of range"),
        (server.url, "schlüssel", "an HTTP header cannot hold"),
    ):
        assert work([url, "--rollout=idle:rollout", f"--token={token}"]) == 2 and words in capsys.readouterr().err
    assert work([server.url, "--rollout=idle:rollout", "--token=wrong\n"]) == 1 and "wrong api_key" in capsys.readouterr().err
    for base in ("v1", "projects/a%20b/v1"):  # the addresses of OpenAI's clients
        assert work([f"{server.url}/{base}", *options]) == 1 and "token" in capsys.readouterr().err


def test_the_seed_of_a_request_depends_on_episode_and_conversation_not_on_the_order():
    def seeds(episode, *texts):
        seeds = EpisodeSeeds(episode)
        return {text: seeds.seeded({"messages": [{"role": "user", "content": text}]})["seed"] for text in texts}

    assert seeds("0 1 2 3", "a", "b") == seeds("0 1 2 3", "b", "a") != seeds("0 1 2 4", "a", "b")
    repeated = EpisodeSeeds("0 1 2 3")
    again = [repeated.seeded({"messages": [{"role": "user", "content": "a"}]})["seed"] for _ in range(3)]
    assert len(set(again)) == 3 and again[0] == seeds("0 1 2 3", "a")["a"]
    assert repeated.seeded({"messages": [], "seed": 5})["seed"] == 5


@pytest.mark.parametrize("options", [{}, {"timeout": 60}, {"stream": True}, {"extra_headers": {"x": "y"}}], ids=str)
def test_an_episode_that_runs_again_has_the_same_samples_however_it_asks(server, tiny_base, tmp_path, options):
    async def rollout(model, scenario):
        asked = {"messages": [{"role": "user", "content": scenario}], "max_tokens": 6, "temperature": 50, **options}
        answer = await model.openai_client().chat.completions.create(model=model.get_inference_name(), **asked)
        choices = [chunk.choices[0] async for chunk in answer] if "stream" in options else answer.choices
        said.append(choices[-1].token_ids)

    async def main():
        async with remote(server, tmp_path) as backend:
            await registered(backend, tiny_base, "seeded")
        episode = {"batch": "b", "place": 0, "model": "p/seeded", "step": 0, "task": {"scenario": "say", "seed": "0 0 0 0"}}
        for _ in range(2):
            await EpisodeWorker(connection, rollout, "w", 1)._run_episode(episode)
        await connection.close()

    said, connection = [], Connection(server.url, TOKEN, 10)
    asyncio.run(main())
    assert len(said) == 2 and said[0] == said[1]


def test_restarts_of_the_server_use_up_no_lease(tmp_path):
    """However often it restarts, running workers keep their episodes, and none is marked as failed."""
    now = 0.0

    def clock():
        return now

    queue = WorkQueue(tmp_path / "work.sqlite", clock)
    queue.add("b", "p/m", 0, [{}, {}], 1, 0)
    (held,) = queue.lease("w", 1, 10)
    for _ in range(MAX_LEASES + 1):
        now += 60
        queue = WorkQueue(tmp_path / "work.sqlite", clock)
        queue.renew(None, 10)
        assert queue.counts() == {"open": 1, "leased": 1, "done": 0}
        assert queue.renew([held["lease"]], 10) == 1
    assert [each["place"] for each in queue.lease("other", 5, 10)] == [1]
    now += 11
    assert [each["place"] for each in queue.lease("other", 5, 10)] == [0, 1]  # who does not speak up has died


def test_a_rollout_is_imported_or_the_error_names_the_expected_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rollout_found_here.py").write_text(ROLLOUT)
    assert load_rollout("rollout_found_here:rollout").__name__ == "rollout"
    for name, says in (("x", "MODULE:FUNCTION"), ("rollout_found_here:nothing", "no function 'nothing'")):
        with pytest.raises(ValueError, match=says):
            load_rollout(name)


def worker(server, folder):
    environment = os.environ | {"ART_NB_TOKEN": TOKEN, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "art_nb", "worker", server.url, "--rollout", "agent:rollout", "--at-once", "4"]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_when_workers_are_killed_each_episode_counts_once_and_the_adapter_is_the_same(server, tiny_base, tmp_path):
    (tmp_path / "agent.py").write_text(ROLLOUT)
    scenarios = [{"say": f"say {i}", "pause": 0.2} for i in range(4)]

    async def run(name, disturb):
        async with remote(server, tmp_path / name) as backend:
            model = await registered(backend, tiny_base, name)
            workers = [worker(server, tmp_path)]
            try:
                gathering = asyncio.create_task(backend.gather_by_workers(model, scenarios, 4, every=0.05))
                if disturb:
                    while not (await backend.connection.ask("GET", "/status"))["work"]["leased"]:
                        assert workers[0].poll() is None, workers[0].stdout.read()
                        await asyncio.sleep(0.02)
                    workers[0].kill()
                    workers += [worker(server, tmp_path), worker(server, tmp_path)]
                groups = await gathering
            finally:
                for each in workers:
                    each.kill()
                    each.communicate()
            again = await backend.gather_by_workers(model, scenarios, 4)  # as after a kill of whoever waits
            assert [g.model_dump(mode="json") for g in again] == [g.model_dump(mode="json") for g in groups]
            await model.train(groups, art.TrainConfig(learning_rate=5e-2))
            said = [[(c.prompt_token_ids, c.token_ids) for c in t.choices()] for g in groups for t in g]
            pids = {t.metadata["pid"] for g in groups for t in g}
            return said, pids, ((await backend.download_checkpoint(model)) / "adapter_model.safetensors").read_bytes()

    calm, _, adapter = asyncio.run(run("calm", False))
    disturbed, pids, same = asyncio.run(run("disturbed", True))
    assert len(calm) == 16 and disturbed == calm and len(pids) > 1
    assert same == adapter
