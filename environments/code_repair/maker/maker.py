"""Make environments/code_repair/code_repair/data, functions with bugs to repair: `python -m data code_repair` (a minute).

A function is a family's source with its slots filled by a variant. Expected values for random arguments come from the
family's `truth`, a second implementation; a function that disagrees with it is an error. Bugs are single mutations that at
least one example and one hidden test distinguish from the original.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from art_nb.storage.checkpoints import write_file
from code_repair.mutations import KINDS, Mutation, mutations
from code_repair.problems import Bug, Check
from code_repair.sandbox import Limits, MontySandbox, Sandbox
from code_repair.trials import judge
from data.item import write_item, write_text
from environments.code_repair.maker.families import arithmetic, codes, grids, lists, machines, tables
from environments.code_repair.maker.families import text as texts
from environments.code_repair.maker.family import Family
from environments.code_repair.maker.modules import MODULES

FAMILIES: list[Family] = [
    *texts.FAMILIES, *lists.FAMILIES, *arithmetic.FAMILIES, *tables.FAMILIES, *machines.FAMILIES, *grids.FAMILIES,
    *codes.FAMILIES,
]  # fmt: skip
VISIBLE, HIDDEN = 3, 15
DRAWN = 36  # random calls for each function
TRIED = 16  # mutations to run for each file, at most
BUGS = {"train": 4, "val": 3, "test": 4}  # per function, at most
MODULE_BUGS = 8
LIMITS = Limits(seconds=0.5)  # a mutant that takes longer is excluded


def split_of(place: int) -> str:
    """Return the split of the family at index `place`: of every seven, 4 train, 1 val, 2 test; each split has all kinds."""
    return ("train", "train", "test", "train", "val", "train", "test")[place % 7]


def build(folder: Path, seed: int = 0) -> dict:
    """Make the problems and write them to `folder`, whole or not at all. Returns the facts for the card."""
    with MontySandbox(LIMITS) as sandbox:
        rows = list(functions(sandbox, seed)) + list(modules(sandbox, seed))
    facts = {"seed": seed, **counts(rows)}

    def fill(new: Path) -> None:
        text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
        write_file(new / "functions.jsonl", text.encode())
        write_text(new / "README.md", CARD.format(**facts))

    write_item(folder, fill)
    return facts


def functions(sandbox: Sandbox, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row of functions.jsonl for every variant of every family."""
    for place, family in enumerate(FAMILIES):
        for variant in family.variants:
            name, split = variant["name"], split_of(place)
            rng = random.Random(f"{seed} {name}")
            files = {f"{name}.py": family.written(variant)}
            draw, truth = family.draw, partial(family.truth, variant)
            tests = drawn(name, rng, lambda rng, d=draw, v=variant: d(rng, v), truth)
            yield row(sandbox, rng, name, split, "function", family.name, name, files, tests, BUGS[split])


