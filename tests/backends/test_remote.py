"""RemoteBackend: the same rollouts and the same weights as with a LocalBackend, and recovery from broken connections."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from running_server import TOKEN, Server, serving
from test_backend import gather

import art_nb as art
from art_nb.backends import connection, lockstep
from art_nb.backends.connection import Connection, Unreachable
from art_nb.backends.errors import StatusError
from art_nb.backends.local import LocalBackend
from art_nb.backends.lockstep import Exchange, LockstepClient, LockstepSession, LockstepSessions, SampleRequest
from art_nb.backends.remote import RemoteBackend
from art_nb.rollouts.gathering import cancel
from art_nb.serving.specs import TrainSFTRequest
from art_nb.serving.training import TrainingRequests
from art_nb.storage.run_log import RunLog
from art_nb.types import LocalTrainResult

try:
    import resource
except ImportError:  # Windows
    resource = None

CONFIG = {"peft_args": {"r": 4, "lora_alpha": 8}}


def remote(server, path, **options):
    return RemoteBackend(server.url, TOKEN, path=path, **options)


async def registered(backend, base, name="m"):
    model = art.TrainableModel(name=name, project="p", base_model=str(base), _internal_config=CONFIG)
    await model.register(backend)
    return model


async def loop(model, steps):
    """Run the training loop of a notebook. Returns the tokens of every rollout."""
    said = []
    for step in range(await model.get_step(), steps):
        groups = await gather(model, step, groups=3, size=4)
        said.append([[(c.prompt_token_ids, c.token_ids, c.token_logprobs) for c in t.choices()] for g in groups for t in g])
        await model.train(groups, art.TrainConfig(learning_rate=5e-2))
    await gather(model, 99)  # rollouts that are not trained on change nothing
    return said


WHAT_A_CLOCK_SAYS = {"time", "rollout_s", "train_s", "save_s", "rollout_tokens_per_s", "train_tokens_per_s", "duration"}


def without_clock(row):
    return {k: v for k, v in row.items() if k not in WHAT_A_CLOCK_SAYS and not k.startswith(("time/", "throughput/"))}


def test_a_training_loop_on_a_server_equals_one_in_process(server, tiny_base, tmp_path):
    async def run(backend, name):
        async with backend:
            model = await registered(backend, tiny_base)
            said = await loop(model, 3)
            rows = [without_clock(row) for row in model.history().to_dict("records")]
            if isinstance(backend, RemoteBackend):
                await backend.download_checkpoint(model)
            return said, rows, model.records()

    said, rows, records = asyncio.run(run(LocalBackend(path=tmp_path / "here", engine="transformers"), "here"))
    said_there, rows_there, records_there = asyncio.run(run(remote(server, tmp_path / "there"), "there"))
    assert said_there == said
    assert rows_there == rows and len(rows) == 3
    assert records_there == records
    here, there = (tmp_path / path / "p/models/m/checkpoints/0003" for path in ("here", "there"))
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    assert not list((tmp_path / "there").rglob("outbox/*"))


def test_costs_are_counted_once_here_and_on_the_server(server, tiny_base, tmp_path):
    async def main():
        async with remote(server, tmp_path) as backend:
            model = await registered(backend, tiny_base, "costs")
            for step in range(2):
                groups = await gather(model, step)
                groups[0].metrics["judge_cost_usd"] = 0.25
                for trajectory in groups[1]:
                    trajectory.metrics |= {"costs/user": 1.0, "data/step_calls": 2.0}
                await model.train(groups)
            return model.history().iloc[-1]

    row = asyncio.run(main())
    names = "costs/train/judge/ruler", "costs/user", "costs/all", "costs/cum/all", "data/step_calls", "data/cum/calls"
    assert [row[name] for name in names] == [0.25, 4, 4.25, 8.5, 8, 16]


def test_agents_that_ask_again_after_an_error_are_answered():
    """The first of two exchanges under way fails while the second waits."""
    failing = asyncio.Event()

    async def send(key, exchange):
        if not failing.is_set():
            await (failing.wait() if exchange["number"] == 0 else asyncio.sleep(60))
            raise ConnectionError("no answer")
        return [{"id": each["id"], "status": 400, "error": {"message": "answered"}} for each in exchange["requests"]]

    async def agent(client):
        ask = partial(client.create, messages=[{"role": "user", "content": "a"}], model="m")
        with pytest.raises(ConnectionError):
            await ask()
        with pytest.raises(ValueError, match="answered"):
            await ask()

    async def main():
        client, agents = LockstepClient(send), []
        for _ in range(2):
            agents.append(asyncio.create_task(agent(client)))
            await asyncio.sleep(0.05)
        failing.set()
        await asyncio.wait_for(asyncio.gather(*agents), 10)

    asyncio.run(main())


def test_a_session_whose_client_waits_does_not_time_out(monkeypatch):
    monkeypatch.setattr(lockstep, "SESSION_TIMEOUT", 0.0)
    release = asyncio.Event()

    async def answer(**asked):
        await release.wait()
        return ChatCompletion(id="", created=0, model="m", object="chat.completion", choices=[])

    async def main():
        sessions = LockstepSessions(patience=1)
        first = Exchange(number=0, requests=[SampleRequest(id=0, request={})])
        waiting = asyncio.create_task(sessions.session("a", 0, answer).exchange(first))
        await asyncio.sleep(0.01)
        sessions.session("b", 0, answer)  # closes sessions that have timed out
        release.set()
        assert [each["id"] for each in await waiting] == [0]
        sessions.session("c", 0, answer)
        with pytest.raises(StatusError, match="unknown session"):
            sessions.session("a", 1, answer)

    asyncio.run(main())


def demonstrations():
    turns = [("say a", "abc"), ("say b", "bcd"), ("say c", "cde")]
    return [
        art.Trajectory(messages_and_choices=[{"role": "user", "content": asked}, {"role": "assistant", "content": said}])
        for asked, said in turns
    ]


def test_a_batch_that_a_later_step_replaced_is_not_returned_as_empty(tiny_base, tmp_path):
    async def main(server):
        async with remote(server, tmp_path) as backend:
            model = await registered(backend, tiny_base, "overlapped")
            waiting = asyncio.create_task(backend.gather_by_workers(model, [{"n": 1}], 2, every=0.05))
            while not (await backend.connection.ask("GET", "/status"))["work"]["open"]:
                await asyncio.sleep(0.05)
            await model.train(await gather(model, 0))
            later = asyncio.create_task(backend.gather_by_workers(model, [{"n": 2}], 2))
            with pytest.raises(ValueError, match="step 0 is gone: a later one has replaced it"):
                await asyncio.wait_for(waiting, 60)
            await cancel([later])

    with serving(tmp_path / "served", tiny=str(tiny_base)) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("options", [{}, {"timeout": 60}, {"stream": True}], ids=str)
def test_projects_may_have_models_of_the_same_name(server, tiny_base, tmp_path, options):
    asked = {"messages": [{"role": "user", "content": "say"}], "max_tokens": 2}

    async def main():
        async with remote(server, tmp_path) as backend:
            for project in ("one", "two"):
                model = art.TrainableModel(name="twin", project=project, base_model=str(tiny_base), _internal_config=CONFIG)
                await model.register(backend)
                await model.openai_client().chat.completions.create(model=model.get_inference_name(), **asked, **options)
                other = openai.OpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)
                answer = await asyncio.to_thread(other.chat.completions.create, model=model.get_inference_name(), **asked)
                assert answer.choices[0].policy == "twin@0"
            listed = {each.id for each in await asyncio.to_thread(other.models.list)}  # of the second project
            assert {"twin", "twin@0", "one/twin", "one/twin@0", "tiny"} <= listed and "two/twin" not in listed
            assert (await asyncio.to_thread(other.models.retrieve, "one/twin")).id == "one/twin"

    asyncio.run(main())


def test_bodies_hold_models_and_name_what_they_cannot_hold():
    message = ChatCompletionMessage(role="assistant", content="é")
    assert json.loads(connection.encoded([message, 1.5])) == [{"role": "assistant", "content": "é"}, 1.5]
    for other in (object(), {"b", "a"}, b"a"):  # a set has another order in each process
        with pytest.raises(TypeError, match=f"such as a dict, not a {type(other).__name__}"):
            connection.encoded({"scenarios": [other]})


def test_demonstrations_train_the_same_adapter_as_in_process(server, tiny_base, tmp_path):
    async def run(backend):
        async with backend:
            model = await registered(backend, tiny_base, "sft")
            await model.train_sft(demonstrations(), art.TrainSFTConfig(learning_rate=1e-2))
            await model.train(await gather(model, 1, groups=2, size=4), art.TrainConfig(learning_rate=5e-2))
            if isinstance(backend, RemoteBackend):
                await backend.download_checkpoint(model)
                with pytest.raises(ValueError, match="'output_dir' cannot be set by a client"):
                    await model.train_sft(demonstrations(), art.TrainSFTConfig(sft={"output_dir": "/tmp"}))
                with pytest.raises(ValueError, match="trajectory 0"):
                    await model.train_sft([art.Trajectory()])
                assert not list(tmp_path.rglob("outbox/*.json")) and await model.get_step() == 2
            # Lists of numbers, such as the loss of each batch, stay on the server.
            return [{k: v for k, v in without_clock(row).items() if k != "losses"} for row in model.run_log.rows()]

    rows = asyncio.run(run(LocalBackend(path=tmp_path / "here", engine="transformers")))
    rows_there = asyncio.run(run(remote(server, tmp_path / "there")))
    assert [(row["step"], row["split"]) for row in rows] == [(1, "sft"), (2, "train")]
    assert rows_there == rows
    here, there = (tmp_path / path / "p/models/sft/checkpoints/0002" for path in ("here", "there"))
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (here / name).read_bytes() == (there / name).read_bytes()


async def loop_of_one_step(backend, base, name):
    model = await registered(backend, base, name)
    groups = await gather(model, 0, groups=2, size=3)
    return model, groups


async def lost(response, request):
    """Lose the response after the server sent it."""
    await (await response).aread()
    raise httpx.ReadError("lost")


async def late(response, request):
    """Time out before the response arrives: the client usually resends while the server still works on the first request."""
    try:
        await asyncio.wait_for(response, 0.02)
    except TimeoutError:
        pass
    raise httpx.ReadTimeout("late")


@pytest.mark.parametrize("trouble", [lost, late])
def test_requests_with_lost_responses_are_resent_and_the_step_is_taken_once(server, tiny_base, tmp_path, monkeypatch, trouble):
    """Every third response is lost, and the first response to each training request."""
    send, sent, on_disk = httpx.AsyncHTTPTransport.handle_async_request, [], []

    async def troubled(self, request):
        trains = request.url.path.endswith("/train")
        if trains:  # the data is on the disk before it is sent
            on_disk.append([json.loads(path.read_bytes())["groups"] for path in tmp_path.rglob("outbox/*.json")])
            assert on_disk[-1] == [json.loads(request.content)["groups"]]
        sent.append(request.url.path)
        first = trains and sent.count(request.url.path) == 1
        return await (trouble(send(self, request), request) if first or len(sent) % 3 == 0 else send(self, request))

    async def run(name):
        async with remote(server, tmp_path / name) as backend:
            model, groups = await loop_of_one_step(backend, tiny_base, name)
            result = await model.train(groups, art.TrainConfig(learning_rate=5e-2))
            assert result.step == 1 == await model.get_step() and len(model.history()) == 1
            return [[c.token_ids for c in t.choices()] for g in groups for t in g]

    whole = asyncio.run(run(f"before-{trouble.__name__}"))
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", troubled)
    assert asyncio.run(run(f"answers-{trouble.__name__}")) == whole
    assert len(on_disk) > 1 and not list(tmp_path.rglob("outbox/*.json"))


def test_a_repeated_exchange_gets_the_same_reply():
    """The reply to the first exchange is lost, and the client has sent further exchanges in the meantime."""

    async def answer(**asked):
        return ChatCompletion(id=asked["said"], created=0, model="m", object="chat.completion", choices=[])

    async def main():
        session = LockstepSession(answer)

        def exchange(number, *ids, received=0):
            said = [SampleRequest(id=each, request={"said": f"{each}"}) for each in ids]
            return asyncio.create_task(session.exchange(Exchange(number=number, received=received, requests=said)))

        first = await exchange(0, 0)
        with pytest.raises(StatusError) as early:  # it arrives before exchange 1
            await exchange(2, 2)
        assert early.value.status == 425
        waiting = exchange(1, 1)
        await asyncio.sleep(0)
        second, third = exchange(2, 2), exchange(3)
        answers = [await each for each in (waiting, second, third)]
        assert sorted(one["id"] for each in answers for one in each) == [1, 2]
        assert [each["id"] for each in first] == [0] and await exchange(0, 0) == first
        assert [await exchange(number) for number in (1, 2, 3)] == answers
        await exchange(4, 4, received=3)
        assert await exchange(3) == answers[2]
        with pytest.raises(StatusError) as over:
            await exchange(0, 0)
        assert over.value.status == 409

    asyncio.run(main())


def test_a_server_killed_in_training_and_restarted_takes_the_step_once(tiny_base, tmp_path):
    server, begun = Server(tmp_path / "served", tiny=str(tiny_base)).start(), asyncio.Event()

    async def restarted():
        await begun.wait()
        server.kill()
        await asyncio.to_thread(server.start)

    async def main():
        async with remote(server, tmp_path / "here", progress=lambda text: begun.set()) as backend:
            model = await registered(backend, tiny_base)
            groups = await gather(model, 0, groups=2, size=3)
            begun.clear()
            restart = asyncio.create_task(restarted())
            first = await model.train(groups, art.TrainConfig(learning_rate=5e-2))
            await restart
            groups = await gather(model, 1, groups=2, size=3)
            assert {c.policy for g in groups for t in g for c in t.choices()} == {"m@1"}
            assert first.step == await model.get_step() == 1
            assert list(model.history().step) == [1] and len(model.records("train", 1)) == 6

    try:
        asyncio.run(main())
    finally:
        server.kill()


def test_a_restarted_server_recognises_a_repeated_training_request(tiny_base, tmp_path):
    """The response was lost and the server killed: the checkpoint contains the request's key, the log the advantages."""
    server = Server(tmp_path / "served", tiny=str(tiny_base)).start()

    async def main():
        async with remote(server, tmp_path / "here") as backend:
            model, groups = await loop_of_one_step(backend, tiny_base, "m")
            sent, ask = [], backend.connection.lines

            async def noted(path, request):
                sent.append((path, request))
                async for line in ask(path, request):
                    yield line

            backend.connection.lines = noted
            first = await model.train(groups, art.TrainConfig(learning_rate=5e-2))
            taught = [[c.token_advantages for c in t.choices()] for g in groups for t in g]
            server.kill()
            server.start()
            (path, request), *_ = sent
            again = [line async for line in ask(path, request)][-1]["result"]
            assert again["step"] == first.step == await model.get_step() == 1
            assert {k: v for k, v in again["metrics"].items() if k != "save_s"} == {k: v for k, v in first.metrics.items() if k != "save_s"}
            heard = [of_choices for of_group in again["advantages"] for of_choices in of_group]
            assert any(taught[0]) and len(heard) == len(taught)
            for now, then in zip(heard, taught, strict=True):
                assert now == pytest.approx([each[0] for each in then], abs=1e-6)

    try:
        asyncio.run(main())
    finally:
        server.kill()


