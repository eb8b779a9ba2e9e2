"""The data and their makers: items are written atomically, makers are kept, and the base models are reproducible."""

import hashlib
import importlib
import json
import re
from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from data import __main__ as command
from data import chat_format, nano_model
from data.demonstration import Demonstration
from data.item import SUMS, read_sums, write_item
from data.real_email_trained import maker as trained_maker

DATA = Path(__file__).parents[2] / "data"


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def filled(**texts):
    return lambda folder: [(folder / name).write_text(text) for name, text in texts.items()]


def test_made_files_are_replaced_and_others_are_kept(tmp_path):
    item = tmp_path / "item"
    write_item(item, filled(card="old", model="old", dropped="old"))
    (item / "maker.py").write_text("make()")
    (item / "notes").mkdir()
    (item / "notes" / "card").write_text("of mine")
    write_item(item, filled(card="new", model="new"))
    found = files(item)
    sums = {name: hashlib.sha256(b"new").hexdigest() for name in ("card", "model")}
    assert read_sums(item) == sums and found.pop(SUMS).decode() == "".join(f"{sum}  {name}\n" for name, sum in sums.items())
    assert found == {"card": b"new", "model": b"new", "maker.py": b"make()", "notes/card": b"of mine"}


def test_an_interrupted_maker_leaves_the_item_unchanged(tmp_path):
    item = tmp_path / "item"
    write_item(item, filled(card="old"))
    (item / "maker.py").write_text("make()")
    before = files(tmp_path)

    def fail(folder):
        filled(card="new")(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_item(item, fail)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", command.ITEMS)
def test_cards_name_command_and_maker_and_hashes_cover_all_files(name):
    item = command.ITEMS[name]
    folder = command.ROOT / item.folder
    sums = read_sums(folder)
    made = [path for path in folder.iterdir() if path.is_file() and path.suffix != ".py" and path.name != SUMS]
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made}
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"`python -m data {name}`" in card and "/".join(Path(item.maker).parts[-2:]) in card
    assert (command.ROOT / item.maker).is_file() and "license: apache-2.0" in card
    root, package, *_ = Path(item.folder).parts
    (link,) = re.findall(rf"\[{package}\]\((.*?)\)", (DATA / "README.md").read_text(encoding="utf-8"))
    assert (DATA / link).resolve() == command.ROOT / root / package / "README.md"


def test_the_command_makes_the_given_items_or_all(monkeypatch, capsys):
    monkeypatch.setattr(command, "ITEMS", {name: command.Item("", "", "") for name in "ab"})
    monkeypatch.setattr(command, "make", lambda name: {"size": {"a": 1, "b": 2}[name]})
    assert command.main(["b"]) == 0 and capsys.readouterr().out == "b: size 2\n"
    assert command.main([]) == 0 and capsys.readouterr().out == "a: size 1\nb: size 2\n"
    assert command.main(["b", "c"]) == 2 and "no item 'c'" in (output := capsys.readouterr()).err and not output.out


@pytest.fixture(scope="module", params=["nano", "nano_email", "nano_tic_tac_toe", "nano_code", "nano_service"])
def base(request):
    """(folder, recipe, facts, committed tokenizer) of a base model."""
    folder, recipe = DATA / request.param, importlib.import_module(f"data.{request.param}.maker").RECIPE
    facts = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return folder, recipe, facts, AutoTokenizer.from_pretrained(folder)


def test_the_tokenizer_is_reproduced_byte_for_byte(base, tmp_path):
    folder, recipe, facts, _ = base
    recipe.tokenizer(facts["seed"]).save_pretrained(tmp_path)
    assert files(tmp_path).keys() == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert files(tmp_path).items() <= files(folder).items()


def test_the_first_training_steps_reproduce_the_recorded_losses(base):
    """The loss also falls. Later steps take minutes, and their last digits depend on the processor."""
    folder, recipe, facts, tokenizer = base
    model = recipe.initial_model(tokenizer, facts["seed"])
    committed = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = json.loads(model.config.to_json_string(use_diff=False)) | {"architectures": ["Qwen3ForCausalLM"]}
    assert {name: config[name] for name in committed} == committed | {"transformers_version": config["transformers_version"]}
    assert model.num_parameters() == facts["parameters"] < 2e6
    training = recipe.train(model.train(), tokenizer, facts["steps"], facts["seed"])
    losses = list(islice(training, len(facts["first_losses"])))
    assert losses == pytest.approx(facts["first_losses"], abs=0.01) and losses[0] - losses[-1] > 0.1


def test_the_committed_model_has_the_recorded_metrics(base):
    folder, recipe, facts, tokenizer = base
    prompts = 300 if recipe.task in ("code_repair", "customer_service") else 80  # some shares are computed over a part of the calls
    shares = recipe.evaluate(AutoModelForCausalLM.from_pretrained(folder), tokenizer, facts["seed"] + 2, prompts=prompts)
    recorded = {name: facts[name] for name in shares}
    assert shares == pytest.approx(recorded, abs=0.1)  # three standard errors of the rarest share
    assert recipe.card.format(**facts) == (folder / "README.md").read_text(encoding="utf-8")


