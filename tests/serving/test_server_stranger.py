"""What a client without the token learns: on every route, only what the table in guard.py states."""

import re
from fnmatch import fnmatch

import httpx
import pytest
import websockets.sync.client
from running_server import TOKEN
from test_server_safety import files
from websockets.exceptions import InvalidStatus

from art_nb.serving import guard, live
from art_nb.serving.app import make_app
from art_nb.serving.guard import LOGIN
from art_nb.serving.settings import Settings
from art_nb.serving.tokens import load_token

TABLE = re.findall(r"^ {4}(\S+) +(\S+) +(\d{3}) ?(.*)$", guard.__doc__, re.M)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
NOT_THERE = ["/docs", "/redoc", "/no-such-route", "/v1", "/v1/secret", "/ui/../app.py", "/ui/%2e%2e/app.py", "/healthz/", "/HEALTHZ"]
TOKENS = [{}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": "Basic abc"}, {"cookie": "art_nb_1=2"}]


@pytest.fixture(scope="module")
def paths(server, tmp_path_factory):
    """Return the paths of all routes, in the OpenAPI document or not, with the parameters filled in."""
    folder = tmp_path_factory.mktemp("routes")
    app = make_app(Settings(_cli_parse_args=[], path=folder, base_models={"tiny": "tiny"}), load_token(folder, TOKEN)[0])

    def walk(routes):
        for route in routes:
            router = getattr(route, "original_router", None)  # FastAPI keeps an included router as one route
            yield from walk(router.routes) if router else [route.path.replace(":path}", "}")]

    found = {*walk(app.routes)}
    document = httpx.get(f"{server.url}/openapi.json", headers={"authorization": f"Bearer {TOKEN}"}).json()
    assert found > set(document["paths"]) and {"/", "/login", "/live", "/ui/{name}", "/metrics", "/healthz", "/openapi.json"} <= found
    return sorted({re.sub(r"{[^}]+}", "1", path) for path in found} | {f"/ui/{name}" for name in live.files()} | {*NOT_THERE})


def line_for(method, path):
    return next(line for line in TABLE if fnmatch(method, line[0]) and fnmatch(path, line[1]))


def test_each_route_answers_without_the_token_as_the_table_states(server, paths):
    heard, before = {}, files(server.folder)
    with httpx.Client(base_url=server.url, timeout=60) as stranger:
        for path in paths:
            for method in METHODS:
                for headers in TOKENS if method in ("GET", "POST") else [{}]:
                    answer = stranger.request(method, path, headers=headers, json={})
                    line = line_for(method, path)
                    assert str(answer.status_code) == line[2], (method, path, headers, answer.text)
                    if method != "HEAD":  # which has no words
                        assert line[3] in answer.text or answer.content == LOGIN, (method, path, answer.text)
                        heard.setdefault(line, set()).add((answer.content, repr(answer.headers)))
    assert files(server.folder) == before
    assert {*heard} == {line for line in TABLE if line[0] != "WS"}
    for line, answers in heard.items():
        assert len(answers) == 1, (line, answers)  # to a byte, whatever was asked
        for told in ("tiny", "nano", "uvicorn", "Python/", str(server.folder), TOKEN):
            assert told not in str(answers), (line, told)


def test_no_websocket_opens_without_the_token(server, paths):
    (status,) = [line[2] for line in TABLE if line[0] == "WS"]
    for path in paths:
        for headers in TOKENS[:2]:
            with pytest.raises(InvalidStatus) as refused:
                websockets.sync.client.connect(f"ws{server.url[4:]}{path}", additional_headers=headers)
            assert str(refused.value.response.status_code) == status and not refused.value.response.body
