"""What the server rejects: missing tokens, other origins, excess, path traversal, malformed requests."""

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import random
import re
import socket
import stat
import time
from types import SimpleNamespace
from urllib.parse import unquote

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from running_server import TOKEN, serving

from art_nb.backends.local import LocalBackend
from art_nb.serving import guard
from art_nb.serving.app import serve
from art_nb.serving.registry import ModelRegistry
from art_nb.serving.settings import Settings, repeat_options
from art_nb.serving.tokens import CODE_SECONDS, FILE, KEY_FILE, MAX_CODES, LoginCodes, load_token
from art_nb.storage import checkpoints

AUTHORISED = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def stranger(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def friend(server):
    with httpx.Client(base_url=server.url, headers=AUTHORISED, timeout=60) as client:
        yield client


def files(folder):
    """Return the digests of all stored files, except those of the work queue: SQLite writes them on reads, too."""
    kept = [path for path in sorted(folder.rglob("*")) if path.is_file() and "work.sqlite" not in path.name]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def routes(friend):
    """Return every method and path of the OpenAPI document, parameters filled in, and paths that do not exist."""
    document = friend.get("/openapi.json").json()
    found = [(method, re.sub(r"{[^}]+}", "1", path)) for path, methods in document["paths"].items() for method in methods]
    return [*found, ("get", "/openapi.json"), ("get", "/docs"), ("get", "/no-such-route"), ("post", "/v1/secret"), ("put", "/")]


def test_a_token_in_the_address_is_ignored(stranger):
    for name in ("token", "api_key", "access_token"):
        assert stranger.get("/status", params={name: TOKEN}).status_code == 401


def test_the_form_gives_a_cookie_that_opens_everything_to_this_browser_and_origin(stranger, server):
    assert 'type="password"' in stranger.get("/").text
    assert stranger.post("/login", data={"token": "wrong"}).status_code == 401
    assert stranger.post("/login", data={"token": TOKEN}, headers={"origin": "http://evil.example"}).status_code == 403
    answer = stranger.post("/login", data={"token": TOKEN}, headers={"origin": server.url})
    assert answer.status_code == 303 and TOKEN not in str(answer.headers)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert stranger.get("/status").status_code == 200
    for origin in ("http://evil.example", "null", "http://[", server.url.replace("127.0.0.1", "localhost")):
        assert stranger.get("/status", headers={"origin": origin}).status_code == 403
    assert stranger.get("/status", headers={"origin": server.url}).status_code == 200
    name, _, value = cookie.partition(";")[0].partition("=")
    for other in ('prefs={"theme": "dark"}', "[x]=1", "flag", '"'):  # of another program on this host
        for both in (f"{other}; {name}={value}", f"{name}={value}; {other}"):
            assert httpx.get(f"{server.url}/status", headers={"cookie": both}).status_code == 200, both
    expires, _, signature = value.partition(".")
    for forged in (f"{int(expires) + 1}.{signature}", expires, "", f"{expires}.{'0' * 64}", f"x.{signature}"):
        stranger.cookies.set(name, forged)
        assert stranger.get("/status").status_code == 401


def test_a_code_opens_the_page_once_and_only_the_token_makes_one(stranger, server):
    assert stranger.post("/codes").status_code == 401
    code = stranger.post("/codes", headers={"authorization": f"Bearer {TOKEN}"}).json()["code"]
    for wrong in ({"code": code[:-1]}, {"code": ""}, {}, {"token": code}):
        assert stranger.post("/login", data=wrong).status_code == 401
    assert stranger.post("/login", data={"code": code}, headers={"origin": "http://evil.example"}).status_code == 403
    assert stranger.get("/status", headers={"authorization": f"Bearer {code}"}).status_code == 401
    assert stranger.post("/login", data={"code": code}).status_code == 303
    assert stranger.get("/status").status_code == 200
    stranger.cookies.clear()
    assert stranger.post("/login", data={"code": code}).status_code == 401


def test_codes_expire_and_their_number_is_limited():
    now = 0.0
    codes = LoginCodes(lambda: now)
    made = [codes.issue() for _ in range(MAX_CODES + 1)]
    assert len(set(made)) == len(made) and not codes.redeem(made[0])  # it was the oldest
    assert codes.redeem(made[1]) and not codes.redeem(made[1])
    now = CODE_SECONDS + 1
    assert not codes.redeem(made[2])


def test_a_token_is_made_once_and_the_disk_holds_only_its_digest(tmp_path):
    token, made = load_token(tmp_path, None)
    assert len(made) >= 43 and token.matches(made) and not token.matches(made[:-1]) and not token.matches("")
    stored = (tmp_path / FILE).read_text()
    assert made not in stored and stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    again, nothing = load_token(tmp_path, None)
    assert nothing is None and again.matches(made) and again.accepts_cookie(token.new_cookie())
    assert not load_token(tmp_path / "other", None)[0].matches(made)
    for bad in ("short", "sixteen-and-more\n-characters", "schlüssel-schlüssel"):
        with pytest.raises(ValueError, match="at least 16 printable ASCII characters"):
            load_token(tmp_path, bad)
    assert load_token(tmp_path, f"{TOKEN}\n")[0].matches(TOKEN)  # read from a file


def test_secrets_are_readable_by_their_owner_alone_from_the_first_instant(tmp_path, monkeypatch):
    modes, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (modes.append(stat.S_IMODE(os.fstat(fd).st_mode)), sync(fd)))
    load_token(tmp_path / "new", None)
    assert set(modes) == {0o600, 0o700} and len(list((tmp_path / "new").iterdir())) == 2