def modules(sandbox: Sandbox, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row for every module of three files; its bugs are in the first two."""
    for module in MODULES:
        rng = random.Random(f"{seed} {module.entry}")
        tests = drawn(module.entry, rng, module.draw, module.truth)
        yield row(
            sandbox, rng, f"module-{module.entry}", module.split, "module", module.entry, module.entry, module.files, tests,
            MODULE_BUGS, buggy=list(module.files)[:-1],
        )  # fmt: skip


def drawn(name: str, rng: random.Random, draw: Callable, truth: Callable) -> list[Check]:
    """Return different random calls with their expected values."""
    found: dict[str, Check] = {}
    for _ in range(20 * DRAWN):
        arguments = draw(rng)
        call = f"{name}({', '.join(map(repr, arguments))})"
        found.setdefault(call, Check(call, repr(truth(*arguments))))
        if len(found) == DRAWN:
            break
    return list(found.values())


def row(
    sandbox: Sandbox, rng: random.Random, id: str, split: str, size: str, family: str, entry: str, files: dict[str, str],
    tests: list[Check], most: int, buggy: Sequence[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a row of functions.jsonl: a function or module with its examples, hidden tests and bugs.

    The tests are ordered by how many further mutants they detect; the first are the examples, the next the hidden tests.

    Raises: ValueError if the function does not pass the tests.
    """
    verdict = judge(sandbox, files, tests)
    if not verdict.passed:
        raise ValueError(f"{id} disagrees with its `truth`; correct one of them: {verdict.summary()}")
    tried = [(file, change) for file in buggy or files for change in chosen(mutations(files[file]), rng)]
    fails: list[tuple[str, Mutation, list[bool]]] = []
    for file, change in tried:
        verdict = judge(sandbox, files | {file: change.text}, tests)
        if not any(answer.out_of_time for answer in verdict.answers):
            fails.append((file, change, [not passes for passes in verdict.passes]))
    order = greedy_order([failed for _, _, failed in fails], len(tests))
    visible, hidden = order[:VISIBLE], order[VISIBLE : VISIBLE + HIDDEN]
    bugs = []
    for file, change, failed in fails:
        if any(failed[n] for n in visible) and any(failed[n] for n in hidden):
            was = tuple(files[file].splitlines()[change.first - 1 : change.last])
            bugs.append(Bug(change.kind, file, change.first, was, change.lines))
    rng.shuffle(bugs)
    bugs = take_by_kind(bugs, most)
    rng.shuffle(bugs)
    return {
        "id": id, "split": split, "size": size, "family": family, "entry": entry, "files": files,
        "visible": [[tests[n].call, tests[n].gives] for n in visible],
        "hidden": [[tests[n].call, tests[n].gives] for n in hidden],
        "bugs": [{"kind": b.kind, "file": b.file, "line": b.line, "was": b.was, "now": b.now} for b in bugs],
    }  # fmt: skip


def chosen(changes: list[Mutation], rng: random.Random) -> list[Mutation]:
    """Choose the mutations to run, kinds in turn."""
    rng.shuffle(changes)
    return take_by_kind(changes, TRIED)


def take_by_kind(items: list, most: int) -> list:
    """Return `most` of the items, kinds in turn, so that rare kinds are included."""
    by_kind = [[item for item in items if item.kind == kind] for kind in KINDS]
    taken: list = []
    while len(taken) < most and any(by_kind):
        taken += [kind.pop(0) for kind in by_kind if kind]
    return taken[:most]


def greedy_order(failures: list[list[bool]], tests: int) -> list[int]:
    """Return the tests in greedy order: each detects the most of the mutants that passed the tests before it."""
    left, open_ = list(range(tests)), list(range(len(failures)))
    order: list[int] = []
    while left:
        best = max(left, key=lambda n: (sum(failures[m][n] for m in open_), -n))
        order.append(best)
        left.remove(best)
        still = [m for m in open_ if not failures[m][best]]
        open_ = still or list(range(len(failures)))
    return order


def counts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts for the card."""
    facts: dict[str, Any] = {}
    for split in BUGS:
        small = [r for r in rows if r["split"] == split and r["size"] == "function"]
        large = [r for r in rows if r["split"] == split and r["size"] == "module"]
        facts[f"{split}_families"] = len({r["family"] for r in small})
        facts[f"{split}_functions"] = len(small)
        facts[f"{split}_problems"] = sum(len(r["bugs"]) for r in small)
        facts[f"{split}_modules"] = sum(len(r["bugs"]) for r in large)
    kinds = [bug["kind"] for r in rows for bug in r["bugs"]]
    return facts | {"kinds": ", ".join(f"{kind} {kinds.count(kind)}" for kind in KINDS)}


CARD = """\
---
license: apache-2.0
---
# Functions to repair

Small Python functions, each with one deliberate bug, examples that show it, and hidden tests.

Made by `python -m data code_repair` (maker/maker.py) from seed {seed}. All code is written for this course.

| | families | functions | problems with one function | problems with three files |
| --- | --- | --- | --- | --- |
| train | {train_families} | {train_functions} | {train_problems} | {train_modules} |
| val | {val_families} | {val_functions} | {val_problems} | {val_modules} |
| test | {test_families} | {test_functions} | {test_problems} | {test_modules} |

Bugs by kind: {kinds}.

- `functions.jsonl`: one function per line: its files, three examples and up to fifteen hidden tests (a call and the `repr`
  of its expected value), and its bugs, each as the lines before and after. code_repair.problems reads it.

A family (maker/families/) is one way to write a function: its loop, conditions and kind of data. Variants of a family differ
in names, constants, operators or in what they collect. No family is in two splits, so test functions are written in ways
that no training function is. All splits share Python, the kinds of data (text, lists, numbers, dictionaries, events, grids)
and the kinds of bug. The modules of three files (maker/modules.py) share no function, and their bugs are never in the file
whose function the tests call.

Expected values come from a second, independent implementation (`truth`). The originals pass all tests, and every bug fails
an example and a hidden test, in CPython and in pydantic-monty (tests/environments/code_repair/test_code_repair_data.py).

SHA256SUMS lists the files' hashes. Licence: Apache-2.0.
"""
