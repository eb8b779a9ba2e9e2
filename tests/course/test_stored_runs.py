"""Stored runs of several seeds: read with their settings, drawn and tabulated by seed."""

import json

import matplotlib.pyplot as plt
import pytest

from course import stored_runs
from course.stored_runs import RESULTS, plot_runs, read_runs, tabulate

RUN = {
    "untrained_best": 7.46, "trained_best": 89.04, "rule": 55.5, "pass_at_8_untrained": 20.0,
    "rise_value": 81.5, "rise_low": 76.1, "rise_high": 86.9, "over_rule_value": -3.5, "over_rule_low": -10.0, "over_rule_high": 3.04,
}  # fmt: skip


@pytest.fixture
def runs(tmp_path, monkeypatch):
    lines = [{"benchmark": "b", "task": "sums", "settings": {"steps": 24}, "machine": {"cores": 2}, "runs": [{"seed": seed, **RUN}]} for seed in (0, 2)]
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(stored_runs, "RESULTS", tmp_path)
    return read_runs("runs.jsonl")


def test_runs_are_read_by_seed_with_their_settings(runs):
    assert list(runs.index) == [0, 2] and set(runs.steps) == {24} and set(runs.task) == {"sums"} and "machine" not in runs


def test_the_table_has_percent_and_differences_with_intervals(runs):
    assert tabulate(runs, "rule of thumb").loc[0].to_dict() == {
        "untrained": 7.5, "its pass@8": 20.0, "rule of thumb": 55.5, "trained": 89.0,
        "rise": "+81.5 (76.1 to 86.9)", "above the rule of thumb": "-3.5 (-10.0 to 3.0)",
    }  # fmt: skip


def test_the_picture_names_every_seed_and_policy(runs, monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: None)
    plot_runs(runs, "rule of thumb", "won, %")
    (axes,) = plt.gcf().axes
    named = [text.get_text() for text in plt.gcf().legends[0].get_texts()]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["seed 0", "seed 2"]
    assert sorted(named) == ["rule of thumb", "trained", "untrained", "untrained, pass@8"] and axes.get_xlabel() == "won, %"
    drawn = {line.get_label(): line.get_xdata().tolist() for line in axes.lines}
    assert drawn["trained"] == [89.04] * 2 and drawn["rule of thumb"] == [55.5] * 2
    plt.close("all")


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("rise_*")))
def test_every_stored_result_can_be_read(name):
    runs = read_runs(name)
    assert {"untrained_best", "trained_best", "rule", "rise_low", "over_rule_low", "pass_at_8_untrained"} <= set(runs.columns)