def test_the_tokens_digest_does_not_sign_cookies(tmp_path):
    made = load_token(tmp_path, None)[0]
    for name in (FILE, KEY_FILE):
        other = tmp_path / f"without-{name}"
        other.mkdir()
        (other / name).write_text((tmp_path / name).read_text())
        assert not load_token(other, None)[0].accepts_cookie(made.new_cookie())
    (tmp_path / KEY_FILE).write_text("x" * 64)
    with pytest.raises(ValueError, match="cookie.key is damaged"):
        load_token(tmp_path, None)


def test_a_damaged_model_file_stops_neither_the_server_nor_other_models(tmp_path, caplog):
    for name, text in (("good", '{"project": "p", "name": "good", "base_model": "tiny"}'), ("bad", '{"project"'), ("worse", "\xff")):
        (tmp_path / "p/models" / name).mkdir(parents=True)
        (tmp_path / "p/models" / name / "model.json").write_text(text, "latin-1")
    models = ModelRegistry(LocalBackend(path=tmp_path, base_models={"tiny": "tiny"}), lambda loaded: None)
    assert list(models.specs) == [("p", "good")]
    assert sorted(record.args[0].parent.name for record in caplog.records) == ["bad", "worse"]


def test_two_servers_do_not_share_a_folder(tmp_path, tiny_base, monkeypatch, capsys):
    with serving(tmp_path, tiny=str(tiny_base)):
        monkeypatch.setattr(checkpoints, "LOCK_S", 0.1)
        assert serve(["--port=0", f"--path={tmp_path}", f"--base-models=tiny={tiny_base}", f"--token={TOKEN}"]) == 1
    assert f"another process is using {tmp_path}" in capsys.readouterr().err


def test_the_token_is_shown_even_if_the_first_start_fails(tmp_path, tiny_base, capsys):
    folder = tmp_path / "new" / "server"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert serve([f"--port={port}", f"--path={folder}", f"--base-models=tiny={tiny_base}"]) == 1
    assert os.name == "nt" or stat.S_IMODE(folder.stat().st_mode) == 0o700  # nobody else may read what it contains
    shown = capsys.readouterr()
    assert "token (shown only once)" in shown.out and "--port" in shown.err


