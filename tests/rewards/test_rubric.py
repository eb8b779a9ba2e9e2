"""RubricJudge: deterministic, weighted, and in agreement with the true outcomes of 2048."""

import asyncio
import itertools
import json
import random
from importlib.metadata import EntryPoint

import pytest

import art_nb as art
from art_nb.rewards import Criterion, RubricJudge, rubric, ruler, ruler_score_group
from art_nb.rewards import criteria_tools as tools
from art_nb.rewards.rubric import WEIGHTS, criteria_of, register
from game_2048 import GAME_OVER, Game, Game2048Environment, outcome_reward
from game_2048 import criteria as criteria_2048
from game_2048.players import corner_player, expectimax_player, random_player
from game_2048.rules import MOVES, parse, slide

WIN = 64


def sloppy_player(seed, share):
    """Sample one of the four words with probability `share`, else a legal move."""
    rng, legal = random.Random(seed), random_player(seed)
    return lambda board: rng.choice(MOVES) if rng.random() < share else legal(board)


def rollout(player, seed, limit=None):
    """Play as notebook 02 does: each prompt is one board, each answer a word. Returns the trajectory and the game."""
    game = Game(seed, winning_tile=WIN)
    conversation = []
    while not game.over and game.moves != limit:
        board = game.board
        conversation += [{"role": "user", "content": game.render()}, {"role": "assistant", "content": player(board)}]
        game.move(conversation[-1]["content"])
    metadata = {"task": "game_2048", "seed": seed, "winning_tile": WIN}
    return art.Trajectory(messages_and_choices=conversation, metadata=metadata, reward=random.Random(seed).random()), game


def tool_rollout(player, seed):
    """Play as TRL does: the first board from the user, later ones as tool results, then a final answer."""
    environment = Game2048Environment(winning_tile=WIN)
    conversation = [{"role": "user", "content": environment.reset(seed=seed)}]
    while conversation[-1]["content"] != GAME_OVER:
        call = {"name": "move", "arguments": json.dumps({"direction": player(environment.game.board)})}
        conversation.append({"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": call}]})
        conversation.append({"role": "tool", "tool_call_id": "1", "content": environment.move(**json.loads(call["arguments"]))})
    conversation.append({"role": "assistant", "content": "done"})
    metadata = {"task": "game_2048", "winning_tile": WIN}
    return art.Trajectory(messages_and_choices=conversation, metadata=metadata), environment.game


def players(seed):
    return [random_player(seed), corner_player, expectimax_player(1), sloppy_player(seed, 0.05), sloppy_player(seed, 0.3), lambda board: "Left!"]


def scores(trajectories, judge=None):
    return [s.score for s in asyncio.run((judge or RubricJudge()).judge(trajectories, "")).scores]


@pytest.mark.parametrize("play", [rollout, tool_rollout])
def test_scores_order_games_as_their_true_outcomes(play):
    right = pairs = 0
    for seed in range(25):
        trajectories, games = zip(*(play(player, seed) for player in players(seed)), strict=True)
        truth, found = [outcome_reward(game) for game in games], scores(trajectories)
        for (t1, s1), (t2, s2) in itertools.combinations(zip(truth, found, strict=True), 2):
            pairs += t1 != t2
            right += (t1 - t2) * (s1 - s2) > 0
    assert pairs > 150 and right / pairs >= 0.95


def test_measured_facts_agree_with_the_game():
    for seed, (n, limit) in itertools.product(range(8), enumerate([None, 5, 0, None, 3, None])):
        trajectory, game = rollout(players(seed)[n], seed, limit or None)
        found = criteria_2048.replay(trajectory)
        assert found.fault == (game.ended_by if game.ended_by in ("illegal", "malformed") else None)
        assert len(found.answers) == len(game.turn_rewards)
        assert sum(map(sum, game.board)) - found.total in (0, 2, 4)
        assert criteria_2048.accuracy(trajectory)[0] == (1 if game.won else 0 if found.fault else pytest.approx(found.progress))


