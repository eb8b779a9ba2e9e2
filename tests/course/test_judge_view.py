"""JudgeView in Python: the data it sends, its static picture, and its errors."""

import pytest

import art_nb as art
from course.explorers import JudgeView

REASON = "<img src=x onerror=alert(1)>"


def judged(score, truth, **fields):
    messages = [{"role": "user", "content": "do it"}, {"role": "assistant", "content": "done " * 2_000}]
    metrics = {"ruler_score": score, "independent_reward": truth, "won": truth > 1}
    fields = {"metrics": metrics, "logs": ["begun", f"RULER explanation: {REASON}"], **fields}
    return art.Trajectory(messages_and_choices=messages, **fields)


def group():
    return art.TrajectoryGroup([judged(0.9, 2.0), judged(0.7, 3.0), judged(0.2, -1.0), judged(0.2, 0.0)])


def test_the_data_it_sends():
    (sent,) = JudgeView([group(), art.TrajectoryGroup([])]).groups
    assert [(member["score"], member["truth"], member["reason"]) for member in sent[:2]] == [(0.9, 2, REASON), (0.7, 3, REASON)]
    assert all(4_000 < len(member["text"]) < 4_100 for member in sent), "the end of a long conversation"
    assert [member["truth"] for member in JudgeView([group()], truth="won").groups[0]] == [True, True, False, False]
    assert [member["truth"] for member in JudgeView([group()], truth=lambda t: -t.metrics["ruler_score"]).groups[0]][0] == -0.9


def test_the_summary_counts_pairs_ordered_alike():
    assert JudgeView([group()]).summary() == "1 group; the judge orders 4.5 of 6 pairs as the truth does"
    assert JudgeView([group()] * 2).summary() == "2 groups; the judge orders 9 of 12 pairs as the truth does"


def test_the_static_picture_is_small_and_text_is_escaped():
    view = JudgeView([group()])
    assert view.static_png().startswith(b"\x89PNG") and len(view.static_png()) < 90_000
    assert "<img" not in view.static_html() and "&lt;img" in view.static_html()


def test_errors():
    with pytest.raises(ValueError, match="no group"):
        JudgeView([])
    with pytest.raises(ValueError, match="ruler_score.*Judge it first"):
        JudgeView([art.TrajectoryGroup([judged(0, 0, metrics={})])])