def test_a_repeated_request_of_demonstrations_has_no_advantages(tmp_path):
    """The groups' file is of a step that was killed before its checkpoint; demonstrations were then trained as this step."""
    RunLog(tmp_path).write_trajectories([art.TrajectoryGroup([art.Trajectory()])], "train", 1)
    backend = SimpleNamespace(last_request=lambda model: ("repeated", LocalTrainResult(1, {})))
    load = lambda project, name: asyncio.sleep(0, SimpleNamespace(project=project, name=name))  # noqa: E731
    models = SimpleNamespace(backend=backend, load=load, folder=lambda project, name: tmp_path)
    training = TrainingRequests(models, lambda spec, text: None)
    request = TrainSFTRequest(key="repeated", from_step=0, trajectories=[])
    assert asyncio.run(training.train("p", "m", request)) == {"step": 1, "metrics": {}, "advantages": []}


def test_a_server_restarted_during_rollouts_repeats_no_sample(tiny_base, tmp_path):
    """Draws depend on how often a prompt was sampled before. The client counts this, because a restarted server has lost the counts."""
    server = Server(tmp_path / "served", tiny=str(tiny_base)).start()

    async def ask_twice(model, between):
        asked = {"messages": [{"role": "user", "content": "say"}], "max_tokens": 8, "model": model.get_inference_name()}
        first = await model.openai_client().chat.completions.create(**asked)
        await between()
        second = await model.openai_client().chat.completions.create(**asked)
        return art.Trajectory(messages_and_choices=[asked["messages"][0], first.choices[0], second.choices[0]], reward=0)

    async def tokens(backend, restart):
        waiting, restarted = 0, asyncio.Event()

        async def between():
            nonlocal waiting
            waiting += 1
            if waiting == 3:
                await restart()
                restarted.set()
            await restarted.wait()

        async with backend:
            model = await registered(backend, tiny_base)
            groups = [art.TrajectoryGroup(ask_twice(model, between) for _ in range(3))]
            return [[c.token_ids for c in t.choices()] for t in (await art.gather_trajectory_groups(groups, pbar_desc=None))[0]]

    async def killed():
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)

    try:
        there = asyncio.run(tokens(remote(server, tmp_path / "there"), killed))
    finally:
        server.kill()
    here = asyncio.run(tokens(LocalBackend(path=tmp_path / "here", engine="transformers"), lambda: asyncio.sleep(0)))
    assert there == here and len({tuple(said) for game in there for said in game}) == 6


