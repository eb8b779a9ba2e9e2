"""VllmBackend against a server that speaks vLLM's routes, and its command against vLLM's own flags."""

import asyncio

import pytest
from test_backend import gather
from vllm_stand_in import TABLE, VllmStandIn

import art_nb as art
from art_nb.backends.vllm import RANKS, VllmBackend, VllmServer, command, environment
from art_nb.inference.chat import RequestError

CONFIG = {"peft_args": {"r": 4, "lora_alpha": 8}}
QUESTIONS = [[{"role": "user", "content": text}] for text in ("a", "say b", "c <|im_end|> d")]


@pytest.fixture(scope="module")
def stand_in(tiny_base):
    with VllmStandIn(tiny_base) as server:
        yield server


async def registered(backend, base, name="m"):
    model = art.TrainableModel(name=name, project="p", base_model=str(base), _internal_config=CONFIG)
    await model.register(backend)
    return model


def backend(server, path, **options):
    return VllmBackend(server.url, path=path, engine="transformers", patience=5, **options)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def ask(of, messages, **options):
    answer = await of.openai_client().chat.completions.create(messages=messages, **{"max_tokens": 8, "temperature": 0} | options)
    return answer.choices[0]


def test_greedy_answers_and_log_probabilities_equal_those_of_the_local_sampler_after_each_step(stand_in, tiny_base, tmp_path):
    async def main():
        model = await registered(backend(stand_in, tmp_path), tiny_base)
        for step in range(2):
            await model.train(await gather(model, step), art.TrainConfig(learning_rate=5e-2))
        local = await registered(art.LocalBackend(path=tmp_path, engine="transformers"), tiny_base)
        names = ["m", "m@0", "m@1", str(tiny_base)]
        said = {}
        for name in names:
            for messages in QUESTIONS:
                theirs, ours = [await ask(each, messages, model=name, logprobs=True, top_logprobs=3) for each in (model, local)]
                assert (theirs.prompt_token_ids, theirs.token_ids) == (ours.prompt_token_ids, ours.token_ids)
                assert (theirs.message, theirs.finish_reason, theirs.policy) == (ours.message, ours.finish_reason, ours.policy)
                assert theirs.token_logprobs == pytest.approx(ours.token_logprobs, abs=1e-4)
                top = [[[t.logprob for t in each.top_logprobs] for each in choice.logprobs.content] for choice in (theirs, ours)]
                assert sum(top[0], []) == pytest.approx(sum(top[1], []), abs=1e-4)
                said.setdefault(name, []).append(theirs.token_ids)
        assert said["m"] != said["m@0"] == said[str(tiny_base)], "training changed nothing, so the comparison shows nothing"
        assert await model.get_step() == 2 and list(model.history().rollout_s > 0) == [True, True]
        return model

    model = asyncio.run(main())
    loaded = [body["lora_path"] for route, body in stand_in.requests if route == "POST /v1/load_lora_adapter"]
    assert loaded == [str(tmp_path / f"p/models/m/checkpoints/{step:04d}") for step in (0, 1, 2)]
    assert (model.history().ratio_max - 1).abs().max() < 1e-3, "the sampler's log-probabilities equal the learner's"


def test_every_setting_is_explicit_and_messages_contain_no_control_token(stand_in, tiny_base, tmp_path):
    async def main():
        model = await registered(backend(stand_in, tmp_path), tiny_base, "said")
        await ask(model, QUESTIONS[2], temperature=0.5, top_p=0.9, max_tokens=3)
        body = stand_in.requests[-1][1]
        assert {"temperature": 0.5, "top_p": 0.9, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 3}.items() <= body.items()
        (end,) = body["stop_token_ids"]
        plain = (await ask(model, [{"role": "user", "content": "c d"}])).prompt_token_ids
        assert body["prompt"].count(end) == plain.count(end)

    asyncio.run(main())


