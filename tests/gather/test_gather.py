"""Gather calls: order, failures, cancellation, batches, the progress bar; `retry` and `iterate_dataset`."""

import asyncio
import logging
import random

import pytest
from openai.types.chat.chat_completion import Choice

import art_nb as art
from art_nb.rollouts import gathering as rollouts


class Bar:
    """Stand-in for tqdm that records its calls."""

    made: list["Bar"] = []

    def __init__(self, desc=None, total=None):
        self.desc, self.total, self.n, self.closed, self.texts, self.postfix = desc, total, 0, False, [], {}
        Bar.made.append(self)

    def update(self, n):
        self.n += n

    def set_postfix(self, postfix, refresh=True):
        self.postfix = postfix

    def set_postfix_str(self, text):
        self.texts.append(text)

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def bars(monkeypatch):
    Bar.made = []
    monkeypatch.setattr(rollouts, "tqdm", Bar)
    yield Bar.made
    assert all(bar.closed for bar in Bar.made)


async def rollout(reward, delay=0.0):
    await asyncio.sleep(delay)
    return art.Trajectory(reward=reward, metrics={"moves": 2 * reward})


async def failing(message="broke", delay=0.0):
    await asyncio.sleep(delay)
    raise ValueError(message)


async def group_of(n, delay=0.0):
    """Return a group from an async function, as in ART's first examples."""
    return art.TrajectoryGroup([await rollout(i, delay) for i in range(n)])


def rollouts_of(n, failures=0, delay=0.0):
    """Return a group of rollouts, the first of which fail."""
    return art.TrajectoryGroup([failing(delay=delay) if i < failures else rollout(i, delay) for i in range(n)])


async def awaiting(*args):
    """Run the rollouts of a group in an async function."""
    return await rollouts_of(*args)


def rewards(groups):
    return [[t.reward for t in group] for group in groups]


# -- gather_trajectories


def test_trajectories_in_the_order_given(bars):
    async def main():
        return await art.gather_trajectories(rollout(i, 0.01 * (4 - i)) for i in range(4))

    assert [t.reward for t in asyncio.run(main())] == [0, 1, 2, 3]
    assert (bars[0].desc, bars[0].total, bars[0].n) == ("gather", 4, 4)
    assert bars[0].postfix == {"reward": 1.5, "moves": 3.0}


def test_rollouts_that_return_several_trajectories():
    async def several(n):
        return [art.Trajectory(reward=i) for i in range(n)]

    async def main():
        return await art.gather_trajectories([several(1), several(2)], pbar_desc=None)

    assert [len(r) for r in asyncio.run(main())] == [1, 2]


def test_a_tolerated_exception_takes_the_place_of_its_result():
    async def main():
        return await art.gather_trajectories([rollout(1), failing(), rollout(2)], max_exceptions=1)

    first, error, last = asyncio.run(main())
    assert (first.reward, last.reward) == (1, 2) and isinstance(error, ValueError)


def test_a_rollout_without_return_value():
    async def forgetful():
        pass

    async def main():
        await art.gather_trajectories([forgetful()])

    with pytest.raises(TypeError, match="returned NoneType.*return trajectory"):
        asyncio.run(main())


# -- gather_trajectory_groups


def test_groups_of_rollouts_in_the_order_given(bars):
    async def main():
        return await art.gather_trajectory_groups(
            [
                art.TrajectoryGroup(rollout(10 * g + i, 0.003 * ((7 * (g + i)) % 5)) for i in range(3))
                for g in range(4)
            ],
            pbar_desc="play",
        )

    assert rewards(asyncio.run(main())) == [[10 * g + i for i in range(3)] for g in range(4)]
    assert (bars[0].desc, bars[0].total, bars[0].n) == ("play", 12, 12)


def test_groups_made_by_async_functions_count_their_trajectories_once(bars):
    async def second_try(n):
        await awaiting(n)
        return await awaiting(n)

    async def main():
        return await art.gather_trajectory_groups([group_of(3), awaiting(2), second_try(2), group_of(0)])

    assert rewards(asyncio.run(main())) == [[0, 1, 2], [0, 1], [0, 1], []]
    assert bars[0].postfix["reward"] == (0 + 1 + 2 + 0 + 1 + 0 + 1 + 0 + 1) / 9
    assert (bars[0].total, bars[0].n) == (9, 9)


def test_complete_groups_are_returned_as_they_are():
    async def main():
        done = await group_of(2)
        return done, await art.gather_trajectory_groups([done, group_of(1)])

    done, groups = asyncio.run(main())
    assert groups[0] is done and rewards(groups) == [[0, 1], [0]]


