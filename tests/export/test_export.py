"""Exports: stock engines load each format and answer as the backend does."""

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_backend import registered, run
from tiny_models import make_model

from art_nb.__main__ import main
from art_nb.export import export_checkpoint, find_checkpoint, formats
from art_nb.export.checkpoint import Checkpoint
from art_nb.export.parity import ParityError
from course.real_model import smollm2

QUESTIONS = [[{"role": "user", "content": f"say {i} twice, then 7"}] for i in range(4)]


def trained(base, path, steps=2):
    """Train a few large steps, so that the adapter changes the answers; return those answers."""

    async def train():
        model = await registered(str(base), path)
        await run(model, steps)
        return await answers(model)

    return asyncio.run(train())


async def answers(model):
    client = model.openai_client()
    requested = [client.chat.completions.create(model=model.get_inference_name(), messages=q, temperature=0, max_tokens=8) for q in QUESTIONS]
    return [choice.choices[0].token_ids for choice in await asyncio.gather(*requested)]


@pytest.fixture(scope="module")
def run_folder(tiny_base, tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    return path, trained(tiny_base, path)


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def greedy(model, tokenizer, question):
    """Return the tokens of transformers' own `generate`."""
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("form", ["adapter", "merged"])
def test_stock_engines_give_the_same_answers(run_folder, tmp_path, form, capsys):
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path, expected = run_folder
    before = files(path)
    assert main(["export", "m", str(tmp_path / "out"), "--as", form, "--path", str(path)]) == 0
    assert "50 of 50 greedy answers the same; log-probabilities of" in capsys.readouterr().out
    loader = AutoPeftModelForCausalLM if form == "adapter" else AutoModelForCausalLM
    model, tokenizer = loader.from_pretrained(tmp_path / "out").eval(), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert [greedy(model, tokenizer, question) for question in QUESTIONS] == expected
    base = AutoModelForCausalLM.from_pretrained(find_checkpoint("m", path).base_model())
    assert [greedy(base, tokenizer, question) for question in QUESTIONS] != expected, "the adapter changes no answer, so this test shows nothing"
    assert files(path) == before


def test_an_adapter_loads_in_unsloth_and_in_trl(run_folder, tmp_path):
    """vLLM, not installed here, reads the same two files with these tensor names (docs.vllm.ai, LoRA adapters)."""
    from datasets import Dataset
    from peft import AutoPeftModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    export_checkpoint(find_checkpoint("p/m", run_folder[0]), "adapter", tmp_path / "out")
    held = load_file(tmp_path / "out/adapter_model.safetensors")
    assert held and all(name.startswith("base_model.model.model.layers.") and name.endswith((".lora_A.weight", ".lora_B.weight")) for name in held)
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out", is_trainable=True)
    config = GRPOConfig(output_dir=str(tmp_path / "trl"), report_to="none", use_cpu=True, num_generations=2, per_device_train_batch_size=2)
    data = Dataset.from_dict({"prompt": ["a"]})
    model = GRPOTrainer(model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config, train_dataset=data).model
    named = {name.replace(".default", ""): p for name, p in model.named_parameters()}
    assert all(torch.equal(named[name], tensor) for name, tensor in held.items())
    code = """
import sys
import art_nb.training.policy as policy
policy._import_unsloth()
from safetensors.torch import load_file
from unsloth import FastLanguageModel
model, _ = FastLanguageModel.from_pretrained(sys.argv[1], load_in_4bit=False)
named = {name.replace(".default", ""): p for name, p in model.named_parameters()}
held = load_file(sys.argv[1] + "/adapter_model.safetensors")
assert held and all((named[name] == tensor).all() for name, tensor in held.items())
print("LOADED")
"""
    # In a process of its own, because Unsloth patches transformers and TRL.
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, text=True, cwd=tmp_path)
    assert "LOADED" in ran.stdout, ran.stderr[-2000:]


