"""The widgets in Python: the data that they send, their static pictures, and their errors."""

import gzip
import json
import math
import subprocess
import sys

import pandas
import pytest
import synthetic  # noqa: E402
from openai.types.chat.chat_completion import Choice

import art_nb as art  # noqa: E402
from art_nb.storage.run_log import RunLog  # noqa: E402
from art_nb.training.sequences import compute_advantages, has_signal  # noqa: E402
from art_nb.widgets import GroupView, TrainingView, TrajectoryViewer  # noqa: E402
from art_nb.widgets.group_strips import all_equal, side_by_side  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def records():
    return synthetic.game_records(steps=2, groups=2, size=4, moves=12)


def rows(count=12):
    return [synthetic.history_row(step) for step in range(1, count + 1)]


def test_static_pictures_are_small_pngs(records):
    view = TrainingView.from_history([*rows(), synthetic.validation_row(12)], total_steps=20)
    for widget in (view, GroupView(records), TrajectoryViewer(records, boards=synthetic.boards)):
        picture = widget.static_png()
        assert picture.startswith(PNG) and len(picture) < 90_000
        assert "<table>" in widget.static_html() and "<script" not in widget.static_html()


def test_a_rebuilt_view_omits_sft_rows():
    """Supervised steps have other metrics, and another loss."""
    learnt = {"step": 0, "split": "sft", "time": 0.0, "loss": 2.0, "batches": 3}
    view = TrainingView.from_history([learnt, *rows()])
    assert [row["step"] for row in view.rows] == list(range(1, 13)) and "batches" not in view.static_html()


def test_hostile_text_is_escaped_in_static_html():
    viewer = TrajectoryViewer([synthetic.talk_record(i) for i in range(2)])
    assert viewer.static_png().startswith(PNG)
    assert "<img src=x" not in viewer.static_html() and "<script>" not in viewer.static_html()


def test_a_tool_conversation_is_drawn_call_by_call():
    """A turn that is a call has no content."""

    def drawn(name, found, log):
        calls = [{"name": name, "arguments": "{}"}]
        turns = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "", "tool_calls": calls}]
        record = {"step": 0, "group": 0, "index": 0, "reward": 1.0, "turns": [*turns, {"role": "tool", "content": found}], "logs": [log]}
        return TrajectoryViewer([record]).static_png()

    assert len({drawn("look", "here", "x"), drawn("seek", "here", "x"), drawn("look", "there", "x"), drawn("look", "here", "y")}) == 4


def test_training_view_collects_the_rows_of_a_long_run():
    view = TrainingView(total_steps=200)
    for row in rows(150):
        view.update(row)
    assert [row["step"] for row in view.history] == list(range(1, 151))
    assert len(view.tail) <= 64, "a step must not send the whole history"
    view.status("gathering 3/64 games")
    assert view.message == "gathering 3/64 games"


def test_static_pictures_of_all_kinds_of_groups():
    row = {"step": 1, "reward": 0.5, "reward_std": 0.1, "time": 0.0}
    drawn = [
        TrainingView.from_history([{**row, "group_rewards": groups}] if groups else [row]).static_png()
        for groups in (None, [[]], [[1.0]], [[0.0, 0.0]], [[0.0, 1.0], [], [0.3] * 3], [[r / 64 for r in range(64)]] * 64)
    ]
    assert all(picture.startswith(PNG) for picture in drawn)
    assert len(set(drawn)) == len(drawn)


def test_overlapping_dots_are_placed_side_by_side():
    assert sorted(side_by_side([2.0, -1.0, 2.0, 2.0], size=0.1)) == [(-1.0, 2.0), (0.0, -1.0), (0.0, 2.0), (1.0, 2.0)]


@pytest.mark.parametrize("rewards", [[0.3], [0.1 + 0.2, 0.3], [1e9, 1e9 + 0.1], [0.0, 1e-8], [-1.0, 2.0]])
def test_a_group_is_drawn_without_signal_where_training_skips_it(rewards):
    groups = [art.TrajectoryGroup([art.Trajectory(reward=reward) for reward in rewards])]
    trained = compute_advantages(groups_with_a_choice(groups), art.TrainConfig(scale_rewards="none"))
    assert all_equal(rewards) == (not has_signal(groups[0], trained[0]))


def groups_with_a_choice(groups):
    for trajectory in groups[0]:
        message = {"role": "assistant", "content": "left"}
        trajectory.messages_and_choices.append(Choice(index=0, finish_reason="stop", message=message))
    return groups


def test_constant_panels_are_quiet_with_an_explanation():
    kept = {"kl", "loss", "won"}
    steady = [{**row, "kl": 0.0, "loss": 0.002, "won": 0.5, "completion_tokens": 2 + row["step"] / 100} for row in rows(4)]
    quiet = TrainingView.from_history(steady).quiet
    assert set(quiet) == {"clip_fraction", "completion_tokens"} | kept
    assert "2.01 to 2.04" in quiet["completion_tokens"] and "0.002" in quiet["loss"] and quiet["won"].startswith("0.5 at every step")
    moving = [{**row, "kl": 0.1 * i, "loss": 0.1 * i, "won": 0.5 + i, "clip_fraction": 0.1 * i, "completion_tokens": 2 + i}
              for i, row in enumerate(steady)]
    assert TrainingView.from_history(moving).quiet == {}