def test_stop_strings_several_choices_and_streams(stand_in, tiny_base, tmp_path):
    async def main():
        model = await registered(backend(stand_in, tmp_path), tiny_base, "stops")
        create = model.openai_client().chat.completions.create
        several = await create(messages=QUESTIONS[0], n=4, max_tokens=6)
        assert len({tuple(choice.token_ids) for choice in several.choices}) > 1, "each choice has its own draws"
        whole = (await ask(model, QUESTIONS[0])).message.content
        cut = await ask(model, QUESTIONS[0], stop=[whole[1]])
        assert cut.message.content == whole[: whole.index(whole[1])] and cut.finish_reason == "stop"
        chunks = [chunk async for chunk in await create(messages=QUESTIONS[0], stream=True, max_tokens=8, temperature=0)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
        with pytest.raises(RequestError, match="not supported on vLLM yet"):
            await ask(model, QUESTIONS[0], response_format={"type": "json_object"})

    asyncio.run(main())


def test_a_restarted_server_gets_the_adapter_again(stand_in, tiny_base, tmp_path):
    async def main():
        model = await registered(backend(stand_in, tmp_path), tiny_base, "again")
        before = await ask(model, QUESTIONS[0])
        stand_in.restart()
        after = await ask(model, QUESTIONS[0])
        assert before.token_ids == after.token_ids
        other = await registered(backend(stand_in, tmp_path), tiny_base, "again")  # a new client of a server that has loaded the adapter
        assert (await ask(other, QUESTIONS[0])).token_ids == before.token_ids

    asyncio.run(main())


def test_the_seconds_of_rollouts_are_kept_when_the_model_is_registered_again(stand_in, tiny_base, tmp_path):
    async def main():
        model = await registered(backend(stand_in, tmp_path), tiny_base, "twice")
        groups = await gather(model, 0)
        before = model.backend().loaded(model).rollout_metrics()
        await model.register(model.backend())
        row = (await model.train(groups)).metrics
        assert {name: row[name] for name in before} == before and before["rollout_s"] > 0

    asyncio.run(main())


def test_a_cancelled_request_leaves_nothing_behind(stand_in, tiny_base, tmp_path):
    async def main():
        model = await registered(backend(stand_in, tmp_path), tiny_base, "left")
        await ask(model, QUESTIONS[1])  # loads the adapter
        asked, left = len(stand_in.requests), stand_in.disconnected
        with stand_in.lock:
            asking = asyncio.create_task(ask(model, QUESTIONS[0]))
            await until(lambda: len(stand_in.requests) > asked)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        await until(lambda: stand_in.disconnected > left)
        assert (await ask(model, QUESTIONS[1])).token_ids

    asyncio.run(main())


def test_a_cancelled_stream_leaves_nothing_behind(stand_in, tiny_base, tmp_path):
    async def main():
        model = await registered(backend(stand_in, tmp_path), tiny_base, "left")
        await ask(model, QUESTIONS[1])  # loads the adapter
        asked, left = len(stand_in.requests), stand_in.disconnected
        with stand_in.lock:
            stream = await model.openai_client().chat.completions.create(messages=QUESTIONS[0], max_tokens=8, n=2, stream=True)
            assert (await anext(aiter(stream))).choices[0].delta.role == "assistant"
            await until(lambda: len(stand_in.requests) == asked + 2)
            await stream.close()
            await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        await until(lambda: stand_in.disconnected == left + 2)
        assert (await ask(model, QUESTIONS[1])).token_ids

    asyncio.run(main())


@pytest.mark.parametrize("closed", [True, False])
def test_an_adapter_whose_load_was_cancelled_or_abandoned_is_loaded_again(tmp_path, monkeypatch, closed):
    """closed: whether the first event loop cancels its tasks when it ends, as `asyncio.run` does, or is closed without that."""
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    server, fetched, delay = VllmServer("http://127.0.0.1:9", "none", 0), [], [3600]

    async def fetch(self, method, path, body=None, timeout=None):
        fetched.append(path)
        await asyncio.sleep(delay[0])
        return b'{"choices": ["answer"]}'

    async def impatient():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.complete(tmp_path, {}), 0.1)

    monkeypatch.setattr("art_nb.backends.vllm.Connection.fetch", fetch)
    if closed:
        asyncio.run(impatient())
    else:
        (loop := asyncio.new_event_loop()).run_until_complete(impatient())
        loop.close()
    delay[0] = 0
    assert [asyncio.run(server.complete(tmp_path, {})) for _ in range(2)] == ["answer"] * 2
    assert fetched == ["/v1/load_lora_adapter"] * 2 + ["/v1/completions"] * 2


def test_a_missing_setting_or_server_raises(tiny_base, tmp_path):
    async def main():
        with VllmStandIn(tiny_base, runtime_loras=False) as server:
            model = await registered(backend(server, tmp_path), tiny_base)
            with pytest.raises(RuntimeError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"):
                await ask(model, QUESTIONS[0])
            assert (await ask(model, QUESTIONS[0], model=str(tiny_base))).token_ids, "the base model needs no adapter"
        with pytest.raises(ConnectionError, match="Is the server running"):
            await registered(VllmBackend(server.url, path=tmp_path, patience=0), tiny_base, "away")

    asyncio.run(main())


def test_the_command_has_flags_that_vllm_knows():
    assert list(RANKS) == TABLE["ranks"]
    said = command("Qwen/Qwen2.5-7B-Instruct", rank=12, gpus=2)
    assert said[:3] == ["vllm", "serve", "Qwen/Qwen2.5-7B-Instruct"]
    assert {flag for flag in said if flag.startswith("--")} <= set(TABLE["flags"])
    assert said[said.index("--host") + 1] == "127.0.0.1" and not any("key" in word for word in said)
    expected = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_NO_USAGE_STATS": "1", "VLLM_API_KEY": "secret"}
    assert environment("secret") == expected
    assert said[said.index("--max-lora-rank") + 1] == "16" and said[said.index("--tensor-parallel-size") + 1] == "2"
    with pytest.raises(ValueError, match="rank is 513"):
        command("base", rank=513)
