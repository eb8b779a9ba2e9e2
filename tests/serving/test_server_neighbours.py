"""A slow or greedy client with the token delays its neighbours only by the work that the server does for it."""

import asyncio
import contextlib
import socket

import httpx
import psutil
import pytest
import torch
from running_server import TOKEN, serving
from tiny_models import make_tokenizer

from art_nb.backends.errors import StatusError
from art_nb.backends.local import LocalBackend
from art_nb.backends.lockstep import MAX_SESSIONS, LockstepSessions
from art_nb.inference import prompts
from art_nb.inference import sampler as sampler_module
from art_nb.inference.prompts import PromptEncoder
from art_nb.inference.sampler import RequestKeys, Sampler
from art_nb.serving.registry import ModelRegistry
from art_nb.serving.specs import ModelSpec
from art_nb.training.policy import load_policy

OWNER = {"authorization": f"Bearer {TOKEN}"}


def asked(number, **parameters):
    return {"id": number, "request": {"messages": [{"role": "user", "content": f"{number}"}], "seed": number, **parameters}}


def exchange(client, number, *requests):
    path = "/api/models/p/m/lockstep/a-slow-client"
    return client.post(path, json={"number": number, "requests": list(requests)}).json()["answers"]


def test_nobody_waits_for_a_slow_client_of_the_same_model_or_another(tiny_base, tmp_path):
    """It got an answer, has another request in progress, and is silent. The server would wait a day for it."""
    with serving(tmp_path, "--lockstep-patience=86400", tiny=str(tiny_base)) as server:
        with httpx.Client(base_url=server.url, headers=OWNER, timeout=300) as client:
            for name in ("m", "other"):
                client.post("/api/models", json={"project": "p", "name": name, "base_model": "tiny"}).raise_for_status()
            answers = exchange(client, 0, asked(0, max_tokens=1), asked(1, max_tokens=450, temperature=20.0))
            assert [each["id"] for each in answers] == [0]
            for model in ("m", "other", "m", "other"):
                body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
                assert client.post("/v1/chat/completions", json=body).status_code == 200
            assert client.get("/status").json()["sampling"]["active"] == 1  # the sampler waits for the slow client again
            assert [each["id"] for each in exchange(client, 1)] == [1]


def test_a_decoder_limits_torchs_threads_during_a_forward_only(tiny_base):
    policy = load_policy(str(tiny_base), engine="transformers")
    sampler, before, seen = Sampler(policy.base, policy.tokenizer), torch.get_num_threads(), []
    policy.base.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    torch.set_num_threads(3)
    try:
        for most in (None, 2, 4):
            sampler.decoder.threads = most
            asyncio.run(sampler.create(messages=[{"role": "user", "content": "a"}], max_tokens=1))
            assert torch.get_num_threads() == 3
        assert seen == [3, 2, 3]
    finally:
        torch.set_num_threads(before)


def rss(server):
    return psutil.Process(server.process.pid).memory_info().rss


def test_the_bodies_of_all_requests_in_flight_share_a_budget(tiny_base, tmp_path):
    """Twenty bodies of 3 MB, none of them complete, at a server that accepts bodies of 4 MB."""
    head = f"POST /api/models HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 3100000\r\n\r\n"
    with serving(tmp_path, "--max-body=4000000", tiny=str(tiny_base)) as server, contextlib.ExitStack() as opened:
        before, rejected = rss(server), 0
        for _ in range(20):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=1))
            with contextlib.suppress(OSError):  # it was rejected while it was sent
                connection.sendall(head.encode() + b"x" * 3_000_000)
            with contextlib.suppress(OSError):
                rejected += b" 429 " in connection.recv(100)
        assert rejected > 10
        assert rss(server) - before < 40_000_000
        opened.close()
        assert httpx.get(f"{server.url}/status", headers=OWNER, timeout=60).status_code == 200


