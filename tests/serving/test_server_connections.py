"""Clients that open connections and send no request, or send it slowly, do not keep the owner out."""

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time

import httpx
import psutil
import pytest
import uvicorn
import websockets.sync.client
from running_server import NANO, TOKEN, Server, serving

from art_nb.serving import connections
from art_nb.serving.connections import AUTHENTICATED, BACKLOG, LimitedProtocol, RepeatedMessages, network

try:
    import resource
except ImportError:  # Windows
    resource = None

OWNER = {"authorization": f"Bearer {TOKEN}"}
HALF_A_HEADER = b"GET /status HTTP/1.1\r\nhost: x\r\nx-slow: "


def connected(port, sent):
    stranger = socket.create_connection(("127.0.0.1", port), timeout=60)
    stranger.sendall(sent)
    return stranger


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_the_owner_is_answered_while_a_stranger_holds_more_connections_than_there_are_files(tiny_base, tmp_path):
    with serving(tmp_path, tiny=str(tiny_base)) as server, contextlib.ExitStack() as opened:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        for _ in range(300):
            opened.enter_context(connected(server.port, HALF_A_HEADER))
        for _ in range(10):  # a connection each
            assert httpx.get(f"{server.url}/status", headers=OWNER, timeout=60).status_code == 200
        held = [c for c in psutil.Process(server.process.pid).net_connections("tcp") if c.status == "ESTABLISHED"]
        assert len(held) <= 64 + BACKLOG
        server.process.kill()
        assert len(server.process.stdout.read()) < 2000


@contextlib.contextmanager
def small_server(**options):
    """A server in this process that answers any request with the length of its body, and a WebSocket with its messages."""

    async def app(scope, receive, send):
        length, more = 0, scope["type"] == "http"
        scope[AUTHENTICATED] = (b"x-owner", b"1") in scope.get("headers", ())
        while more:
            message = await receive()
            length, more = length + len(message.get("body", b"")), message.get("more_body", False)
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] != "websocket.disconnect":
                if message["type"] == "websocket.receive":
                    await send({"type": "websocket.send", "text": message["text"]})
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(str(length)))]})
            await send({"type": "http.response.body", "body": str(length).encode()})

    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, log_level="critical", lifespan="off", http=LimitedProtocol, **options)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(60)


def is_closed(stranger):
    """Wait until the server closes the connection. Raises: TimeoutError when it does not."""
    try:
        return stranger.recv(1000) == b""
    except ConnectionResetError:
        return True


def answer(stranger, body=b"0"):
    """Read a whole response; all are short."""
    received = b""
    while not received.endswith(b"\r\n\r\n" + body):
        received += (more := stranger.recv(1000))
        assert more, received
    return received


@pytest.mark.parametrize(
    "sent", [b"", HALF_A_HEADER, b"POST /login HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\ntoken=",
             b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n" + HALF_A_HEADER],
    ids=["nothing", "half a header", "half a body", "half a second header"],
)  # fmt: skip
def test_a_request_that_is_not_completed_in_time_ends_the_connection(sent, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    with small_server() as port, connected(port, sent) as stranger:
        if sent.startswith(b"GET / "):
            assert answer(stranger)
        assert is_closed(stranger)


def drip(size):
    """A body of 20 chunks, 0.1 s apart."""
    for _ in range(20):
        time.sleep(0.1)
        yield b"x" * size


def test_a_connection_that_is_kept_alive_and_a_long_body_are_not_ended(monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    with small_server() as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as owner:
        before = owner.get("/").extensions["network_stream"].get_extra_info("client_addr")
        with connected(port, b"") as stranger:
            assert is_closed(stranger)  # the time is over
        assert owner.post("/", content=drip(3000)).text == "60000"
        assert owner.get("/").extensions["network_stream"].get_extra_info("client_addr") == before
        with pytest.raises((httpx.NetworkError, httpx.RemoteProtocolError)):
            owner.post("/", content=drip(10))


def test_a_websocket_is_not_ended(monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    with small_server() as port, websockets.sync.client.connect(f"ws://127.0.0.1:{port}") as owner:
        with connected(port, b"") as stranger:
            assert is_closed(stranger)  # the time is over
        owner.send("hello")
        assert owner.recv(timeout=60) == "hello"


def test_a_process_without_a_limit_on_open_files(monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: -1, raising=False)
    assert connections.max_connections() == connections.MAX_CONNECTIONS


def test_the_oldest_idle_connection_of_the_greediest_address_makes_room(monkeypatch):
    monkeypatch.setattr(connections, "max_connections", lambda: 3)
    with small_server() as port, contextlib.ExitStack() as opened:
        first, *others = [opened.enter_context(connected(port, HALF_A_HEADER)) for _ in range(4)]
        assert is_closed(first)
        for each in others:
            each.sendall(b"y\r\n\r\n")
            assert answer(each)


def test_unanswered_requests_without_the_token_make_room_and_the_owners_do_not(monkeypatch):
    monkeypatch.setattr(connections, "max_connections", lambda: 3)
    half_a_body = b"POST /login HTTP/1.1\r\nhost: x\r\nx-owner: %d\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\ntoken="
    with small_server() as port, contextlib.ExitStack() as opened:
        owner, *strangers = [opened.enter_context(connected(port, half_a_body % owners)) for owners in (1, 0, 0)]
        for each in (owner, *strangers):
            assert b"100 Continue" in each.recv(1000)  # the server reads the body
        strangers.append(opened.enter_context(connected(port, half_a_body % 0)))
        assert b"100 Continue" in strangers[-1].recv(1000) and is_closed(strangers[0])
        for each in (owner, *strangers[1:]):
            each.sendall(b"abc")
            assert answer(each, b"9")


def test_the_address_of_an_ipv6_host_can_be_opened(tmp_path):
    server = Server(tmp_path, nano=NANO)
    try:
        socket.create_server(("::1", server.port), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server.url = f"http://[::1]:{server.port}"
    server.start("--host=::1").process.terminate()
    assert f" at {server.url}\n" in server.process.communicate(timeout=60)[0]


def test_the_addresses_of_an_ipv6_network_are_one_client():
    assert network("2001:db8::1") == network("2001:db8::ffff:2") != network("2001:db8:0:1::1")
    assert network("10.0.0.1") != network("10.0.0.2") and network("") == ""


@pytest.mark.parametrize("address", ["::ffff:1.2.3.4", "::FFFF:1.2.3.4", "0:0:0:0:0:ffff:102:304"])
def test_an_ipv4_address_that_is_mapped_to_ipv6_is_the_same_client(address):
    assert network(address) == network("1.2.3.4") != network("::ffff:1.2.3.5")


@pytest.mark.parametrize("message", ["socket.accept() out of system resource", "Invalid HTTP request received."])
def test_messages_that_strangers_cause_are_logged_once_in_a_while(caplog, message):
    log = logging.Logger("asyncio")
    log.addHandler(caplog.handler)
    log.addFilter(RepeatedMessages())
    for _ in range(1000):
        log.error(message)
        log.error("something else")
    assert len(caplog.records) == 1001
