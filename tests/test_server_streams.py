"""Streams of a server and who reads them: slowly, not at all, no longer; one after the other on one connection."""

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
import pytest
from serving import TOKEN, Server

from art_nb.remote.connection import LATER
from art_nb.server.engine import MOST_UNREAD, Engine
from art_nb.server.guard import Guard
from art_nb.server.settings import Settings
from art_nb.server.tokens import Token

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


def asking(server, body, buffer=None):
    """A connection on which this was asked, and nothing was read. buffer: bytes that the system takes for a reader who does not."""
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect(("127.0.0.1", server.port))
    content = json.dumps(body).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    ask = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{head}connection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    connection.sendall(ask.encode() + content)
    return connection


def texts(events, n):
    """The text of each of n answers."""
    chunks = [json.loads(event[len("data: ") :]) for event in events.split("\n\n") if event.startswith("data: {")]
    said = [(choice["index"], choice["delta"].get("content") or "") for chunk in chunks for choice in chunk["choices"]]
    return ["".join(text for index, text in said if index == i) for i in range(n)]


def test_who_does_not_read_stops_nobody_and_gets_it_all_when_he_does(server, client):
    """His answer is sampled to its end: his slots are free for others."""
    long = {**STORY, "max_tokens": 100, "n": 2}
    asleep = [asking(server, {**long, "stream": True}, buffer=4096) for _ in range(3)]
    for connection in asleep:
        connection.settimeout(60)
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
    """The body of a chunked answer whose first bytes were read."""
    with connection, connection.makefile("rb") as file:
        while file.readline().strip():
            pass
        body = b""
        while size := int(file.readline(), 16):
            body += file.read(size)
            file.readline()
        return body.decode()


def test_who_leaves_in_the_middle_leaves_nothing_behind(server, client):
    """More of them than may ask at once, at any moment, by a reset as when a laptop is closed."""
    draws, story = random.Random(0), {**STORY, "stream": True}
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


# The engine alone


@pytest.fixture
def streamed():
    """Runs an async function of an engine, in the loop outside of it."""

    def run(test):
        async def main():
            engine = Engine()
            engine.start()
            try:
                return await asyncio.wait_for(test(engine), 60)
            finally:
                engine.stop()

        return asyncio.run(main())

    return run


def numbers(made, error=None):
    """Pieces 0, 1, ... without end, or 100 and an error; `made` is told."""

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
    """Until nothing more is made."""
    before = -1
    while before != len(made):
        before = len(made)
        await asyncio.sleep(0.1)


def test_pieces_wait_for_who_reads_them_and_end_when_he_leaves(streamed):
    made = []

    async def main(engine):
        stream = engine.stream(nothing, numbers(made))
        read = await anext(stream)
        for _ in range(3):
            await quiet(made)
            assert len(read) < len(made) <= len(read) + 2 * MOST_UNREAD
            read += await anext(stream)
        assert read == list(range(len(read))) and engine.streams == 1
        await stream.aclose()
        await quiet(made)
        assert made[-1] == "closed" and engine.streams == 0

    streamed(main)


def test_all_pieces_come_before_what_ended_them(streamed):
    async def refused():
        raise KeyError("no model")

    async def main(engine):
        read = []
        with pytest.raises(ValueError, match="broken"):
            async for pieces in engine.stream(nothing, numbers([], ValueError("broken"))):
                read += pieces
        assert read == list(range(100))
        with pytest.raises(KeyError):
            await anext(engine.stream(refused, numbers([])))
        assert engine.streams == 0

    streamed(main)


def test_a_server_that_is_stopped_ends_what_is_open_without_a_traceback(tiny_base, tmp_path):
    stopped = Server(tmp_path / "served", tiny=str(tiny_base)).start()
    with asking(stopped, {**STORY, "stream": True, "n": 8}, buffer=4096) as unread, stopped.process.stdout as printed:
        assert unread.recv(1) == b"H"
        stopped.process.send_signal(signal.SIGINT)
        assert stopped.process.wait(60) == 0
        assert "Traceback" not in printed.read()


def test_what_a_server_that_stops_has_not_begun_to_answer_is_to_be_asked_again(tmp_path):
    """RemoteBackend and openai's client try again after 503, not after 500."""

    async def main():
        asked, sent = asyncio.Event(), []

        async def app(scope, receive, send):
            asked.set()
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        guard = Guard(app, Settings(path=tmp_path, _cli_parse_args=[]), Token(hashlib.sha256(TOKEN.encode()).digest()), b"")
        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        scope = {"type": "http", "method": "GET", "path": "/status", "client": ("127.0.0.1", 1), "headers": headers}
        request = asyncio.create_task(guard(scope, asyncio.Event().wait, send))
        await asked.wait()
        request.cancel("timeout graceful shutdown exceeded")
        await request
        return sent

    start, body = asyncio.run(main())
    assert start["status"] == 503 and b"the server stops" in body["body"] and 503 in LATER