def test_a_client_cannot_open_all_sessions():
    async def answer(**asked):
        raise AssertionError

    sessions = LockstepSessions(patience=1.0)
    for number in range(MAX_SESSIONS // 2):
        sessions.session(f"greedy {number}", 0, answer, "10.0.0.1")
    with pytest.raises(StatusError, match="10.0.0.1 has 128 open sessions") as refused:
        sessions.session("one more", 0, answer, "10.0.0.1")
    assert refused.value.status == 429
    sessions.session("another client", 0, answer, "10.0.0.2")
    sessions.session("greedy 0", 1, answer, "10.0.0.1")  # its open sessions go on


def test_the_number_of_loaded_models_is_limited(tiny_base, tmp_path):
    async def main():
        backend = LocalBackend(path=tmp_path, engine="transformers", base_models={"tiny": str(tiny_base)})
        models = ModelRegistry(backend, lambda loaded: None, max_loaded=1)
        first = ModelSpec(project="p", name="first", base_model="tiny")
        await models.register(first)
        await models.register(first)
        with pytest.raises(StatusError, match="1 models are loaded: raise --models"):
            await models.register(ModelSpec(project="p", name="second", base_model="tiny"))
        assert not (tmp_path / "p/models/second").exists()

    asyncio.run(main())


@pytest.mark.parametrize("bounded", ["counts", "templates", "pieces", "same"])
def test_what_is_kept_of_each_prompt_is_bounded(tiny_base, monkeypatch, bounded):
    monkeypatch.setattr(sampler_module, "MAX_PROMPTS", 3)
    for name in ("MAX_TEMPLATES", "MAX_PIECES", "MAX_CONVERSATIONS_PER_TEXT"):
        monkeypatch.setattr(prompts, name, 3)
    keys = RequestKeys()
    if bounded == "counts":
        assert [keys.issue("p", None, f"{n % 10}", None, 0)[-1] for n in range(20)] == ["0"] * 20
        assert [keys.issue("p", None, "9", None, 0)[-1] for _ in range(3)] == ["1", "2", "3"]
        return
    encoder = PromptEncoder(make_tokenizer(), ["<|im_end|>"])
    if bounded == "templates":
        made = [encoder.template(None, {"n": n}) for n in range(10)]
        assert encoder.template(None, {"n": 0}) is not made[0]
        assert encoder.template(None, {"n": 9}) is made[9] and len(encoder._templates) == 3
    elif bounded == "pieces":
        template = encoder.template(None, {})
        texts = [template.prompt([{"role": "user", "content": f"{n}"}] * 9) for n in range(10)]
        assert all(f"{n}" in text for n, text in enumerate(texts)) and len(template._pieces) == 3
    else:
        for n in range(10):
            encoder.remember("a", f"ab{encoder._ends[0]}", [1, n], 0)
        assert [each.ids for each in encoder._answered["ab"]] == [[1, 7], [1, 8], [1, 9]]


def test_many_answers_to_a_long_prompt_wait_for_room_in_the_cache(tiny_base):
    """Also when short conversations have used all slots before. The answers are the same."""
    policy = load_policy(str(tiny_base), engine="transformers")
    long, answers, sizes = {"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 8, "n": 32, "seed": 1}, [], []
    for most in (None, 2000):
        sampler = Sampler(policy.base, policy.tokenizer, slots=64)
        sampler.decoder.cache_tokens = most

        async def main(sampler=sampler):
            await sampler.create(messages=[{"role": "user", "content": "short"}], max_tokens=4, n=64)
            answer = await sampler.create(**long)
            await sampler.create(messages=[{"role": "user", "content": "x" * 450}], max_tokens=8)
            return [choice.token_ids for choice in answer.choices]

        answers.append(asyncio.run(main()))
        buffer = sampler.decoder.slots.cache.buffers[0][0]
        sizes.append(buffer.shape[0] * buffer.shape[2])
    assert answers[0] == answers[1] and sizes[0] > 64 * 400
    assert sizes[1] < 2000 * 9 / 4  # both grow by half at a time


def test_clients_take_turns_when_slots_are_scarce(tiny_base):
    policy = load_policy(str(tiny_base), engine="transformers")
    sampler, order = Sampler(policy.base, policy.tokenizer, slots=2), []

    async def ask(client, number):
        messages = [{"role": "user", "content": f"{client} {number}"}]
        await sampler.create(messages=messages, max_tokens=4, temperature=20.0, client=client)
        order.append(client)

    async def main():
        greedy = [asyncio.create_task(ask("greedy", number)) for number in range(12)]
        await asyncio.sleep(0)
        await asyncio.gather(*greedy, ask("modest", 0))

    asyncio.run(main())
    assert order.index("modest") < 4


@pytest.mark.parametrize("client", ["another", "its own"])
def test_short_requests_do_not_delay_a_long_one_forever(tiny_base, client):
    """Three chats, each of which sends a request as soon as it gets an answer; at most 90 in all."""
    policy = load_policy(str(tiny_base), engine="transformers")
    sampler, answered, waited = Sampler(policy.base, policy.tokenizer, slots=4), [], []
    sampler.decoder.cache_tokens = 450  # enough for the chats together, or for the long one alone

    async def chat(number):
        question = {"role": "user", "content": f"{number}"}
        first = await sampler.create(messages=[question], max_tokens=2, client=client)
        messages = [question, {"role": "assistant", "content": first.choices[0].message.content}, question]
        while not waited and len(answered) < 90:
            await sampler.create(messages=messages, max_tokens=2 + number, client=client)
            answered.append(number)

    async def main():
        chats = [asyncio.create_task(chat(number)) for number in range(3)]
        while len(answered) < 9:
            await asyncio.sleep(0)
        await sampler.create(messages=[{"role": "user", "content": "x" * 400}], max_tokens=4, client="its own")
        waited.append(len(answered))
        await asyncio.gather(*chats)

    asyncio.run(main())
    assert waited[0] < 30