def test_settings_come_from_options_environment_and_env_file_and_hide_the_token(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("ART_NB_PORT=7001\nART_NB_SEED=3\nART_NB_TOKEN=from-the-env-file\nOTHER=1\n")
    monkeypatch.setenv("ART_NB_SEED", "4")
    found = Settings(_cli_parse_args=["--slots", "5", "--base-models", "a=b", "--base-models", "c=d"])
    assert (found.port, found.seed, found.slots, found.host) == (7001, 4, 5, "127.0.0.1")
    assert found.base_models == {"a": "b", "c": "d"} and found.token.get_secret_value() == "from-the-env-file"
    assert "from-the-env-file" not in f"{found!r} {found} {found.model_dump_json()}"
    monkeypatch.setenv("ART_NB_PROXIES", "127.0.0.1")
    assert serve([]) == 2 and 'field "proxies" from source "EnvSettingsSource": expected a JSON list of strings' in capsys.readouterr().err
    monkeypatch.delenv("ART_NB_PROXIES")
    for origin in ("*", "http://127.0.0.1:9/", "127.0.0.1"):
        assert serve([f"--origins={origin}"]) == 2 and "origins.0: String should match" in capsys.readouterr().err


def test_base_models_are_folders_or_hub_names_and_at_least_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b, c=d").mkdir()
    (tmp_path / "a b, c=d/adapter_config.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "data").mkdir()
    sources = {"qwen": "Qwen/Qwen3-0.6B", "nano": f"{tmp_path}"}
    pairs = [f"{name}={source}" for name, source in sources.items()]
    for options in (["--base-models", *pairs, "--port", "1"], [f"--base-models={pairs[0]}", pairs[1]], ["--base-models", ",".join(pairs)]):
        assert Settings(_cli_parse_args=repeat_options(options)).base_models == sources
    for text, expected in ((" ".join(pairs), sources), (json.dumps(sources), sources), ('{"odd": "a b, c=d"}', {"odd": "a b, c=d"})):
        monkeypatch.setenv("ART_NB_BASE_MODELS", text)
        assert Settings(_cli_parse_args=[]).base_models == expected
    monkeypatch.delenv("ART_NB_BASE_MODELS")
    for options, message in (
        ([], "no base model to serve; name at least one: --base-models qwen="), (["--base-models", "nano"], "nano: expected NAME=FOLDER"),
        (["--base-models", "nano=/not/here"], "nano=/not/here: expected NAME=FOLDER"), (["--base-models", "=a"], "expected NAME=FOLDER"),
        (["--base-models", "nano=data"], "nano=data: the folder has neither config.json"),  # also a hub name
    ):  # fmt: skip
        assert serve(options) == 2
        assert message in capsys.readouterr().err
    assert not list(tmp_path.glob(".art*"))


def test_a_base_model_that_is_not_listed_is_not_trained(friend, tiny_base, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for base in ("Qwen/Qwen3-0.6B", f"{tmp_path}", "../data/other", ""):
        answer = friend.post("/api/models", json={"project": "p", "name": "unlisted", "base_model": base})
        assert answer.status_code == 404 and "its base models are 'tiny', 'nano'" in answer.json()["error"]["message"]
    for base in ("tiny", f"{tiny_base}", "some/where/else/tiny", "C:\\models\\tiny"):  # a name, the served folder, a client's folder
        answer = friend.post("/api/models", json={"project": "p", "name": "listed", "base_model": base})
        assert answer.status_code == 200 and answer.json()["base_model"] == "tiny"


def test_limits_of_length_rate_and_concurrency(tmp_path, tiny_base):
    with serving(tmp_path, "--max-body=2000", "--rate=5", "--concurrency=2", tiny=str(tiny_base)) as server:
        ask = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 3000}]}
        with httpx.Client(base_url=server.url, headers=AUTHORISED, timeout=60) as client:
            assert client.post("/v1/chat/completions", json=ask).status_code == 413

            def without_length():
                yield json.dumps(ask).encode()

            assert client.post("/v1/chat/completions", content=without_length()).status_code == 413
            assert client.post("/login", data={"token": "x" * 5000}).status_code == 413
            codes = [client.get("/healthz").status_code for _ in range(40)]
            assert set(codes) == {200, 429}
        port = server.port
        time.sleep(1.2)  # until it may ask again
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        for each in idle:  # three bodies that never come
            head = f"POST /api/models HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 9\r\nconnection: close\r\n"
            each.sendall(f"{head}content-type: application/json\r\n\r\n".encode())
        said = []
        for each in idle:
            each.settimeout(1)
            try:
                said.append(b"".join(iter(lambda each=each: each.recv(1000), b"")))
            except TimeoutError:
                said.append(b"")
            each.close()
        assert [b"are in flight" in each for each in said].count(True) == 1, said