def test_a_damaged_adapter_is_one_line(run_folder, tmp_path, capsys):
    copy = shutil.copytree(run_folder[0], tmp_path / "run")
    (broken,) = list(copy.glob("*/models/m/checkpoints/*/adapter_model.safetensors"))[-1:]
    broken.write_bytes(broken.read_bytes()[:100])
    assert main(["export", f"m@{int(broken.parent.name)}", str(tmp_path / "out"), "--path", str(copy)]) == 1
    assert capsys.readouterr().err.startswith(f"art-nb export: {broken.parent} cannot be read: ") and not (tmp_path / "out").exists()


def test_a_base_model_of_another_folder_is_named(run_folder, tmp_path, monkeypatch, capsys):
    """Notebooks call their base model "../data/nano", whatever the folder of the export."""
    checkpoint = find_checkpoint("m", shutil.copytree(run_folder[0], tmp_path / "notebooks/.art"))
    shutil.copytree(checkpoint.base_model(), tmp_path / "base")
    settings = {**checkpoint.settings(), "base_model_name_or_path": "../base"}
    (checkpoint.folder / "adapter_config.json").write_text(json.dumps(settings))
    monkeypatch.chdir(tmp_path / "notebooks")
    assert main(["export", "m", "out"]) == 0
    monkeypatch.chdir(tmp_path / "notebooks/out")
    assert main(["export", "m", "../more", "--path", "../.art"]) == 1
    assert f"no model at '../base', seen from {tmp_path / 'notebooks/out'}" in capsys.readouterr().err


def test_what_an_upload_lacks_is_found_before_the_export(run_folder, tmp_path, monkeypatch, capsys):
    for key, lacking in (("", "HF_TOKEN is not set"), ("hf_key", "export it with --base OWNER/NAME")):
        monkeypatch.setenv("HF_TOKEN", key)
        options = ["--as", "adapter", "--push", "hub:me/x", "--path", str(run_folder[0])]
        assert main(["export", "m", str(tmp_path / "out"), *options]) == 1
        assert lacking in capsys.readouterr().err and list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A small random Llama with SmolLM2's tokenizer, which llama.cpp supports."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("llama") / "small"
    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    torch.manual_seed(0)  # llama.cpp joins the tokens of one character, which answers of some random weights contain
    make_model("llama", len(tokenizer), hidden_size=64, intermediate_size=128, eos_token_id=tokenizer.eos_token_id).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_llama_cpp_gives_the_same_answers(llama, tmp_path, capsys):
    from openai import OpenAI

    from art_nb.export.llama_cpp import LlamaCpp

    trained(llama, tmp_path / "run")
    assert main(["export", "m", str(tmp_path / "out"), "--as", "gguf", "--path", str(tmp_path / "run")]) == 0
    assert "50 of 50 greedy answers the same" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "model.gguf"]
    with LlamaCpp(tmp_path / "out/model.gguf", threads=1) as engine:
        client = OpenAI(base_url=f"{engine.url}/v1", api_key="none")
        chat = client.chat.completions.create(model="any", messages=QUESTIONS[0], temperature=0, max_tokens=8, logprobs=True)
    assert chat.usage.completion_tokens == len(chat.choices[0].logprobs.content) > 0


