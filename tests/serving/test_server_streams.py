"""Streams: slow, stalled and disconnected clients, several streams on one connection, and shutdown."""

import asyncio
import hashlib
import http.client
import json
import random
import signal
import socket
import struct
import time

import httpx
import psutil
import pytest
from running_server import TOKEN, Server
from serving_app import serving_app

from art_nb.backends.connection import RETRIED
from art_nb.serving import openai_routes
from art_nb.serving.app import make_app
from art_nb.serving.backend_thread import MAX_BUFFERED, BackendThread
from art_nb.serving.guard import Guard
from art_nb.serving.settings import Settings
from art_nb.serving.tokens import AccessToken, load_token

HEADERS = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
STORY = {"model": "tiny", "messages": [{"role": "user", "content": "a long story"}], "max_tokens": 400, "seed": 1, "temperature": 3}


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=60) as client:
        yield client


def sampling(client):
    return client.get("/status").json()["sampling"]


def until_nobody_is_sampled_for(client):
    until = time.monotonic() + 60
    while (now := sampling(client))["active"] or now["waiting"]:
        assert time.monotonic() < until, now
        time.sleep(0.05)


def open_files(server):
    """Return the number of the server's file descriptors; on Windows, 0."""
    process = psutil.Process(server.process.pid)
    return process.num_fds() if hasattr(process, "num_fds") else 0


def asking(server, body, buffer=None):
    """Return a connection with a request sent and nothing read. buffer: size of the receive buffer in bytes."""
    connection = socket.socket()
    connection.settimeout(60)
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect(("127.0.0.1", server.port))
    content = json.dumps(body).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    ask = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{head}connection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    connection.sendall(ask.encode() + content)
    return connection


def texts(events, n):
    """Return the text of each of n choices."""
    chunks = [json.loads(event[len("data: ") :]) for event in events.split("\n\n") if event.startswith("data: {")]
    said = [(choice["index"], choice["delta"].get("content") or "") for chunk in chunks for choice in chunk["choices"]]
    return ["".join(text for index, text in said if index == i) for i in range(n)]


def test_a_stalled_client_blocks_no_other_and_receives_everything_later(server, client):
    """Its completion is sampled to the end, so that its slots become free."""
    long = {**STORY, "max_tokens": 100, "n": 2}
    asleep = [asking(server, {**long, "stream": True}, buffer=4096) for _ in range(3)]
    for connection in asleep:
        assert connection.recv(9) == b"HTTP/1.1 "  # it has begun
    short = client.post("/v1/chat/completions", json={**STORY, "max_tokens": 5, "stream": True})
    assert short.status_code == 200 and short.text.endswith("data: [DONE]\n\n")
    until_nobody_is_sampled_for(client)
    whole = client.post("/v1/chat/completions", json=long).json()
    for connection in asleep:
        answer = body_of(connection)
        assert answer.endswith("data: [DONE]\n\n")
        assert texts(answer, 2) == [choice["message"]["content"] for choice in whole["choices"]]


def body_of(connection):
    """Return the body of a chunked response whose first bytes were read."""
    with connection, connection.makefile("rb") as file:
        while file.readline().strip():
            pass
        body = b""
        while size := int(file.readline(), 16):
            body += file.read(size)
            file.readline()
        return body.decode()


def test_disconnected_clients_leave_nothing_behind(server, client):
    """More clients than may be active at once disconnect at random moments, by a TCP reset."""
    draws, story = random.Random(0), {**STORY, "stream": True}
    client.post("/v1/chat/completions", json={**STORY, "max_tokens": 1})
    before = open_files(server)
    for _ in range(9):
        leaving = [asking(server, {**story, "seed": draws.randrange(9)}, buffer=4096) for _ in range(30)]
        draws.shuffle(leaving)
        for connection in leaving:
            if draws.random() < 0.5:
                connection.recv(draws.choice([1, 4000]))
            time.sleep(draws.choice([0, 0, 0.01]))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
    until_nobody_is_sampled_for(client)
    until = time.monotonic() + 60
    while (now := open_files(server)) > before + 3:
        assert time.monotonic() < until, (now, before)
        time.sleep(0.05)
    assert client.post("/v1/chat/completions", json={**STORY, "max_tokens": 5}).json()["usage"]["completion_tokens"] == 5


