"""Load the benchmarks HumanEval, MBPP and SWE-bench from local files. None of them is in this repository.

HumanEval and MBPP become `Problem`s, which run in the default sandbox if it supports the Python that they use. Their
assertions are converted to comparisons of a `repr` outside the sandbox, because inside it the code under test can redefine
`==`. A warning lists the problems for which this fails. A SWE-bench task needs a whole repository and a container. Schemas:
github.com/openai/human-eval (Chen et al. 2021), github.com/google-research/google-research/tree/master/mbpp (Austin et al.
2021), princeton-nlp/SWE-bench (Jimenez et al. 2024).
"""

from __future__ import annotations

import ast
import doctest
import gzip
import json
import re
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_repair.problems import Check, Problem
from code_repair.source import definitions


def load_human_eval(folder: str | Path) -> list[Problem]:
    """Load HumanEval's problems from the files (`*.jsonl`, `*.jsonl.gz`) in a folder.

    solution.py has the prompt, with `pass` as body; the visible examples are its doctests; the hidden tests are the
    assertions of the published `check`. If `as_check` cannot convert all of them, the whole `check` is one more test, which
    passes unless it raises; if it can convert none, the problem is left out. A warning lists the problems of either kind.

    Raises: ValueError if the folder has no such file, a file is not JSON, or a row lacks one of the published fields.
    """
    found, unconverted = [], _Unconverted("HumanEval")
    for row in _rows(folder, "HumanEval", ("task_id", "prompt", "canonical_solution", "test", "entry_point")):
        entry = row["entry_point"]
        module = ast.parse(row["test"])
        (test,) = [node for node in module.body if getattr(node, "name", None) == "check"]
        assert isinstance(test, ast.FunctionDef)
        statements = [_Renamed(test.args.args[0].arg, entry).visit(node) for node in test.body]
        checks = [as_check(node) for node in statements if not isinstance(node, ast.Expr | ast.Pass)]
        checks = [check if check and not _uses(check.call, module) else None for check in checks]
        whole = Check(f"{row['test']}\ncheck({entry})")
        if (hidden := unconverted.checked(row["task_id"], checks, [whole])) is not None:
            files = {"solution.py": row["prompt"].rstrip() + "\n    pass\n"}
            visible = _doctests(row["prompt"])
            found.append(Problem(row["task_id"], "test", "function", "HumanEval", entry, files, visible, hidden))
    unconverted.report()
    return found


def load_mbpp(folder: str | Path) -> list[Problem]:
    """Load MBPP's problems from the files (`*.jsonl`, or the sanitized set's `*.json`) in a folder.

    solution.py has only the tests' setup code; the visible examples are the published assertions, which the benchmark shows
    to the model; the hidden tests are the challenge tests, else the same assertions. An assertion that `as_check` cannot
    convert passes unless it raises. A warning lists problems with such hidden tests; those with no others are left out.

    Raises: ValueError as in `load_human_eval`.
    """
    found, unconverted = [], _Unconverted("MBPP")
    for row in _rows(folder, "MBPP", ("task_id", "code", "test_list")):
        task = row.get("text") or row.get("prompt")
        if not task:
            raise ValueError(f"MBPP's task {row['task_id']} has neither text nor prompt; one of them is required")
        lists = row["test_list"], row.get("challenge_test_list") or row["test_list"]
        converted = [[(as_check(ast.parse(text).body[0]), Check(text)) for text in texts] for texts in lists]
        hidden = unconverted.checked(
            row["task_id"], [check for check, _ in converted[1]], [plain for check, plain in converted[1] if check is None]
        )
        if hidden is None:
            continue
        visible = tuple(check or plain for check, plain in converted[0])
        defined = [found.name for found in definitions(row["code"])]
        entry = next((name for name in defined if re.search(rf"\b{name}\(", row["test_list"][0])), "")
        before = row.get("test_setup_code") or "\n".join(row.get("test_imports") or [])
        files = {"solution.py": before + "\n" if before else "\n"}
        found.append(Problem(f"MBPP/{row['task_id']}", "test", "function", "MBPP", entry, files, visible, hidden, task=task))
    unconverted.report()
    return found


def as_check(statement: ast.stmt) -> Check | None:
    """Convert an assertion to a check of a `repr`; return None unless it has one of these forms:

    `assert call == literal` (or `is`, which also compares the types; also with the sides swapped), `assert call` and
    `assert not call`, which require a value equal to True or False,
    `assert abs(call - number) < tolerance` (or `<=`), `assert math.isclose(call, number, rel_tol=..., abs_tol=...)`.
    """
    test = statement.test if isinstance(statement, ast.Assert) else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and isinstance(test.operand, ast.Call):
        return Check(ast.unparse(test.operand), "False", 0.0)
    if isinstance(test, ast.Call):
        return _is_close(test) if ast.unparse(test.func) == "math.isclose" else Check(ast.unparse(test), "True", 0.0)
    if not isinstance(test, ast.Compare) or len(test.ops) > 1:
        return None
    left, operator, right = test.left, test.ops[0], test.comparators[0]
    if isinstance(operator, ast.Eq | ast.Is):
        exact = 0.0 if isinstance(operator, ast.Eq) else None
        call, value = (left, right) if _literal(right) is not None else (right, left)
        return None if (given := _literal(value)) is None else Check(ast.unparse(call), given, exact)
    if isinstance(operator, ast.Lt | ast.LtE) and isinstance(left, ast.Call) and ast.unparse(left.func) == "abs":
        difference, tolerance = left.args[0], _literal(right)
        if isinstance(difference, ast.BinOp) and isinstance(difference.op, ast.Sub) and tolerance:
            given = _literal(difference.right)
            return None if given is None else Check(ast.unparse(difference.left), given, float(tolerance))
    return None