def test_the_last_board_counts_answered_or_not():
    trajectory, _ = rollout(corner_player, 1, 4)
    *_, board, answer = trajectory.messages()
    assert criteria_2048.replay(trajectory).board == slide(parse(board["content"]), answer["content"])[0]
    trajectory.messages_and_choices.append({"role": "user", "content": f"Your turn.\n{Game(0).render()}"})
    assert criteria_2048.replay(trajectory).board == Game(0).board


def test_scores_do_not_depend_on_reward_rubric_and_order():
    trajectories = [rollout(player, 7)[0] for player in players(7)]
    first = scores(trajectories)
    for t in trajectories:
        t.reward, t.metrics = 99.0, {"won": 1, "outcome": 2.0}
    assert scores(trajectories) == first
    judge = RubricJudge()
    assert asyncio.run(judge.judge(trajectories, "other words", order=3, sample=2)) == asyncio.run(judge.judge(trajectories, ""))
    assert scores(trajectories[::-1]) == first[::-1]


def test_weights_and_reasons():
    trajectory, _ = rollout(corner_player, 3)
    (score,) = asyncio.run(RubricJudge().judge([trajectory], "")).scores
    shares = {c.name: c.measure(trajectory) for c in criteria_of("game_2048")}
    assert {name: c.weight for c in criteria_of("game_2048") for name in [c.name]} == WEIGHTS
    assert WEIGHTS == {"accuracy": 0.4, "efficiency": 0.3, "completeness": 0.2, "user satisfaction": 0.1}
    assert score.score == pytest.approx(sum(WEIGHTS[name] * share for name, (share, _) in shares.items()))
    assert all(f"{name} {share:.2f}, {reason}" in score.explanation for name, (share, reason) in shares.items())
    only = RubricJudge(weights={"efficiency": 0, "completeness": 0, "user satisfaction": 0})
    assert scores([trajectory], only) == [shares["accuracy"][0]]


def test_the_same_call_with_both_kinds_of_judges():
    trajectories = [rollout(player, 5)[0] for player in players(5)]
    given = art.TrajectoryGroup(trajectories)
    scored = asyncio.run(ruler_score_group(given, judge_model=RubricJudge()))
    assert [t.reward for t in scored] == scores(trajectories) == [t.metrics["ruler_score"] for t in scored]
    assert scored.trajectories[0].metrics["independent_reward"] == trajectories[0].reward
    assert "accuracy" in scored.trajectories[0].logs[0] and scored.metrics["judge_calls"] == 0
    by_messages = asyncio.run(ruler([t.messages() for t in trajectories], RubricJudge("tools")))
    assert [s.trajectory_id for s in by_messages] == ["1", "2", "3", "4", "5", "6"]


def test_an_unknown_task_raises_and_can_be_registered():
    with pytest.raises(ValueError, match="the task is unknown"):
        scores([art.Trajectory()])
    with pytest.raises(ValueError, match="no criteria for the task 'chess'.*game_2048, tools"):
        scores([art.Trajectory(metadata={"task": "chess"})])
    register("short", [Criterion("brevity", 1, lambda t: (1 / (1 + len(t.messages())), "words are few"))])
    assert scores([art.Trajectory(metadata={"task": "short"})]) == [1.0]
    with pytest.raises(ValueError, match="the last user or tool message of .* ends with no 2048 board"):
        scores([art.Trajectory(metadata={"task": "game_2048"})])


@pytest.mark.parametrize("share", [1.5, -0.1, float("nan")])
def test_a_criterion_gives_a_share(share):
    judge = RubricJudge(criteria=[Criterion("odd", 1, lambda t: (share, "because"))])
    with pytest.raises(ValueError, match="criterion 'odd' returned"):
        scores([art.Trajectory()], judge)


@pytest.mark.parametrize("weights", [{"acuracy": 1}, dict.fromkeys(WEIGHTS, 0), {"accuracy": -1}])
def test_invalid_weights_raise(weights):
    with pytest.raises(ValueError, match="at least one with a weight above 0|has weight -1"):
        scores([rollout(corner_player, 0, 2)[0]], RubricJudge(weights=weights))


