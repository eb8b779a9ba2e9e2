"""The data that a browser needs to run a small trained policy: weights, configuration, tokenizer, positions, the code.

Depends on the standard library only: the book is built without torch (book/watch.py).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent / "explorers"
SHARED = ROOT / "art_nb" / "widgets"
SCRIPTS = ("qwen3", "game_2048", "tic_tac_toe")  # in this order, before common.js and the view's own module
CONFIG = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "rms_norm_eps", "rope_parameters", "sliding_window", "use_sliding_window",
)  # fmt: skip

# (name, what to see, cells row by row): the positions that the view offers; it opens with the first.
POSITIONS: dict[str, list[tuple[str, str, list]]] = {
    "2048": [
        (
            "Two large tiles meet", "Left or right merges the two 64s. Down is illegal: it would move nothing.",
            [0, 0, 0, 2, 0, 0, 0, 4, 2, 4, 8, 16, 64, 64, 4, 2],
        ),
        (
            "Up or right", "Only these are legal. Up takes the 128 out of its corner.",
            [0, 0, 0, 0, 2, 0, 0, 0, 8, 4, 0, 0, 128, 32, 16, 2],
        ),
        (
            "A full board", "Only left and right are legal; both merge the 8s.",
            [2, 4, 2, 4, 16, 8, 8, 2, 4, 32, 4, 16, 64, 2, 16, 4],
        ),
        (
            "One move from the win", "Left or right merges the two largest tiles and wins.",
            [0, 2, 0, 0, 0, 4, 2, 0, 4, 8, 16, 2, 128, 128, 8, 4],
        ),
    ],
    "tic_tac_toe": [
        ("◯ must block", "It is ◯'s turn. ✕ threatens the top row, and only square 3 stops it.", list("xx..o....")),
        ("✕ can win", "It is ✕'s turn. Square 3 completes the top row.", list("xx.oo....")),
        ("A fork", "It is ✕'s turn. Square 5 or 9 makes two threats at once, and ◯ can block only one.", list("xo.o..x..")),
        (
            "Opposite corners", "It is ◯'s turn. Only 2, 4, 6 and 8 draw; after 3 or 7, ✕ makes two threats at once.",
            list("x...o...x"),
        ),
        ("The empty board", "Which square does it begin with?", list(".........")),
    ],
}  # fmt: skip


def kept_steps(last: int) -> list[int]:
    """Return the steps 0, 1, 2, 4, 8, ... up to two thirds of `last`, and `last`. Step 0 is the base model."""
    powers = [2**i for i in range(last.bit_length())]
    return [0, *(step for step in powers if 3 * step <= 2 * last), *([last] if last else [])]


def half_precision(data: bytes) -> bytes:
    """Return a safetensors file with float32 as float16; float16 and int8 are kept. Raises: ValueError for other types."""
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    halves = bytearray()
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        raw = body[slice(*tensor["data_offsets"])]
        if tensor["dtype"] == "F32":
            raw = struct.pack(f"<{len(raw) // 4}e", *struct.unpack(f"<{len(raw) // 4}f", raw))
            tensor["dtype"] = "F16"
        elif tensor["dtype"] not in ("F16", "I8"):
            raise ValueError(f"tensor {name} is {tensor['dtype']}; expected F32, F16 or I8")
        header[name] = {**tensor, "data_offsets": [len(halves), len(halves) + len(raw)]}
        halves += raw
    described = json.dumps(header).encode()
    described += b" " * (-len(described) % 8)
    return struct.pack("<Q", len(described)) + described + halves


def policy_parts(base: Path, game: str) -> dict[str, Any]:
    """Return the view's state that depends on the base model and the game alone, for JSON.

    Raises: ValueError for a game that the view does not know, or a base model of another architecture.
    """
    if game not in POSITIONS:
        raise ValueError(f"game is {game!r}; expected one of {', '.join(POSITIONS)}")
    config = json.loads((base / "config.json").read_text("utf-8"))
    if config.get("model_type") != "qwen3" or not config.get("tie_word_embeddings"):
        kind = config.get("model_type")
        raise ValueError(f"{base} is a {kind} model; expected a Qwen3 model with tied embeddings, e.g. data/nano")
    tokenizer = json.loads((base / "tokenizer.json").read_text("utf-8"))
    return {
        "game": game,
        "config": {name: config[name] for name in CONFIG if name in config},
        "tokenizer": {
            "vocab": tokenizer["model"]["vocab"], "merges": tokenizer["model"]["merges"],
            "pattern": tokenizer["pre_tokenizer"]["pattern"]["Regex"],
        },
        "positions": [list(position) for position in POSITIONS[game]],
    }  # fmt: skip


def script() -> str:
    """Return the view's ES module."""
    parts = [HERE / f"{name}.js" for name in SCRIPTS]
    return "".join(path.read_text("utf-8") for path in [*parts, SHARED / "common.js", HERE / "policy_explorer.js"])


def style() -> str:
    """Return the view's style sheet."""
    return "".join(path.read_text("utf-8") for path in (SHARED / "widgets.css", HERE / "policy_explorer.css"))
