"""The exercises: each solution in a notebook is right, and wrong answers get the hint for their mistake.

The wrong answers here are written as a learner would write them, not taken from the exercises.
"""

import functools
import math
import random
import re
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from course.demo import run_notebook, working_folder
from course.exercises import Exercise, checker, same

NOTEBOOKS = {"start_here": "00_start_here", "grpo_theory": "01_grpo_theory", "game_2048": "02_2048", "email_search": "04_email_search",
             "ruler": "05_ruler", "real_model": "06_real_model", "serve": "11_serve", "monitor": "10_monitor", "own_environment": "09_own_environment", "tic_tac_toe": "03_tic_tac_toe",
             "scale_out": "12_scale_out", "code_repair": "07_code_repair", "customer_service": "08_customer_service",
             "other_environments": "13_other_environments"}  # fmt: skip
FOLDER = Path(__file__).parents[2] / "notebooks"
SOLUTION = re.compile(r"<details><summary>Solution[^<]*</summary>\n\n```python\n(.*?)```\n(.*?)</details>", re.DOTALL)
SECONDS = lambda steps, sample, train: sample + (steps - 1) * max(sample, train) + train  # noqa: E731
CHECK = re.compile(r'^check\("(\w+)", (\w+)\)$', re.MULTILINE)


def cells(module: str):
    return nbformat.read(FOLDER / f"{NOTEBOOKS[module]}.ipynb", as_version=4).cells


def exercises_in(module: str) -> dict[str, tuple[str, str, str]]:
    """Return {exercise: (name of the answer, the stub, the solution)} in the notebook's order."""
    found, all_cells = {}, cells(module)
    for i, cell in enumerate(all_cells):
        if cell.cell_type == "code" and (called := CHECK.search(cell.source)):
            solution = all_cells[i + 1]
            assert "solution" in solution.metadata.get("tags", []), called[0]
            found[called[1]] = called[2], all_cells[i - 1].source, SOLUTION.search(solution.source)[1]
    return found


def answer(source: str, name: str):
    """Return the value that `source` defines as `name`."""
    scope = {"torch": torch}
    exec(source, scope)
    return scope[name]


@pytest.mark.parametrize("module", NOTEBOOKS)
def test_every_exercise_is_in_its_notebook_and_unsolved(module):
    known = import_module(f"course.exercises.{module}")
    found = exercises_in(module)
    assert list(found) == list(known.EXERCISES)
    assert len(found) >= (8 if module == "grpo_theory" else 3)
    for exercise, (name, stub, _) in found.items():
        assert known.check(exercise, answer(stub, name)).status == "not attempted", exercise
        assert '"""' in stub, f"{exercise}: the stub needs a docstring"


def solved(module: str) -> list:
    """Return the code cells from the exercises' heading on, without an appendix, with the solutions filled in."""
    solutions = {stub: solution for _, stub, solution in exercises_in(module).values()}
    every = cells(module)
    start = next(i for i, cell in enumerate(every) if "## Exercises" in cell.source)
    end = next((i for i, cell in enumerate(every) if "## Appendix" in cell.source), None)
    sources = ["%reset -f\nimport torch", *(cell.source for cell in every[start:end] if cell.cell_type == "code")]
    tags = {"tags": ["raises-exception"]}  # an error ends neither the run nor the exercises of other notebooks
    return [nbformat.v4.new_code_cell(solutions.get(source, source), metadata=tags) for source in sources]


@pytest.fixture(scope="module")
def solved_cells(request, tmp_path_factory):
    """Run the solved exercises of the selected notebooks in one kernel. Names are deleted in between, imported modules are not."""
    # The attribute's default is for notebooks, which `make test` collects beside the tests.
    tests = (item for item in request.session.items if "solved_cells" in getattr(item, "fixturenames", ()))
    selected = [test.callspec.params["module"] for test in tests]
    chosen = {module: solved(module) for module in selected}
    notebook = nbformat.v4.new_notebook(cells=[cell for found in chosen.values() for cell in found])
    run_notebook(notebook, working_folder(tmp_path_factory.mktemp("kernel")))
    return chosen


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("module", NOTEBOOKS)
def test_the_exercises_run_in_a_kernel_with_the_solutions_filled_in(module, solved_cells):
    outputs = [out for cell in solved_cells[module] for out in cell.outputs]
    assert [out.evalue for out in outputs if out.output_type == "error"] == []
    displayed = [out.data["text/plain"] for out in outputs if "data" in out and "image/png" not in out.data]
    assert displayed == ["✓ Right."] * len(exercises_in(module))


