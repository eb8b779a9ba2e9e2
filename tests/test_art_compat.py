"""Every public name, parameter and default of ART 0.5.18 that the course uses is here, and means the same."""

import importlib
import inspect
import json
import os
import subprocess
import sys
import textwrap

import make_art_signatures as maker
import pytest

import art_nb as art

TABLE = json.loads(maker.TABLE.read_text())

# Where we differ on purpose. (call, parameter): why.
DIFFERENT = {
    (
        "local.LocalBackend",
        "path",
    ): 'ART says None and means ".art" in the repository; here ".art" is the default',
    ("local.LocalBackend", "gpu_cost_per_hour_usd"): "ART's cost accounting is not here",
    ("trajectories.History", "messages_and_choices"): "here it may be left out, as in a Trajectory",
}


def same_default(theirs: dict, ours: dict) -> bool:
    """ART's default of an empty list may be an empty tuple here: nobody can change it by accident."""
    if "default" in theirs and theirs["default"] in ([], {}):
        return ours.get("default") in ([], {}, "()")
    return theirs.get("default", ...) == ours.get("default", ...)


def assert_compatible(name: str, theirs: dict[str, dict], ours: dict[str, dict]) -> None:
    for parameter, wanted in theirs.items():
        if (name, parameter) in DIFFERENT:
            continue
        assert parameter in ours, f"{name} has no parameter {parameter}"
        assert same_default(wanted, ours[parameter]), f"{name}({parameter}): {wanted}, here {ours[parameter]}"
    positional = [p for p, described in theirs.items() if not described["keyword_only"]]
    assert [p for p, d in ours.items() if not d["keyword_only"]][: len(positional)] == positional, name
    added = [p for p, described in ours.items() if p not in theirs and "default" not in described]
    assert not added, f"{name} demands {added}, which ART does not know"


@pytest.mark.parametrize("name", TABLE["calls"])
def test_call_has_arts_parameters_and_defaults(name):
    assert_compatible(name, TABLE["calls"][name], maker.signature(maker.find("art_nb", name)))


@pytest.mark.parametrize("name", TABLE["fields"])
def test_class_has_arts_fields(name):
    assert set(TABLE["fields"][name]) <= set(getattr(art, name).model_fields)


def test_table_is_that_of_art(tmp_path):
    """ART 0.5.18 as published, in a process of its own: it patches transformers, and asks for a LiteLLM older than ours."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path, "openpipe-art==0.5.18"]
    subprocess.run(pip, check=True, capture_output=True)
    (tmp_path / "polars.py").touch()  # 54 MB that no signature looks into
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    code = "import json, make_art_signatures as maker; print(json.dumps(maker.table('art')))"
    read = [sys.executable, "-c", code]
    printed = subprocess.check_output(read, cwd=maker.TABLE.parent, env=environment, text=True)
    assert json.loads(printed.splitlines()[-1]) == TABLE


def test_what_arts_older_examples_call():
    """`model.train` left ART's class in 0.5.18 for `backend.train`; its examples still call it."""
    parameters = list(inspect.signature(art.TrainableModel.train).parameters)
    assert parameters[:4] == ["self", "trajectory_groups", "config", "_config"]


@pytest.mark.parametrize("name", ["openai_client", "litellm_completion_params", "backend"])
def test_plain_methods_are_plain(name):
    assert not inspect.iscoroutinefunction(getattr(art.TrainableModel, name))


@pytest.mark.parametrize("name", ["register", "log", "get_step", "train", "delete_checkpoints"])
def test_coroutines_are_coroutines(name):
    assert inspect.iscoroutinefunction(getattr(art.TrainableModel, name))


def test_internal_config_as_the_examples_set_it():
    model = art.TrainableModel(name="agent", project="2048", base_model="some/folder")
    model._internal_config = art.dev.InternalModelConfig(
        init_args=art.dev.InitArgs(max_seq_length=8192),
        engine_args=art.dev.EngineArgs(enforce_eager=True),
    )
    assert model._internal_config["init_args"] == {"max_seq_length": 8192}


def test_public_names_resolve():
    for name in art.__all__:
        if name != "LocalBackend" or importlib.util.find_spec("art_nb.backend"):
            assert getattr(art, name) is not None
    assert set(art.__all__) <= set(dir(art))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = art.no_such_thing


def test_retry_stays_a_decorator_whatever_is_imported_first():
    """A submodule of a public name would hide it."""
    code = textwrap.dedent("""
        import art_nb.utils, art_nb.gather, art_nb as art
        assert callable(art.retry) and art.retry is art.utils.retry
        assert callable(art.utils.iterate_dataset)
    """)
    subprocess.run([sys.executable, "-c", code], check=True)