def test_an_unreachable_server_raises_and_the_groups_are_sent_later(server, tiny_base, tmp_path):
    async def main():
        async with remote(server, tmp_path, patience=0.3) as backend:
            model, groups = await loop_of_one_step(backend, tiny_base, "late")
            there, backend.connection.url = backend.connection.url, "http://127.0.0.1:9"
            await backend.connection.close()
            with pytest.raises(ConnectionError, match="127.0.0.1:9 did not answer for 0.3 seconds"):
                await model.train(groups)
            with pytest.raises(ConnectionError, match="Nothing is lost"):
                await gather(model, 1)
            backend.connection.url = there
            await backend.connection.close()
            assert len(list(tmp_path.rglob("outbox/*.json"))) == 1
            result = await backend.send_again(model)
            assert result.step == 1 == await model.get_step() and await backend.send_again(model) is None
            assert len(model.records("train", 1)) == 6

    asyncio.run(main())


@contextmanager
def proxy_that_refuses(status, body):
    """Run a program between client and server that answers every request itself."""

    class ProxyHandler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), ProxyHandler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


@pytest.mark.parametrize(
    ("status", "body"), [(403, b"<html>Forbidden</html>"), (413, b'{"error": {"message": "too long"}}'), (400, b"{}"), (404, b"")]
)
def test_a_proxys_refusal_keeps_the_gathered_groups(server, tiny_base, tmp_path, status, body):
    async def main():
        async with remote(server, tmp_path) as backend:
            model, groups = await loop_of_one_step(backend, tiny_base, f"proxy{status}")
            there = backend.connection.url
            backend._get_step = lambda model: asyncio.sleep(0, 0)
            with proxy_that_refuses(status, body) as backend.connection.url:
                await backend.connection.close()
                with pytest.raises(ValueError, match=f"status {status}|too long"):
                    await model.train(groups)
            backend.connection.url = there
            await backend.connection.close()
            del backend._get_step
            assert len(list(tmp_path.rglob("outbox/*.json"))) == 1
            assert (await backend.send_again(model)).step == 1 and not list(tmp_path.rglob("outbox/*.json"))

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_a_step_that_failed_on_a_full_disk_is_trained_when_it_is_resent(tiny_base, tmp_path):
    """RLIMIT_FSIZE makes each larger write of the server fail, like a full disk."""

    async def main(server):
        async with remote(server, tmp_path / "here") as backend:
            model, groups = await loop_of_one_step(backend, tiny_base, "full")
            limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, limits[1]))
            with pytest.raises(RuntimeError, match="internal server error .OSError."):
                await model.train(groups)
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
            assert (await backend.send_again(model)).step == 1 == await model.get_step()

    with serving(tmp_path / "there", tiny=str(tiny_base)) as server:
        asyncio.run(main(server))
        server.process.kill()
        assert "training of p/full failed" in server.process.stdout.read()