def test_a_client_slightly_above_the_rate_gets_the_rate(tmp_path, monkeypatch):
    clock = iter(0.9 * i for i in range(200))
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    limits = guard.Guard(None, Settings(_cli_parse_args=[], path=tmp_path, base_models={"tiny": "tiny"}, rate=1), None)
    scope = {"type": "http", "path": "/healthz", "method": "GET", "headers": []}
    statuses = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        statuses.append(message.get("status"))

    async def main():
        limits.app, limits.token = app, load_token(tmp_path, TOKEN)[0]
        for _ in range(200):
            await limits(scope, None, send)

    asyncio.run(main())
    passed = statuses.count(200)
    assert passed + statuses.count(429) == 200 and passed == pytest.approx(2 + 0.9 * 199, abs=1), "the burst, and one a second"


def test_strangers_spend_nothing_of_the_owners_limits(tmp_path, tiny_base):
    with serving(tmp_path, "--rate=5", "--concurrency=2", tiny=str(tiny_base)) as server, contextlib.ExitStack() as opened:
        half_a_body = b"POST /login HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n"
        for _ in range(5):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port))).sendall(half_a_body)
        with httpx.Client(base_url=server.url, timeout=60) as stranger:
            for name, value in (("x-forwarded-for", "10.0.0.{}"), ("origin", "http://evil.example"), ("authorization", "Bearer {}")):
                codes = [stranger.get("/status", headers={name: value.format(i)}).status_code for i in range(20)]
                assert 429 in codes, name
            evil = {**AUTHORISED, "origin": "http://evil.example"}  # another page in the owner's browser
            assert 429 in [stranger.get("/status", headers=evil).status_code for _ in range(20)]
        assert httpx.get(f"{server.url}/status", headers=AUTHORISED, timeout=60).status_code == 200


def test_an_address_from_a_proxy_counts_only_if_the_proxy_is_known(tmp_path, tiny_base):
    with serving(tmp_path, "--rate=5", "--proxies=127.0.0.1", tiny=str(tiny_base)) as server:
        with httpx.Client(base_url=server.url, timeout=60) as proxy:
            codes = [proxy.get("/status", headers={"x-forwarded-for": f"10.0.0.{i}"}).status_code for i in range(40)]
    assert set(codes) == {401}


