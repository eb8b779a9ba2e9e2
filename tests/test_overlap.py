"""Steps that overlap: how old the policies are that sampled a batch, and that nothing changes where they may not be old."""

import asyncio

import pytest
from test_backend import gather, registered

import art_nb as art
from art_nb.cluster.overlap import compared, overlapped, staleness

CONFIG = art.TrainConfig(learning_rate=5e-2)


def test_without_staleness_it_is_the_loop_of_a_notebook(tiny_base, tmp_path):
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


def test_batches_are_as_old_as_allowed_and_no_older(tiny_base, tmp_path):
    """The first batch of all is fresh; while a step is taken the next batch has been begun."""
    seen = {}

    async def main(most):
        model = await registered(str(tiny_base), tmp_path / f"{most}")

        async def watched(step):
            begun = await model.get_step()
            groups = await gather(model, step)
            seen[most, step] = begun, groups
            return groups

        steps = [step async for step in overlapped(model, watched, 5, CONFIG, max_staleness=most)]
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


def test_a_run_goes_on_where_it_stopped_and_can_be_left(tiny_base, tmp_path):
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


def test_what_goes_wrong_ends_the_run(tiny_base, tmp_path):
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


def test_two_runs_compared(tiny_base, tmp_path):
    async def main():
        models = [await registered(str(tiny_base), tmp_path / name) for name in ("apart", "overlapped")]
        return await compared(tuple(models), gather, 3, lambda step: CONFIG)

    found = asyncio.run(main())
    assert [len(run) for run in (found.apart, found.overlapped)] == [3, 3] and found.ratio > 0
    assert {step.staleness for step in found.apart} == {0.0} and max(step.staleness for step in found.overlapped) > 0


def test_the_age_of_what_nobody_signed_is_nothing():
    said = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "a"}}
    choices = [art.types.Choice(**said, policy=name) for name in ("m@3", "m@1", "base")] + [art.types.Choice(**said)]
    assert staleness([art.Trajectory(messages_and_choices=choices)], 3) == 0.5