def _is_close(test: ast.Call) -> Check | None:
    options = {option.arg: _literal(option.value) for option in test.keywords}
    if len(test.args) != 2 or None in options.values() or (given := _literal(test.args[1])) is None:
        return None
    relative = float(options.get("rel_tol") or 1e-9) * abs(float(given))
    return Check(ast.unparse(test.args[0]), given, max(relative, float(options.get("abs_tol") or 0.0)))


def _literal(node: ast.expr) -> str | None:
    """Return the `repr` of a literal; None for any other expression."""
    try:
        return repr(ast.literal_eval(node))
    except (ValueError, TypeError):
        return None


def _uses(call: str, module: ast.Module) -> bool:
    """Return whether a call uses a name that a module assigns, imports or defines."""
    names = {node.id for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Name)}
    return bool((names - _defined(ast.parse(call))) & _defined(module))


def _defined(module: ast.Module) -> set[str]:
    nodes = list(ast.walk(module))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    named = [node for node in nodes if isinstance(node, ast.alias | ast.FunctionDef)]
    return stored | {(getattr(node, "asname", None) or node.name).split(".")[0] for node in named}


class _Renamed(ast.NodeTransformer):
    """Renames a variable."""

    def __init__(self, old: str, new: str):
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self.new, node.ctx), node) if node.id == self.old else node


class _Unconverted:
    """Collects the problems with assertions that `as_check` cannot convert."""

    def __init__(self, name: str):
        self.name = name
        self.partly: list[str] = []
        self.left_out: list[str] = []

    def checked(self, task: Any, checks: list[Check | None], otherwise: list[Check]) -> tuple[Check, ...] | None:
        """Return the converted checks, followed by `otherwise` if some were not converted; None if none was."""
        converted = [check for check in checks if check]
        if len(converted) < len(checks) or not converted:
            (self.partly if converted else self.left_out).append(str(task))
        else:
            otherwise = []
        return (*converted, *otherwise) if converted else None

    def report(self) -> None:
        means = "are left out: no assertion can be converted", "run their unconverted assertions in the sandbox"
        for tasks, how in zip((self.left_out, self.partly), means, strict=True):
            if tasks:
                warnings.warn(f"{self.name}: {len(tasks)} problems {how} ({', '.join(tasks)})", stacklevel=3)


@dataclass(frozen=True)
class RepositoryTask:
    """A task of SWE-bench: an issue of a repository at a commit, and the tests that must pass once the issue is solved.

    Field names are the published ones, in lower case. `container_command` runs the tests.
    """

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    version: str = ""
    hints_text: str = ""

    def container_command(self, image: str, test_command: str) -> list[str]:
        """Return the command that tests a patch in a container without a network. It reads the patch from standard input.

        image: has the repository at `base_commit` and its dependencies in /testbed, such as SWE-bench's own images.
        test_command: runs tests of this repository, such as `python -m pytest -q`; the names of the task's tests are quoted
        and appended. The container's shell runs it. The test patch is passed in an environment variable.
        """
        tests = " ".join(map(shlex.quote, (*self.fail_to_pass, *self.pass_to_pass)))
        script = f'cd /testbed && git apply - && printf %s "$TEST_PATCH" | git apply - && {test_command} {tests}'
        isolation = ["--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "512"]
        return [
            "docker", "run", "--rm", "--interactive", *isolation, "--memory", "4g", "--env", f"TEST_PATCH={self.test_patch}",
            image, "sh", "-c", script,
        ]  # fmt: skip


def load_swe_bench(folder: str | Path) -> list[RepositoryTask]:
    """Load SWE-bench's tasks from the files (`*.jsonl`, `*.json`) in a folder.

    Raises: ValueError as in `load_human_eval`.
    """
    needed = (
        "instance_id",
        "repo",
        "base_commit",
        "problem_statement",
        "patch",
        "test_patch",
        "FAIL_TO_PASS",
        "PASS_TO_PASS",
    )
    found = []
    for row in _rows(folder, "SWE-bench", needed):
        lists = [tuple(json.loads(row[name]) if isinstance(row[name], str) else row[name]) for name in needed[-2:]]
        texts = {name: row[name] for name in needed[:-2]} | {name: row.get(name) or "" for name in ("version", "hints_text")}
        found.append(RepositoryTask(**texts, fail_to_pass=lists[0], pass_to_pass=lists[1]))
    return found


def _rows(folder: str | Path, name: str, needed: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield every row of the folder's files. Raises: ValueError as in `load_human_eval`."""
    files = sorted(Path(folder).expanduser().glob("*"))
    paths = [path for path in files if path.name.endswith((".jsonl", ".jsonl.gz", ".json"))]
    if not paths:
        raise ValueError(f"no .jsonl, .jsonl.gz or .json file in {folder}; put {name}'s published files there")
    for path in paths:
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
        try:
            rows = (
                json.loads(text)
                if path.suffix == ".json"
                else [json.loads(line) for line in text.split("\n") if line.strip()]
            )
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from None
        for number, row in enumerate(rows, start=1):
            if missing := [field for field in needed if not isinstance(row, dict) or field not in row]:
                raise ValueError(f"row {number} of {path} has no {missing[0]}; {name}'s rows have {', '.join(needed)}")
            yield row


def _doctests(prompt: str) -> tuple[Check, ...]:
    """Return the prompt's doctest examples whose expected output is a literal."""
    found = []
    for example in doctest.DocTestParser().get_examples(prompt.replace('"""', "\n").replace("'''", "\n")):
        try:
            ast.literal_eval(example.want.strip())
        except (ValueError, SyntaxError):
            continue
        found.append(Check(example.source.strip(), example.want.strip()))
    return tuple(found)
