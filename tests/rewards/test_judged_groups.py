"""The stored groups: replayed, every game and search ends with its recorded reward."""

import asyncio
import gzip
import json

import pytest

import art_nb as art
from art_nb.rewards import RubricJudge
from benchmarks import judge, rise_judge
from benchmarks.result import print_result
from course.judged_groups import DATA, judged_groups, save_groups
from data.judged_groups import maker
from email_search import TOOLS, EmailSearch, course_mailbox, first_message, scenarios
from game_2048 import Game, outcome_reward


def replayed_game(trajectory):
    boards, answers = trajectory.messages()[::2], trajectory.messages()[1::2]
    game = Game(trajectory.metadata["seed"], winning_tile=trajectory.metadata["winning_tile"])
    for board, answer in zip(boards, answers, strict=True):
        assert board["content"] == game.render()
        game.move(answer["content"])
    return outcome_reward(game)


def replayed_search(trajectory):
    question, *replies = trajectory.messages()
    (scenario,) = [s for s in scenarios("test") if s.id == trajectory.metadata["scenario"]]
    assert question["content"] == first_message(scenario)
    search, results = EmailSearch(course_mailbox(), scenario), [m["content"] for m in replies if m["role"] == "tool"]
    for message in replies:
        if message["role"] == "assistant" and not message.get("tool_calls"):
            search.call(None, None)
        for call in message.get("tool_calls") or []:
            assert search.call(call["function"]["name"], call["function"]["arguments"]) == results.pop(0)
    return search.reward()


def test_number_and_size_of_the_groups():
    groups = judged_groups()
    assert DATA.stat().st_size < 2e6 and len(groups) >= 200
    assert len(judged_groups("email_search")) >= 100 and len(judged_groups("game_2048")) >= 100
    for group in groups:
        assert len(group) == 8 and {t.metadata["task"] for t in group} == {group.metadata["task"]}
        assert not {"truth", "truth_sources", "skill"} & set().union(*(t.metadata for t in group))
    varied = [group for group in groups if len({t.reward for t in group}) > 1]
    assert len(varied) > 0.9 * len(groups)
    with pytest.raises(ValueError, match="has 0 groups of the task 'chess'; expected at least 3"):
        judged_groups("chess", 3)
    with pytest.raises(ValueError, match="has 0 groups of the task 'email'; expected at least 1"):
        judged_groups("email")


@pytest.mark.parametrize(("task", "replayed"), [("game_2048", replayed_game), ("email_search", replayed_search)])
def test_rewards_are_true(task, replayed):
    for group in judged_groups(task, 25):
        assert [replayed(t) for t in group] == [pytest.approx(t.reward) for t in group]


def test_saved_groups_are_loaded_without_tokens(tmp_path):
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "left"}, "token_texts": ["left"]}
    helper = art.trajectories.History(messages_and_choices=[choice])
    t = art.Trajectory(messages_and_choices=[{"role": "user", "content": "2 ."}, choice], reward=0.5, turn_rewards=[1.0, 1.0], additional_histories=[helper],
                       metrics={"won": True}, metadata={"task": "x"}, tools=TOOLS)  # fmt: skip
    save_groups(tmp_path / "a", [art.TrajectoryGroup([t, t], metadata={"task": "x"})] * 2)
    save_groups(tmp_path / "b", judged_groups(path=tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    (back, _) = judged_groups("x", path=tmp_path / "a")
    assert back.trajectories[1].messages() == t.messages() and not back.trajectories[1].all_choices()
    assert back.trajectories[1].additional_histories[0].messages() == helper.messages()
    assert (back.trajectories[1].reward, back.trajectories[1].metrics, back.trajectories[1].tools) == (0.5, {"won": 1}, t.tools)


def test_the_maker_plays_the_committed_groups(tmp_path):
    """Every thirteenth of them, since all would take half a minute; the card's table is of all."""
    plans = list(maker.plans(100))
    save_groups(tmp_path / "a", [maker.play_group(plan) for plan in plans[::13]])
    made, committed = (gzip.decompress(path.read_bytes()).splitlines() for path in (tmp_path / "a", DATA))
    assert len(plans) == len(committed) == 200 and made == committed[::13]
    assert "\n".join(maker.rows(judged_groups())) in DATA.with_name("README.md").read_text(encoding="utf-8")


def test_the_maker_writes_the_groups_and_their_card(tmp_path):
    assert maker.build(tmp_path / "made", groups=1)["groups"] == 2
    assert [group.metadata["task"] for group in judged_groups(path=tmp_path / "made" / DATA.name)] == ["email_search", "game_2048"]
    assert "| email_search | searcher of skill" in (tmp_path / "made" / "README.md").read_text(encoding="utf-8")


def test_the_benchmark_reports_on_groups(tmp_path, capsys):
    save_groups(tmp_path / "few", judged_groups("email_search", 3) + judged_groups("game_2048", 3))
    print_result("judge", lambda: judge.measure(RubricJudge(), tmp_path / "few"))
    result = json.loads(capsys.readouterr().out)
    for task in ("email_search", "game_2048"):
        assert result[task]["groups"] == 3 and result[task]["trajectories"] == 24 and result[task]["repeat_change"] == [0, 0, 0]
        value, low, high = result[task]["pairwise"]
        assert 0.5 < low <= value <= high <= 1


def test_the_rubric_judge_agrees_with_the_true_outcomes():
    found = asyncio.run(judge.report(RubricJudge(), judged_groups("email_search", 50)))
    assert found["pairwise"][1] > 0.8 and found["attacked"] == [0, 0, 0]


def test_training_by_reward_and_by_judge_start_and_are_measured_equally(capsys, monkeypatch):
    monkeypatch.setattr(rise_judge, "GROUPS", 1)
    monkeypatch.setattr(rise_judge, "SIZE", 4)
    print_result("rise_judge", lambda: rise_judge.measure([3], steps=1, games=4))
    result = json.loads(capsys.readouterr().out)
    (run,) = result["runs"]
    assert run["seed"] == 3 and run["reward"]["outcome"][0] == run["judge"]["outcome"][0]
    assert run["reward"]["won"][0] == run["judge"]["won"][0] and result["ratio"] == pytest.approx(run["share"], rel=1e-3)
    found = {"reward": {"won": [10.0, 30.0]}, "judge": {"won": [10.0, 25.0]}}
    assert rise_judge.share(found, "won") == 0.75
