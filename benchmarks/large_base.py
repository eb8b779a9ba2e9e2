"""A base model of Qwen3-0.6B's size that plays 2048 as data/nano does, for speed measurements without a download.

`python -m benchmarks.large_base FOLDER` writes it in seconds. Size and vocabulary are those of
https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json; the weights of data/nano fill a corner of the first four
layers' matrices; the rest are random numbers that have no effect. It therefore computes the same logits as data/nano, up to
the rounding of bfloat16, at the cost of the larger model. Differences from Qwen3-0.6B: three layers attend to the last 256
tokens only, as in data/nano, and the output head is not tied to the embedding (752 million parameters, not 596). A tied head
would need one very large weight to suppress the tokens that data/nano does not have, and through it rounding errors would
reach every gradient.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from benchmarks.gathering import BASE

UNUSED = -300.0  # logit of a token that data/nano does not have, times the root mean square of the last hidden state
CONSTANT = 1e-3


def embed(small: Qwen3ForCausalLM, layers: int = 28, width: int = 1024, vocabulary: int = 151_936) -> Qwen3ForCausalLM:
    """Return a larger model, in float32, with the same logits. Its heads have four times as many dimensions."""
    old, size = small.config, 4 * small.config.head_dim
    kinds = old.layer_types + ["full_attention"] * (layers - old.num_hidden_layers)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=8, head_dim=size, layer_types=kinds,
        max_position_embeddings=old.max_position_embeddings,
        rope_parameters=old.rope_parameters, use_sliding_window=True, sliding_window=old.sliding_window, bos_token_id=None,
        eos_token_id=old.eos_token_id, pad_token_id=old.pad_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    hidden, more = old.hidden_size, math.sqrt(old.hidden_size / width)  # further zeros lower the root mean square
    # Rotary embeddings pair dimension i with i + D / 2. Frequency i of D dimensions is frequency 4 i of 4 D dimensions.
    half = 4 * torch.arange(old.head_dim // 2)
    own = torch.cat([half, half + size // 2])
    by_head = [(own + head * size) for head in range(old.num_attention_heads)]
    queries, keys = torch.cat(by_head), torch.cat(by_head[: old.num_key_value_heads])
    inside = torch.arange(hidden)
    for i, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        for module in (attention.o_proj, mlp.down_proj):
            torch.nn.init.zeros_(module.weight)  # so the random weights add nothing to the residual stream
        if i >= old.num_hidden_layers:
            continue
        source = small.model.layers[i]
        middle = torch.arange(old.intermediate_size)
        for name, (rows, columns) in {
            "self_attn.q_proj": (queries, inside), "self_attn.k_proj": (keys, inside), "self_attn.v_proj": (keys, inside),
            "self_attn.o_proj": (inside, queries), "mlp.gate_proj": (middle, inside), "mlp.up_proj": (middle, inside),
            "mlp.down_proj": (inside, middle),
        }.items():  # fmt: skip
            _put(layer.get_submodule(name).weight, rows, columns, source.get_submodule(name).weight)
        for name in ("input_layernorm", "post_attention_layernorm"):
            _put_norm(getattr(layer, name).weight, inside, getattr(source, name).weight * more)
        # Four times the dimensions halve the root mean square of queries and keys, and scores are divided by twice as much.
        _put_norm(attention.q_norm.weight, own, source.self_attn.q_norm.weight * 0.5 * 2)
        _put_norm(attention.k_norm.weight, own, source.self_attn.k_norm.weight * 0.5)
    table, head, marker = model.model.embed_tokens.weight.data, model.lm_head.weight.data, hidden
    for weights in (table, head):
        weights.zero_()
        weights[: old.vocab_size, :hidden] = small.model.embed_tokens.weight.data
    # One constant dimension gives these tokens a low logit; it is too small to change the norm.
    table[: old.vocab_size, marker], head[old.vocab_size :, marker] = CONSTANT, UNUSED
    _put_norm(model.model.norm.weight, inside, small.model.norm.weight * more)
    model.model.norm.weight.data[marker] = 1 / CONSTANT
    return model


@torch.no_grad()
def _put(target: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, source: torch.Tensor) -> None:
    """Write `source` to those rows and columns of a matrix, and zeros to the rest of them."""
    if len(columns) < target.shape[1]:
        target[rows] = 0
    target[:, columns] = 0
    target[rows[:, None], columns] = source


@torch.no_grad()
def _put_norm(target: torch.Tensor, places: torch.Tensor, source: torch.Tensor) -> None:
    target.zero_()
    target[places] = source


def main() -> None:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    embed(AutoModelForCausalLM.from_pretrained(BASE)).to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(folder)


if __name__ == "__main__":
    main()
