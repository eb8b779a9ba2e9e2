"""Monitors: the data that arrives at Weights & Biases and Langfuse, and runs that continue when a service fails."""

import asyncio
import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from datetime import datetime
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest
from openai.types.chat.chat_completion import Choice
from running_server import TOKEN
from test_backend import gather

import art_nb as art
from art_nb.monitoring import LangfuseMonitor, Monitor, ServiceUnavailable, WandbMonitor
from course.otlp_receiver import OtlpReceiver, attributes

KEY, SECRET = "0123456789" * 4, "sk-lf-do-not-tell"
HOSTILE = "<script>alert(1)</script> [x](javascript:alert(1)) \U0001f600 \x07 =cmd()"


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Keep wandb's files in the test's folder, and remove keys from the environment."""
    for name in [each for each in os.environ if each.startswith(("WANDB_", "LANGFUSE_", "OTEL_"))]:
        monkeypatch.delenv(name)
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "wandb_own"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_DISABLE_WEAVE", "true")


@pytest.fixture
def base(tmp_path):
    from tiny_models import make_checkpoint

    return str(make_checkpoint(tmp_path / "base"))


@pytest.fixture
def receiver():
    receiver = OtlpReceiver()
    yield receiver
    receiver.close()


class Service:
    """A local service that answers every request by `mode`. seen: number of requests."""

    def __init__(self, mode):
        self.mode, self.seen, self.release, self.came = mode, 0, threading.Event(), threading.Event()
        service = self

        class ServiceHandler(BaseHTTPRequestHandler):
            def do_POST(self):
                service.seen += 1
                service.came.set()
                if service.mode == "hang":
                    service.release.wait(60)
                if service.mode == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    self.connection.close()
                    return
                self.rfile.read(int(self.headers["Content-Length"]))
                rejection = b'{"accepted": 1, "rejected": 1, "errors": [{"message": "no such trace"}]}'
                body = rejection if service.mode == 207 else b'{"message": "Accepted"}'
                self.send_response(service.mode if isinstance(service.mode, int) else 202)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), ServiceHandler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # the client closed the connection
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def service(request):
    service = Service(request.param)
    yield service
    service.release.set()
    service.server.shutdown()
    service.server.server_close()


def choice(text, prompt=(1, 2, 3), tokens=(4, 5), policy="m@7"):
    said = Choice(index=0, finish_reason="stop", message={"role": "assistant", "content": text})
    said.prompt_token_ids, said.token_ids, said.policy = list(prompt), list(tokens), policy
    return said


def game(reward, text="left"):
    """Two turns, one with a tool call, and a sub-agent's turn."""
    called = Choice(index=0, finish_reason="tool_calls", message={
        "role": "assistant", "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}],
    })  # fmt: skip
    items = [{"role": "system", "content": "play"}, {"role": "user", "content": HOSTILE}, called, {"role": "tool", "tool_call_id": "c", "content": "a wall"}, choice(text)]
    helper = art.trajectories.History(messages_and_choices=[{"role": "user", "content": "help"}, choice("yes", policy="helper")])
    return art.Trajectory(
        messages_and_choices=items, additional_histories=[helper], reward=reward, turn_rewards=[0.0, reward, 0.5],
        metrics={"won": reward > 0, "duration": 2.5}, metadata={"seed": 3, "note": HOSTILE}, logs=["a", "b"],
        start_time=datetime(2026, 1, 2, 3, 4, 5),
    )  # fmt: skip


def model_of(tmp_path, *monitors, **options):
    return art.Model(**{"name": "m", "project": "p", "base_path": str(tmp_path), "monitors": list(monitors)} | options)


def log(model, step, *rewards):
    asyncio.run(model.log([game(reward) for reward in rewards or (0.0, 1.0)], "val", step=step, metrics={"costs/eval/api": 0.25}))