def connected(handler, patience):
    """Return a connection whose requests `handler` answers; call it in the event loop that uses it."""
    made = Connection("http://127.0.0.1:9", "key", patience)
    made._clients[asyncio.get_running_loop()] = httpx.AsyncClient(base_url=made.url, transport=httpx.MockTransport(handler))
    return made


def test_a_timeout_of_a_request_leaves_that_of_the_connection_unchanged():
    seen = []

    def answer(request):
        seen.append(request.extensions["timeout"])
        return httpx.Response(200, json={})

    async def main():
        await connected(answer, 5).ask("POST", "/api/models", {}, timeout=600)

    asyncio.run(main())
    assert seen == [{"connect": 10, "read": 600, "write": 600, "pool": 600}]


def test_a_response_that_ends_within_a_line_is_requested_again():
    """Without a content-length, the end of the connection looks like the end of the response."""
    bodies = [b'{"progress": null}\n{"resu', b'{"progress": null}\n{"result": {"step": 1}}\n']

    async def main():
        there = connected(lambda request: httpx.Response(200, content=bodies.pop(0)), 5)
        return [line async for line in there.lines("/train", {})]

    assert asyncio.run(main())[-1] == {"result": {"step": 1}} and not bodies


class CutOff(httpx.AsyncByteStream):
    """A stream of these lines that is cut off at its end."""

    def __init__(self, *lines):
        self.lines = lines

    async def __aiter__(self):
        for line in self.lines:
            yield json.dumps(line).encode() + b"\n"
        raise httpx.ReadError("cut off")