def test_no_groups():
    assert asyncio.run(art.gather_trajectory_groups([])) == []


def test_no_bar_without_a_description(bars):
    async def main():
        return await art.gather_trajectory_groups([art.TrajectoryGroup([rollout(1)])], pbar_desc=None)

    asyncio.run(main())
    assert bars == []


def test_failed_rollouts_leave_the_group_smaller_and_keep_their_traceback(bars):
    async def main():
        return await art.gather_trajectory_groups(
            [art.TrajectoryGroup([rollout(1), failing("no board"), rollout(2)])], max_exceptions=1
        )

    (group,) = asyncio.run(main())
    assert rewards([group]) == [[1, 2]]
    (error,) = group.exceptions
    assert (error.type, error.message) == ("builtins.ValueError", "no board")
    assert "raise ValueError(message)" in error.traceback
    assert bars[0].postfix["exceptions"] == 1


@pytest.mark.parametrize("group", [rollouts_of, awaiting])
@pytest.mark.parametrize(
    ("allowed", "failures", "raises"), [(0, 0, 0), (0, 1, 1), (2, 2, 0), (2, 3, 1), (0.5, 5, 0), (0.5, 6, 1)]
)
def test_too_many_exceptions(group, allowed, failures, raises):
    async def main():
        return await art.gather_trajectory_groups([group(10, failures)], max_exceptions=allowed)

    if raises:
        with pytest.raises(ValueError, match="broke") as caught:
            asyncio.run(main())
        assert f"{failures} of 10 rollouts failed" in caught.value.__notes__[0]
    else:
        (found,) = asyncio.run(main())
        assert (len(found), len(found.exceptions)) == (10 - failures, failures)


def test_an_exception_that_is_not_tolerated_is_raised_even_if_the_total_grows_before_its_group_ends():
    async def reached_later():
        await asyncio.sleep(0.01)
        return await awaiting(8)

    async def slow_to_stop():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.02)

    async def stopping():
        return await art.TrajectoryGroup([failing(), slow_to_stop()])

    with pytest.raises(ValueError, match="broke") as caught:
        asyncio.run(art.gather_trajectory_groups([stopping(), reached_later()], max_exceptions=0.2))
    assert caught.value.__notes__ == ["1 of 3 rollouts failed; max_exceptions=0.2 allows no more."]


def test_every_percentage_of_100_rollouts_may_fail_and_no_more():
    async def main(failures, allowed):
        plays = [failing() if i < failures else rollout(i) for i in range(100)]
        results = await art.gather_trajectories(plays, pbar_desc=None, max_exceptions=allowed)
        assert sum(isinstance(result, ValueError) for result in results) == failures

    for percent in range(1, 100):
        asyncio.run(main(percent, percent / 100))
        with pytest.raises(ValueError, match="broke"):
            asyncio.run(main(percent + 1, percent / 100))


def test_negative_max_exceptions_raises():
    with pytest.raises(ValueError, match="max_exceptions is -1"):
        asyncio.run(art.gather_trajectory_groups([], max_exceptions=-1))


def test_failed_async_group_is_dropped_when_tolerated():
    async def main():
        return await art.gather_trajectory_groups([failing(), group_of(2)], max_exceptions=1)

    assert rewards(asyncio.run(main())) == [[0, 1]]


def test_after_each_keeps_replaces_splits_and_drops():
    async def judge(group):
        n = len(group)
        return (
            None if n == 1 else [group, group] if n == 2 else art.TrajectoryGroup([art.Trajectory(reward=9)])
        )

    async def main():
        pending = (art.TrajectoryGroup(rollout(i) for i in range(n)) for n in (1, 2, 3))
        return await art.gather_trajectory_groups(pending, after_each=judge)

    assert rewards(asyncio.run(main())) == [[0, 1], [0, 1], [9]]


def test_max_metrics_limits_the_bar(bars):
    async def main():
        await art.gather_trajectory_groups([art.TrajectoryGroup([rollout(1)])], max_metrics=1)

    asyncio.run(main())
    assert list(bars[0].postfix) == ["reward"]


def test_completion_tokens_are_counted():
    async def talk():
        choice = Choice(index=0, finish_reason="stop", message={"role": "assistant"}, token_ids=[5, 6, 7])
        return art.Trajectory(messages_and_choices=[choice])

    async def main():
        return await art.gather_trajectory_groups([art.TrajectoryGroup([talk()])])

    assert asyncio.run(main())[0].trajectories[0].metrics["completion_tokens"] == 3


# -- cancelling


class Witness:
    """Rollouts that never end and count their cancellations."""

    def __init__(self):
        self.cancelled = 0

    async def wait(self):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
