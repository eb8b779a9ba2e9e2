"""Token sequences from trajectories: advantages compared with brute force, exact tokens, refused input."""

import copy
import math
import random

import pytest
from openai.types.chat.chat_completion import Choice
from tiny_models import make_tokenizer

import art_nb as art
from art_nb.training.sequences import build_sequences, compute_advantages, demonstration_sequences
from art_nb.trajectories import History
from art_nb.types import TrainConfig


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def user(text="?"):
    return {"role": "user", "content": text}


def sampled(prompt, ids, content="?"):
    choice = Choice(index=0, finish_reason="stop", message={"role": "assistant", "content": content})
    choice.prompt_token_ids, choice.token_ids = prompt, ids
    choice.token_logprobs = [-i / 10 for i in range(1, len(ids) + 1)]
    return choice


def foreign(content):
    return Choice(index=0, finish_reason="stop", message={"role": "assistant", "content": content})


def played(reward=0.0, turns=1, turn_rewards=None):
    """Return a trajectory of `turns` turns, each with a prompt that does not extend the one before."""
    items = [item for t in range(turns) for item in (user(), sampled([5, 6, 7 + t], [8, 9]))]
    return art.Trajectory(messages_and_choices=items, reward=reward, turn_rewards=turn_rewards)


def build(groups, tokenizer, **config):
    return build_sequences([art.TrajectoryGroup(g) for g in groups], tokenizer, TrainConfig(**config))


def test_a_choice_with_some_of_its_tokens_fields_is_tokenized_again(tokenizer):
    """vLLM's `return_token_ids` puts those of the prompt elsewhere."""
    partly = foreign("left")
    partly.token_ids = [8, 9]
    plain = [art.Trajectory(messages_and_choices=[user(), choice], reward=1.0) for choice in (partly, foreign("left"))]
    found = [build([[each, played(0.0)]], tokenizer)[0][0] for each in plain]
    assert found[0].ids == found[1].ids and found[0].trained == found[1].trained


def flat(advantages):
    return [a for group in advantages for choices in group for a in choices]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_groups_of_any_size_against_brute_force(scale):
    rewards = [[1.0, 0.0, 0.5], [7.0], [2.0, 2.0, 3.0, -1.0, 0.0]]
    groups = [art.TrajectoryGroup(played(r, turns=2) for r in group) for group in rewards]
    found = compute_advantages(groups, TrainConfig(scale_rewards=scale))
    everything = [r for group in rewards for r in group]
    for group, advantages in zip(rewards, found, strict=True):
        mean = sum(group) / len(group)
        for reward, choices in zip(group, advantages, strict=True):
            over = {"group": group, "batch": everything}.get(scale)
            spread = 1.0 if over is None else deviation(over) + 1e-4
            assert choices == pytest.approx([(reward - mean) / spread] * 2, abs=1e-9)


def deviation(values):
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("discount", [0.0, 0.5, 0.95, 1.0])
def test_turn_rewards_against_brute_force(scale, discount):
    turn_rewards = [[[1.0, 2.0], [0.0], [3.0, -1.0, 4.0]], [[5.0]], [[0.5, 0.5], [1.5, -2.5]]]
    groups = [art.TrajectoryGroup(played(turns=len(r), turn_rewards=r) for r in group) for group in turn_rewards]
    for group in groups:
        group.trajectories[0].reward = 1000.0  # not used in a group with turn rewards
    groups.insert(1, art.TrajectoryGroup([played(1.0), played(0.0)]))  # this one is judged by its outcome
    found = compute_advantages(groups, TrainConfig(scale_rewards=scale, turn_discount=discount))
    spread = 1.0 if scale == "none" else math.sqrt(0.5) + 1e-4
    assert flat([found.pop(1)]) == pytest.approx([0.5 / spread, -0.5 / spread], abs=1e-9)
    returns = [
        [[sum(discount**k * x for k, x in enumerate(r[t:])) for t in range(len(r))] for r in group] for group in turn_rewards
    ]
    for group, advantages in zip(returns, found, strict=True):
        over = {"group": [group], "batch": returns}.get(scale)
        spread = 1.0 if over is None else deviation([x for g in over for r in g for x in r]) + 1e-4
        for own, choices in zip(group, advantages, strict=True):
            for t, advantage in enumerate(choices):
                reached = [r[t] for r in group if len(r) > t]
                baseline = sum(reached) / len(reached)
                assert advantage == pytest.approx((own[t] - baseline) / spread, abs=1e-9)