def test_a_server_that_stops_in_every_attempt_is_given_up_and_one_with_progress_is_not(monkeypatch):
    monkeypatch.setattr(connection, "MAX_CUT_OFF", 3)
    sent = []

    def stops(request):
        sent.append(request)
        return httpx.Response(200, stream=CutOff({"progress": "batch 1 of 9"}, {"progress": None}))

    def goes_on(request):  # each stream is cut off, but the training continues
        sent.append(request)
        batch = len(sent) // 2
        end = {"result": {}} if batch == 9 else {"progress": f"batch {batch} of 9"}
        return httpx.Response(200, stream=CutOff({"progress": None}, end))

    async def read(handler):
        sent.clear()
        return [line async for line in connected(handler, 0.05).lines("/train", {})]

    with pytest.raises(Unreachable, match="cut off"):
        asyncio.run(asyncio.wait_for(read(stops), 20))
    assert len(sent) > 3
    assert asyncio.run(asyncio.wait_for(read(goes_on), 60))[-1] == {"result": {}}
    assert len(sent) == 18


def test_a_checkpoint_whose_deletion_was_not_confirmed_is_deleted():
    kept = {1}

    def delete(request):
        if 1 not in kept:
            return httpx.Response(404, json={"error": {"message": "no checkpoint of step 1"}})
        kept.remove(1)
        raise httpx.ReadError("the response is lost")

    async def main():
        there = connected(delete, 5)
        await there.ask("DELETE", "/api/models/p/m/checkpoints/1")
        with pytest.raises(ValueError, match="no checkpoint of step 1"):  # the first attempt finds nothing
            await there.ask("DELETE", "/api/models/p/m/checkpoints/1")

    asyncio.run(main())