# exercise: [(a wrong answer, words of the hint for it)]
WRONG = {
    "start_here": {
        "has_signal": [
            ("lambda r: any(x > 0 for x in r)", "High rewards alone carry no"),
            ("lambda r: sum(r) != 0", "The mean does not measure"),
            ("lambda r: len(set(r)) == 1", "Inverted"),
            ("lambda r: len(r) == len(set(r))", "it is enough that two do"),
            ("lambda r: r[0] != r[-1]", "([1, 0, 1, 1])"),
            ("lambda r: r[0] > 0 or r[-1] > 0 if min(r) != max(r) else False", "Negative rewards carry a signal"),
        ],
        "reward": [
            ("lambda word: 1.0", "no signal"),
            ("lambda word: 1.0 if word == 'left' else 0.0", "up' has the lowest reward"),
            ("lambda word: -1.0 if word == 'up' else 0.0", "up' has the lowest reward"),
            ("lambda word: {'up': 1.0, 'left': 2.0}.get(word, 0.0)", "'left' has a higher reward"),
            ("lambda word: 1.0 if word in ('up', 'down') else 0.0", "'down' has the same reward"),
            ("lambda word: 'good' if word == 'up' else 'bad'", "finite number"),
            ("lambda word: float('inf') if word == 'up' else 0.0", "finite number"),
        ],
        "group_size": [
            ("lambda: '2'", "Expected a whole number"),
            ("lambda: 2.0", "Expected a whole number"),
            ("lambda: True", "Expected a whole number"),
            ("lambda: 1", "no other answer to compare with"),
            ("lambda: 0", "from 2 to 64"),
            ("lambda: 65", "from 2 to 64"),
        ],
    },
    "grpo_theory": {
        "logprob": [
            ("lambda z, t: torch.softmax(z, 0)[t]", "This is the probability"),
            ("lambda z, t: z[t]", "logit itself"),
            ("lambda z, t: -torch.log(torch.softmax(z, 0))[t]", "negative log-likelihood"),
            ("lambda z, t: torch.log2(torch.softmax(z, 0)[t])", "bits"),
            ("lambda z, t: torch.log(torch.softmax(z, 0))", "Pick out"),
        ],
        "advantages": [
            ("lambda r: (r.mean() - r) / (r.std() + 1e-4)", "sign"),
            ("lambda r: (r - r.mean()) / (((r - r.mean()) ** 2).mean().sqrt() + 1e-4)", "biased"),
            ("lambda r: (r - r.mean()) / (r.std() ** 2 + 1e-4)", "variance"),
            ("lambda r: r - r.mean()", "Dr. GRPO"),
            ("lambda r: (r - r.mean()) / r.std()", "0 / 0"),
        ],
        "reinforce": [
            ("lambda logp, r: (logp * (r - r.mean())).mean()", "sign"),
            ("lambda logp, r: -(logp * r).mean()", "no baseline"),
            ("lambda logp, r: -(logp * (r - r.mean())).sum()", "Take their mean"),
            ("lambda logp, r: -(torch.exp(logp) * (r - r.mean())).mean()", "The policy gradient weights log-probabilities"),
            ("lambda logp, r: -(logp.detach() * (r - r.mean())).mean()", "detached"),
        ],
        "ratio": [
            ("lambda logp: torch.exp(logp - logp)", "logp - logp is constant"),
            ("lambda logp: torch.exp(logp - logp).detach()", "Both are detached"),
            ("lambda logp: logp.detach().exp() / logp.exp()", "Inverted: you detached the new"),
            ("lambda logp: logp - logp.detach()", "log of the ratio"),
        ],
        "surrogate": [
            ("lambda r, a, lo, hi: a * torch.clamp(r, 1 - lo, 1 + hi)", "always clip"),
            ("lambda r, a, lo, hi: torch.maximum(a * r, a * torch.clamp(r, 1 - lo, 1 + hi))", "The maximum keeps the gradient"),
            ("lambda r, a, lo, hi: a * r", "Nothing is clipped"),
            ("lambda r, a, lo, hi: torch.minimum(a * r, a * torch.clamp(r, lo, hi))", "The bounds are"),
            ("lambda r, a, lo, hi: torch.minimum(a * r, a * torch.clamp(r, 1 - lo, 1 + lo))", "lower bound on both"),
            ("lambda r, a, lo, hi: -torch.minimum(a * r, a * torch.clamp(r, 1 - lo, 1 + hi))", "this is the loss"),
        ],
        "kl": [
            ("lambda p, q: torch.exp(p - q) - 1 - (p - q)", "r is the reference over"),
            ("lambda p, q: p - q", "k1"),
            ("lambda p, q: 0.5 * (p - q) ** 2", "k2"),
            ("lambda p, q: torch.exp(q - p) - (q - p)", "- 1 is missing"),
            ("lambda p, q: (torch.exp(q - p) - 1 - (q - p)).mean()", "Return one estimate per token"),
        ],
        "per_sequence": [
            ("lambda x, m: (x * m).sum() / m.sum()", "average over all tokens"),
            ("lambda x, m: x.mean()", "Multiply by the mask, and"),
            ("lambda x, m: (x * m).mean(1).mean()", "by its width"),
            ("lambda x, m: ((x * m).sum(1) / m.sum(1)).sum()", "Take their mean"),
            ("lambda x, m: (x * m).sum(1).mean()", "Divide each row"),
        ],
        "loss": [
            ("lambda l, o, a, m: PER(torch.minimum((l - o).exp() * a[:, None], (l - o).exp().clamp(0.8, 1.2) * a[:, None]), m)", "sign"),
            ("lambda l, o, a, m: -PER((l - o).exp() * a[:, None], m)", "Nothing is clipped"),
            ("lambda l, o, a, m: -(torch.minimum((l - o).exp() * a[:, None], (l - o).exp().clamp(0.8, 1.2) * a[:, None]) * m).sum() / m.sum()", "DAPO"),
            ("lambda l, o, a, m: -torch.minimum((l - o).exp() * a[:, None], (l - o).exp().clamp(0.8, 1.2) * a[:, None]).mean()", "Your loss includes the padding"),
            ("lambda l, o, a, m: -PER(torch.minimum((l - o).exp() * a, (l - o).exp().clamp(0.8, 1.2) * a), m)", "wrong dimension"),
            ("lambda l, o, a, m: -PER((l - o).exp().clamp(0.8, 1.2) * a[:, None], m)", "always clip"),
            ("lambda l, o, a, m: -PER((l - l.detach()).exp() * a[:, None], m)", "The old log-probabilities are not"),
        ],
        "returns": [
            ("lambda r, g: [sum(g**j * x for j, x in enumerate(r[: i + 1])) for i in range(len(r))]", "Its return is the sum"),
            ("lambda r, g: [sum(r[i:]) for i in range(len(r))]", "discount is missing"),
            ("lambda r, g: [sum(g ** (j + 1) * x for j, x in enumerate(r[i:])) for i in range(len(r))]", "You discount the turn's own"),
            ("lambda r, g: [sum(g**j * x for j, x in enumerate(r[i:])) for i in reversed(range(len(r)))]", "reverse order"),
            ("lambda r, g: [r[i] + g * (r[i + 1] if i + 1 < len(r) else 0) for i in range(len(r))]", "Add its return, which includes"),
        ],
        "gae": [
            ("lambda r, v, g, d: GAE(r, v, g, 1.0)", "decay (lambda) is missing"),
            ("lambda r, v, g, d: GAE(r, v, g, 0.0)", "one-step TD error"),
            ("lambda r, v, g, d: GAE(r, v, 1.0, d)", "discount is missing"),
            ("lambda r, v, g, d: [sum(g**j * x for j, x in enumerate(r[i:])) for i in range(len(r))]", "These are returns"),
            ("lambda r, v, g, d: GAE(r, [-x for x in v], g, d)", "sign of the value"),
        ],
        "kl_penalty": [
            ("lambda: '3'", "Expected a number"),
            ("lambda: True", "Expected a number"),
            ("lambda: 0.0", "above 0"),
            ("lambda: -1", "above 0"),
            ("lambda: 30", "at most 10"),
        ],
    },
    "game_2048": {
        "slide": [
            ("CASCADE", "must not merge again"),
            ("lambda row: tuple([x for x in row if x] + [0] * row.count(0))", "Nothing merges"),
            ("lambda row: SLIDE(row[::-1])[::-1]", "to the right"),
            ("lambda row: tuple(x for x in SLIDE(row) if x)", "pad it with zeros"),
            ("lambda row: tuple([x for x in SLIDE(row[::-1]) if x][::-1] + [0] * SLIDE(row[::-1]).count(0))", "Merge from the left"),
        ],
        "outcome": [
            ("lambda g: 2.0 if g.won else BOARD(g)", "a wrong answer"),
            ("lambda g: 2.0 if g.won else -1.0 if g.ended_by == 'malformed' else BOARD(g)", "illegal move (game.ended_by)"),
            ("lambda g: 2.0 if g.won else -1.0 if g.ended_by == 'illegal' else BOARD(g)", "malformed answer"),
            ("lambda g: -1.0 if g.ended_by in ('illegal', 'malformed') else BOARD(g)", "A won game earns 2"),
            ("lambda g: REST(g, BOARD(g, 1.0))", "the largest tile has weight"),
            ("lambda g: REST(g, BOARD(g, 0.0))", "sum is missing"),
        ],
        "rise": [
            ("lambda b, a: CI(b, a, 1.96 * ((S(b) ** 2 + S(a) ** 2) / len(a)) ** 0.5)", "paired"),
            ("lambda b, a: CI(b, a, 1.96 * S([y - x for x, y in zip(b, a)]))", "square root of the number"),
            ("lambda b, a: CI(b, a, 1.96 * S([y - x for x, y in zip(b, a)]) / len(a))", "Divide by its square root"),
            ("lambda b, a: CI(b, a, S([y - x for x, y in zip(b, a)]) / len(a) ** 0.5)", "68%"),
            ("lambda b, a: CI(b, a, 1.96 * np.std(np.subtract(a, b)) / len(a) ** 0.5)", "n - 1 (in numpy: ddof=1)"),
            ("lambda b, a: CI(a, b, 1.96 * S([y - x for x, y in zip(b, a)]) / len(a) ** 0.5)", "after minus before"),
        ],
        "verdict": [
            ("lambda t1, best, t, trained: 'new behaviour' if trained - t1 > 5 else 'nothing'", "at T = 1 only"),
            ("lambda t1, best, t, trained: 'new behaviour' if trained > best + 5 else 'sharpening' if t > t1 + 5 else 'nothing'", "was harmed"),
            ("lambda t1, best, t, trained: 'harm' if trained < best else 'new behaviour' if trained > best else ['nothing', 'sharpening'][t > t1]",
             "count as none"),
            ("lambda t1, best, t, trained: 'new behaviour' if trained > best + 5 else 'sharpening' if trained >= best - 5 else 'harm'", "did not sharpen"),
            ("lambda t1, best, t, trained: 'harm' if trained < best - 5 else 'new behaviour' if trained > best + 5 else ['nothing', 'sharpening'][trained > t1 + 5]",
             "did not change"),
            ("lambda t1, best, t, trained: 'harm' if trained < best - 5 else 'new behaviour' if trained >= best + 5 else ['nothing', 'sharpening'][t > t1 + 5]",
             "(20, 30, 25, 35)"),
        ],
        "collapse": [
            ("lambda: '0.03'", "Expected a number"),
            ("lambda: True", "Expected a number"),
            ("lambda: -0.03", "above 0"),
            ("lambda: 30.0", "at most 1"),
            ("lambda: 0.003", "Try a higher one"),
        ],
    },
}  # fmt: skip


