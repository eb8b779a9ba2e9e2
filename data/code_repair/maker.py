"""Makes data/code_repair, functions with bugs to repair: `python -m data code_repair` (a minute).

A function is a family's source with a variant's words in it. What it should give for drawn arguments comes from the
family's `truth`, a second way to compute it; a function that does not agree with it everywhere is refused. Bugs are single
mutations that at least one example and one hidden test tell from the original.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from art_nb.storage.checkpoints import write_file
from art_nb.tasks.code_repair.mutations import KINDS, Mutation, mutations
from art_nb.tasks.code_repair.problems import Bug, Check
from art_nb.tasks.code_repair.sandbox import Limits, MontySandbox, Sandbox
from art_nb.tasks.code_repair.trials import judge
from data.code_repair.families import arithmetic, codes, grids, lists, machines, tables
from data.code_repair.families import text as texts
from data.code_repair.family import Family
from data.code_repair.modules import MODULES
from data.item import write_item, write_text

FAMILIES: list[Family] = [
    *texts.FAMILIES, *lists.FAMILIES, *arithmetic.FAMILIES, *tables.FAMILIES, *machines.FAMILIES, *grids.FAMILIES,
    *codes.FAMILIES,
]  # fmt: skip
VISIBLE, HIDDEN = 3, 15
DRAWN = 36  # arguments for which a function's right answers are computed
TRIED = 16  # mutations of a function that are run
BUGS = {"train": 4, "val": 3, "test": 4}  # of a function, at most
MODULE_BUGS = 8
LIMITS = Limits(seconds=0.5)  # a mutant that takes longer is left out


def split_of(place: int) -> str:
    """Families in turn: four of seven to learn from, one to choose by, two to test on; every kind of family in each."""
    return ("train", "train", "test", "train", "val", "train", "test")[place % 7]


def build(folder: Path, seed: int = 0) -> dict:
    """Make the problems and write them to `folder`, whole or not at all. Returns the card's facts."""
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
    """A row of functions.jsonl for every variant of every family."""
    for place, family in enumerate(FAMILIES):
        for variant in family.variants:
            name, split = variant["name"], split_of(place)
            rng = random.Random(f"{seed} {name}")
            files = {f"{name}.py": family.written(variant)}
            draw, truth = family.draw, partial(family.truth, variant)
            tests = drawn(name, rng, lambda rng, d=draw, v=variant: d(rng, v), truth)
            yield row(sandbox, rng, name, split, "function", family.name, name, files, tests, BUGS[split])


def modules(sandbox: Sandbox, seed: int) -> Iterator[dict[str, Any]]:
    """A row for every module of three files; its bugs are in the first two."""
    for module in MODULES:
        rng = random.Random(f"{seed} {module.entry}")
        tests = drawn(module.entry, rng, module.draw, module.truth)
        yield row(
            sandbox, rng, f"module-{module.entry}", module.split, "module", module.entry, module.entry, module.files, tests,
            MODULE_BUGS, buggy=list(module.files)[:-1],
        )  # fmt: skip


def drawn(name: str, rng: random.Random, draw: Callable, truth: Callable) -> list[Check]:
    """Different calls with their right answers."""
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
    """A function with examples, hidden tests and bugs.

    The examples are the tests that tell most mutants from the original, the hidden tests begin with those that do so next.

    Raises: ValueError when the function doesn't pass the tests.
    """
    verdict = judge(sandbox, files, tests)
    if not verdict.passed:
        raise ValueError(f"{id} is wrong: {verdict.said()}")
    tried = [(file, change) for file in buggy or files for change in chosen(mutations(files[file]), rng)]
    fails: list[tuple[str, Mutation, list[bool]]] = []
    for file, change in tried:
        verdict = judge(sandbox, files | {file: change.text}, tests)
        if not any(answer.out_of_time for answer in verdict.answers):
            fails.append((file, change, [not passes for passes in verdict.passes]))
    order = telling([failed for _, _, failed in fails], len(tests))
    visible, hidden = order[:VISIBLE], order[VISIBLE : VISIBLE + HIDDEN]
    bugs = []
    for file, change, failed in fails:
        if any(failed[n] for n in visible) and any(failed[n] for n in hidden):
            was = tuple(files[file].splitlines()[change.first - 1 : change.last])
            bugs.append(Bug(change.kind, file, change.first, was, change.lines))
    rng.shuffle(bugs)
    bugs = varied(bugs, most)
    rng.shuffle(bugs)
    return {
        "id": id, "split": split, "size": size, "family": family, "entry": entry, "files": files,
        "visible": [[tests[n].call, tests[n].gives] for n in visible],
        "hidden": [[tests[n].call, tests[n].gives] for n in hidden],
        "bugs": [{"kind": b.kind, "file": b.file, "line": b.line, "was": b.was, "now": b.now} for b in bugs],
    }  # fmt: skip


def chosen(changes: list[Mutation], rng: random.Random) -> list[Mutation]:
    """So many of the changes as are tried, kinds in turn."""
    rng.shuffle(changes)
    return varied(changes, TRIED)


def varied(items: list, most: int) -> list:
    """The first `most` of the items, kinds in turn, rarer kinds not left out."""
    by_kind = [[item for item in items if item.kind == kind] for kind in KINDS]
    taken: list = []
    while len(taken) < most and any(by_kind):
        taken += [kind.pop(0) for kind in by_kind if kind]
    return taken[:most]


def telling(failures: list[list[bool]], tests: int) -> list[int]:
    """The tests in an order where each next one is failed by most of the mutants that passed those before it (greedily)."""
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
    """What the card says of them."""
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

Small Python functions, each with a bug that was put in on purpose, examples that show it, and hidden tests.

Made by `python -m data code_repair` (data/code_repair/maker.py) from seed {seed}. All code is written for this course.

| | families | functions | problems with one function | problems with three files |
| --- | --- | --- | --- | --- |
| train | {train_families} | {train_functions} | {train_problems} | {train_modules} |
| val | {val_families} | {val_functions} | {val_problems} | {val_modules} |
| test | {test_families} | {test_functions} | {test_problems} | {test_modules} |

Bugs by kind: {kinds}.

- `functions.jsonl`: a line a function: its files, three examples and up to fifteen hidden tests (a call, and what it should
  give, as Python writes them), and its bugs, each as the lines before and after. art_nb.tasks.code_repair.problems reads it.

A family (data/code_repair/families/) is one way of writing a function: its loop, its conditions, what it works on. Variants
of a family differ in names, constants, operators or what is collected. No family is in two splits: functions to test on are
written in ways that no function to learn from is. What all splits share is Python, the kinds of things worked on (text,
lists, numbers, dictionaries, events, grids) and the kinds of bug. The modules of three files (data/code_repair/modules.py)
share no function, and their bugs are never in the file whose function the tests call.

What a function should give comes from a second way to compute it (`truth`), which knows nothing of its source. Originals
pass all tests and every bug fails an example and a hidden test, in CPython and in pydantic-monty
(tests/test_code_repair_data.py).

SHA256SUMS lists the files' hashes. Licence: Apache-2.0, as all of the project.
"""