def test_refused_requests_raise_with_the_reason(server, tiny_base, tmp_path):
    async def main():
        async with remote(server, tmp_path) as backend:
            model, groups = await loop_of_one_step(backend, tiny_base, "refused")
            groups[1].trajectories[2].reward = float("nan")
            with pytest.raises(ValueError, match="group 1, trajectory 2: reward is nan"):
                await model.train(groups)
            assert not list(tmp_path.rglob("outbox/*.json"))
            with pytest.raises(ValueError, match="no model 'other' on this server"):
                await model.openai_client().chat.completions.create(model="other", messages=[{"role": "user", "content": "a"}])
            with pytest.raises(openai.BadRequestError, match="temperature is -1"):
                await model.openai_client().chat.completions.create(
                    model="refused", messages=[{"role": "user", "content": "a"}], temperature=-1
                )
            with pytest.raises(ValueError, match="no model 'huge' on this server"):
                await art.TrainableModel(name="n", project="p", base_model="huge").register(backend)
        with pytest.raises(PermissionError, match="api_key"):
            await registered(RemoteBackend(server.url, "wrong", path=tmp_path), tiny_base)

    asyncio.run(main())
    with pytest.raises(ValueError, match="api_key"):
        RemoteBackend(server.url, "")
    with pytest.raises(ValueError, match="url is"):
        RemoteBackend("localhost:8000", "key")


