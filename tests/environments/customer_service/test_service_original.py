"""Compares the customer service worlds with tau-bench's own code. Needs a copy of it:

    TAU_BENCH=/path/to/tau-bench python -m pytest -s tests/environments/customer_service/test_service_original.py

The actions of every task and 10,000 random calls in each domain give identical answers and equal databases. Nothing of
tau-bench is included in this repository.
"""

import copy
import hashlib
import importlib
import json
import os
import random
import sys
import types
import warnings
from pathlib import Path

import pytest
from service_calls import Calls

from customer_service import World
from customer_service.tasks import load_tasks

ROOT = os.environ.get("TAU_BENCH")
pytestmark = pytest.mark.skipif(not ROOT, reason="needs a copy of tau-bench at the path TAU_BENCH")


class Original:
    """A domain of tau-bench, run as its environment (`Env.step`) does."""

    def __init__(self, root: Path, domain: str):
        envs = root / "tau_bench" / "envs" / domain
        # Empty stand-ins for packages whose __init__ imports clients of language models.
        for name in ("tau_bench", "tau_bench.envs", f"tau_bench.envs.{domain}"):
            package = types.ModuleType(name)
            package.__path__ = [str(root / name.replace(".", "/"))]
            sys.modules.setdefault(name, package)
        found = importlib.import_module(f"tau_bench.envs.{domain}.tools").ALL_TOOLS
        self.tools = {tool.get_info()["function"]["name"]: tool for tool in found}
        self.folder = envs / "data"
        self.texts = {path.stem: path.read_text(encoding="utf-8") for path in self.folder.glob("*.json")}
        self.reset()
        self.tasks = {}
        for path in sorted(envs.glob("tasks_*.py")):
            module = importlib.import_module(f"tau_bench.envs.{domain}.{path.stem}")
            (self.tasks[path],) = [value for name, value in vars(module).items() if name.startswith("TASKS")]

    def reset(self) -> None:
        self.data = {name: json.loads(text) for name, text in self.texts.items()}

    def undo(self, changes: dict) -> None:
        """Revert the changes of a world with equal data; much faster than `reset`."""
        for table, rows in changes.items():
            for key, (before, _) in rows.items():
                self.data[table][key] = copy.deepcopy(before)
                if before is None:
                    del self.data[table][key]

    def equals(self, world: World) -> bool:
        return all(world.records(table) == rows for table, rows in self.data.items())

    def call(self, name: str, arguments: dict) -> str | None:
        if name not in self.tools:
            return f"Unknown action {name}"
        try:
            return self.tools[name].invoke(data=self.data, **copy.deepcopy(arguments))
        except Exception as error:
            return f"Error: {error}"

    def digest(self) -> str:
        return hashlib.sha256(str(hashable(self.data)).encode()).hexdigest()


def hashable(item):
    """Return what tau-bench's `to_hashable` returns, the input of `Env.get_data_hash`."""
    if isinstance(item, dict):
        return tuple((key, hashable(value)) for key, value in sorted(item.items()))
    return tuple(map(hashable, item)) if isinstance(item, list) else item


@pytest.fixture(scope="module", params=["retail", "airline"])
def both(request):
    original = Original(Path(ROOT), request.param)
    return original, World.load(request.param, original.folder)


def test_the_tools_have_the_same_names_arguments_and_types(both):
    original, world = both

    def bare(schema):
        described = isinstance(schema, dict) and isinstance(schema.get("description"), str)
        fields = {key: bare(value) for key, value in schema.items()} if isinstance(schema, dict) else schema
        return {key: value for key, value in fields.items() if key != "description"} if described else fields

    assert [bare(tool) for tool in world.tools] == [bare(tool.get_info()) for tool in original.tools.values()]


def test_every_task_leaves_the_same_database(both):
    original, world = both
    calls = 0
    assert world.digest() == original.digest()
    for path, theirs in original.tasks.items():
        ours = load_tasks(path)
        assert len(ours) == len(theirs)
        for task, their in zip(ours, theirs, strict=True):
            assert (task.user_id, task.instruction, list(task.outputs)) == (their.user_id, their.instruction, their.outputs)
            assert [tuple(action) for action in task.actions] == [(action.name, action.kwargs) for action in their.actions]
            for name, arguments in task.actions:
                assert world.call(name, json.dumps(arguments)) == original.call(name, arguments)
            assert original.equals(world)
            original.undo(world.changes())
            world.reset()
            calls += len(task.actions)
        assert world.digest() == original.digest()
        print(f"{world.domain} {path.stem}: {len(ours)} tasks")
    print(f"{world.domain}: {calls} calls of the tasks, all equal")


def test_calls_drawn_at_random_get_the_same_answers(both, count=10_000):
    original, world = both
    calls, accepted, apart = Calls(random.Random(0), world.tools), 0, 0
    warnings.simplefilter("ignore", SyntaxWarning)  # from expressions that tau-bench evaluates
    for number in range(count):
        if number % 1000 == 0:
            world.reset()
            original.reset()
        name, arguments = calls.draw(original.data)
        theirs, ours = original.call(name, arguments), world.call(name, arguments)
        if theirs is None:  # a fourth certificate, on which tau-bench's environment raises
            assert name == "send_certificate" and ours.startswith("Error: ")
            continue
        assert ours == theirs, (name, arguments)
        accepted += not theirs.startswith(("Error", "Unknown"))
        if name == "book_reservation" and theirs.startswith("Error: 'certificate_"):
            original.data, apart = world.data(), apart + 1  # paid twice by one certificate, which tau-bench deletes
        if number % 50 == 0:
            assert original.equals(world)
    assert world.digest() == original.digest()
    print(f"{world.domain}: {count} calls, {accepted} accepted, all answers equal; data copied {apart} times after a known difference")