def test_a_metric_is_quiet_after_three_equal_rows_until_it_changes():
    view, given = TrainingView(), rows(4)
    seen = []
    for row, won in zip(given, (0.5, 0.5, 0.5, 0.6), strict=True):
        view.update({**row, "won": won})
        seen.append("won" in view.quiet)
    assert seen == [False, False, True, False]


def test_training_view_needs_a_step():
    with pytest.raises(ValueError, match="step"):
        TrainingView().update({"reward": 1.0})


def test_training_view_from_a_frame_equals_from_rows():
    given = rows()
    from_rows, from_frame = (TrainingView.from_history(each).history for each in (given, pandas.DataFrame(given)))
    assert from_frame == from_rows and len(from_rows) == len(given)
    assert TrainingView.from_history([]).static_png() is None


def test_nan_is_omitted():
    view = TrainingView()
    view.update({**rows(1)[0], "kl": float("nan")})
    assert "kl" not in view.history[0]


def test_rows_as_stored_are_drawn_as_those_of_the_run(tmp_path):
    """history.jsonl has NaN as text."""
    given = [{**row, "kl": math.nan, "group_rewards": [[math.inf, 1.0]]} for row in rows(2)]
    log = RunLog(tmp_path)
    for row in given:
        log.append_row("train", row["step"], row)
    assert log.rows()[0]["kl"] == "NaN"
    stored, live = TrainingView.from_history(log.rows()), TrainingView.from_history(given)
    assert [{**row, "time": 0} for row in stored.rows] == [{**row, "time": 0} for row in live.rows]
    assert stored.static_html() == live.static_html() and stored.static_png() == live.static_png()


def test_one_panel_may_be_a_string():
    assert TrainingView(panels="entropy").panels == ["entropy"]


def test_group_view_computes_grpo_advantages(records):
    bare = [{**record, "advantage": None} for record in records]
    group = GroupView(bare).groups[0]
    mean = sum(group["rewards"]) / len(group["rewards"])
    std = (sum((r - mean) ** 2 for r in group["rewards"]) / (len(group["rewards"]) - 1)) ** 0.5
    assert group["advantages"] == pytest.approx([(r - mean) / (std + 1e-4) for r in group["rewards"]])
    equal = GroupView([{**record, "reward": 1.0} for record in bare])
    assert set(equal.groups[0]["advantages"]) == {0.0}


def test_rewards_that_are_not_finite_are_shown_as_missing(records):
    """As `model.records()` returns them."""
    odd = [{**records[0], "reward": "NaN", "advantage": "NaN"}, {**records[1], "reward": "Infinity"}, *records[2:4]]
    viewer, group = TrajectoryViewer(odd), GroupView([{**each, "advantage": None} for each in odd])
    finite = [float(each["reward"]) for each in odd[2:]]
    assert [row["reward"] for row in viewer.index] == [None, None, *finite] and viewer.index[0]["advantage"] is None
    assert group.groups[0]["mean"] == pytest.approx(sum(finite) / 2)
    training = TrainingView.from_history([{**rows(1)[0], "reward": None, "group_rewards": [[None, 1.0, 2.0], [None]]}])
    for view in (viewer, group, training):
        assert view.static_png().startswith(PNG)
    assert "–" in viewer.static_html() and "4 trajectories" in viewer.summary()
    assert "–" in TrajectoryViewer([odd[0]]).summary()


def test_a_turns_numbers_that_are_nan_are_missing_and_infinities_limited():
    numbers = {"reward": "NaN", "logprobs": ["NaN", -0.5, "-Infinity"], "advantages": [0.25, "NaN", "Infinity"]}
    turn = {"role": "assistant", "content": "abc", "tokens": ["a", "b", "c"], **numbers}
    viewer = TrajectoryViewer([{"step": 0, "group": 0, "index": 0, "reward": 1.0, "turns": [turn]}])
    sent = json.loads(gzip.decompress(viewer.bodies))[0]["turns"][0]
    assert {name: sent[name] for name in numbers} == {"reward": None, "logprobs": [None, -0.5, -1e4], "advantages": [0.25, None, 1e4]}


@pytest.mark.parametrize("view", [GroupView, TrajectoryViewer])
def test_invalid_records_raise(view):
    with pytest.raises(ValueError, match="empty"):
        view([])
    with pytest.raises(ValueError, match="lacks"):
        view([{"step": 1}])


def test_boards_are_read_once_per_board(records):
    parsed_texts = []
    TrajectoryViewer(records[:2], boards=lambda text: parsed_texts.append(text) or synthetic.boards(text))
    turns = [turn for record in records[:2] for turn in record["turns"]]
    assert len(parsed_texts) == sum(turn["role"] != "assistant" for turn in turns) > 0


def test_widgets_import_without_torch():
    code = "import sys; import art_nb.widgets; assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