def test_one_connection_serves_stream_after_stream(server):
    connection, said = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60), set()
    connection.connect()
    used = connection.sock
    for _ in range(3):
        connection.request("POST", "/v1/chat/completions", json.dumps({**STORY, "max_tokens": 9, "stream": True}), HEADERS)
        said.add(tuple(texts(connection.getresponse().read().decode(), 1)))
        assert connection.sock is used
    connection.close()
    assert len(said) == 1


# The backend's thread alone


@pytest.fixture
def streamed():
    """Return a function that runs an async test of a BackendThread, in the loop outside the thread."""

    def run(test):
        async def main():
            thread = BackendThread()
            thread.start()
            try:
                return await asyncio.wait_for(test(thread), 60)
            finally:
                thread.stop()

        return asyncio.run(main())

    return run


def numbers(made, error=None):
    """Produce 0, 1, ... without end, or 100 items and an error; append each to `made`."""

    async def pieces(_):
        try:
            for i in range(100 if error else 10**9):
                made.append(i)
                yield i
                if i % 7 == 0:
                    await asyncio.sleep(0)
            raise error
        finally:
            made.append("closed")

    return pieces


async def nothing():
    return None


async def quiet(made):
    """Wait until no more items are produced."""
    before = -1
    while before != len(made):
        before = len(made)
        await asyncio.sleep(0.1)


def test_the_producer_pauses_for_a_slow_consumer_and_ends_with_it(streamed):
    made = []

    async def main(thread):
        stream = thread.stream(nothing, numbers(made))
        read = await anext(stream)
        for _ in range(3):
            await quiet(made)
            assert len(read) < len(made) <= len(read) + 2 * MAX_BUFFERED
            read += await anext(stream)
        assert read == list(range(len(read))) and thread.open_streams == 1
        await stream.aclose()
        await quiet(made)
        assert made[-1] == "closed" and thread.open_streams == 0

    streamed(main)


def test_all_items_arrive_before_the_error_that_ended_them(streamed):
    async def refused():
        raise KeyError("no model")

    async def main(thread):
        read = []
        with pytest.raises(ValueError, match="broken"):
            async for pieces in thread.stream(nothing, numbers([], ValueError("broken"))):
                read += pieces
        assert read == list(range(100))
        with pytest.raises(KeyError):
            await anext(thread.stream(refused, numbers([])))
        assert thread.open_streams == 0

    streamed(main)


def test_an_error_within_a_stream_is_sent_and_logged(tmp_path, monkeypatch, caplog):
    """The client reads "see the server's log"."""

    async def broken(chunks):
        yield b"data: {}\n\n"
        raise RuntimeError("out of memory")

    monkeypatch.setattr(openai_routes, "events", broken)
    monkeypatch.setattr(openai_routes, "_complete", lambda *_: nothing())
    app = make_app(Settings(path=tmp_path, base_models={"tiny": "tiny"}, _cli_parse_args=[]), load_token(tmp_path, TOKEN)[0])
    with serving_app(app) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json={**STORY, "stream": True}, headers=HEADERS, timeout=60)
    assert answer.status_code == 200 and "internal server error (RuntimeError); see the server's log" in answer.text
    assert ["out of memory" in str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [True]


def test_a_stopped_server_ends_open_streams_without_a_traceback(tiny_base, tmp_path):
    stopped = Server(tmp_path / "served", tiny=str(tiny_base)).start()
    with asking(stopped, {**STORY, "stream": True, "n": 8}, buffer=4096) as unread, stopped.process.stdout as printed:
        assert unread.recv(1) == b"H"
        stopped.process.send_signal(signal.SIGINT)
        assert stopped.process.wait(60) == 0
        assert "Traceback" not in printed.read()


def test_requests_without_a_response_get_503_at_shutdown(tmp_path):
    """RemoteBackend and openai's client retry after 503, not after 500."""

    async def main():
        asked, sent = asyncio.Event(), []

        async def app(scope, receive, send):
            asked.set()
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        guard = Guard(app, Settings(path=tmp_path, base_models={"tiny": "tiny"}, _cli_parse_args=[]), AccessToken(hashlib.sha256(TOKEN.encode()).digest(), b"key"))
        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        scope = {"type": "http", "method": "GET", "path": "/status", "client": ("127.0.0.1", 1), "headers": headers}
        request = asyncio.create_task(guard(scope, asyncio.Event().wait, send))
        await asked.wait()
        request.cancel("timeout graceful shutdown exceeded")
        await request
        return sent

    start, body = asyncio.run(main())
    assert start["status"] == 503 and b"the server is shutting down" in body["body"] and 503 in RETRIED