def test_an_exception_that_is_not_tolerated_cancels_all_siblings(error):
    witness = Witness()

    async def breaking():
        await asyncio.sleep(0.01)
        raise error

    async def main():
        await art.gather_trajectory_groups(
            [art.TrajectoryGroup([witness.wait(), breaking()]), art.TrajectoryGroup([witness.wait()])],
            max_exceptions=0 if error is ValueError else 99,
        )

    with pytest.raises(error):
        asyncio.run(main())
    assert witness.cancelled == 2


def test_cancelling_the_gather_cancels_every_rollout():
    witness = Witness()

    async def main():
        gather = asyncio.create_task(
            art.gather_trajectory_groups(
                [art.TrajectoryGroup(witness.wait() for _ in range(3))], max_exceptions=99
            )
        )
        await asyncio.sleep(0.01)
        gather.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gather
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert witness.cancelled == 3


def test_no_task_outlives_a_gather():
    async def main():
        await art.gather_trajectory_groups([art.TrajectoryGroup([rollout(1)])])
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


# -- silence


async def until_shown(words):
    """A rollout that ends when the bar shows `words`."""
    while not any(words in text for bar in Bar.made for text in bar.texts):
        await asyncio.sleep(0.005)
    return art.Trajectory()


def test_a_long_silence_is_explained(bars, monkeypatch):
    monkeypatch.setattr(rollouts, "SILENT_AFTER", 0.02)

    async def main():
        waiting = [until_shown("waiting for 2 running rollouts") for _ in range(2)]
        gather = art.gather_trajectory_groups([art.TrajectoryGroup([rollout(1), *waiting])])
        await asyncio.wait_for(gather, 60)

    asyncio.run(main())


def test_waiting_for_after_each_is_shown(bars, monkeypatch):
    monkeypatch.setattr(rollouts, "SILENT_AFTER", 0.02)

    async def judge(group):
        await until_shown("waiting for after_each")
        return group

    async def main():
        gather = art.gather_trajectory_groups([art.TrajectoryGroup([rollout(1)])], after_each=judge)
        await asyncio.wait_for(gather, 60)

    asyncio.run(main())


# -- batches


def batches_of(groups, **options):
    async def main():
        return [rewards(batch) async for batch in art.trajectory_group_batches(groups, **options)]

    return asyncio.run(main())


def some_groups(n):
    return [art.TrajectoryGroup([rollout(i, 0.002 * ((5 * i) % 7))]) for i in range(n)]


def test_batches_in_the_order_given(bars):
    assert batches_of(some_groups(7), batch_size=3) == [[[0], [1], [2]], [[3], [4], [5]], [[6]]]
    assert [(bar.desc, bar.total, bar.n) for bar in bars[:2]] == [("batches", 3, 3)] * 2


def test_skipped_batches_are_not_run():
    ran = []

    async def play(n):
        ran.append(n)
        return await rollout(n)

    for count, batches in ((5, [[[4]]]), (2, [])):
        groups = [art.TrajectoryGroup([play(n)]) for n in range(count)]
        assert batches_of(groups, batch_size=2, skip_batches=2) == batches
    assert ran == [4]


def test_max_concurrent_batches_limits_running_groups():
    running = most = 0

    async def play():
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.003)
        running -= 1
        return art.TrajectoryGroup([art.Trajectory()])

    batches_of([play() for _ in range(20)], batch_size=2, max_concurrent_batches=3)
    assert most == 6


def test_tolerated_failures_are_replaced_by_the_next_group_and_max_exceptions_is_per_batch():
    plays = [failing(), group_of(1), group_of(2), failing(delay=0.3), group_of(3), group_of(4)]
    options = {"batch_size": 2, "max_batch_exceptions": 1, "max_concurrent_batches": 1}
    assert batches_of(plays, **options) == [[[0], [0, 1]], [[0, 1, 2], [0, 1, 2, 3]]]


@pytest.mark.parametrize("group", [rollouts_of, awaiting])
def test_a_share_of_a_batch_counts_the_groups_that_run_already(group):
    plays = [group(4, g in (2, 3), 0.03 * g) for g in range(6)]
    options = {"batch_size": 2, "max_batch_exceptions": 0.25, "max_concurrent_batches": 2}
    assert [list(map(len, batch)) for batch in batches_of(plays, **options)] == [[4, 4], [3, 3], [4, 4]]


