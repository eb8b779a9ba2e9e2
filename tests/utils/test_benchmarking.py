"""art.utils: the comparison of logged models, with numbers computed independently here, and the small functions."""

import asyncio
import io
import math
import statistics

import pytest

import art_nb as art
from art_nb.utils import format_message, get_model_step, limit_concurrency
from art_nb.utils.benchmarking.charts import percentage_comparison_bar_chart, training_progress_chart
from art_nb.utils.benchmarking.comparison import comparison_table
from art_nb.utils.benchmarking.load_trajectories import load_trajectories
from art_nb.utils.benchmarking.types import BenchmarkModelKey

SCORES = {
    ("trained", "val", 0): [0.0, 0.5, 0.25], ("trained", "val", 5): [1.0, 0.5, 0.75, 0.75], ("trained", "train", 1): [0.1, 0.2],
    ("prompted", "val", 0): [0.5, 0.25], ("prompted", "test", 0): [0.75],
}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("art")

    async def log():
        for (name, split, step), scores in SCORES.items():
            model = art.Model(name=name, project="p", base_path=str(folder))
            message = {"role": "user", "content": "hi"}
            made = [
                art.Trajectory(messages_and_choices=[message], reward=s, metrics={"won": s > 0.5, "odd": math.nan}, metadata={"seed": i})
                for i, s in enumerate(scores)
            ]
            await model.log([art.TrajectoryGroup(made[:2]), art.TrajectoryGroup(made[2:])], split=split, step=step)

    asyncio.run(log())
    return str(folder)


@pytest.fixture
def table(path):
    return asyncio.run(load_trajectories("p", art_path=path))


def test_all_logged_trajectories_are_loaded_as_one_table(table, path, capsys):
    assert len(table) == sum(map(len, SCORES.values()))
    for (name, split, step), scores in SCORES.items():
        rows = table[(table.model == name) & (table.split == split) & (table.step == step)]
        assert list(rows.reward) == list(rows.metric_reward) == scores and list(rows.metric_won) == [s > 0.5 for s in scores]
        assert list(rows.metadata_seed) == list(range(len(scores)))
    groups = [tuple(key) for key in table[["model", "split", "step", "group_number"]].drop_duplicates().to_numpy()]
    assert sorted(group for *_, group in groups) == list(range(1, len(groups) + 1))
    only = asyncio.run(load_trajectories("p", models=["prompted"], debug=True, art_path=path))
    assert set(only.model) == {"prompted"} and "3 trajectories of 1 models" in capsys.readouterr().out
    assert asyncio.run(load_trajectories("nothing", art_path=path)).empty


def test_the_comparison_has_means_and_intervals(table):
    keys = [BenchmarkModelKey("prompted", "gpt", "test"), "trained", BenchmarkModelKey("prompted")]
    compared = comparison_table(table, "reward", keys)
    expected = [("gpt", "prompted", "test", 0), *(("trained", "trained", "val", step) for step in (0, 5)), ("prompted", "prompted", "val", 0)]
    for row, (shown, name, split, step) in zip(compared.to_dict("records"), expected, strict=True):
        scores = SCORES[name, split, step]
        assert (row["model"], row["step"], row["trajectories"]) == (shown, step, len(scores))
        assert row["mean"] == pytest.approx(statistics.fmean(scores))
        if len(scores) > 1:
            half = 1.96 * statistics.stdev(scores) / math.sqrt(len(scores))
            assert (row["low"], row["high"]) == pytest.approx((row["mean"] - half, row["mean"] + half))
        else:
            assert math.isnan(row["low"])
    assert list(comparison_table(table, "won").model.unique()) == ["trained", "prompted"]


@pytest.mark.parametrize("ask", [
    (["nobody"], "reward", "nobody"), (None, "speed", "metric_won"), (None, "odd", "no trajectories with .odd. were logged"),
    ([BenchmarkModelKey("trained", split="test")], "reward", "'trained' \\(test\\)"),
    ([BenchmarkModelKey("trained", split=split) for split in ("train", "val")], "reward", "its own display_name"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("make", [comparison_table, training_progress_chart, percentage_comparison_bar_chart])
def test_unknown_models_and_metrics_are_named(table, make, ask):
    models, metric, message = ask
    with pytest.raises(ValueError, match=message):
        make(table, metric, models)


def test_charts_show_the_table(table):
    figure = training_progress_chart(table, "reward", ["trained", "prompted"], title="Reward", y_label="mean", perfect_score=1.0)
    (axes,) = figure.axes
    perfect, trained, prompted = axes.lines
    assert list(trained.get_xdata()) == [0, 5] and list(trained.get_ydata()) == pytest.approx([0.25, 0.75])
    assert set(prompted.get_ydata()) == {0.375} and set(perfect.get_ydata()) == {1.0}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["trained", "prompted"]
    bars = percentage_comparison_bar_chart(table, "reward", ["trained", "prompted"], num_decimals=1)
    (axes,) = bars.axes
    assert [patch.get_height() for patch in axes.patches] == pytest.approx([0.25, 0.5, 0.375])
    assert [text.get_text() for text in axes.texts] == ["75.0%", "37.5%"]
    for drawn in (figure, bars):
        drawn.savefig(io.BytesIO(), format="png")


def test_limit_concurrency_per_key():
    running, most = {"a": 0, "b": 0}, {"a": 0, "b": 0}

    @limit_concurrency(2, derive_key=lambda name, _: name)
    async def work(name, i):
        running[name] += 1
        most[name] = max(most[name], running[name])
        await asyncio.sleep(0.001)
        running[name] -= 1
        return i

    async def main():
        return await asyncio.gather(*(work(name, i) for i in range(6) for name in "ab"))

    for _ in range(2):  # each in an event loop of its own
        assert asyncio.run(main()) == [i for i in range(6) for _ in "ab"] and most == {"a": 2, "b": 2}
    with pytest.raises(ValueError, match="n is 0"):
        limit_concurrency(0)


def test_format_message_and_get_model_step(tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 3}'}}
    assert format_message({"role": "assistant", "content": "so", "tool_calls": [call]}) == 'Assistant:\nso\nlook({"at": 3})'
    assert format_message({"role": "user", "content": None}) == "User:"
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts = [{"type": "text", "text": "what is"}, picture, {"type": "text", "text": "this?"}]
    assert format_message({"role": "user", "content": parts}) == "User:\nwhat is\n[image_url]\nthis?"
    custom = {"id": "1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    assert format_message({"role": "assistant", "tool_calls": [custom]}) == "Assistant:\nsql(select 1)"
    model = art.Model(name="m", project="p")
    assert get_model_step(model, str(tmp_path)) == 0
    for step in (0, 12):
        (tmp_path / f"p/models/m/checkpoints/{step:04d}").mkdir(parents=True)
    assert get_model_step(model, str(tmp_path)) == 12
