"""The environment of notebooks/09_own_environment.ipynb: short, complete, and usable with stock TRL."""

import asyncio
from pathlib import Path

import nbformat
import pytest
from test_benchmarks import BASE
from test_benchmarks_email import ScriptedModel

from benchmarks import gathering

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "09_own_environment.ipynb"


@pytest.fixture(scope="module")
def cells():
    return [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if "environment" in cell.metadata.get("tags", [])]


@pytest.fixture(scope="module")
def own(cells):
    """Return the definitions in the environment's cells."""
    scope = {}
    exec("\n".join(cell.source for cell in cells), scope)
    return scope


def test_it_is_under_80_lines_of_code(cells):
    lines = [line for cell in cells for line in cell.source.splitlines() if line.strip()]
    assert 30 < len(lines) < 80


def test_its_splits_share_no_scenario(own):
    splits = [set(own["scenarios"](split, 1000)) for split in ("train", "val", "test")]
    assert len(set.union(*splits)) == 3000


def test_a_walk_ends_at_home_at_the_limit_or_by_a_malformed_answer(own):
    for seed in range(200):
        walk = own["Walk"](seed)
        (row, column), turns = walk.place, 0
        assert walk.render().split() == ["."] * (4 * row + column) + ["2"] + ["."] * (15 - 4 * row - column)
        for direction in ["up"] * row + ["left"] * column:
            assert walk.ended_by is None
            walk.move(f" {direction}\n")
            turns += 1
        assert walk.ended_by == "home" and walk.turn_rewards == [1.0] * turns
        assert walk.reward() == pytest.approx(1 - 0.05 * turns)
    walk = own["Walk"](0)
    while not walk.ended_by:
        walk.move("right")
    assert walk.ended_by == "turns" and walk.turn_rewards == [-1.0] * own["MAX_TURNS"] and walk.reward() == 0
    for nonsense in (None, "", "sideways", "up up"):
        walk = own["Walk"](0)
        walk.move(nonsense)
        assert walk.ended_by == "malformed" and walk.reward() == -1


def test_its_rollout_records_the_walk(own):
    walk = own["Walk"](5)
    way = ["up"] * walk.place[0] + ["left"] * walk.place[1]
    trajectory = asyncio.run(own["rollout"](ScriptedModel(way), 5))
    assert trajectory.metrics["home"] and trajectory.turn_rewards == [1.0] * len(way)
    boards = [m["content"] for m in trajectory.messages() if m["role"] == "user"]
    assert boards[0] == walk.render() and len(boards) == len(trajectory.choices()) == len(way)


def test_stock_trl_plays_the_environment(own, tmp_path):
    """The nano model in TRL's own loop: each prompt contains its board, and each walk gets its reward."""
    columns = [{"seed": seed} for seed in own["scenarios"]("train", 2)]
    stock = gathering.stock_generation(str(tmp_path), BASE, columns, 2, own["WalkEnvironment"], turns=4, max_tokens=16)
    tokenizer = gathering.stock_policy(BASE, seed=0).tokenizer
    for column, prompt in zip([c for c in columns for _ in range(2)], stock["prompts"], strict=True):
        assert own["Walk"](column["seed"]).render() in tokenizer.decode(prompt)
    for environment, messages in zip(stock["environments"], stock["messages"], strict=True):
        results = [message["content"] for message in messages if message["role"] == "tool"]
        assert results and results[-1] == ("over" if environment.walk.ended_by else environment.walk.render())
        assert len(environment.walk.turn_rewards) == len(results)
        assert environment.get_reward() == environment.walk.reward()