def raw_status(server, path):
    """Return the status for a path sent verbatim: HTTP libraries normalise paths, an attacker would not."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest("GET", path)
    connection.putheader("Authorization", AUTHORISED["authorization"])
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


TRAVERSALS = ["..", "../..", "%2e%2e", "..%2f..%2fetc", "%2fetc%2fpasswd", "a%00b", "C:%5cx", "con", "\\..\\", "~", "a/../../b", ".hidden"]


def test_no_name_leads_out_of_the_served_folder(friend, server):
    friend.post("/api/models", json={"project": "p", "name": "safe", "base_model": "tiny"}).raise_for_status()
    before = files(server.folder.parent)
    for name in TRAVERSALS:
        for path in (f"/api/models/{name}/safe", f"/api/models/p/{name}/checkpoints", f"/api/models/p/safe/checkpoints/0/{name}",
                     f"/api/models/p/safe/checkpoints/{name}/state.json", f"/v1/models/{name}"):  # fmt: skip
            assert raw_status(server, path) in (404, 422), path
        plain = unquote(name)
        for spec in ({"project": plain, "name": "n"}, {"project": "p", "name": plain}):
            assert friend.post("/api/models", json={**spec, "base_model": "tiny"}).status_code == 422
        assert friend.post("/api/models", json={"project": "p", "name": "n", "base_model": f"{plain}/nothing"}).status_code == 404
    assert files(server.folder.parent) == before
    assert friend.get("/api/models/p/safe/checkpoints/0/adapter_model.safetensors").content[:1] != b""
    assert friend.get("/api/models/p/safe/checkpoints/0/model.json").status_code == 404


def test_options_that_only_the_server_may_set_are_rejected(friend):
    spec = {"project": "p", "name": "options", "base_model": "tiny"}
    for config in (
        {"init_args": {"trust_remote_code": True}}, {"trainer_args": {"output_dir": "/tmp/x"}}, {"trainer_args": {"report_to": "wandb"}},
        {"trainer_args": {"push_to_hub": True}}, {"peft_args": {"r": 10**9}}, {"peft_args": {"target_modules": ["../x"]}}, {"engine_args": {}},
    ):  # fmt: skip
        assert friend.post("/api/models", json={**spec, "config": config}).status_code == 422, config
    friend.post("/api/models", json=spec).raise_for_status()
    train = {"key": "0123456789", "from_step": 0, "groups": [], "config": {"grpo": {"resume_from_checkpoint": "/"}}}
    assert friend.post("/api/models/p/options/train", json=train).status_code == 422


def test_an_exchange_of_malformed_requests_is_answered(friend):
    friend.post("/api/models", json={"project": "p", "name": "asked", "base_model": "tiny"}).raise_for_status()
    requests = [{}, {"messages": 5}, {"messages": [5]}, {"messages": [], "self": 1}, {"model": 5, "messages": []}, {"policy": 1},
                {"messages": [{"role": "user", "content": "a"}], "to": 1}, {"messages": [{"role": "user", "content": "a"}], "model": "asked@x"},
                {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "stream": True}]  # fmt: skip
    said, heard, number = [{"id": i, "request": request} for i, request in enumerate(requests)], {}, 0
    while len(heard) < len(requests):
        answer = friend.post("/api/models/p/asked/lockstep/a-line-of-mine", json={"number": number, "requests": said if not number else []})
        heard |= {each["id"]: each for each in answer.json()["answers"]}
        number += 1
    assert [heard[i].get("status") for i in range(len(requests))] == [400] * 8 + [None]
    again = friend.post("/api/models/p/asked/lockstep/a-line-of-mine", json={"number": number - 1}).json()
    assert again == answer.json()  # a reply that was lost
    assert friend.post("/api/models/p/asked/lockstep/a-line-of-mine", json={"number": number + 5}).status_code == 425
    assert friend.post("/api/models/p/asked/lockstep/another-line", json={"number": 3}).status_code == 410


def sampled(**change):
    said = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}, "prompt_token_ids": [1, 5],
            "token_ids": [6, 2], "token_logprobs": [-1.0, -2.0], "token_texts": ["a", "b"]}  # fmt: skip
    return {"trajectories": [{"messages_and_choices": [{"role": "user", "content": "q"}, said | change], "reward": r} for r in (0, 1)]}


def test_invalid_groups_are_rejected_and_nothing_is_trained(friend, server):
    friend.post("/api/models", json={"project": "p", "name": "trained", "base_model": "tiny"}).raise_for_status()
    bad = [
        [], [{}], [{"trajectories": []}], [{"trajectories": "x"}], [{"trajectories": [{"messages_and_choices": [5]}]}],
        [sampled(token_ids=[10**9, 2])], [sampled(token_ids=[-1, 2])], [sampled(token_ids=["a", 2])], [sampled(token_ids={"a": 1})],
        [sampled(token_logprobs=[0.0])], [sampled(token_logprobs=None)], [sampled(prompt_token_ids=[1] * 600)],
        [sampled(prompt_token_ids=None)], [sampled(token_ids=[True, 2])], [sampled(message={"role": "assistant", "content": 5})],
        [{"trajectories": [{"messages_and_choices": [], "reward": 1}]}], [sampled(token_logprobs=["x", "y"])],
        [{**sampled(), "trajectories": [{**sampled()["trajectories"][0], "reward": "NaN"}]}],
        [{**sampled(), "exceptions": [5]}], [sampled(token_ids=None, prompt_token_ids=None, message={"role": "assistant", "tool_calls": [5]})],
    ]  # fmt: skip
    before = friend.get("/api/models/p/trained").json()
    for i, groups in enumerate(bad):
        answer = friend.post("/api/models/p/trained/train", json={"key": f"bad-groups-{i}", "from_step": 0, "groups": groups})
        assert answer.status_code in (400, 422), (groups, answer.status_code, answer.text)
    assert friend.get("/api/models/p/trained").json() == before
    good = {"key": "good-groups", "from_step": 0, "groups": [sampled()]}
    lines = [json.loads(line) for line in friend.post("/api/models/p/trained/train", json=good).text.splitlines()]
    assert lines[-1]["result"]["step"] == 1
    again = friend.post("/api/models/p/trained/train", json=good).text.splitlines()
    assert json.loads(again[-1])["result"]["step"] == 1
    late = friend.post("/api/models/p/trained/train", json={**good, "key": "another-key"})
    assert late.status_code == 409 and "at step 1" in late.text
    kept = "/api/models/p/trained/checkpoints"
    assert friend.delete(f"{kept}/1").status_code == 409 and friend.delete(f"{kept}/7").status_code == 404
    assert friend.delete(f"{kept}/0").status_code == 204 and [each["step"] for each in friend.get(kept).json()] == [1]


def test_a_thousand_hostile_requests(stranger, friend, server):
    """Requests malformed in every part, drawn from a seed: none causes a server error, and none changes a file."""
    rng, before, work = random.Random(0), files(server.folder), friend.get("/status").json()["work"]
    paths = [path for _, path in routes(friend)] + [f"/{name}" for name in TRAVERSALS]
    bodies = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 2000, b'{"model":"tiny","messages":5}', b'{"model":"tiny","messages":[{"role":"user"}]',
              b'{"number":-1}', b'{"number":0,"requests":[{"id":0,"request":{}},{"id":0,"request":{}}]}', b'{"number":NaN}', b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"policy":1,"to":2,"self":3}',
              b'{"project":"../x","name":"y","base_model":"tiny"}', b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}],"max_tokens":2}',
              b'{"model":["tiny"],"messages":[]}', b'{"key":"' + b"k" * 9 + b'","from_step":0,"groups":[{}]}', b'{"model":"tiny","messages":[{}],"n":1e9}']  # fmt: skip
    kinds = ["application/json", "text/plain", "multipart/form-data; boundary=x", "", "application/json; charset=utf-7"]
    for i in range(1000):
        who = stranger if i % 2 else friend
        headers = {"content-type": rng.choice(kinds), "x-padding": "a" * rng.choice([0, 10, 5000])}
        answer = who.request(rng.choice(["GET", "POST", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE"]), rng.choice(paths),
                             content=rng.choice(bodies), headers=headers)  # fmt: skip
        assert answer.status_code < 500, (answer.request.method, answer.url, answer.request.content, answer.text)
        assert who is friend or answer.status_code in (401, 405, 413) or answer.url.path in ("/", "/healthz", "/login")
    assert files(server.folder) == before and friend.get("/status").json()["work"] == work


def test_no_request_that_the_openapi_document_allows_causes_a_server_error(server):
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json", headers=AUTHORISED)
    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
        def try_it(case):
            if isinstance(case.body, dict) and "messages" in case.body:
                case.body |= {"max_tokens": 2, "n": 1}  # what is asked for is answered: many long answers take long
            answer = case.call(headers=AUTHORISED)
            assert answer.status_code < 500, (case.method, case.path, case.body, answer.text)

        try_it()