def test_groups_without_signal_are_counted_and_skipped(tokenizer):
    groups = [
        [played(1.0), played(0.0), played(0.0)],
        [played(0.3), played(0.3), played(0.3)],  # three times 0.3 does not add up to 0.9 exactly
        [played(5.0)],
        [],  # every rollout raised
        [played(turn_rewards=[1e6 / 3]), played(turn_rewards=[1e6 / 3]), played(turn_rewards=[1e6 / 3])],
    ]
    sequences, counts = build(groups, tokenizer)
    assert len(sequences) == 3 and counts == {"groups": 5, "groups_without_signal": 4}
    for unit in (1e9, 1e-10):
        assert build([[played(unit), played(2 * unit), played(3 * unit)]], tokenizer)[1] == {"groups": 1, "groups_without_signal": 0}
    assert groups[2][0].messages_and_choices[1].token_advantages == [0.0, 0.0]
    # A KL penalty teaches even where rewards do not.
    assert len(build(groups, tokenizer, kl_penalty_coef=0.1)[0]) == 10


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 1.0])
def test_the_strongest_sequences_are_trained(tokenizer, share):
    """Those of the largest absolute advantages, with the advantages that they have without the option."""
    rng = random.Random(0)
    groups = [[played(turns=5, turn_rewards=[rng.gauss(0, 1) for _ in range(5)]) for _ in range(4)] for _ in range(2)]
    every = [s.advantages[-1] for s in build(copy.deepcopy(groups), tokenizer)[0]]
    sequences, counts = build(groups, tokenizer, trained_share=share)
    found = [s.advantages[-1] for s in sequences]
    assert len(every) == 40 and len(found) == max(1, round(share * 40)) and counts["groups"] == 2
    limit = min(map(abs, found))
    assert found == [a for a in every if abs(a) >= limit]


def test_the_outcome_of_a_group_with_turn_rewards_does_not_hide_its_signal(tokenizer):
    groups = [[played(1e10, turn_rewards=[1.0]), played(1e10, turn_rewards=[0.0])]]
    assert build(groups, tokenizer)[1] == {"groups": 1, "groups_without_signal": 0}


@pytest.mark.parametrize("ids", [[9], [9, 10, 11]])
def test_an_empty_prompt_is_refused(tokenizer, ids):
    empty = art.Trajectory(messages_and_choices=[user(), sampled([], ids)])
    with pytest.raises(ValueError, match="group 1, trajectory 1: the prompt_token_ids of a Choice are empty"):
        build([[played(1.0), played(0.0)], [played(1.0), empty]], tokenizer)
    with pytest.raises(ValueError, match="trajectory 0: the prompt_token_ids of a Choice are empty"):
        demonstration_sequences([empty], tokenizer)


def test_a_small_difference_is_a_signal(tokenizer):
    for scale in ("group", "batch", "none"):
        groups = [[played(1.0), played(1.0 + 1e-6)]]
        assert len(build(groups, tokenizer, scale_rewards=scale)[0]) == 2


def test_a_continued_conversation_is_one_sequence(tokenizer):
    first = sampled([5, 6, 7], [10, 2])
    second = sampled([5, 6, 7, 10, 2, 30, 31], [11, 12, 2])
    winner = art.Trajectory(messages_and_choices=[user(), first, user(), second], turn_rewards=[1.0, 2.0])
    loser = art.Trajectory(messages_and_choices=[user(), sampled([5, 6, 7], [13, 2])], turn_rewards=[0.0])
    [one, other], _ = build([[winner, loser]], tokenizer, turn_discount=0.5, scale_rewards="none")
    assert one.ids == [5, 6, 7, 10, 2, 30, 31, 11, 12, 2]
    assert one.trained == [False] * 3 + [True] * 2 + [False] * 2 + [True] * 3
    assert one.logprobs == [0, 0, 0, -0.1, -0.2, 0, 0, -0.1, -0.2, -0.3]
    # Returns: 1 + 0.5 * 2 = 2 and 2 against 0; the second turn was reached by one alone.
    assert one.advantages == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    assert other.advantages == [0, 0, 0, -1, -1]
    assert first.token_advantages == [1, 1] and second.token_advantages == [0, 0, 0]


@pytest.mark.parametrize(
    "second_prompt",
    [
        [5, 6, 9, 10, 2, 30],  # an earlier message was edited
        [5, 6, 7, 10, 30],  # the end of the answer was cut
        [5, 6],  # the conversation starts again
    ],
)
def test_a_conversation_that_was_edited_is_split(tokenizer, second_prompt):
    items = [user(), sampled([5, 6, 7], [10, 2]), user(), sampled(second_prompt, [11])]
    group = [art.Trajectory(messages_and_choices=items, reward=1.0), played(0.0)]
    [one, two, _], _ = build([group], tokenizer)
    assert one.ids == [5, 6, 7, 10, 2] and two.ids == [*second_prompt, 11]
    assert two.trained == [False] * len(second_prompt) + [True]