def test_checkpoints_are_forked_and_deleted(server, tiny_base, tmp_path):
    async def main():
        async with remote(server, tmp_path) as backend:
            model, groups = await loop_of_one_step(backend, tiny_base, "parent")
            await model.train(groups, art.TrainConfig(learning_rate=5e-2))
            child = await registered(backend, tiny_base, "child")
            await backend._experimental_fork_checkpoint(child, "parent")
            assert await child.get_step() == 1 and child.get_inference_name() == "child@1"
            names = [each.id async for each in model.openai_client().models.list()]
            assert {"parent", "parent@0", "parent@1", "child@1", "tiny"} <= set(names)
            asked = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "seed": 3}
            said = [await m.openai_client().chat.completions.create(model=m.get_inference_name(), **asked) for m in (model, child)]
            assert [s.choices[0].policy for s in said] == ["parent@1", "child@1"]
            assert said[0].choices[0].token_ids == said[1].choices[0].token_ids
            model.run_log.append_row("val", 0, {"reward": 0.5})
            await model.delete_checkpoints()  # keeps the best
            assert await backend.kept_steps(model) == [0, 1]
            with pytest.warns(UserWarning, match="not logged for any kept step"):
                await model.delete_checkpoints("val/other")
            folders = [await backend.download_checkpoint(m) for m in (model, child)]
            assert (folders[0] / "adapter_model.safetensors").read_bytes() == (folders[1] / "adapter_model.safetensors").read_bytes()
            with pytest.raises(ValueError, match="steps .1. only"):
                await backend.download_checkpoint(model, 0)
            await child.train(await gather(child, 1, groups=2, size=3), art.TrainConfig(learning_rate=5e-2))
            await backend._experimental_fork_checkpoint(child, "parent")  # the notebook is run again
            assert child.get_inference_name() == "child@2" and await child.get_step() == 2

    asyncio.run(main())


def test_a_cancelled_request_is_not_sampled(server, tiny_base, tmp_path):
    async def main():
        async with remote(server, tmp_path) as backend:
            model = await registered(backend, tiny_base, "cancelled")
            asked = {"model": "cancelled", "messages": [{"role": "user", "content": "a"}], "max_tokens": 480, "n": 8, "temperature": 50, "seed": 22}
            create = model.openai_client().chat.completions.create

            async def sampling():
                return (await backend.connection.ask("GET", "/status"))["sampling"]

            before = (await sampling())["tokens"]
            await create(**asked)
            whole = (await sampling())["tokens"] - before
            asking = asyncio.create_task(create(**asked))
            while not (await sampling())["active"]:
                assert not asking.done()
            asking.cancel()
            await asyncio.wait_for(asyncio.wait([backend.lockstep_client(model).driver]), 15)
            until = time.monotonic() + 15
            while (now := await sampling())["active"]:
                assert time.monotonic() < until
            assert whole > 200 and 0 < now["tokens"] - before - whole < whole / 2

    asyncio.run(main())
