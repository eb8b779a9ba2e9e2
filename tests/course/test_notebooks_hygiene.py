"""Committed notebooks: executed, clean, small, in the course's form, and without traces of the machine."""

import ast
import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

from course.setup_cell import setup_cell

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
MACHINE_PATH = re.compile(r"/(root|home|tmp|work|Users)/[\w.]")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list[tuple[int, nbformat.NotebookNode]]:
    """Return the code cells that are not empty, with their indices."""
    return [(i, c) for i, c in enumerate(read(path).cells) if c.cell_type == "code" and c.source.strip()]


def lines_of(cell: nbformat.NotebookNode) -> int:
    return sum(bool(line.strip()) for line in cell.source.splitlines())


@each_notebook
def test_is_a_valid_notebook_of_at_most_1_5_mb(path):
    nbformat.validate(read(path))
    assert path.stat().st_size < 1.5e6


@each_notebook
def test_was_run_from_top_to_bottom_with_outputs(path):
    cells = code_cells(path)
    assert [cell.execution_count for _, cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell.outputs for _, cell in cells)


@each_notebook
def test_outputs_contain_no_error_and_nothing_on_stderr(path):
    """Jupyter shows stderr on a red background, so it must contain no warnings and progress bars."""
    for i, cell in code_cells(path):
        for out in cell.outputs:
            assert out.output_type != "error", f"cell {i}: {out.get('ename')}"
            assert out.get("name") != "stderr", f"cell {i}: {out.text[:200]}"
            assert "Warning" not in out.get("text", ""), f"cell {i}: {out.text[:200]}"


@each_notebook
def test_an_error_in_a_cell_fails_the_run(path):
    """nbmake passes a notebook with `allow_errors`, and a cell tagged `raises-exception`, whatever happens in it."""
    notebook = read(path)
    assert "execution" not in notebook.metadata
    assert not [i for i, cell in enumerate(notebook.cells) if "raises-exception" in cell.metadata.get("tags", [])]


@each_notebook
def test_contains_no_local_path(path):
    for i, cell in enumerate(read(path).cells):
        for out in cell.get("outputs", []):
            out.get("data", {}).pop("image/png", None)  # base64 may contain any word
        found = MACHINE_PATH.search(cell.source + json.dumps(cell.get("outputs", [])))
        assert not found, f"cell {i}: ...{found.string[max(0, found.start() - 60) : found.end() + 40]}..."


@each_notebook
def test_its_formulas_can_be_drawn_in_the_book(path):
    """The book translates formulas to MathML, which refuses some that MathJax draws, such as an exponent without a base."""
    markdown = MarkdownIt().use(dollarmath_plugin, double_inline=True)
    for i, cell in enumerate(read(path).cells):
        blocks = markdown.parse(cell.source) if cell.cell_type == "markdown" else []
        for token in [*blocks, *(inline for block in blocks for inline in block.children or ())]:
            if token.type.startswith("math_"):
                try:
                    tex2mathml(token.content, as_block=token.type == "math_block")
                except (MathError, IndexError) as error:
                    pytest.fail(f"cell {i}: {token.content!r}: {error}")


@each_notebook
def test_a_code_cell_fits_a_screen(path):
    """30 non-blank lines at most, and not more than one cell in ten above 25."""
    lengths = {i: lines_of(cell) for i, cell in code_cells(path)}
    assert {i: n for i, n in lengths.items() if n > 30} == {}
    assert sum(n > 25 for n in lengths.values()) <= len(lengths) / 10


@each_notebook
def test_a_text_can_be_read_at_a_glance(path):
    """Without tables, code, formulas and what is folded away. Folds need blank lines, or their text is not drawn as markdown."""
    for i, cell in enumerate(read(path).cells[1:], 1):
        if cell.cell_type == "markdown":
            visible = re.sub(r"<details>.*?</details>|```.*?```|\$\$.*?\$\$|^\|.*?$", "", cell.source, flags=re.DOTALL | re.MULTILINE)
            assert len(visible.split()) <= 220, f"cell {i}: fold away what a first reader does not need, or split the cell"
            for fold in re.findall(r"</summary>.*?</details>", cell.source, flags=re.DOTALL):
                assert fold.startswith("</summary>\n\n") and fold.endswith("\n\n</details>"), f"cell {i}"


@each_notebook
def test_opens_with_what_it_teaches_costs_and_needs_and_ends_with_exercises(path):
    cells = read(path).cells
    opening = cells[0].source.lower()
    assert cells[0].cell_type == "markdown" and opening.startswith("# ")
    assert [word for word in ("you will", "minute", "cpu", "need") if word not in opening] == []
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    headings = re.findall(r"^#+ .*$", prose.lower(), re.MULTILINE)
    assert any("exercise" in heading for heading in headings[-8:])


@each_notebook
def test_chooses_its_model_in_one_cell(path):
    """A reader with a GPU changes only that cell; every other cell uses `model.base_model`."""
    assert sum('base_model="' in cell.source for _, cell in code_cells(path)) <= 1


@each_notebook
def test_hides_nothing(path):
    for i, cell in enumerate(read(path).cells):
        assert not cell.source.lstrip().startswith("%%skip"), f"cell {i}"
        assert not cell.metadata.get("jupyter", {}).get("source_hidden"), f"cell {i}"
        assert not [tag for tag in cell.metadata.get("tags", []) if tag.startswith(("hide", "remove"))]


@each_notebook
def test_begins_its_code_with_the_setup_cell(path):
    """It contains the repository's address from pyproject.toml; `python -m art_nb setup-cell` writes it."""
    assert code_cells(path)[0][1].source == setup_cell()


def shows_by_name(source: str) -> set[str]:
    """Return the names of the functions and methods in `source` that call `plt.show`."""
    functions = [node for node in ast.walk(parsed(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {function.name for function in functions if "plt.show()" in ast.unparse(function)}


def parsed(source: str) -> ast.Module:
    code = "" if source.startswith("%%") else source  # %%writefile: the cell is a file, not code
    return compile(code, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


@each_notebook
def test_what_it_imports_of_this_repository_exists(path):
    ours = {"art_nb", "course", *os.listdir(NOTEBOOKS[0].parents[1] / "environments")}
    for _, cell in code_cells(path):
        for node in ast.walk(parsed(cell.source)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ours:
                exec(ast.unparse(node), {})


def draws(source: str, drawing: set[str]) -> bool:
    """Return whether the cell itself shows a figure, not only a function that it defines. drawing: calls that show one."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    statements = [node for node in parsed(source).body if not isinstance(node, definitions)]
    calls = [node.func for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return bool({ast.unparse(call) for call in calls} & {"plt.show", *drawing})


@each_notebook
def test_a_cell_that_draws_has_its_picture(path):
    """A plot can be lost without an error: with the backend `agg`, `plt.show` does nothing."""
    cells = code_cells(path)
    drawing = {"found.plot"}.union(*(shows_by_name(cell.source) for _, cell in cells))
    for i, cell in cells:
        if draws(cell.source, drawing):
            assert any("image/png" in out.get("data", {}) for out in cell.outputs), f"cell {i} lost its picture"


def test_the_search_for_lost_pictures_sees_calls_not_definitions():
    helper = "def curve(rows):\n    axes.plot(rows)\n    plt.show()"
    assert shows_by_name(helper) == {"curve"} and not draws(helper, {"curve"})
    assert draws("curve(await rows())", {"curve"}) and draws("plt.show()", set()) and not draws("axes.plot(rows)", {"curve"})