def test_additional_histories_are_separate_sequences(tokenizer):
    more = [History(messages_and_choices=[user(), sampled([5, 6, 7, 8, 9], [20])])]
    winner = played(1.0)
    winner.additional_histories = more
    sequences, _ = build([[winner, played(0.0)]], tokenizer)
    # It extends the main history token for token, yet nothing says that it came after it.
    assert [s.ids for s in sequences] == [[5, 6, 7, 8, 9], [5, 6, 7, 8, 9, 20], [5, 6, 7, 8, 9]]
    assert sequences[1].advantages[-1] == sequences[0].advantages[-1] > 0
    by_turn = art.Trajectory(
        messages_and_choices=winner.messages_and_choices, additional_histories=more, turn_rewards=[1.0, 5.0]
    )
    sequences, _ = build([[by_turn, played(turn_rewards=[0.0])]], tokenizer, scale_rewards="none")
    assert [s.advantages[-1] for s in sequences] == [2.875, 0.0, -2.875]


def test_choices_of_another_sampler_are_tokenised(tokenizer):
    items = [user("2 + 2"), foreign("four"), user("3 + 3"), foreign("six")]
    group = [art.Trajectory(messages_and_choices=items, reward=1.0), played(0.0)]
    sequence = build([group], tokenizer)[0][0]
    decoded = tokenizer.decode(sequence.ids)
    chat = [user("2 + 2"), {"role": "assistant", "content": "four"}, user("3 + 3")]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert decoded == prompt + "six<|im_end|>"
    trained = [i for i, t in zip(sequence.ids, sequence.trained, strict=True) if t]
    assert tokenizer.decode(trained) == "four<|im_end|>six<|im_end|>"
    assert all(math.isnan(x) for x, t in zip(sequence.logprobs, sequence.trained, strict=True) if t)
    assert items[1].token_advantages == [sequence.advantages[-1]] * len("four+")


def test_choices_of_another_sampler_if_the_template_rewrites_its_generation_prompt(tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
    items = [user("2 + 2"), foreign("four")]
    group = [art.Trajectory(messages_and_choices=items, reward=1.0), played(0.0)]
    sequence = build([group], tokenizer)[0][0]
    assert tokenizer.decode(sequence.ids).endswith("<think>\nfour<|im_end|>")
    assert sum(sequence.trained) == len("four") + 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400], ids=["nan", "inf", "-inf", "400 digits"])
def test_rewards_that_are_not_finite_are_refused(tokenizer, value):
    wrong = played()
    wrong.reward = value  # an assignment is not validated
    groups = [[played(1.0), played(0.0)], [played(0.0), wrong, played(1.0)]]
    with pytest.raises(ValueError, match=rf"group 1, trajectory 1: reward is {str(value)[:40]}, not a finite"):
        build(groups, tokenizer)
    wrong = played(turns=2)
    wrong.turn_rewards = [0.0, value]
    with pytest.raises(ValueError, match=r"group 0, trajectory 0: turn_rewards\[1\] is"):
        build([[wrong]], tokenizer)


def test_an_empty_batch_is_refused_and_says_what_the_rollouts_raised(tokenizer):
    with pytest.raises(ValueError, match="nothing to train on: 0 groups contain no trajectory$"):
        build([], tokenizer)
    with pytest.raises(ValueError, match="2 groups .* the first of 3 errors: builtins.KeyError: 'board'"):
        build([[KeyError("board"), OSError("x")], [OSError("y")]], tokenizer)


def test_a_trajectory_without_a_choice_is_refused(tokenizer):
    without_choice = art.Trajectory(messages_and_choices=[user(), {"role": "assistant", "content": "left"}])
    with pytest.raises(ValueError, match="group 1, trajectory 1 has no trainable token: it contains no Choice"):
        build([[played(1.0), played(0.0)], [played(1.0), without_choice]], tokenizer)


@pytest.mark.parametrize("given", [[1.0], [1.0, 2.0, 3.0], [], None])
def test_turn_rewards_must_fit_the_turns(tokenizer, given):
    groups = [[played(turns=2, turn_rewards=[1.0, 2.0]), played(turns=2, turn_rewards=given)]]
    with pytest.raises(ValueError, match=rf"group 0, trajectory 1 has {len(given or [])} turn_rewards and 2"):
        build(groups, tokenizer)