def until(condition, seconds=30):
    """Wait for a condition. Raises: AssertionError after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def records_of_run(folder):
    """Return the records of a model's only offline run, read by W&B's own tool."""
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line) for line in said.stdout.splitlines()]


def holding(folder, secret):
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


# Weights & Biases


def test_weights_and_biases_gets_rows_tables_and_checkpoints_of_a_run(base, tmp_path):
    async def train(model):
        await model.register(art.LocalBackend(path=tmp_path / "art", engine="transformers"))
        for _ in range(2):
            answers = await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=[{"role": "user", "content": HOSTILE}], max_tokens=4, n=4
            )
            group = art.TrajectoryGroup(
                art.Trajectory(messages_and_choices=[{"role": "user", "content": HOSTILE}, answer], reward=i, metadata={"seed": 1})
                for i, answer in enumerate(answers.choices)
            )
            await model.train([group], art.TrainConfig(learning_rate=1e-3))
        await model.log([group], "val")

    with WandbMonitor(checkpoints=True, patience=120) as monitor:
        model = art.TrainableModel(name="m", project="p", base_model=base, monitors=[monitor])
        asyncio.run(train(model))
    assert (monitor.sent, monitor.lost, monitor.trouble) == (3, 0, None)

    folder = tmp_path / "art/p/models/m"
    found = records_of_run(folder)
    logged = [each["history"]["item"] for each in found if each["type"] == "history"]
    history = model.history()
    assert [row["training_step"] for row in logged] == [1, 2, 2]
    for name in ("reward", "entropy", "loss", "learning_rate", "groups_without_signal"):
        assert [row[f"train/{name}"] for row in logged[:2]] == pytest.approx(list(history[name][:2]))
    assert logged[2]["val/reward"] == 1.5 and "train/reward" not in logged[2]
    assert [row["time/step_trainer_s"] for row in logged[:2]] == pytest.approx(list(history["time/step_trainer_s"][:2]))

    (run,) = (folder / "wandb").glob("offline-run-*")
    for row, split in zip(logged, ("train", "train", "val"), strict=True):
        table = json.loads((run / "files" / row[f"trajectories/{split}.path"]).read_text())
        lines = [dict(zip(table["columns"], line, strict=True)) for line in table["data"]]
        said = model.records(split, step=row["training_step"])
        assert [line["conversation"] for line in lines] == [f"user: {HOSTILE}\n\nassistant: {r['turns'][1]['content']}" for r in said]
        assert [(line["reward"], line["seed"], line["step"]) for line in lines] == [(r["reward"], 1, r["step"]) for r in said]

    globs = [m["metric"]["glob_name"] for m in found if m["type"] == "metric" and m["metric"].get("step_metric") == "training_step"]
    for name in ("val/reward", "held_out/reward", "costs/all", "trajectories/train"):  # a split may have any name
        assert any(fnmatch(name, glob) for glob in globs), name

    models = [each["artifact"] for each in found if each["type"] == "artifact" and each["artifact"]["type"] == "model"]
    assert [{*artifact["aliases"]} for artifact in models] == [{"latest", "step1"}, {"latest", "step2"}]
    for step, artifact in enumerate(models, start=1):
        kept = {path.name: path.read_bytes() for path in (folder / f"checkpoints/{step:04d}").iterdir()}
        digests = {name: base64.b64encode(hashlib.md5(data).digest()).decode() for name, data in kept.items()}
        assert {each["path"]: each["digest"] for each in artifact["manifest"]["contents"]} == digests

    described = next(each["run"] for each in found if each["type"] == "run")
    assert (described["project"], described["display_name"]) == ("p", "m") and described["run_id"].startswith("m-")
    assert not described.get("host") and "requirements.txt" not in json.dumps(found)


def test_a_run_on_a_server_is_monitored_as_one_in_process(server, tiny_base, receiver, tmp_path):
    async def train(backend):
        async with backend:
            model = art.TrainableModel(name="monitored", project="p", base_model=str(tiny_base), monitors=[rows, traces])
            await model.register(backend)
            for _ in range(2):
                await model.train(await gather(model, await model.get_step(), groups=2, size=3), art.TrainConfig(learning_rate=1e-3))
            await model.log(await gather(model, 9, groups=1, size=3), "val")
        return model

    with WandbMonitor(patience=120) as rows, langfuse(receiver.url) as traces:
        model = asyncio.run(train(art.RemoteBackend(server.url, TOKEN, path=tmp_path / "here")))
    assert [(each.sent, each.lost, each.trouble) for each in (rows, traces)] == [(3, 0, None)] * 2
    history, records = model.history(), model.records()
    logged = [each["history"]["item"] for each in records_of_run(model.run_log.folder) if each["type"] == "history"]
    assert [row["training_step"] for row in logged] == [1, 2, 2] == list(history.step)
    for name in ("reward", "entropy", "loss"):
        assert [row[f"train/{name}"] for row in logged[:2]] == pytest.approx(list(history[name][:2]))
    assert len(records) == 15 == len({span.trace_id for span in receiver.spans})
    assert sorted(score["value"] for score in receiver.scores) == sorted(record["reward"] for record in records)
    asked = [attributes(span) for span in receiver.spans if b"langfuse.observation.usage_details" in span.SerializeToString()]
    assert {facts["langfuse.observation.model.name"] for facts in asked} == {"monitored@0", "monitored@1", "monitored@2"}
    assert holding(tmp_path, TOKEN) == []


@pytest.mark.parametrize("service", [401, 500, "reset", "hang"], indirect=True)
def test_weights_and_biases_unavailable_warns_once_and_logs_to_files(service, tmp_path, recwarn, capfd):
    monitor = WandbMonitor(api_key=KEY, base_url=service.url, patience=120, start_timeout=3)
    model = model_of(tmp_path, monitor, name=f"m{service.mode}")  # wandb keeps the id of a failed run in the process
    for step in range(3):
        log(model, step)
        if step == 0:
            assert service.came.wait(60)
    monitor.close()
    assert [str(w.message).partition(":")[0] for w in recwarn if "Training goes on" in str(w.message)] == ["Weights & Biases"]
    assert (monitor.sent, monitor.lost) == (3, 0) and list(model.history().step) == [0, 1, 2]
    rows = [each["history"]["item"] for each in records_of_run(model.run_log.folder) if each["type"] == "history"]
    assert [row["val/reward"] for row in rows] == [0.5] * 3
    assert KEY not in "".join(str(w.message) for w in recwarn) + "".join(capfd.readouterr())
    assert holding(tmp_path, KEY) == []


def test_wandbs_variable_disables_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    model = model_of(tmp_path, report_metrics=["wandb"])
    log(model, 1)
    (monitor,) = model.monitors
    monitor.close()
    assert (monitor.sent, monitor.lost, monitor.trouble) == (1, 0, None) and not list(tmp_path.rglob("*.wandb"))


# Langfuse


def test_the_address_is_that_of_langfuses_own_client(monkeypatch):
    from langfuse import Langfuse

    keys = {"public_key": "pk-lf-me", "secret_key": SECRET}
    for name in ("LANGFUSE_HOST", "LANGFUSE_BASE_URL"):  # the second takes precedence
        monkeypatch.setenv(name, f"http://127.0.0.1:9/{name}")
        monitor = LangfuseMonitor(**keys)
        assert monitor.base_url == Langfuse(**keys, tracing_enabled=False)._base_url == f"http://127.0.0.1:9/{name}"


def langfuse(url, **options):
    return LangfuseMonitor(public_key="pk-lf-me", secret_key=SECRET, base_url=url, **{"patience": 60} | options)


def test_a_trajectory_is_a_trace_with_a_span_and_a_generation_per_turn(receiver, tmp_path):
    with langfuse(receiver.url) as monitor:
        log(model_of(tmp_path, monitor), 4, 1.0, 0.0)
    assert (monitor.sent, monitor.lost, monitor.trouble) == (1, 0, None)
    assert len({span.trace_id for span in receiver.spans}) == 2 and len({span.span_id for span in receiver.spans}) == len(receiver.spans) == 14
    trace = [span for span in receiver.spans if span.trace_id == receiver.spans[0].trace_id]
    whole, *rest = trace
    assert (whole.name, whole.parent_span_id) == ("m val", b"")
    begin = int(datetime(2026, 1, 2, 3, 4, 5).timestamp() * 1e9)
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (begin, begin + 2_500_000_000)
    turns, generations = rest[::2], rest[1::2]
    assert [span.name for span in turns] == ["turn 1", "turn 2", "turn 1.1"]
    assert {span.parent_span_id for span in turns} == {whole.span_id}
    assert [span.parent_span_id for span in generations] == [span.span_id for span in turns]
    assert all(a.end_time_unix_nano <= b.start_time_unix_nano for a, b in zip(turns, turns[1:], strict=False))

    facts = attributes(whole)
    assert facts["session.id"] == "p/m/val/0004/0" and facts["langfuse.trace.tags"] == ["val", "step 4"]
    of = {name.removeprefix("langfuse.observation.metadata."): value for name, value in facts.items()}
    assert (of["reward"], of["seed"], of["note"], of["won"], of["logs"]) == (1.0, 3, HOSTILE, 1, "a\nb")

    opening = [{"role": "system", "content": "play"}, {"role": "user", "content": HOSTILE}]
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}]}
    tool, last = {"role": "tool", "content": "a wall"}, {"role": "assistant", "content": "left"}
    said = [(json.loads(attributes(s)["langfuse.observation.input"]), json.loads(attributes(s)["langfuse.observation.output"])) for s in rest]
    assert said[:4] == [(opening, [call]), (opening, [call]), ([tool], [last]), ([*opening, call, tool], [last])]
    first, second, other = map(attributes, generations)
    assert "langfuse.observation.usage_details" not in first and first["langfuse.observation.model.name"] == "m"
    assert json.loads(second["langfuse.observation.usage_details"]) == {"input": 3, "output": 2}
    assert (second["langfuse.observation.model.name"], other["langfuse.observation.model.name"]) == ("m@7", "helper")
    assert attributes(turns[2])["langfuse.observation.metadata.reward"] == 0.5

    scores = {score["traceId"]: (score["name"], score["value"], score["dataType"]) for score in receiver.scores}
    assert scores[whole.trace_id.hex()] == ("reward", 1.0, "NUMERIC") and len(scores) == 2
    basic = "Basic " + base64.b64encode(f"pk-lf-me:{SECRET}".encode()).decode()
    assert {path: headers["Authorization"] for path, headers in receiver.requests} == {
        "/api/public/otel/v1/traces": basic, "/api/public/scores": basic,
    }  # fmt: skip


def test_generations_have_the_attributes_of_langfuses_own_client(receiver, tmp_path):
    """The same generation, sent by its SDK."""
    from langfuse import Langfuse
    from opentelemetry.sdk.trace import TracerProvider

    with langfuse(receiver.url) as monitor:
        asyncio.run(model_of(tmp_path, monitor).log([art.Trajectory(messages_and_choices=[{"role": "user", "content": HOSTILE}, choice("left")])]))
    theirs = Langfuse(public_key="pk-lf-other", secret_key="sk", base_url=receiver.url, tracer_provider=TracerProvider(shutdown_on_exit=False))
    theirs.start_observation(
        name="generation", as_type="generation", model="m@7", input=[{"role": "user", "content": HOSTILE}],
        output=[{"role": "assistant", "content": "left"}], usage_details={"input": 3, "output": 2},
    ).end()  # fmt: skip
    theirs.create_score(name="reward", value=0.0, trace_id="0" * 31 + "1", data_type="NUMERIC")
    theirs.shutdown()
    ours, sdk = attributes(receiver.spans[2]), attributes(receiver.spans[3])
    names = [name for name in sdk if name.startswith("langfuse.observation")]
    assert len(names) == 5 and {name: ours[name] for name in names} == {name: sdk[name] for name in names}
    assert set(receiver.scores[0]) <= set(receiver.scores[1])


def test_later_changes_are_not_sent_and_every_selects_trajectories(receiver, tmp_path):
    monitor = langfuse(receiver.url, every=2)
    games = [game(float(i)) for i in range(5)]
    asyncio.run(model_of(tmp_path, monitor).log(games, step=0))
    for each in games:
        each.reward, each.messages_and_choices[0]["content"] = 9.0, "changed"
    monitor.close()
    assert [score["value"] for score in receiver.scores] == [0.0, 2.0, 4.0]
    assert not any("changed" in str(attributes(span)) for span in receiver.spans)


@pytest.mark.parametrize("service", [401, 403, 404], indirect=True)
def test_a_rejection_warns_once_and_stops_sending(service, tmp_path, recwarn):
    monitor = langfuse(service.url)
    model = model_of(tmp_path, monitor)
    log(model, 0)
    until(lambda: monitor.lost)
    for step in (1, 2):
        log(model, step)
    monitor.close()
    (said,) = [str(w.message) for w in recwarn if "Training goes on" in str(w.message)]
    assert said.startswith("Langfuse") and str(service.mode) in said and SECRET not in said
    assert (monitor.sent, monitor.lost) == (0, 3) and service.seen == (3 if service.mode == 404 else 1)
    assert list(model.history().step) == [0, 1, 2] and len(model.records("val")) == 6


@pytest.mark.parametrize("service", [207], indirect=True)
def test_rejected_scores_are_reported_and_not_sent_again(service, tmp_path):
    monitor = langfuse(service.url)
    log(model_of(tmp_path, monitor), 0, *[1.0] * 20)  # two batches, each with spans and scores
    with pytest.warns(UserWarning, match=r"it rejects the scores of 2 of 20 trajectories: \['no such trace'\]"):
        monitor.close()
    assert (monitor.sent, monitor.lost, service.seen) == (0, 1, 4)


@pytest.mark.parametrize("duration", [float("nan"), float("inf")])
def test_a_duration_that_is_not_finite_counts_as_zero(receiver, tmp_path, duration):
    played = game(1.0)
    played.metrics["duration"] = duration
    with langfuse(receiver.url) as monitor:
        asyncio.run(model_of(tmp_path, monitor).log([played], "val"))
    assert (monitor.sent, monitor.trouble) == (1, None)
    assert receiver.spans[0].end_time_unix_nano == max(span.end_time_unix_nano for span in receiver.spans[1:])


@pytest.mark.parametrize("service", [500, 429, "reset"], indirect=True)
def test_a_service_that_recovers_gets_everything(service, tmp_path, recwarn):
    monitor = langfuse(service.url)
    model = model_of(tmp_path, monitor)
    log(model, 0)
    assert service.came.wait(60)
    for step in (1, 2):
        log(model, step)
    until(lambda: monitor.trouble is not None)
    service.mode = "well"
    until(lambda: monitor.sent >= 3)
    monitor.close()
    assert (monitor.sent, monitor.lost) == (3, 0)
    assert len([w for w in recwarn if "Training goes on" in str(w.message)]) == 1


def test_retries_come_later_and_later_until_the_monitor_is_closed():
    class Down(Monitor):
        def send(self, entry):
            raise ServiceUnavailable("down")

    class Closing:
        waited = []

        def wait(self, seconds):
            self.waited.append(seconds)
            return len(self.waited) == 9

    monitor = Down()
    monitor._deliver(None, Closing())
    assert Closing.waited == [1, 2, 4, 8, 16, 32, 60, 60, 60] and (monitor.sent, monitor.lost) == (0, 1)


@pytest.mark.parametrize("service", ["hang"], indirect=True)
def test_a_hanging_service_does_not_block_logging(service, tmp_path, recwarn):
    """The first request stays unanswered until all steps are logged and `close` has timed out."""
    monitor = langfuse(service.url, timeout=60, patience=0.5, backlog=2)
    model = model_of(tmp_path, monitor)
    log(model, 0)
    assert service.came.wait(60)
    for step in range(1, 6):
        log(model, step)
    monitor.close()
    assert service.seen == 1 and not service.release.is_set()
    assert list(model.history().step) == list(range(6)) and len(model.records("val")) == 12
    assert (monitor.sent, monitor.lost) == (0, 5)  # the service has the sixth
    assert len([w for w in recwarn if "Training goes on" in str(w.message)]) == 1


def test_training_continues_while_a_service_hangs(base, tmp_path):
    service = Service("hang")
    monitor = langfuse(service.url, timeout=60, patience=0)
    model = art.TrainableModel(name="m", project="p", base_model=base, monitors=[monitor])

    async def train():
        await model.register(art.LocalBackend(path=tmp_path / "art", engine="transformers"))
        for _ in range(3):
            groups = [art.TrajectoryGroup([
                art.Trajectory(messages_and_choices=[{"role": "user", "content": "say"}, (await model.openai_client().chat.completions.create(
                    model=model.get_inference_name(), messages=[{"role": "user", "content": "say"}], max_tokens=3)).choices[0]], reward=i)
                for i in range(2)
            ])]  # fmt: skip
            await model.train(groups)
            assert service.came.wait(60)
        return await model.get_step()

    assert asyncio.run(train()) == 3 and service.seen == 1 and not service.release.is_set()
    with pytest.warns(UserWarning, match="Langfuse"):
        monitor.close()
    service.release.set()
    service.server.shutdown()


def test_a_monitor_of_ones_own_needs_only_send(tmp_path):
    rewards = []

    class Mine(Monitor):
        service = "mine"

        def send(self, entry):
            rewards.append(entry.row["reward"])

    with Mine() as monitor:
        model = art.Model(name="m", project="p", base_path=str(tmp_path), monitors=[monitor])
        asyncio.run(model.log([art.TrajectoryGroup([art.Trajectory(messages_and_choices=[], reward=0.25)])]))
    assert rewards == [0.25]


# Opt-in


def test_keys_in_the_environment_alone_send_nothing(tmp_path):
    code = f"""
        import asyncio, sys
        reached = []
        sys.addaudithook(lambda event, args: reached.append(args) if event == "socket.connect" and args[0].family != 1 else None)
        import art_nb as art
        model = art.Model(name="m", project="p", base_path={str(tmp_path)!r})
        asyncio.run(model.log([art.Trajectory(reward=1.0)]))
        assert len(model.history()) == 1 and reached == []
        assert not {{"wandb", "langfuse", "opentelemetry"}} & set(sys.modules)
    """
    keys = {"WANDB_API_KEY": KEY, "LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": SECRET}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=os.environ | keys, check=True, timeout=120)


def test_report_metrics_names_services(tmp_path, monkeypatch):
    (monitor,) = model_of(tmp_path, report_metrics=["wandb"]).monitors
    assert isinstance(monitor, WandbMonitor) and monitor.mode == "offline"
    given = WandbMonitor(checkpoints=True)
    assert model_of(tmp_path, given, report_metrics=["wandb"]).monitors == [given]
    assert model_of(tmp_path).monitors == model_of(tmp_path, report_metrics=[]).monitors == []
    with pytest.raises(ValueError, match="'weave' is not a known service; expected one of wandb, langfuse"):
        model_of(tmp_path, report_metrics=["weave"])
    with pytest.raises(ValueError, match="LANGFUSE_PUBLIC_KEY"):
        model_of(tmp_path, report_metrics=["langfuse"])
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert WandbMonitor().mode == "online" and WandbMonitor(mode="offline").mode == "offline"
    monkeypatch.setenv("WANDB_MODE", "offline")
    model = model_of(tmp_path, report_metrics=["wandb"])
    assert model.monitors[0].mode == "offline" and KEY not in repr(model) + str(model.model_dump())


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: WandbMonitor(mode="online"), "needs a key"),
        (lambda: WandbMonitor(mode="on"), "expected 'online', 'offline' or 'disabled'"),
        (lambda: WandbMonitor(backlog=0), "patience is 10.0, backlog is 0: expected patience >= 0 (seconds) and backlog >= 1 (entries)"),
        (lambda: langfuse("localhost:3000"), "expected a URL such as https://"),
        (lambda: langfuse("http://x", every=0), "for each trajectory"),
    ],
)
def test_bad_settings_raise(make, what):
    with pytest.raises(ValueError, match=re.escape(what)):
        make()


def test_a_program_without_close_finishes_its_run_and_leaves_no_process(tmp_path):
    code = f"""
        import asyncio, os
        import art_nb as art
        model = art.Model(name="m", project="p", base_path={str(tmp_path)!r}, monitors=[art.monitoring.WandbMonitor(patience=120)])
        asyncio.run(model.log([art.Trajectory(reward=1.0)], step=5))
        print(os.getpid())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300, capture_output=True, text=True)
    assert done.stderr == ""
    found = records_of_run(tmp_path / "p/models/m")
    assert [each["history"]["item"]["val/reward"] for each in found if each["type"] == "history"] == [1.0]
    assert found[-1]["type"] == "exit"
    pid = done.stdout.strip()
    commands = lambda: (p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"]))  # noqa: E731
    until(lambda: not any("wandb-core" in " ".join(command) and pid in command for command in commands()))


# TRL's integrations


def test_report_to_passes_through_to_trl(base, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    async def train():
        backend = art.LocalBackend(path=tmp_path / "art", engine="transformers")
        internal = {"trainer_args": {"report_to": "tensorboard"}}
        model = art.TrainableModel(name="m", project="p", base_model=base, _internal_config=internal)
        await model.register(backend)
        for _ in range(2):
            answers = await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=[{"role": "user", "content": "say"}], max_tokens=4, n=4
            )
            await model.train([art.TrajectoryGroup(
                art.Trajectory(messages_and_choices=[{"role": "user", "content": "say"}, answer], reward=i) for i, answer in enumerate(answers.choices)
            )])  # fmt: skip
        await backend.close()
        return model.history()

    history = asyncio.run(train())
    (events,) = (tmp_path / "art").rglob("events.out.tfevents*")
    read = EventAccumulator(str(events)).Reload()
    for name in ("reward", "loss", "entropy"):
        assert [(each.step, each.value) for each in read.Scalars(f"train/{name}")] == [
            (step, pytest.approx(value)) for step, value in zip(history.step, history[name], strict=True)
        ]
