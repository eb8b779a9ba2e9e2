"""The widgets' Python side: what they send, their still pictures, and what they refuse."""

import subprocess
import sys
from pathlib import Path

import pandas
import pytest

sys.path.insert(0, str(Path(__file__).parent / "browser"))
import synthetic  # noqa: E402

from art_nb.widgets import GroupView, TrainingView, TrajectoryViewer  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def records():
    return synthetic.game_records(steps=2, groups=2, size=4, moves=12)


def rows(count=12):
    return [synthetic.history_row(step) for step in range(1, count + 1)]


def test_still_pictures_are_small_pngs(records):
    view = TrainingView.from_history([*rows(), synthetic.validation_row(12)], total_steps=20)
    for widget in (view, GroupView(records), TrajectoryViewer(records, boards=synthetic.boards)):
        picture = widget.static_png()
        assert picture.startswith(PNG) and len(picture) < 90_000
        assert "<table>" in widget.static_html() and "<script" not in widget.static_html()


def test_hostile_text_is_escaped_in_the_still():
    viewer = TrajectoryViewer([synthetic.talk_record(i) for i in range(2)])
    assert viewer.static_png().startswith(PNG)
    assert "<img src=x" not in viewer.static_html() and "<script>" not in viewer.static_html()


def test_training_view_collects_rows_and_survives_a_long_run():
    view = TrainingView(total_steps=200)
    for row in rows(150):
        view.update(row)
    assert [row["step"] for row in view.history] == list(range(1, 151))
    assert len(view.tail) <= 64, "a step must not send the whole history"
    view.status("gathering 3/64 games")
    assert view.message == "gathering 3/64 games"


def test_training_view_needs_a_step():
    with pytest.raises(ValueError, match="step"):
        TrainingView().update({"reward": 1.0})


def test_training_view_from_a_frame_equals_from_rows():
    given = rows()
    assert TrainingView.from_history(pandas.DataFrame(given)).history[3]["reward"] == pytest.approx(given[3]["reward"])
    assert TrainingView.from_history([]).static_png() is None


def test_numbers_that_json_lacks_are_left_out():
    view = TrainingView()
    view.update({**rows(1)[0], "kl": float("nan")})
    assert "kl" not in view.history[0]


def test_group_view_computes_grpo_advantages_and_names_silence(records):
    bare = [{**record, "advantage": None} for record in records]
    group = GroupView(bare).groups[0]
    mean = sum(group["rewards"]) / len(group["rewards"])
    std = (sum((r - mean) ** 2 for r in group["rewards"]) / (len(group["rewards"]) - 1)) ** 0.5
    assert group["advantages"] == pytest.approx([(r - mean) / (std + 1e-4) for r in group["rewards"]])
    equal = GroupView([{**record, "reward": 1.0} for record in bare])
    assert set(equal.groups[0]["advantages"]) == {0.0}


@pytest.mark.parametrize("view", [GroupView, TrajectoryViewer])
def test_bad_records_are_refused_with_what_was_expected(view):
    with pytest.raises(ValueError, match="empty"):
        view([])
    with pytest.raises(ValueError, match="lacks"):
        view([{"step": 1}])


def test_boards_are_read_once_per_board(records):
    asked = []
    TrajectoryViewer(records[:2], boards=lambda text: asked.append(text) or synthetic.boards(text))
    turns = [turn for record in records[:2] for turn in record["turns"]]
    assert 0 < len(asked) <= len(turns)


def test_widgets_import_without_torch():
    code = "import sys; import art_nb.widgets; assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
