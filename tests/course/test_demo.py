"""The demo runs a notebook live, reports its results, and keeps what ran when it fails or is interrupted."""

import signal
import subprocess
import sys
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course import demo

ROW = 'result("win rate after", 62.0, 55.1, 68.4, n=200)'
SHORT_ROW = 'result("seconds", 3, unit=" s")'


def save(path, *cells):
    """A notebook file; a str is a code cell."""
    cells = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    nbformat.write(new_notebook(cells=cells), path)
    return path


def result_cell(*rows):
    return f"from course.results import result, show\nshow({', '.join(rows)})"


def test_prints_cells_and_lines_live_then_the_results_and_leaves_two_copies(tmp_path, capsys):
    path = save(
        tmp_path / "game.ipynb",
        new_markdown_cell("# Game\n\n## Train it"),
        "for step in range(3):\n    print('step', step)",
        result_cell(ROW, SHORT_ROW),
    )
    assert demo.demo(path, tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "[2/3] Train it" in printed and "    step 2\n" in printed
    assert "win rate after  62.0%  95% interval 55.1 to 68.4  n = 200" in printed
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["game.html", "game.ipynb"]
    executed = nbformat.read(tmp_path / "out/game.ipynb", 4)
    assert executed.cells[1].execution_count == 1
    assert [row["value"] for row in demo.results(executed)] == [62.0, 3.0]
    assert "seconds" in executed.cells[2].outputs[0].data["text/plain"]


def test_lines_that_carriage_returns_overwrite_are_printed_as_a_terminal_shows_them(tmp_path):
    source = "print('one\\r\\ntwo\\r\\n', end='')\nprint('10%\\r20%')\nprint('50%\\r99%\\r', end='')"
    printed = []
    demo.run_notebook(new_notebook(cells=[new_code_cell(source)]), tmp_path, write=printed.append)
    assert printed[1:] == ["    one", "    two", "    20%", "    99%"]


def test_a_failing_cell_is_shown_and_what_ran_is_kept(tmp_path, capsys):
    never = new_code_cell("print('never')", outputs=[new_output("stream", text="of an earlier run\n")], execution_count=3)
    path = save(tmp_path / "game.ipynb", "print('before')", "1 / 0", never)
    earlier = nbformat.read(path, 4)
    earlier.metadata["widgets"] = {"w": {"state": {}, "version_major": 2, "version_minor": 0}}
    nbformat.write(earlier, path)
    assert demo.demo(path, tmp_path / "out") == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    partial = nbformat.read(tmp_path / "out/game.partial.ipynb", 4)
    assert partial.cells[0].outputs[0].text == "before\n"
    assert partial.cells[1].outputs[0].ename == "ZeroDivisionError"
    assert not partial.cells[2].outputs and partial.cells[2].execution_count is None and "widgets" not in partial.metadata


def test_a_notebook_without_results_is_a_failure(tmp_path, capsys):
    assert demo.demo(save(tmp_path / "game.ipynb", "1 + 1"), tmp_path / "out") == 1
    assert "No cell showed a result" in capsys.readouterr().out


def test_a_dead_kernel_is_reported(tmp_path, capsys):
    path = save(tmp_path / "game.ipynb", "import os\nos._exit(9)")
    assert demo.demo(path, tmp_path / "out") == 1
    assert "kernel died" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_stops_the_demo_cleanly(tmp_path):
    path = save(tmp_path / "game.ipynb", "print('ready')", "import time\ntime.sleep(60)")
    code = "import sys; from pathlib import Path; from course.demo import demo;"
    code += "sys.exit(demo(*map(Path, sys.argv[1:])))"
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "out")]
    # A test run that was started in the background ignores SIGINT, and its children would inherit that.
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **heard)
    while "[2/2]" not in (line := run.stdout.readline()):
        assert line, run.wait()
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    printed = run.communicate(timeout=55)[0]
    assert run.returncode == 130 and "Interrupted." in printed and "Traceback" not in printed
    assert (tmp_path / "out/game.partial.ipynb").exists()


def test_a_long_silence_prints_the_running_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SILENCE", 0.5)
    lines_written = []
    notebook = new_notebook(cells=[new_markdown_cell("# Wait"), new_code_cell("import time\ntime.sleep(3)")])
    demo.run_notebook(notebook, tmp_path, write=lines_written.append)
    assert any("still running: cell 2 of 2, Wait" in line for line in lines_written)


def test_the_page_shows_a_widget_by_its_static_rendering():
    widget = {"model_id": "x", "version_major": 2, "version_minor": 0}
    data = {demo.WIDGET: widget, "text/html": "<b>static</b>"}
    cell = new_code_cell("view", outputs=[new_output("display_data", data)])
    page = demo.to_html(new_notebook(cells=[cell]))
    assert "<b>static</b>" in page and "widget-view" not in page.split("<body")[1]
    assert demo.WIDGET in cell.outputs[0].data  # the notebook itself keeps the widget


def test_the_page_loads_no_scripts_and_shows_formulas_without_them():
    view = {"state": {}, "version_major": 2, "version_minor": 0}
    notebook = new_notebook(cells=[new_markdown_cell(r"At $T = 0$, and $\frac{a}{b}$ or $c$.")], metadata={"widgets": {"w": view}})
    page = demo.to_html(notebook)
    assert "<script" not in page and "cdnjs" not in page and "unpkg" not in page
    assert r"At <em>T = 0</em>, and $\frac{a}{b}$ or <em>c</em>." in page
