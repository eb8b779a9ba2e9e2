"""Trajectories and groups: messages, metrics, records, and serialisation by pydantic."""

import asyncio
import copy
import json
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

import art_nb as art
from art_nb.storage.summary import summary
from art_nb.trajectories import History
from art_nb.trajectories.group import PendingGroup
from art_nb.trajectories.usage import count_tokens
from course.judged_groups import trajectory_of

CALL = {"id": "c1", "type": "function", "function": {"name": "move", "arguments": '{"direction": "up"}'}}


def choice(content="left", **extra) -> Choice:
    message = {"role": "assistant", "content": content, **extra.pop("message", {})}
    return Choice(index=0, finish_reason="stop", message=message, **extra)


def sampled(content="left", n=2, **extra) -> Choice:
    ids = {"prompt_token_ids": [1, 2, 3], "token_ids": list(range(n))}
    return choice(content, **ids, token_texts=["t"] * n, token_logprobs=[-0.5] * n, **extra)


def sample_trajectory() -> art.Trajectory:
    return art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "Play."},
            {"role": "user", "content": "2 ."},
            sampled("", message={"tool_calls": [CALL]}, token_advantages=[1.0, 3.0]),
            {"role": "tool", "tool_call_id": "c1", "content": "4 ."},
            sampled("done", n=1, token_advantages=[2.0]),
        ],
        reward=1.5,
        turn_rewards=[0.25, 1.25],
        metrics={"won": True, "moves": 2, "score": 0.5},
        metadata={"seed": 3, "name": "a", "flag": True, "none": None},
        logs=["hello"],
    )


# -- what a rollout does with a trajectory


def test_default_values_are_not_shared():
    one, two = art.Trajectory(), art.Trajectory()
    one.messages_and_choices.append({"role": "user", "content": "x"})
    one.metrics["a"] = 1
    one.log("line")
    assert (two.messages_and_choices, two.metrics, two.logs, two.reward) == ([], {}, [], 0.0)


def test_a_choice_is_not_copied():
    c = sampled()
    t = art.Trajectory(messages_and_choices=[{"role": "user", "content": "x"}, c])
    assert t.messages_and_choices[1] is c
    c.token_advantages = [0.0, 1.0]
    assert t.choices()[0].token_advantages == [0.0, 1.0]


def test_messages_are_plain_and_never_without_content():
    t = sample_trajectory()
    t.messages_and_choices.append({"role": "assistant", "content": None})
    messages = t.messages()
    assert messages[0] == {"role": "system", "content": "Play."}
    assert messages[2] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert messages[4] == {"role": "assistant", "content": "done"}
    assert messages[5]["content"] == "" and t.messages_and_choices[5]["content"] is None
    json.dumps(messages)


def test_messages_of_a_history():
    history = History(messages_and_choices=[{"role": "user", "content": "x"}, choice("y")])
    assert [m["content"] for m in history.messages()] == ["x", "y"]


def test_for_logging_marks_trainable_messages():
    logged = sample_trajectory().for_logging()
    assert [m["trainable"] for m in logged["messages"]] == [False, False, True, False, True]
    assert logged["reward"] == 1.5 and logged["tools"] is None and logged["logs"] == ["hello"]


def test_finish_and_track_duration():
    async def rollout():
        t = art.Trajectory()
        for _ in range(2):
            async with t.track_duration("llm"):
                await asyncio.sleep(0.005)
        with pytest.raises(ValueError):
            async with t.track_duration("failed"):
                raise ValueError
        return t.finish()

    t = asyncio.run(rollout())
    assert 0.01 <= t.metrics["llm_duration"] <= t.metrics["duration"] < 5
    assert "failed_duration" in t.metrics


def test_an_unknown_field_raises():
    with pytest.raises(ValueError, match="rewrad"):
        art.Trajectory(rewrad=1.0)


