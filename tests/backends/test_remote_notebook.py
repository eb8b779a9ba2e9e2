"""Notebook 02 with a server in another process: one line of its cells changed, and byte-identical results."""

import ast
import asyncio
import json
from pathlib import Path

from running_server import TOKEN
from test_remote import without_clock

from art_nb.storage.run_log import RunLog

ROOT = Path(__file__).parents[2]
HERE = 'backend = LocalBackend(path=".art")'
SMALL = {"WIN = 256": "WIN = 32", "GROUP_SIZE = 24, 2, 16": "GROUP_SIZE = 2, 2, 6"}
NEEDED = ("WIN = ", HERE, "async def rollout(", "def less_board_values(", "async def train(")  # the cells that contain these texts


def recipe() -> str:
    """Return the cells of notebook 02 that create the model, play and train, with smaller sizes."""
    notebook = json.loads((ROOT / "notebooks/02_2048.ipynb").read_text("utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    chosen = [cell for cell in cells if any(needed in cell for needed in NEEDED)]
    assert len(chosen) == len(NEEDED)
    source = "\n".join([*chosen, "view = TrainingView(total_steps=STEPS)\nawait train(model, view, STEPS)"])
    for whole, small in {**SMALL, '"../data/nano"': repr(str(ROOT / "data/nano"))}.items():
        assert source.count(whole) == 1
        source = source.replace(whole, small)
    return source


async def run(source: str, folder: Path, monkeypatch) -> dict:
    """Run cells in `folder`, as a kernel does. Returns their variables."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    names: dict = {}
    code = compile(source, "notebook 02", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, names)
    return names


def test_notebook_02_with_a_remote_backend_gives_identical_results(server, tmp_path, monkeypatch, capsys):
    source = recipe()
    assert source.count(HERE) == 1
    local = source.replace(HERE, 'backend = LocalBackend(path=".art", engine="transformers")')  # the engine of the tests' server
    remote = source.replace(HERE, f'backend = art.RemoteBackend("{server.url}", "{TOKEN}", path=".art")')
    changed = [pair for pair in zip(local.splitlines(), remote.splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 1

    async def both():
        results = []
        for name, each in (("here", local), ("there", remote)):
            names = await run(each, tmp_path / name, monkeypatch)
            model = names["model"]
            if name == "there":
                await names["backend"].download_checkpoint(model)
            folder = names["backend"].output_dir(model).resolve()
            results.append((folder, model.records(), [without_clock(row) for row in RunLog(folder).rows()]))
            await names["backend"].close()
        return results

    (here, records, rows), (there, records_there, rows_there) = asyncio.run(both())
    assert [row["step"] for row in rows] == [1, 2] and len(records) == 24
    assert all(turn["tokens"] for record in records for turn in record["turns"] if turn["trainable"])
    assert records_there == records  # tokens, their log-probabilities and advantages, boards, rewards
    assert rows_there == rows
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        path = f"checkpoints/0002/{name}"
        assert (there / path).read_bytes() == (here / path).read_bytes()
    before, after = (here / f"checkpoints/{step}/adapter_model.safetensors" for step in ("0000", "0002"))
    assert before.read_bytes() != after.read_bytes()
    printed = capsys.readouterr().out
    assert printed[: len(printed) // 2] * 2 == printed and "step 2 of 2: won" in printed
