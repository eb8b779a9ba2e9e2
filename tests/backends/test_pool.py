"""The pool of samplers: assignment of conversations, counting of prompts, and resending of requests."""

import asyncio
import pickle
from types import SimpleNamespace

import pytest
import torch
from openai.types.chat import ChatCompletion
from pydantic import BaseModel
from safetensors.torch import save

import art_nb as art
from art_nb.backends.errors import StatusError
from art_nb.backends.ray.actors import ActorSpec
from art_nb.backends.ray.pool import SamplerLost, SamplerPool
from art_nb.backends.ray.remote_policy_store import RemotePolicyStore
from art_nb.backends.ray.rollout_worker import RolloutActor
from art_nb.inference.chat import RequestError
from art_nb.training.names import PolicyNames


class Settings(BaseModel):
    turns: int


class FakeSampler:
    """A sampler that answers after `max_tokens` rounds of the event loop."""

    def __init__(self):
        self.open_requests, self.received, self.lives, self.restart = 0, [], True, None

    def is_alive(self):
        return self.lives

    async def create(self, *, messages, max_tokens, **parameters):
        self.received.append((messages, parameters["occurrence"], parameters["model"]))
        self.open_requests += 1
        try:
            for _ in range(max_tokens):
                await asyncio.sleep(0)
                if not self.lives:
                    raise SamplerLost
        finally:
            self.open_requests -= 1
        message = {"role": "assistant", "content": f"said {max_tokens}", "refusal": None}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "token_ids": [1] * max_tokens}
        return ChatCompletion(id="", created=0, model="m", object="chat.completion", choices=[choice])


def pool(tmp_path, number):
    names = PolicyNames("m", "base", tmp_path)
    return SamplerPool([FakeSampler() for _ in range(number)], names)


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize("form", ["object", "dump", "trajectory"])
def test_a_conversation_keeps_its_sampler_and_new_ones_go_to_the_least_loaded(tmp_path, form):
    """An agent appends openai's object or a dict, whose keys have another order."""
    in_form = {
        "object": lambda choice: choice.message,
        "dump": lambda choice: choice.message.model_dump(),
        "trajectory": lambda choice: art.Trajectory(messages_and_choices=[choice]).messages()[0],
    }

    async def main():
        samplers = pool(tmp_path, 3)

        async def talk(number):
            messages = []
            for turn in range(4):
                messages = [*messages, user(f"{number} {turn}")]
                answer = await samplers.create(messages=messages, max_tokens=5 + number)
                messages.append(in_form[form](answer.choices[0]))

        await asyncio.gather(*(talk(number) for number in range(6)))
        owners = [{messages[0]["content"][0] for messages, *_ in sampler.received} for sampler in samplers.samplers]
        assert owners == [{"0", "3"}, {"1", "4"}, {"2", "5"}]
        assert samplers.tokens_sampled == 4 * sum(range(5, 11)) and samplers.seconds > 0

    asyncio.run(main())


def test_the_count_of_a_prompt_is_shared_by_all_samplers(tmp_path):
    async def main():
        samplers = pool(tmp_path, 2)
        ask = lambda text, **more: samplers.create(messages=[user(text)], max_tokens=1, **more)  # noqa: E731
        await asyncio.gather(*(ask(text) for text in "aaaba"), ask("a", model="base"), ask("a", tools=[{"type": "function"}]))
        counts = [(m[0]["content"], times, name) for sampler in samplers.samplers for m, times, name in sampler.received]
        assert sorted(counts) == [("a", 0, "base"), *[("a", n, "m@0") for n in (0, 0, 1, 2, 3)], ("b", 0, "m@0")]
        asking = asyncio.create_task(ask("c"))
        await asyncio.sleep(0)
        samplers.forget("m@0")  # has no effect while a request is in progress
        await asyncio.gather(ask("a"), asking)
        assert ("a", 4) in [(m[0]["content"], times) for sampler in samplers.samplers for m, times, _ in sampler.received]
        samplers.forget("m@0")
        await ask("a")
        await ask("a", model="base")
        assert [sampler.received[-1][1:] for sampler in samplers.samplers][0] == (1, "base")

    asyncio.run(main())


def test_the_ids_of_tool_calls_do_not_distinguish_prompts(tmp_path):
    """Templates do not render the ids, so a sampler draws the same tokens for both if their counts are equal."""

    def conversation(answer):
        call = {"id": f"call_0_{answer}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "nothing"}
        return [user("a"), {"role": "assistant", "content": "", "tool_calls": [call]}, result]

    async def main():
        samplers = pool(tmp_path, 1)
        for answer in "xy":
            await samplers.create(messages=conversation(answer), max_tokens=1)
        assert [occurrence for _, occurrence, _ in samplers.samplers[0].received] == [0, 1]

    asyncio.run(main())


def test_a_repeated_rollout_does_not_set_back_the_step_of_its_worker(tmp_path):
    """A rollout that is repeated after its actor died was sent at an earlier step. The model has the caller's config."""

    async def seen(model):
        return await model.get_step(), model.get_inference_name(), model.config

    async def main():
        spec = ActorSpec({"name": "m", "project": "p", "base_model": "base"}, {}, {})
        worker = RolloutActor(spec, PolicyNames("m", "base", tmp_path), [None], 0)
        got = [(await worker.run(step, {}, Settings(turns=step), seen, ()))[0] for step in (1, 2, 1)]
        assert got == [(step, f"m@{step}", Settings(turns=turns)) for step, turns in ((1, 1), (2, 2), (2, 1))]

    asyncio.run(main())


def test_a_received_adapter_is_moved_to_the_device_of_the_policy(tmp_path):
    policy = SimpleNamespace(device=torch.device("meta"), named=lambda name, seed, adapter: adapter)
    store = RemotePolicyStore(policy, "m", "base", 0, "base")
    store.add("m@1", "v", save({"w": torch.ones(2)}))
    assert store.get("m@1")["w"].device.type == "meta"


def test_requests_of_a_dead_sampler_are_resent_and_counted_once(tmp_path):
    async def main():
        samplers = pool(tmp_path, 2)
        first, second = samplers.samplers
        asking = [asyncio.create_task(samplers.create(messages=[user(text)], max_tokens=9)) for text in "abab"]
        await asyncio.sleep(0)
        assert first.open_requests == second.open_requests == 2
        second.lives = False
        await asyncio.gather(*asking)
        again = [(messages[0]["content"], times) for messages, times, _ in first.received]
        assert sorted(again) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)] and samplers.tokens_sampled == 36

    asyncio.run(main())


def test_invalid_requests_raise(tmp_path):
    async def main():
        samplers = pool(tmp_path, 1)
        for wrong, said in (({"model": "other"}, "unknown model 'other'"), ({"stream": True}, "stream=True")):
            with pytest.raises(RequestError, match=said):
                await samplers.create(messages=[user("a")], max_tokens=1, **wrong)
        with pytest.raises(RequestError, match="role is 'nobody'"):
            await samplers.create(messages=[{"role": "nobody", "content": "a"}], max_tokens=1)
        assert samplers.samplers[0].received == []

    asyncio.run(main())


def test_a_status_error_survives_pickling():
    """A sampler that dropped its session answers with a status, on which the client sends the session's state again."""
    refused = pickle.loads(pickle.dumps(StatusError(410, "not known here", retry_after="3")))
    assert (type(refused), refused.status, str(refused), refused.headers) == (StatusError, 410, "not known here", {"retry_after": "3"})
