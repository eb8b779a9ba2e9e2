"""The WebSocket of the live page: what it sends, and what it rejects."""

import base64
import gzip
import json

import httpx
import pytest
import websockets.sync.client
from running_server import TOKEN
from test_server_safety import AUTHORISED, sampled
from websockets.exceptions import ConnectionClosed


def connect(server):
    return websockets.sync.client.connect(f"ws{server.url[4:]}/live", additional_headers=AUTHORISED)


def test_it_sends_the_state_and_what_the_widgets_need_of_the_selected_model(server):
    with httpx.Client(base_url=server.url, headers=AUTHORISED, timeout=60) as client:
        client.post("/api/models", json={"project": "live", "name": "m", "base_model": "tiny"}).raise_for_status()
        request = {"key": "live-page-1", "from_step": 0, "groups": [sampled()]}
        assert '"step": 1' in client.post("/api/models/live/m/train", json=request).text
        with connect(server) as socket:
            state = json.loads(socket.recv(timeout=10))["state"]
            described = {"project": "live", "name": "m", "base_model": "tiny", "step": 1, "checkpoints": [0, 1]}
            assert described in state["models"] and state["sampling"]["active"] == 0
            assert client.get("/status").json().items() >= state.items()
            socket.send(json.dumps({"watch": "live/m"}))
            messages = {}
            while len(messages) < 2:
                message = json.loads(socket.recv(timeout=10))
                messages |= {kind: value for kind, value in message.items() if kind in ("training", "trajectories")}
            assert [row["step"] for row in messages["training"]["rows"] + messages["training"]["tail"]] == [1]
            assert len(messages["trajectories"]["index"]) == 2
            assert base64.b64decode(messages["trajectories"]["bodies"])[:2] == gzip.compress(b"")[:2]
    assert TOKEN not in str(messages)


@pytest.mark.parametrize("text", ["", "[]", '{"watch"', "{}", "5"])
def test_a_malformed_message_closes_the_connection(server, text):
    with connect(server) as socket:
        socket.send(text)
        with pytest.raises(ConnectionClosed) as closed:
            for _ in range(3):
                socket.recv(timeout=10)
    assert closed.value.rcvd.code == 1007
