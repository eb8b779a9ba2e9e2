"""A `.art` folder that the release 0.1 wrote loads, and its run goes on to the same numbers.

tests/support/art_folder_0_1 is the folder after two steps; art_folder_0_1_third_step.json is what the same release sampled and
learned in the third step: the answers, the row of the log, and the sum and the sum of squares of each adapter weight.
"""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from test_backend import gather
from tiny_models import make_checkpoint

import art_nb as art
from art_nb.backends.local import LocalBackend

FOLDER = Path(__file__).parents[1] / "support" / "art_folder_0_1"
THIRD_STEP = json.loads((FOLDER.parent / "art_folder_0_1_third_step.json").read_text("utf-8"))


def test_the_run_resumes_to_the_same_numbers(tmp_path):
    path = shutil.copytree(FOLDER, tmp_path / "art")
    base = str(make_checkpoint(tmp_path / "tiny"))

    async def resume():
        backend = LocalBackend(path=path, engine="transformers", base_models={"tiny": base})
        model = art.TrainableModel(
            name="m", project="p", base_model="tiny", _internal_config={"peft_args": {"r": 4, "lora_alpha": 8}}
        )
        await model.register(backend)
        assert await model.get_step() == 2
        logged = [(row["step"], row["split"]) for row in model.history().to_dict("records")]
        assert logged == [(1, "train"), (2, "train"), (2, "val")]
        assert len(model.records(split="train")) == 16 and len(model.records(split="val")) == 8
        groups = await gather(model, 2)
        await model.train(groups, art.TrainConfig(learning_rate=5e-2))
        return [[choice.message.content for choice in each.choices()] for group in groups for each in group]

    assert asyncio.run(resume()) == THIRD_STEP["answers"]
    folder = path / "p/models/m"
    row = json.loads((folder / "history.jsonl").read_text("utf-8").splitlines()[-1])
    assert row["split"] == "train"
    expected = {key: value for key, value in THIRD_STEP["row"].items() if key != "split"}
    assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
    weights = load_file(folder / "checkpoints/0003/adapter_model.safetensors")
    sums = {name: [float(w.double().sum()), float(w.double().pow(2).sum())] for name, w in weights.items()}
    assert sums.keys() == THIRD_STEP["adapter_sums"].keys()
    for name, each in THIRD_STEP["adapter_sums"].items():
        assert sums[name] == pytest.approx(each, rel=1e-3, abs=1e-4), name