def test_a_tokenizer_that_llama_cpp_lacks_raises_and_leaves_no_files(run_folder, tmp_path, capsys):
    assert main(["export", "m", str(tmp_path / "out"), "--as", "gguf", "--path", str(run_folder[0])]) == 1
    assert "no pre-tokenizer for this model's" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_export_is_not_written(run_folder, tmp_path, monkeypatch):
    """A merge with a corrupted layer fails the comparison of answers."""
    write = formats.write_merged

    def spoilt(policy, folder):
        write(policy, folder)
        weights = load_file(folder / "model.safetensors")
        weights["model.layers.1.mlp.down_proj.weight"].mul_(0.5)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(formats, "write_merged", spoilt)
    with pytest.raises(ParityError, match="of 50 greedy answers the same.*prefers another token"):
        export_checkpoint(find_checkpoint("m", run_folder[0]), "merged", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_files_and_the_checkpoint_unchanged(run_folder, tmp_path, monkeypatch, capsys):
    def full(source, target):
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    before = files(run_folder[0])
    monkeypatch.setattr(shutil, "copyfile", full)
    assert main(["export", "m", str(tmp_path / "out"), "--as", "adapter", "--path", str(run_folder[0])]) == 1
    assert os.strerror(errno.ENOSPC) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [] and files(run_folder[0]) == before


def test_existing_files_and_the_current_folder_are_not_replaced(run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileExistsError, match="not the current one"):
        export_checkpoint(find_checkpoint("m", run_folder[0]), "merged", ".")
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="new or empty"):
        export_checkpoint(find_checkpoint("m", run_folder[0]), "merged", tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("requested", "complaint"),
    [("nobody", "no model 'nobody'.*p/m"), ("m@9", r"steps \[0, 1, 2\]"), ("m@last", "'last'"), ("*", "no model"), ("../p/models/m", "no model")],
)
def test_a_missing_checkpoint(run_folder, requested, complaint):
    with pytest.raises(FileNotFoundError, match=complaint):
        find_checkpoint(requested, run_folder[0])


def test_checkpoint_names(run_folder):
    found = find_checkpoint("m@1", run_folder[0])
    assert str(found) == "p/m@1" and found.folder.name == "0001" and found.trained_on() == {"steps": 1, "trajectories": 8, "groups": 2, "demonstrations": 0}
    assert find_checkpoint("p/m", run_folder[0]).step == 2


def test_a_step_that_was_taken_again_counts_once_and_has_the_scores_of_its_last_weights(tmp_path):
    """As after a damaged checkpoint. Rows of other metrics at the same step and split are kept."""
    first = [{"split": "train", "train_s": 1.0, "trajectories": 8, "groups": 2}, {"split": "val", "reward": 0.9, "won": 1.0}]
    again = [{"split": "train", "train_s": 2.0, "trajectories": 6, "groups": 2}, {"split": "val", "reward": 0.5, "trajectories": 4}]
    more = [{"split": "train", "note": 1.0}, {"split": "val", "pass_at_8": 0.75}]
    rows = [{"step": 1, "split": "sft", "train_s": 3.0, "trajectories": 5}, *({"step": 2, **row} for row in (*first, *again, *more))]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = Checkpoint(tmp_path / "checkpoints/0002", tmp_path, "p", "m", 2)
    assert found.trained_on() == {"steps": 2, "trajectories": 6, "groups": 2, "demonstrations": 5}
    assert found.results() == {"val": {"trajectories": 4, "reward": 0.5, "pass_at_8": 0.75}}


def test_the_model_card_contains_logged_results_and_no_path(run_folder, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(run_folder[0], path)
    history = path / "p/models/m/history.jsonl"
    with history.open("a") as file:
        file.write(json.dumps({"step": 2, "split": "val", "reward": 0.625, "won|<b>": 0.5, "trajectories": 16, "time/x": 3.0}) + "\n")
        file.write(json.dumps({"step": 1, "split": "test", "reward": 0.125, "trajectories": 4}) + "\n")
        file.write(json.dumps({"step": 2, "split": "val", "pass_at_8": 0.9}) + "\n")
        file.write(json.dumps({"step": 1, "split": "sft", "trajectories": 500}) + "\n")
    export_checkpoint(find_checkpoint("m", path), "adapter", tmp_path / "out", base="someone/small")
    card = (tmp_path / "out/README.md").read_text()
    assert "500 demonstrations (supervised fine-tuning) and 16 trajectories sampled" in card and "| val | pass_at_8 | 0.9 | 16 |" in card
    assert "| val | reward | 0.625 | 16 |" in card and "won  b" in card and "0.125" not in card and "time/x" not in card
    assert "base_model: someone/small" in card and "16 trajectories" in card and "50 of 50" in card and str(tmp_path) not in card
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["base_model_name_or_path"] == "someone/small"