def call(name, arguments, result, number="1"):
    function = {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": None, "tool_calls": [function]}, {"role": "tool", "tool_call_id": number, "content": result}]


BOTH = [{**call("fetch", "{}", "", n)[0]["tool_calls"][0], "function": {"name": "fetch", "arguments": a}} for n, a in (("1", "{}"), ("2", "{"))]


FETCH = [{"type": "function", "function": {"name": "fetch", "parameters": {}}}]
ANSWER = {"role": "assistant", "content": "It is on the table."}
CUSTOM = {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "fetch", "input": "the plate"}}]}


@pytest.mark.parametrize(
    ("conversation", "expected"),
    [
        ([*call("fetch", '{"a": 1}', "ok"), *call("fetch", '{"a": 2}', "ok"), ANSWER], (1, 1, 1, 1)),
        ([*call("fetch", "{}", "ok"), *call("fetch", "{}", "ok"), ANSWER], (1, 0.5, 1, 1)),
        ([*call("fetch", "{", "ok"), *call("fetch", "{}", "ok"), ANSWER], (0.5, 1, 1, 1)),
        ([*call("fetch", "[" * 100_000, "ok"), ANSWER], (0, 1, 1, 1)),  # nested too deeply for the parser
        ([*call("steal", "{}", "Error: no such tool"), ANSWER], (0, 1, 1, 1)),
        ([*call("fetch", "{}", "Refused: closed"), *call("fetch", '{"a": 1}', "Malformed: fetch needs b"), ANSWER], (0, 1, 1, 1)),
        ([CUSTOM, ANSWER], (0, 1, 1, 1)),  # its text is not JSON
        ([*call("steal", "{}", "no such tool"), *call("fetch", "{}", "Error: closed", "2"), ANSWER], (0, 1, 1, 1)),
        ([*call("steal", "{}", "Error: no such tool"), *call("fetch", "{}", "ok"), ANSWER], (0.5, 1, 1, 1)),  # an id used twice
        ([{"role": "assistant", "tool_calls": BOTH}, {"role": "tool", "tool_call_id": "1", "content": "Error"}, ANSWER], (0, 1, 1, 1)),
        ([*call("fetch", "{}", '{"items": [1], "error": null}'), ANSWER], (1, 1, 1, 1)),
        ([*call("fetch", "{}", '{"error": "closed"}'), ANSWER], (0, 1, 1, 1)),
        (call("fetch", "{}", "ok"), (1, 1, 0.5, 0)),
        ([{"role": "assistant", "content": "x" * 3_000}], (1, 1, 1, 0.5)),
        ([{"role": "assistant", "content": "<tool_call>{</tool_call>"}], (1, 1, 1, 0.3)),
        ([], (1, 1, 0, 0)),
    ],
)
def test_criteria_of_an_agent_with_tools(conversation, expected):
    trajectory = art.Trajectory(messages_and_choices=conversation, tools=FETCH, metadata={"task": "tools"})
    assert tuple(c.measure(trajectory)[0] for c in tools.CRITERIA) == expected
    assert 0 <= scores([trajectory])[0] <= 1


def test_installed_criteria_are_read_once_and_again_for_an_unknown_task(monkeypatch):
    installed, reads = [EntryPoint("first", "art_nb.rewards.criteria_tools", rubric.ENTRY_POINTS)], []
    monkeypatch.setattr(rubric, "_CRITERIA", dict(rubric._CRITERIA))
    monkeypatch.setattr(rubric, "entry_points", lambda group: reads.append(group) or installed)
    for _ in range(3):
        assert criteria_of("first") == criteria_of("tools")
    assert len(reads) == 1
    installed.append(EntryPoint("second", "art_nb.rewards.criteria_tools", rubric.ENTRY_POINTS))
    assert criteria_of("second") == criteria_of("tools")
