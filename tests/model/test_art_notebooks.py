"""ART's own public notebooks run here with the import, the base model and the sizes changed, nothing else.

Their text is not included here. Give the folder of a clone:

    git clone https://github.com/OpenPipe/ART
    ART_EXAMPLES=ART/examples python -m pytest tests/model/test_art_notebooks.py

Cells that install packages, need CUDA or download are skipped: the puzzles are read from the same folder. Where ART's logging
service or dotenv is imported and not installed, an empty module replaces it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import make_checkpoint

EXAMPLES = Path(os.environ.get("ART_EXAMPLES", ""))
pytestmark = pytest.mark.skipif(
    not (EXAMPLES / "prisoners-dilemma.ipynb").exists(),
    reason="ART_EXAMPLES does not name the folder `examples` of https://github.com/OpenPipe/ART",
)
LEFT_OUT = r"^\s*(!|%)|FastLanguageModel|np\.__version__"  # installs and displays, GPU, the version of numpy on Colab
CHANGED = {
    r"^import art$": "import art_nb as art",
    r"^from art\b": "from art_nb",
    r'"Qwen/[^"]+"': "BASE",
    r"requests\.get\(puzzles_url\)": "types.SimpleNamespace(text=PUZZLES.read_text(\"utf-8\"))",
    # sizes: steps, rollouts, rounds, puzzles, tokens
    r"\b1_000\)|(?<=, )(?:50|10)\)": "2)",
    r"range\((?:8|18|48|50|64)\)": "range(2)",
    r"= 10$|range\(10\)": lambda found: found[0].replace("10", "2"),
    r"puzzles\[:64\]": "puzzles[:2]",
    r"stride = 4": "stride = 1",
    r"max_completion_tokens=\d+": "max_completion_tokens=24",
}
BEFORE = """
import sys, types
from pathlib import Path
class Empty:
    api_key = None
clients = {"OpenPipe": Empty, "AsyncOpenPipe": Empty}
for name, names in {"dotenv": {"load_dotenv": lambda: None}, "openpipe": {}, "openpipe.client": clients}.items():
    try:
        __import__(name)
    except ImportError:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(names)
BASE, PUZZLES = sys.argv[1], Path(sys.argv[2])
"""
# As in IPython, `await` is allowed outside of functions.
RUN = """
import ast, asyncio, sys
sys.argv = sys.argv[1:]
source = open(sys.argv[0], encoding="utf-8").read()
code = compile(source, sys.argv[0], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(code, {"__name__": "__main__"}))
"""
AFTER = """
steps, history = await model.get_step(), model.history()
print("ran", steps, sorted({*history["split"]}))
"""


def program(notebook: Path) -> str:
    """Return the code cells as one program with top-level `await`."""
    cells = [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    sources = [source for cell in cells if not re.search(LEFT_OUT, source := "".join(cell["source"]), re.M)]
    code = "\n".join(sources)
    for pattern, new in CHANGED.items():
        code = re.sub(pattern, new, code, flags=re.M)
    return f"{BEFORE}\n{code}\n{AFTER}"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("base"), max_position_embeddings=8192)


NOTEBOOKS = {
    "tic_tac_toe/tic-tac-toe.ipynb": ["train"],
    "2048/2048.ipynb": ["train"],
    "prisoners-dilemma.ipynb": ["base-model", "train", "versus-base", "versus-self"],
    "rock-paper-tool-use.ipynb": ["train"],
    "temporal_clue/temporal-clue.ipynb": ["train", "val"],
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_arts_notebook_runs(name, base, tmp_path):
    puzzles = EXAMPLES.resolve() / "data/temporal-clue/puzzles.json"
    (tmp_path / "notebook.py").write_text(program(EXAMPLES / name), encoding="utf-8")
    command = [sys.executable, "-c", RUN, "notebook.py", str(base), str(puzzles)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f"ran 2 {NOTEBOOKS[name]}"
