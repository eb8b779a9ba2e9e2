"""Runs a notebook without a browser: its cells and what they print appear live, then the results as a table.

A code cell with the tag `result` prints lines `RESULT {json}`, one result each:
`{"label": str, "value": number, "low": number, "high": number, "unit": str, "n": int}`. Only label and value
are needed; low and high are the 95% interval, n the number of games (or the like) behind it.
"""

from __future__ import annotations

import copy
import json
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

ROOT = Path(__file__).resolve().parents[2]
SILENCE = 20.0  # seconds without a line after which a sign of life is printed
WIDGET = "application/vnd.jupyter.widget-view+json"


class Reporter:
    """Prints lines with the time since the start, and a sign of life when a cell is silent for long."""

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
    def sign_of_life(self):
        """While the block runs, says what is being waited for after each SILENCE seconds without a line."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(1.0):
                if time.monotonic() - self.last > SILENCE:
                    self.line(f"    {self.clock()}  still at: {self.doing}")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


class LiveClient(NotebookClient):
    """nbclient's client that hands on each whole line of the cells' stdout while they run."""

    def __init__(self, nb, *, say: Callable[[str], None], **options):
        super().__init__(nb, coalesce_streams=True, **options)
        self.say, self.rest = say, ""

    def output(self, outs, msg, display_id, cell_index):
        content = msg["content"]
        if msg["msg_type"] == "stream" and content["name"] == "stdout":
            *lines, self.rest = (self.rest + content["text"]).split("\n")
            for line in lines:
                self.say(line.rsplit("\r", 1)[-1])
        return super().output(outs, msg, display_id, cell_index)

    def flush(self) -> None:
        """Hands on what a cell printed without an end of line."""
        if self.rest:
            self.say(self.rest)
        self.rest = ""


def titles(cells: list) -> list[str]:
    """A title for each cell: the nearest markdown heading above it."""
    title, found = "", []
    for cell in cells:
        if cell.cell_type == "markdown":
            title = next(iter(re.findall(r"^#+\s+(.+)$", cell.source, re.MULTILINE)[::-1]), title)
        found.append(title)
    return found


def run_notebook(notebook: NotebookNode, folder: Path, *, write: Callable[[str], None] = print) -> None:
    """Runs `notebook` in place, cell by cell, in a new kernel whose working directory is `folder`.

    Raises: CellExecutionError when a cell fails; the notebook then holds what ran before, and the error.
    """
    report = Reporter(write)
    client = LiveClient(
        notebook,
        say=lambda line: None if line.startswith("RESULT ") else report.line(f"    {line}"),
        timeout=None,
        kernel_name="python3",
        shutdown_kernel="immediate",  # an orderly one would interrupt a busy kernel and print its traceback
        extra_arguments=["--log-level=ERROR"],  # not its remark on unencrypted sockets of this machine
        resources={"metadata": {"path": str(folder)}},
    )
    total = len(notebook.cells)
    with report.sign_of_life(), client.setup_kernel():
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
    """What the cells with the tag `result` reported, in order."""
    found = []
    for cell in notebook.cells:
        if "result" in cell.metadata.get("tags", []):
            printed = "".join(out.text for out in cell.outputs if out.get("name") == "stdout")
            found += [json.loads(line[7:]) for line in printed.splitlines() if line.startswith("RESULT ")]
    return found


def table(rows: list[dict]) -> str:
    """Results as aligned lines: label, value with unit, 95% interval, n."""
    lines = []
    for row in rows:
        value = f"{row['value']:.1f}{row.get('unit', '')}"
        interval = f"95% interval {row['low']:.1f} to {row['high']:.1f}" if "low" in row else ""
        lines.append((row["label"], value, interval, f"n = {row['n']}" if "n" in row else ""))
    first, second, third = (max(map(len, column)) for column in list(zip(*lines, strict=True))[:3])
    return "\n".join(f"{a:<{first}}  {b:>{second}}  {c:<{third}}  {d}".rstrip() for a, b, c, d in lines)


def to_html(notebook: NotebookNode) -> str:
    """The notebook as one page that needs no kernel: a widget that has a static rendering is shown by it."""
    from nbconvert import HTMLExporter

    page = copy.deepcopy(notebook)
    for cell in page.cells:
        for out in cell.get("outputs", []):
            if {"text/html", "image/png", "image/svg+xml"} & out.get("data", {}).keys():
                out["data"].pop(WIDGET, None)
    return HTMLExporter().from_notebook_node(page)[0]


def demo(path: Path = ROOT / "notebooks" / "02_2048.ipynb", out: Path = ROOT / "out") -> int:
    """Runs the notebook at `path` and writes it, executed, with an HTML copy into `out`.

    It runs in an empty folder, so that an earlier run's checkpoints do not shorten it. Returns the exit code:
    0 done, 1 a cell failed or none reported a result, 130 interrupted. What ran before a failure or an
    interruption is kept as `<name>.partial.ipynb`.
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
        print(f"{problem}\nWhat ran until then: {partial}", flush=True)
        return code
    return finish(notebook, path.stem, out)


def working_folder(folder: Path) -> Path:
    """`notebooks/` in `folder`, beside a copy of the course's data (9 MB), as in the repository."""
    shutil.copytree(ROOT / "data", folder / "data", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "notebooks").mkdir()
    return folder / "notebooks"


def finish(notebook: NotebookNode, name: str, out: Path) -> int:
    """Writes both copies, prints the results and where the copies are; 1 when no result was reported."""
    write_file(out / f"{name}.ipynb", nbformat.writes(notebook).encode())
    write_file(out / f"{name}.html", to_html(notebook).encode())
    rows = results(notebook)
    print(f"\n{table(rows) if rows else 'No cell with the tag `result` reported a result.'}\n")
    print(f"The executed notebook: {out / name}.ipynb\nThe same as a page:    {out / name}.html", flush=True)
    return 0 if rows else 1