def test_str_shows_reward_metrics_metadata():
    text = str(art.Trajectory(reward=2.0, metrics={"a": 1}))
    assert text == "Trajectory(reward=2.0, metrics={'a': 1}, metadata={})"


def test_subclass_with_own_fields():
    class Mine(art.Trajectory):
        artist: str

    group = art.TrajectoryGroup([Mine(artist="x", reward=1.0)])
    assert group.trajectories[0].artist == "x"


# -- tokens per turn


def test_completion_tokens_from_logprobs_or_token_ids():
    content = [{"token": "a", "logprob": -0.1, "top_logprobs": []}] * 3
    t = art.Trajectory(messages_and_choices=[choice(logprobs={"content": content}), sampled(n=5), choice()])
    count_tokens(t)
    assert t.metrics["completion_tokens"] == 4


def test_completion_tokens_unknown_without_either():
    t = art.Trajectory(messages_and_choices=[choice()])
    count_tokens(t)
    assert t.metrics == {}


# -- records


def test_record():
    record = sample_trajectory().record(step=3, split="val", group=1, index=2)
    place = {name: record[name] for name in ("step", "split", "group", "index")}
    assert place == {"step": 3, "split": "val", "group": 1, "index": 2}
    assert record["metrics"] == {"won": 1, "moves": 2, "score": 0.5}
    assert record["advantage"] == 2.0  # the mean over three trained tokens
    assert record["turns"][1] == {"role": "user", "content": "2 .", "trainable": False}
    assert record["turns"][2] == {
        "role": "assistant",
        "content": "",
        "trainable": True,
        "tool_calls": [{"name": "move", "arguments": '{"direction": "up"}'}],
        "tokens": ["t", "t"],
        "logprobs": [-0.5, -0.5],
        "advantages": [1.0, 3.0],
        "reward": 0.25,
    }
    assert "additional_turns" not in record


def test_record_of_a_foreign_choice():
    content = [{"token": "le", "logprob": -0.1234567, "top_logprobs": []}]
    t = art.Trajectory(messages_and_choices=[choice(), choice(logprobs={"content": content})])
    bare, with_logprobs = t.record()["turns"]
    assert bare == {"role": "assistant", "content": "left", "trainable": True}
    assert (with_logprobs["tokens"], with_logprobs["logprobs"]) == (["le"], [-0.123457])
    assert t.record()["advantage"] is None and t.record(advantage=0.5)["advantage"] == 0.5


def test_record_of_content_parts_and_additional_histories():
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:..."}}]
    t = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": parts}, choice()],
        additional_histories=[History(messages_and_choices=[choice("again")])],
        turn_rewards=[1.0, 2.0],
    )
    record = t.record()
    assert record["turns"][0]["content"] == "look\n[image_url]"
    assert record["additional_turns"][0][0]["reward"] == 2.0
    assert trajectory_of(record).record() == record


def test_turn_rewards_must_match_the_turns():
    t = sample_trajectory()
    t.turn_rewards = [1.0]
    with pytest.raises(ValueError, match="1 turn_rewards for 2 turns"):
        t.record()


def test_non_finite_numbers_are_valid_json_and_round_trip():
    t = art.Trajectory(reward=math.nan, metrics={"x": math.inf}, metadata={"y": -math.inf}, turn_rewards=[])
    text = json.dumps(t.record(advantage=-math.inf), allow_nan=False)
    record = json.loads(text)
    assert (record["reward"], record["metrics"]["x"], record["advantage"]) == ("NaN", "Infinity", "-Infinity")
    back = trajectory_of(record)
    assert math.isnan(back.reward) and back.metrics["x"] == math.inf


