"""Write art_0_5_18_signatures.json: names, and parameters and defaults of the public calls, of an installed `art`.

python tests/support/make_art_signatures.py      # in an environment with `pip install openpipe-art==0.5.18`
"""

import ast
import importlib
import importlib.util
import inspect
import json
import re
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent / "art_0_5_18_signatures.json"

CALLS = [
    "Model",
    "Model.backend",
    "Model.register",
    "Model.openai_client",
    "Model.litellm_completion_params",
    "Model.get_inference_name",
    "Model.log",
    "Model.get_step",
    "Model.read_state",
    "Model.overwrite_state",
    "Model.merge_state",
    "TrainableModel",
    "TrainableModel.register",
    "TrainableModel.delete_checkpoints",
    "TrainableModel.train_sft",
    "local.LocalBackend",
    "Trajectory",
    "Trajectory.messages",
    "Trajectory.log",
    "Trajectory.finish",
    "Trajectory.track_duration",
    "Trajectory.for_logging",
    "trajectories.History",
    "TrajectoryGroup",
    "TrajectoryGroup.log",
    "auto_trajectory",
    "capture_auto_trajectory",
    "yield_trajectory",
    "capture_yielded_trajectory",
    "gather_trajectories",
    "gather_trajectory_groups",
    "trajectory_group_batches",
    "TrainConfig",
    "TrainSFTConfig",
    "types.TrainResult",
    "types.LocalTrainResult",
    "retry",
    "langgraph.init_chat_model",
    "langgraph.wrap_rollout",
    "utils.retry",
    "utils.iterate_dataset",
    "utils.limit_concurrency",
    "utils.format_message",
    "utils.get_model_step",
    "utils.sft.create_lr_schedule",
    "utils.sft.create_sft_dataset_iterator",
    "utils.sft.get_file_row_count",
    "utils.sft.iterate_file",
    "utils.sft.resolve_sft_batch_size",
    "utils.sft.train_sft_from_file",
    "utils.litellm.convert_litellm_choice_to_openai",
    "utils.benchmarking.types.BenchmarkModelKey",
    "utils.benchmarking.load_trajectories.load_trajectories",
    "utils.benchmarking.charts.training_progress_chart",
    "utils.benchmarking.charts.percentage_comparison_bar_chart",
    "metrics.MetricsBuilder.add_cost",
    "metrics.MetricsBuilder.add_response_cost",
    "metrics.MetricsBuilder.add_metric",
    "metrics.MetricsBuilder.add_data",
    "metrics.MetricsBuilder.add_user_timing",
    "metrics.MetricsBuilder.add_idle_times",
    "metrics.MetricsBuilder.measure",
    "metrics.MetricsBuilder.for_cost_context",
    "metrics.MetricsBuilder.register_cost_extractor",
    "metrics.MetricsBuilder.register_model_pricing",
    "metrics.track_api_cost",
    "api_costs.TokenPricing",
    "Model.metrics_builder",
    "Model.activate_metrics_context",
    "Backend.register",
    "Backend.close",
    "Backend.train",
    "rewards.ruler",
    "rewards.ruler_score_group",
]
FIELDS = ["Model", "TrainableModel", "Trajectory", "TrajectoryGroup", "TrainConfig", "TrainSFTConfig"]


# Whose public names are listed: of modules what they export or define, of packages their modules too, of classes their methods.
# They are those that ART's documentation, the skills in its wheel and its examples import from.
MODULES = [
    "", "api_costs", "backend", "batches", "costs", "dev", "errors", "gather", "guided_completion", "langgraph", "local",
    "local.backend", "mcp", "metrics", "model", "rewards", "rewards.ruler", "trajectories", "types", "utils", "utils.benchmarking",
    "utils.benchmarking.charts", "utils.benchmarking.load_trajectories", "utils.benchmarking.types", "utils.iterate_dataset",
    "utils.litellm", "utils.retry", "utils.sft",
]  # fmt: skip
CLASSES = {
    "Model": "model", "TrainableModel": "model", "Trajectory": "trajectories", "TrajectoryGroup": "trajectories",
    "trajectories.History": "trajectories", "Backend": "backend", "local.LocalBackend": "local.backend",
    "metrics.MetricsBuilder": "metrics",
}  # fmt: skip


def names() -> list[str]:
    """Return dotted names without the package's. They are read from the source, because some modules need a GPU at import."""
    folder = Path(importlib.import_module("art").__file__).parent
    found: set[str] = set()
    for module in MODULES:
        within = modules(folder.joinpath(*module.split("."))) if module else modules(folder)
        found |= {f"{module}.{name}".strip(".") for name in within | public(folder, module)}
    for dotted, module in CLASSES.items():
        (body,) = [node.body for node in source(folder, module).body if getattr(node, "name", "") == dotted.split(".")[-1]]
        found |= {f"{dotted}.{name}" for name in defined(body, methods=True)}
    return sorted(name for name in found if not any(part.startswith("_") for part in name.split(".")))