def test_a_failure_during_training_counts_against_the_next_batch():
    async def main(allowed):
        training = asyncio.Event()

        async def failing_later():
            await training.wait()
            await failing()

        plays = [rollouts_of(2, 1), *(art.TrajectoryGroup([failing_later(), rollout(1)]) for _ in range(2))]
        async for _ in art.trajectory_group_batches(plays, batch_size=1, max_batch_exceptions=allowed):
            training.set()
            await asyncio.sleep(0.05)

    asyncio.run(main(2))
    with pytest.raises(ValueError, match="broke") as caught:
        asyncio.run(main(1))
    assert caught.value.__notes__ == ["2 of 2 rollouts failed; max_exceptions=1 allows no more."]


def test_a_batch_with_too_many_failures_raises_without_waiting_for_the_rest():
    witness = Witness()
    with pytest.raises(ValueError, match="broke"):
        batches_of([art.TrajectoryGroup([witness.wait()]), failing()], batch_size=2)
    assert witness.cancelled == 1


def test_leaving_the_loop_cancels_the_rest():
    witness = Witness()

    async def main():
        groups = [
            art.TrajectoryGroup([play]) for play in (rollout(1), witness.wait(), witness.wait(), rollout(2))
        ]
        batches = art.trajectory_group_batches(groups, batch_size=1, max_concurrent_batches=3)
        async for _ in batches:
            await asyncio.sleep(0.01)
            break
        await batches.aclose()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert witness.cancelled == 2


# -- retry


def flaky(failures, error=ValueError):
    calls = []

    def call(x):
        calls.append(x)
        if len(calls) <= failures:
            raise error(f"failure {len(calls)}")
        return x

    return call, calls


@pytest.mark.parametrize("is_async", [False, True])
def test_retry_until_a_call_succeeds(is_async, caplog):
    call, calls = flaky(2)

    async def call_async(x):
        return call(x)

    decorated = art.retry(delay=0.001)(call_async if is_async else call)
    with caplog.at_level(logging.WARNING):
        result = asyncio.run(decorated(7)) if is_async else decorated(7)
    assert (result, calls) == (7, [7, 7, 7])
    assert "attempt 1 of 3" in caplog.text and "failure 2" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_retry_raises_the_last_exception(is_async):
    call, calls = flaky(9)

    async def call_async(x):
        return call(x)

    seen = []
    decorate = art.retry(
        max_attempts=2, delay=0, on_retry=lambda error, attempt: seen.append((str(error), attempt))
    )
    with pytest.raises(ValueError, match="failure 2"):
        if is_async:
            asyncio.run(decorate(call_async)(1))
        else:
            decorate(call)(1)
    assert (len(calls), seen) == (2, [("failure 1", 1)])


def test_retry_propagates_other_exceptions():
    call, calls = flaky(1, KeyError)
    with pytest.raises(KeyError):
        art.retry(exceptions=(ValueError,), delay=0)(call)(1)
    assert len(calls) == 1


def test_retry_delays_increase(monkeypatch):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    call, _ = flaky(3)
    art.retry(max_attempts=4, delay=0.5, backoff_factor=3)(call)(1)
    assert waited == [0.5, 1.5, 4.5]


def test_retry_needs_an_attempt():
    with pytest.raises(ValueError, match="max_attempts is 0"):
        art.retry(max_attempts=0)


# -- iterate_dataset


def test_each_epoch_of_a_dataset_has_every_item_once_in_a_new_order():
    batches = list(art.utils.iterate_dataset(list("abcde"), groups_per_step=2, num_epochs=2, use_tqdm=False))
    assert [(b.step, b.epoch, b.epoch_step) for b in batches] == [
        (0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1), (5, 1, 2)
    ]  # fmt: skip
    first, second = (["".join(b.items) for b in batches[i : i + 3]] for i in (0, 3))
    assert sorted("".join(first)) == sorted("".join(second)) == list("abcde") and first != second


def test_iterate_dataset_resumes_and_does_not_use_the_global_generator():
    state = random.getstate()
    options = {"groups_per_step": 3, "num_epochs": 3, "use_tqdm": False}
    whole = list(art.utils.iterate_dataset(range(10), **options))
    for step in (0, 3, 4, 11, 12, 99):
        assert list(art.utils.iterate_dataset(range(10), initial_step=step, **options)) == whole[step:]
    assert random.getstate() == state


def test_dataset_order_is_arts():
    expected = list(range(6))
    random.Random(0).shuffle(expected)
    assert [b.items[0] for b in art.utils.iterate_dataset(range(6), use_tqdm=False)] == expected


def test_empty_dataset_and_bad_size():
    assert list(art.utils.iterate_dataset([])) == []
    with pytest.raises(ValueError, match="groups_per_step is 0"):
        list(art.utils.iterate_dataset([1], groups_per_step=0))