def test_an_integer_beyond_the_range_of_floats_counts_as_infinite():
    t = art.Trajectory(metrics={"x": -(10**400)})
    t.reward = 10**400  # an environment adds up integers
    record = t.record()
    assert (record["reward"], record["metrics"]["x"]) == ("Infinity", "-Infinity")
    row = summary([art.TrajectoryGroup([t, art.Trajectory(reward=1.0)])])
    assert (row["reward"], row["reward_min"], row["x"]) == (math.inf, 1.0, -math.inf) and math.isnan(row["reward_std"])


few = settings(max_examples=50, deadline=None)
number = st.floats(allow_nan=True, allow_infinity=True, width=32)
text = st.text(max_size=12)
call = st.builds(
    lambda n, a: {"id": "x", "type": "function", "function": {"name": n, "arguments": a}}, text, text
)


@st.composite
def choices(draw):
    tokens = draw(st.lists(text, max_size=4))
    logprobs = draw(st.lists(st.floats(-50, 0), min_size=len(tokens), max_size=len(tokens)))
    calls = draw(st.lists(call, max_size=2))
    extra = {"token_texts": tokens, "token_logprobs": logprobs}
    if draw(st.booleans()):
        extra["token_advantages"] = draw(st.lists(number, min_size=len(tokens), max_size=len(tokens)))
    return choice(draw(text), message={"tool_calls": calls} if calls else {}, **extra)


@st.composite
def trajectories(draw):
    message = st.builds(
        lambda role, content: {"role": role, "content": content}, st.sampled_from(["user", "system"]), text
    )
    items = draw(st.lists(st.one_of(message, choices()), max_size=6))
    turns = sum(isinstance(item, Choice) for item in items)
    value = st.one_of(number, st.integers(-(10**6), 10**6), st.booleans())
    return art.Trajectory(
        messages_and_choices=items,
        reward=draw(number),
        turn_rewards=draw(st.none() | st.lists(number, min_size=turns, max_size=turns)),
        metrics=draw(st.dictionaries(text, value, max_size=3)),
        metadata=draw(st.dictionaries(text, st.one_of(text, value, st.none()), max_size=3)),
        logs=draw(st.lists(text, max_size=2)),
    )


@few
@given(trajectories(), st.integers(0, 99))
def test_record_round_trip(trajectory, step):
    record = json.loads(json.dumps(trajectory.record(step=step, group=1, index=2), allow_nan=False))
    back = trajectory_of(record)
    advantage = None if record["advantage"] is None else float(record["advantage"])
    again = back.record(step=step, group=1, index=2, advantage=advantage)
    assert json.dumps(again) == json.dumps(record)
    kinds = [isinstance(item, Choice) for item in trajectory.messages_and_choices]
    assert [isinstance(item, Choice) for item in back.messages_and_choices] == kinds
    for was, now in zip(trajectory.choices(), back.choices(), strict=True):
        assert getattr(now, "token_texts", []) == was.token_texts
        assert getattr(now, "token_logprobs", []) == pytest.approx(was.token_logprobs, abs=1e-6)


@few
@given(trajectories())
def test_pydantic_round_trip(trajectory):
    back = art.Trajectory.model_validate_json(trajectory.model_dump_json())
    assert json.dumps(back.record()) == json.dumps(trajectory.record())
    assert [type(item) for item in back.messages_and_choices] == [
        type(item) for item in trajectory.messages_and_choices
    ]


# -- groups


def test_group_of_trajectories_and_exceptions_from_a_generator():
    items = [art.Trajectory(reward=1.0), ValueError("broke"), art.Trajectory(reward=2.0)]
    group = art.TrajectoryGroup((i for i in items), exceptions=[KeyError("k")], metadata={"a": 1}, logs=["l"])
    assert [t.reward for t in group] == [1.0, 2.0] and len(group) == 2
    assert [(e.type, e.message) for e in group.exceptions] == [
        ("builtins.ValueError", "broke"),
        ("builtins.KeyError", "'k'"),
    ]
    assert (group.metadata, group.metrics, group.logs) == ({"a": 1}, {}, ["l"])
    group.log("more")
    assert group.logs == ["l", "more"]


