"""Run a notebook in a terminal: print its cells' titles and output while they run, then the results as a table.

A cell reports its results with `course.results.show`.
"""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode

from art_nb.storage.checkpoints import write_file
from course.results import MIME, table

ROOT = Path(__file__).resolve().parents[2]
SILENCE = 20.0  # seconds without a line after which the reporter prints what is running
WIDGET = "application/vnd.jupyter.widget-view+json"
FORMULA = re.compile(r"(?<!\$)\$(?![\s$])([^$\n*]+)\$(?!\$)")
# nbconvert's page without the scripts that it would load from the network.
PAGE = "{% extends 'lab/index.html.j2' %}" + "".join(
    f"{{% block html_head_js{script} %}}{{% endblock %}}" for script in ("", "_mathjax", "_mermaidjs")
)


class Reporter:
    """Prints lines, and the name of the running cell when nothing has been printed for a while."""

    def __init__(self, write: Callable[[str], None]):
        self.write, self.start, self.last = write, time.monotonic(), time.monotonic()
        self.doing = "starting the kernel"

    def line(self, text: str) -> None:
        self.last = time.monotonic()
        self.write(text)

    def clock(self) -> str:
        seconds = int(time.monotonic() - self.start)
        return f"{seconds // 60}:{seconds % 60:02d}"

    @contextmanager
    def heartbeat(self):
        """While the block runs, print what is running after each SILENCE seconds without a line."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(1.0):
                if time.monotonic() - self.last > SILENCE:
                    self.line(f"    {self.clock()}  still running: {self.doing}")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


class LiveClient(NotebookClient):
    """nbclient's client, which also passes each line of the cells' stdout to `on_line` while they run."""

    def __init__(self, nb, *, on_line: Callable[[str], None], **options):
        super().__init__(nb, coalesce_streams=True, **options)
        self.on_line, self.rest = on_line, ""

    def output(self, outs, msg, display_id, cell_index):
        content = msg["content"]
        if msg["msg_type"] == "stream" and content["name"] == "stdout":
            *lines, self.rest = (self.rest + content["text"]).split("\n")
            for line in lines:
                self.on_line(overwritten(line))
        return super().output(outs, msg, display_id, cell_index)

    def flush(self) -> None:
        """Pass on the last output of a cell if it did not end in a newline."""
        if self.rest:
            self.on_line(overwritten(self.rest))
        self.rest = ""


def overwritten(line: str) -> str:
    """Return what a terminal shows of a line: the text after its last carriage return that text follows."""
    return line.rstrip("\r").rsplit("\r", 1)[-1]


def titles(cells: list) -> list[str]:
    """Return a title for each cell: the nearest Markdown heading above it."""
    title, found = "", []
    for cell in cells:
        if cell.cell_type == "markdown":
            title = next(iter(re.findall(r"^#+\s+(.+)$", cell.source, re.MULTILINE)[::-1]), title)
        found.append(title)
    return found


def run_notebook(notebook: NotebookNode, folder: Path, *, write: Callable[[str], None] = print) -> None:
    """Run `notebook` in place, cell by cell, in a new kernel whose working directory is `folder`.

    Raises: CellExecutionError when a cell fails; the notebook then holds the outputs so far, and the error.
    """
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    report = Reporter(write)
    client = LiveClient(
        notebook,
        on_line=lambda line: report.line(f"    {line}"),
        timeout=None,
        kernel_name="python3",
        shutdown_kernel="immediate",  # an orderly shutdown would interrupt a busy kernel and print its traceback
        extra_arguments=["--log-level=ERROR"],  # hides its warning about unencrypted local sockets
        resources={"metadata": {"path": str(folder)}},
    )
    total = len(notebook.cells)
    with report.heartbeat(), client.setup_kernel():
        for index, title in enumerate(titles(notebook.cells)):
            cell = notebook.cells[index]
            if cell.cell_type != "code" or not cell.source.strip():
                continue
            report.doing = f"cell {index + 1} of {total}, {title}"
            report.line(f"{report.clock():>5}  [{index + 1}/{total}] {title}")
            try:
                client.execute_cell(cell, index)
            finally:
                client.flush()
        client.set_widgets_metadata()


def results(notebook: NotebookNode) -> list[dict]:
    """Return the results that the cells showed, in order."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [row for output in outputs for row in output.get("data", {}).get(MIME, [])]


def to_html(notebook: NotebookNode) -> str:
    """Return the notebook as one HTML page that needs no kernel: widgets with a static rendering are replaced by it.

    It loads nothing from the network, not even MathJax: a formula is in italics, or TeX source if it has a backslash.
    """
    from nbconvert import HTMLExporter

    page = copy.deepcopy(notebook)
    page.metadata.pop("widgets", None)  # would load ipywidgets' manager
    for cell in page.cells:
        if cell.cell_type == "markdown":
            cell.source = FORMULA.sub(lambda tex: tex[0] if "\\" in tex[1] else f"*{tex[1]}*", cell.source)
        for out in cell.get("outputs", []):
            if {"text/html", "image/png", "image/svg+xml"} & out.get("data", {}).keys():
                out["data"].pop(WIDGET, None)
    return HTMLExporter(raw_template=PAGE).from_notebook_node(page)[0]


def demo(path: Path = ROOT / "notebooks" / "02_2048.ipynb", out: Path = ROOT / "out") -> int:
    """Run the notebook at `path` and write it, executed, with an HTML copy to `out`.

    It runs in an empty folder, so that checkpoints of an earlier run do not shorten it. Returns the exit code:
    0 done, 1 a cell failed or none showed a result, 130 interrupted. After a failure or an interruption the cells
    that ran are kept as `<name>.partial.ipynb`.
    """
    notebook = nbformat.read(path, as_version=4)
    print(f"Running {path.name}. Ctrl-C stops it.", flush=True)
    code, problem = 0, ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            run_notebook(notebook, working_folder(Path(folder)), write=lambda line: print(line, flush=True))
        except CellExecutionError as error:
            code, problem = 1, f"\nA cell failed:\n{error}"
        except DeadKernelError:
            code, problem = 1, "\nThe kernel died (out of memory?)."
        except KeyboardInterrupt:
            code, problem = 130, "\nInterrupted."
    if code:
        partial = out / f"{path.stem}.partial.ipynb"
        write_file(partial, nbformat.writes(notebook).encode())
        print(f"{problem}\nThe notebook with its outputs so far: {partial}", flush=True)
        return code
    return finish(notebook, path.stem, out)


def working_folder(folder: Path) -> Path:
    """Make `notebooks/` in `folder`, next to a copy of the course's data, as in the repository; return its path."""
    shutil.copytree(ROOT / "data", folder / "data", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "notebooks").mkdir()
    return folder / "notebooks"


def finish(notebook: NotebookNode, name: str, out: Path) -> int:
    """Write the notebook and its HTML copy; print the results and both paths. Returns 1 without results, else 0."""
    write_file(out / f"{name}.ipynb", nbformat.writes(notebook).encode())
    write_file(out / f"{name}.html", to_html(notebook).encode())
    rows = results(notebook)
    print(f"\n{table(rows) if rows else 'No cell showed a result.'}\n")
    print(f"The executed notebook: {out / name}.ipynb\nAs an HTML page:       {out / name}.html", flush=True)
    return 0 if rows else 1