def test_a_base_model_is_written_completely(tmp_path, base):
    """With a recipe of few steps and no evaluation: the result loads, and its card states the recipe."""
    _, recipe, _, tokenizer = base
    quick = nano_model.Recipe(
        "a task", 2, lambda seed: tokenizer, recipe.initial_model, lambda *given: iter([3.0, 1.0]), lambda *given: {"legal": 0.5},
        "{task}, {steps} steps, {answer_loss}, {first_losses}, {legal:.0%}",
    )  # fmt: skip
    output = []
    facts = nano_model.build(quick, tmp_path / "made", report=output.append)
    assert (tmp_path / "made" / "README.md").read_text() == "a task, 2 steps, 2.0, [3.0, 1.0], 50%"
    assert json.loads((tmp_path / "made" / "training.json").read_text()) == facts and output[-1].startswith("evaluating")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert AutoTokenizer.from_pretrained(tmp_path / "made").get_vocab() == tokenizer.get_vocab()


def test_a_choice_between_words_of_several_tokens_raises(base):
    *_, tokenizer = base
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "sesquipedalian"}]
    with pytest.raises(ValueError, match="'sesquipedalian' is not one token"):
        chat_format.encode(tokenizer, [Demonstration(messages, choices=[{"sesquipedalian": 1.0}])])


def test_the_maker_of_the_real_models_adapter_reproduces_the_recorded_loss(monkeypatch):
    """The first batch's loss, in micro-batches of another size and without the backward passes, equals the recorded one."""
    import torch

    from art_nb.training.policy import load_policy
    from course.real_model import smollm2
    from data.real_email import maker

    folder = DATA / "real_email"
    facts = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    assert maker.MODEL_CARD.format(**facts) == (folder / "README.md").read_text(encoding="utf-8")
    monkeypatch.setattr(maker, "MICRO_BATCH", 1024)
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: None)  # it takes two thirds of the time; the first loss needs none
    policy = load_policy(smollm2(), engine="transformers", peft_args=maker.PEFT_ARGS, seed=facts["seed"])
    assert sum(p.numel() for p in policy.model.parameters() if p.requires_grad) == facts["parameters"]
    assert next(maker.train(policy, facts["batches"], facts["seed"])) == pytest.approx(facts["first_losses"][0], abs=0.01)


def test_the_adapter_contains_no_local_path_of_its_base_model(tmp_path):
    """The written weights are the trained ones, rounded to bfloat16."""
    import torch
    from safetensors.torch import load_file

    from art_nb.training.policy import load_policy
    from data.real_email import maker

    policy = load_policy(DATA / "nano", engine="transformers")
    maker.save(policy, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    held = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    written = load_file(tmp_path / "adapter_model.safetensors")
    assert len(written) == len(held) and {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    for name, tensor in held.items():
        assert torch.equal(written[name.replace(".default", "")], tensor.bfloat16())


def test_the_trained_adapter_differs_from_its_start_by_a_plausible_amount():
    from safetensors.torch import load_file

    before, after = DATA / "real_email", DATA / "real_email_trained"
    facts = json.loads((after / "training.json").read_text(encoding="utf-8"))
    assert trained_maker.MODEL_CARD.format(**facts) == (after / "README.md").read_text(encoding="utf-8")
    assert (facts["steps"], facts["searches"]) == (trained_maker.STEPS, trained_maker.GROUPS * trained_maker.SIZE)
    assert (after / "adapter_config.json").read_bytes() == (before / "adapter_config.json").read_bytes()
    old, new = (load_file(folder / "adapter_model.safetensors") for folder in (before, after))
    assert old.keys() == new.keys()
    moved = max(float((new[name].float() - old[name].float()).abs().max()) for name in old)
    # Adam moves a weight by at most about the learning rate per step, and the rate falls to a tenth.
    assert 0 < moved < facts["learning_rate"] * facts["steps"]


def test_the_trained_adapter_is_written_completely(tmp_path, monkeypatch):
    """With one step of the nano model for email search."""
    monkeypatch.setattr(trained_maker, "GROUPS", 1)
    monkeypatch.setattr(trained_maker, "SIZE", 2)
    facts = trained_maker.build(tmp_path / "made", base=str(DATA / "nano_email"), steps=1)
    made = {path.name for path in (tmp_path / "made").iterdir()}
    assert made == {"README.md", SUMS, "adapter_config.json", "adapter_model.safetensors", "training.json"}
    assert json.loads((tmp_path / "made" / "training.json").read_text(encoding="utf-8")) == facts and facts["steps"] == 1