def test_group_defaults_are_not_shared():
    one, two = art.TrajectoryGroup([]), art.TrajectoryGroup([])
    one.metrics["a"] = 1
    one.log("x")
    assert (two.metrics, two.logs, two.exceptions) == ({}, [], [])


def test_a_group_raises_for_other_objects():
    with pytest.raises(ValueError, match="Trajectory"):
        art.TrajectoryGroup([None])


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        lambda g: pickle.loads(pickle.dumps(g)),
        lambda g: g.model_copy(deep=True),
        lambda g: type(g).model_validate(g.model_dump()),
        lambda g: type(g).model_validate_json(g.model_dump_json()),
    ],
)
def test_copies_of_a_group(duplicate):
    group = art.TrajectoryGroup([sample_trajectory(), ValueError("broke")], metadata={"a": 1})
    twin = duplicate(group)
    assert twin.model_dump() == group.model_dump()
    assert twin.exceptions[0].traceback == group.exceptions[0].traceback
    assert isinstance(twin.trajectories[0].messages_and_choices[2], Choice)
    assert twin.trajectories[0].choices()[0].token_ids == [0, 1]


def test_group_of_rollouts_keeps_order_and_length():
    async def rollout(i):
        await asyncio.sleep(0.01 * (3 - i))
        return art.Trajectory(reward=i)

    async def main():
        pending = art.TrajectoryGroup((rollout(i) for i in range(3)), metadata={"a": 1})
        assert isinstance(pending, PendingGroup) and pending.num_rollouts == 3
        return await pending

    group = asyncio.run(main())
    assert [t.reward for t in group] == [0, 1, 2] and group.metadata == {"a": 1}


def test_a_group_of_rollouts_and_finished_trajectories():
    async def rollout():
        return art.Trajectory(reward=1)

    async def main():
        return await art.TrajectoryGroup([rollout(), art.Trajectory(reward=2), rollout()])

    assert [t.reward for t in asyncio.run(main())] == [1, 2, 1]


def test_awaiting_a_group_raises_what_a_rollout_raised():
    async def rollout():
        raise ValueError("broke")

    async def main():
        await art.TrajectoryGroup(rollout() for _ in range(2))

    with pytest.raises(ValueError, match="broke"):
        asyncio.run(main())


# -- TrainConfig


def test_train_config_knows_which_fields_were_set():
    assert "learning_rate" not in art.TrainConfig().model_fields_set
    assert art.TrainConfig(learning_rate=1e-4).with_art_options({}).model_fields_set >= {"learning_rate"}
    assert "learning_rate" not in art.TrainConfig().with_art_options({"epsilon": 0.1}).model_fields_set


@pytest.mark.parametrize(
    "bad",
    [
        {"learning_rate": 0},
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"kl_penalty_coef": -0.1},
        {"turn_discount": 1.1},
        {"num_updates": 0},
        {"trained_share": 0},
        {"trained_share": 1.1},
        {"grad_accumulation_sequences": 0},
        {"scale_rewards": "team"},
    ],
)
def test_invalid_train_config_raises(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        art.TrainConfig(**bad)


def test_train_config_points_to_grpo_for_unknown_options():
    with pytest.raises(ValueError, match=r"goes into grpo=\{'epsilon': ...\}"):
        art.TrainConfig(epsilon=0.1)


def test_train_config_with_arts_options():
    options = {"epsilon": 0.1, "scale_rewards": False, "logprob_calculation_chunk_size": 8}
    with pytest.warns(UserWarning, match="have no effect here: logprob_calculation_chunk_size"):
        config = art.TrainConfig(learning_rate=1e-4, grpo={"loss_type": "grpo"}).with_art_options(options)
    assert config.grpo == {"loss_type": "grpo", "epsilon": 0.1}
    assert (config.scale_rewards, config.learning_rate) == ("none", 1e-4)
