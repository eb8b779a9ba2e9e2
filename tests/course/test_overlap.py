"""Asynchronous training: the staleness of batches, and equality with a plain loop where no staleness is allowed."""

import asyncio

import pytest
from test_backend import gather, registered

import art_nb as art
from course.overlap import overlapped, staleness

CONFIG = art.TrainConfig(learning_rate=5e-2)


def test_without_staleness_it_equals_a_plain_loop(tiny_base, tmp_path):
    async def loop():
        model = await registered(str(tiny_base), tmp_path / "loop")
        for step in range(3):
            await model.train(await gather(model, step), CONFIG)
        return model

    async def overlap():
        model = await registered(str(tiny_base), tmp_path / "overlap")
        steps = [step async for step in overlapped(model, lambda step: gather(model, step), 3, CONFIG, max_staleness=0)]
        assert [step.step for step in steps] == [1, 2, 3] and {step.staleness for step in steps} == {0.0}
        assert all(step.metrics["loss"] is not None for step in steps)
        return model

    for model in (asyncio.run(loop()), asyncio.run(overlap())):
        assert list(model.history().step) == [1, 2, 3]
    one, other = (tmp_path / path / "p/models/m/checkpoints/0003/adapter_model.safetensors" for path in ("loop", "overlap"))
    assert one.read_bytes() == other.read_bytes()


def test_batches_are_at_most_as_stale_as_allowed(tiny_base, tmp_path):
    """The first batch is on-policy; each further batch is sampled while a step is trained."""
    seen = {}

    async def main(most):
        model = await registered(str(tiny_base), tmp_path / f"{most}")

        async def watched(step):
            begun = await model.get_step()
            groups = await gather(model, step)
            seen[most, step] = begun, groups
            return groups

        config = CONFIG if most == 1 else lambda step: CONFIG
        steps = [step async for step in overlapped(model, watched, 5, config, max_staleness=most)]
        assert [step.step for step in steps] == [1, 2, 3, 4, 5]
        assert steps[0].staleness == 0 and all(0 <= step.staleness <= most for step in steps)
        assert list(model.history().steps_off_policy) == pytest.approx([step.staleness for step in steps])
        assert {"throughput/step_trainer_idle_s", "throughput/step_actor_idle_s"} <= set(model.history().columns)
        return [step.staleness for step in steps]

    for most in (1, 2):
        assert max(asyncio.run(main(most))) > 0
        for step in range(5):
            begun, groups = seen[most, step]
            assert step - begun <= most
            sampled = {choice.policy for group in groups for t in group for choice in t.choices()}
            assert all(step - most <= int(policy.removeprefix("m@")) <= step for policy in sampled)


def test_a_run_resumes_and_can_be_stopped_early(tiny_base, tmp_path):
    async def main():
        model = await registered(str(tiny_base), tmp_path)
        steps = overlapped(model, lambda step: gather(model, step), 100, CONFIG)
        async for step in steps:
            if step.step == 2:
                break
        await steps.aclose()
        again = [step.step async for step in overlapped(model, lambda step: gather(model, step), 4, CONFIG)]
        assert again == [3, 4] and list(model.history().step) == [1, 2, 3, 4]

    asyncio.run(main())


def test_an_exception_ends_the_run(tiny_base, tmp_path):
    async def main():
        model = await registered(str(tiny_base), tmp_path)

        async def broken(step):
            if step == 1:
                raise RuntimeError("no scenario is left")
            return await gather(model, step)

        with pytest.raises(RuntimeError, match="no scenario is left"):
            async for step in overlapped(model, broken, 3, CONFIG):
                assert step.step == 1
        assert await model.get_step() == 1
        with pytest.raises(ValueError, match="max_staleness=-1"):
            await anext(overlapped(model, broken, 3, max_staleness=-1))

    asyncio.run(main())


def test_choices_without_a_known_policy_are_not_stale():
    fields = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "a"}}
    choices = [art.types.Choice(**fields, policy=name) for name in ("m@3", "m@1", "base")] + [art.types.Choice(**fields)]
    assert staleness([art.Trajectory(messages_and_choices=choices)], 3) == 0.5
    helper = art.trajectories.History(messages_and_choices=choices[1:2])
    assert staleness([art.Trajectory(messages_and_choices=choices[:1], additional_histories=[helper])], 3) == 1