def modules(folder: Path) -> set[str]:
    """Return the modules of a package; none if the folder is not a package."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return {path.stem if path.suffix else path.name for path in paths if path.suffix == ".py" or any(path.glob("*.py"))}


def source(folder: Path, module: str) -> ast.Module | None:
    """The module's syntax tree; None of a package without an `__init__`."""
    path = folder.joinpath(*module.split(".")) if module else folder
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text()) if path.exists() else None


def public(folder: Path, module: str) -> set[str]:
    """Return `__all__`, or the names that the module defines."""
    tree = source(folder, module)
    if tree is None:
        return set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return set(ast.literal_eval(node.value))
    return defined(tree.body)


def defined(body: list[ast.stmt], methods: bool = False) -> set[str]:
    """Functions and classes without an underscore; of a module types too, such as `Messages = list[Message]`."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = {node.name for node in body if isinstance(node, kinds)}
    if not methods:
        found |= {target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if is_type(target)}
        found |= {node.target.id for node in body if isinstance(node, ast.AnnAssign) and is_type(node.target)}
    return {name for name in found if not name.startswith("_")}


def is_type(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and re.fullmatch(r"[A-Z]\w*[a-z]\w*", target.id) is not None


def find(package: str, dotted: str) -> Any:
    """Return the object of a dotted name, e.g. `find("art", "utils.retry")`; its parts may be modules or classes."""
    if (package, dotted) == ("art", "local.LocalBackend"):
        return local_backend_init()
    found = importlib.import_module(package)
    *way, last = dotted.split(".")
    for name in way:  # a module has precedence over a function of the same name
        inside = f"{found.__name__}.{name}" if hasattr(found, "__path__") else ""
        found = importlib.import_module(inside) if inside and importlib.util.find_spec(inside) else getattr(found, name)
    if inspect.ismodule(found) and not hasattr(found, last):
        importlib.import_module(f"{found.__name__}.{last}")
    return getattr(found, last)


def local_backend_init() -> Any:
    """ART's `LocalBackend.__init__` without its body: importing the class needs ART's GPU requirements."""
    folder = Path(importlib.import_module("art").__file__).parent
    tree = ast.parse((folder / "local" / "backend.py").read_text())
    backend = next(node for node in tree.body if getattr(node, "name", "") == "LocalBackend")
    init = next(node for node in backend.body if getattr(node, "name", "") == "__init__")
    init.body = [ast.Pass()]
    scope: dict[str, Any] = {}
    exec(ast.unparse(init), scope)
    return scope["__init__"]


def signature(call: Any) -> dict[str, dict[str, Any]]:
    """Return {name: {"kind": ..., "default": ...}} of all parameters; required ones have no "default"."""
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(call).parameters.values()
    if inspect.isclass(call) and "__init__" in vars(call):
        own = inspect.signature(call.__init__).parameters.values()
        # If it accepts further fields, they are in pydantic's signature of the class.
        parameters = parameters if any(p.name == "fields" for p in own) else own
    return {p.name: describe(p) for p in parameters if p.name != "self" and p.kind not in variadic}


def describe(parameter: inspect.Parameter) -> dict[str, Any]:
    """Return the kind of a parameter, and its default."""
    described: dict[str, Any] = {"keyword_only": parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    if parameter.default is not inspect.Parameter.empty:
        described["default"] = as_json(parameter.default)
    return described


def as_json(default: Any) -> Any:
    """Return JSON values unchanged, a tuple of types as "(Exception)", a long text as "<text>", else "<...>"."""
    if isinstance(default, tuple):
        return f"({', '.join(getattr(item, '__name__', repr(item)) for item in default)})"
    if isinstance(default, str) and len(default) > 40:
        return "<text>"
    plain = default is None or isinstance(default, bool | int | float | str | list | dict)
    return (
        default if plain else "<factory>" if repr(default) == "<factory>" else f"<{type(default).__name__}>"
    )


def table(package: str) -> dict[str, Any]:
    """Return the table of an installed package, as stored in JSON."""
    return {
        "calls": {name: signature(find(package, name)) for name in CALLS},
        "names": names(),
        "fields": {name: sorted(find(package, name).model_fields) for name in FIELDS},
    }


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table("art"), indent=1) + "\n")
    print(f"wrote {TABLE}")
