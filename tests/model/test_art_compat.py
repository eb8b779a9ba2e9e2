"""Every public name, parameter and default of ART 0.5.18 that the course uses is here, and means the same."""

import ast
import asyncio
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import make_art_signatures as maker
import metrics_scenario
import pytest
import sft_scenario

import art_nb as art
from art_nb.api_costs import load_litellm

TABLE = json.loads(maker.TABLE.read_text())

# Where we differ on purpose. (call, parameter): why.
DIFFERENT = {
    (
        "local.LocalBackend",
        "path",
    ): 'ART says None and means ".art" in the repository; here ".art" is the default',
    ("trajectories.History", "messages_and_choices"): "here it may be left out, as in a Trajectory",
}


def same_default(theirs: dict, ours: dict) -> bool:
    """ART's default of an empty list may be an empty tuple here, which cannot be changed by accident."""
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
    assert not added, f"{name} requires {added}, which ART does not have"


@pytest.mark.parametrize("name", TABLE["calls"])
def test_calls_have_arts_parameters_and_defaults(name):
    assert_compatible(name, TABLE["calls"][name], maker.signature(maker.find("art_nb", name)))


@pytest.mark.parametrize("name", TABLE["fields"])
def test_classes_have_arts_fields(name):
    assert set(TABLE["fields"][name]) <= set(getattr(art, name).model_fields)


LEFT_OUT = {
    name: reason.strip()
    for names, reason in re.findall(r"^\| (`.*`) \| (.+) \|$", (maker.TABLE.parents[2] / "ART.md").read_text(), re.MULTILINE)
    for name in re.findall(r"`([^`]+)`", names)
}


def is_here(name):
    try:
        maker.find("art_nb", name)
    except (AttributeError, ImportError):
        return False
    return True


def test_every_name_of_art_exists_or_is_listed_with_a_reason():
    modules_left_out = tuple(f"{name}." for name in LEFT_OUT)
    left_out = [name for name in TABLE["names"] if name in LEFT_OUT or name.startswith(modules_left_out)]
    missing = [name for name in TABLE["names"] if name not in left_out and not is_here(name)]
    assert not missing, "these are neither here nor in ART.md"
    assert not [name for name in left_out if is_here(name)], "these are listed in ART.md and exist here"
    assert set(LEFT_OUT) <= set(TABLE["names"]), "these are no names of ART"


IN_ART = """
import contextlib, io, json, runpy, sys
import make_art_signatures as maker
out = {"table": maker.table("art")}
for name in ("metrics_scenario", "sft_scenario"):
    sys.argv = [name, "art"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(name + ".py", run_name="__main__")
    out[name] = json.loads(printed.getvalue().splitlines()[-1])
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def in_art(tmp_path_factory):
    """Return the table of ART 0.5.18 as published, and the results of both scenarios with it.

    In a separate process, because it patches transformers and requires an older LiteLLM.
    """
    folder = tmp_path_factory.mktemp("art")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, "openpipe-art==0.5.18"]
    subprocess.run(pip, check=True, capture_output=True)
    for large in ("polars", "seaborn", "duckdb"):  # more than 100 MB that no signature uses
        (folder / f"{large}.py").write_text("DataFrame = object\n")
    environment = {**os.environ, "PYTHONPATH": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    printed = subprocess.check_output([sys.executable, "-c", IN_ART], cwd=maker.TABLE.parent, env=environment, text=True)
    return json.loads(printed.splitlines()[-1])


def test_the_table_equals_that_of_art(in_art):
    assert in_art["table"] == TABLE


def test_metrics_and_costs_equal_arts(in_art):
    """Twenty random series of calls give the same rows, sums, costs and errors."""
    for seed, expected in enumerate(in_art["metrics_scenario"]):
        assert asyncio.run(metrics_scenario.scenario("art_nb", seed)) == approximately(expected), seed


def test_demonstrations_are_chunked_and_ordered_like_arts(in_art):
    """Forty random lists and files give the same chunks, learning rates and orders."""
    for seed, expected in enumerate(in_art["sft_scenario"]):
        assert sft_scenario.scenario("art_nb", seed) == approximately(expected), seed


@pytest.mark.parametrize(
    "module", ["utils.iterate_dataset", "utils.retry", "utils.limit_concurrency", "utils.sft", "utils.litellm", "local.backend"]
)
def test_modules_that_arts_documentation_imports_from(module):
    """In a new process: a module and a function with its name do not hide each other."""
    name = {"local.backend": "LocalBackend", "utils.sft": "train_sft_from_file"}.get(module, module.split(".")[1])
    name = name if name != "litellm" else "convert_litellm_choice_to_openai"
    code = f"from art_nb.{module} import {name} as found; import art_nb as art; assert callable(found); assert callable(art.utils.retry)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_choice_of_litellm_is_converted():
    load_litellm()  # which downloads nothing
    from litellm.types.utils import Choices

    from art_nb.utils.litellm import convert_litellm_choice_to_openai

    call = {"id": "c", "type": "function", "function": {"name": "move", "arguments": "{}"}}
    token = {"token": "up", "bytes": [117, 112], "logprob": -0.5, "top_logprobs": []}
    message = {"role": "assistant", "content": "up", "tool_calls": [call]}
    given = Choices(finish_reason="tool_calls", index=1, message=message, logprobs={"content": [token]})
    choice = convert_litellm_choice_to_openai(given)
    assert (choice.index, choice.finish_reason, choice.message.content) == (1, "tool_calls", "up")
    assert choice.message.tool_calls[0].function.name == "move" and choice.logprobs.content[0].logprob == -0.5
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "?"}, choice])
    assert trajectory.choices() == [choice]
    given.message.role = "user"
    with pytest.raises(ValueError, match="a complete assistant message"):
        convert_litellm_choice_to_openai(given)


def approximately(value):
    if isinstance(value, list):
        return [approximately(each) for each in value]
    if isinstance(value, dict):
        return {name: approximately(each) for name, each in value.items()}
    return pytest.approx(value) if isinstance(value, float) else value


def test_calls_of_arts_older_examples():
    """ART 0.5.18 replaced `model.train` by `backend.train`; its examples still call it."""
    parameters = list(inspect.signature(art.TrainableModel.train).parameters)
    assert parameters[:4] == ["self", "trajectory_groups", "config", "_config"]


@pytest.mark.parametrize("name", ["openai_client", "litellm_completion_params", "backend"])
def test_arts_plain_methods_are_plain_here(name):
    assert not inspect.iscoroutinefunction(getattr(art.TrainableModel, name))


@pytest.mark.parametrize("name", ["register", "log", "get_step", "train", "delete_checkpoints"])
def test_arts_coroutines_are_coroutines_here(name):
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


def test_type_checkers_and_python_find_the_same_names():
    """Type checkers read the imports and `__all__`, Python reads `_HOME`: all three must give the same module for each name."""
    tree = ast.parse(Path(art.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == art._HOME and sorted(told) == sorted(art.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = art.no_such_thing


def test_retry_is_a_decorator_for_any_order_of_imports():
    """A submodule with the same name would hide the function."""
    code = textwrap.dedent("""
        import art_nb.utils, art_nb.gather, art_nb as art
        assert callable(art.retry) and art.retry is art.utils.retry
        assert callable(art.utils.iterate_dataset)
    """)
    subprocess.run([sys.executable, "-c", code], check=True)