def slide(row):
    """Another implementation of the rule: search pairs from the left."""
    tiles, out = [x for x in row if x], []
    while tiles:
        pair = len(tiles) > 1 and tiles[0] == tiles[1]
        out.append(tiles[0] * (2 if pair else 1))
        tiles = tiles[2 if pair else 1 :]
    return tuple(out + [0] * (len(row) - len(out)))


def cascade(row):
    """Slide repeatedly until nothing merges."""
    after = slide(row)
    return row if after == row else cascade(after)


def board_value(game, weight=0.2):
    from math import log2

    total, cells_ = sum(x for row in game.board for x in row), game.size * game.size
    best = max(x for row in game.board for x in row)
    top = log2(game.winning_tile) - 1
    return (log2(best) - 1) / top + weight * (log2(total) - 1) / (log2(cells_) + top)


def backwards_gae(rewards, values, discount, decay):
    """Compute it as a sum: the TD error of step t + k has the weight (discount * decay)^k."""
    following = [*values[1:], 0.0]
    surprises = [r + discount * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    return [sum((discount * decay) ** k * s for k, s in enumerate(surprises[t:])) for t in range(len(surprises))]


def centred_interval(before, after, half):
    rise = (sum(after) - sum(before)) / len(after)
    return rise - half, rise + half


SCOPE = {
    "torch": torch,
    "np": np,
    "PER": lambda x, m: ((x * m).sum(1) / m.sum(1)).mean(),
    "GAE": backwards_gae,
    "SLIDE": slide,
    "CASCADE": cascade,
    "BOARD": board_value,
    "REST": lambda g, value: 2.0 if g.won else -1.0 if g.ended_by in ("illegal", "malformed") else value,
    "CI": centred_interval,
    "S": lambda values: torch.tensor(values, dtype=torch.float64).std().item(),
}


@pytest.mark.parametrize("module", WRONG)
def test_a_wrong_answer_gets_the_hint_that_names_its_mistake(module):
    known = import_module(f"course.exercises.{module}")
    assert list(WRONG[module]) == list(known.EXERCISES)
    for exercise, wrong in WRONG[module].items():
        assert len(wrong) >= 4
        for source, words in wrong:
            verdict = known.check(exercise, eval(source, dict(SCOPE)))
            assert verdict.status == "wrong" and words in verdict.text, f"{exercise}: {source}: {verdict}"


def test_right_answers_written_another_way_are_right():
    for module, exercise, another in [
        ("grpo_theory", "gae", backwards_gae),
        ("grpo_theory", "returns", lambda r, g: [sum(g**k * x for k, x in enumerate(r[t:])) for t in range(len(r))]),
        ("grpo_theory", "logprob", lambda z, t: z[t] - z.exp().sum().log()),
        ("grpo_theory", "reinforce", lambda logp, r: -((r - r.mean()) * (logp - logp.detach()).exp()).mean()),
        ("grpo_theory", "reinforce", lambda logp, r: -(r * (logp - logp.mean())).mean()),
        ("game_2048", "slide", lambda row: list(slide(row))),
        ("game_2048", "outcome", lambda g: SCOPE["REST"](g, board_value(g))),
    ]:
        assert import_module(f"course.exercises.{module}").check(exercise, another).status == "right", exercise


def test_an_unknown_mistake_is_shown_on_an_input_where_it_matters():
    check = checker({"double": Exercise(right=lambda x: 2 * x, cases=lambda: [(0.0,), (3.0,)])})
    verdict = check("double", lambda x: x * x)
    assert verdict.status == "wrong" and "(3)" in verdict.text and "6" in verdict.text and "9" in verdict.text


def test_an_answer_that_raises_or_has_another_type_is_wrong_with_a_reason():
    check = checker({"double": Exercise(right=lambda x: 2 * x, cases=lambda: [(1.0,)])})
    assert "ZeroDivisionError" in check("double", lambda x: x / 0).text
    assert "missing 1 required positional argument" in check("double", lambda x, y: x).text
    assert check("double", 7).status == "wrong" and "a function" in check("double", 7).text
    assert check("double", lambda x: None).status == check("double", ...).status == "not attempted"
    check = checker({"sign": Exercise(right=lambda x: x > 0, cases=lambda: [(-1,), (1,)])})
    assert check("sign", lambda x: True if x > 0 else None).status == "wrong"  # begun, and None for the first case
    with pytest.raises(KeyError, match="the exercises are sign"):
        check("triple", lambda x: x)


def pops(rewards):
    first = rewards.pop()
    return any(reward != first for reward in rewards)


def test_an_answer_may_change_its_inputs():
    from course.exercises.start_here import check

    assert [check("has_signal", pops).status, check("has_signal", pops).status] == ["right", "right"]


def test_numbers_of_numpy_and_fractions_are_numbers():
    from course.exercises.code_repair import check as repair
    from course.exercises.scale_out import check as scale
    from course.exercises.serve import check as serve
    from course.exercises.start_here import check as start

    assert repair("pay", lambda hidden, examples, lines: np.mean(hidden) + all(hidden) * (1 + 0.2 / max(1, lines))).status == "right"
    assert "Expected a number." in repair("pay", lambda hidden, examples, lines: math.nan).text
    assert start("reward", lambda word: np.float32(word == "up")).status == "right"
    assert serve("seed", lambda step, group, member, turn: 2**step * 3**group * 5**member * 7**turn).status == "right"
    assert scale("seconds", lambda *run: Fraction(SECONDS(*run))).status == "right"
    assert scale("enough", lambda seconds: np.int64(next(n for n in range(1, 65) if seconds(n) <= 1.1 * seconds(64)))).status == "right"


def starts_with_yes(events):
    """Count writes without a yes at the start of the last message."""
    broken, proposal, agreed = 0, "", False
    for who, text in events:
        if who == "agent":
            proposal, agreed = text, False
        elif who == "customer":
            agreed = text.lower().startswith("yes")
        else:
            broken += not (agreed and text in proposal)
            agreed = False
    return broken


@pytest.mark.parametrize(("module", "exercise", "wrong"), [
    ("scale_out", "choose", lambda last, loads: last if last is not None and loads[last] else min((i for i, n in enumerate(loads) if n is not None), key=lambda i: loads[i])),
    ("customer_service", "unconfirmed", starts_with_yes),
    ("own_environment", "splits", functools.cache(lambda name: random.choices(["train", "val", "test"], [8, 1, 1])[0])),
    ("code_repair", "pay", lambda hidden, examples, lines: np.mean(hidden) + all(hidden) * (2 - 0.1 * lines)),
])  # fmt: skip
def test_wrong_answers_that_look_right(module, exercise, wrong):
    assert import_module(f"course.exercises.{module}").check(exercise, wrong).status == "wrong"


def test_an_answer_that_lacks_a_return_or_is_async_is_told_so():
    check = checker({"double": Exercise(right=lambda x: 2 * x, cases=lambda: [(1.0,), (2.0,)])})

    def prints(x):
        print(2 * x)

    def computes(x):
        2 * x  # noqa: B018

    async def later(x):
        return 2 * x

    def by_case(x):
        return {1.0: 2.0}[x]

    assert all("is a `return` missing" in check("double", each).text for each in (prints, computes))
    assert "one that is async" in check("double", later).text
    line = by_case.__code__.co_firstlineno + 1
    assert check("double", by_case).text == f"Your answer raised KeyError: 2.0 (line {line} of its cell), for the input\n(2)"
    assert f"(line {line} of its cell)" in check("double", functools.cache(by_case)).text
    assert "is a `return` missing" in check("double", functools.cache(computes)).text


def test_a_note_of_an_exception_is_on_a_line_of_its_own():
    def noted(x):
        error = ValueError("at most 8")
        error.add_note("1 of 24 rollouts failed")
        raise error

    verdict = checker({"double": Exercise(right=lambda x: 2 * x, cases=lambda: [(1.0,)])})("double", noted)
    assert verdict.text.endswith("of its cell)\n1 of 24 rollouts failed, for the input\n(1)")


def test_a_long_value_is_cut():
    check = checker({"double": Exercise(right=lambda x: 2 * x, cases=lambda: [(1.0,)])})
    assert len(check("double", lambda x: list(range(100_000))).text) < 5000


@pytest.mark.parametrize(("a", "b", "equal"), [
    ([1.0, 2], torch.tensor([1.0, 2.0]), True), ((1, 2), [1, 2.0], True), ([1], [1, 1], False), ("a", "a", True),
    (1.0, 1.0005, True), (1.0, 1.01, False), (float("nan"), float("nan"), True), (float("nan"), 1.0, False), ("1", 1, False),
])  # fmt: skip
def test_same(a, b, equal):
    assert same(a, b) is equal
