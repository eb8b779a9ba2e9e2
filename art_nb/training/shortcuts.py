"""Two shortcuts that leave a forward pass's result as it is and make small models on a CPU train faster.

They change what single modules do inside a `with` block and know nothing of losses or data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch.nn.functional import linear

NARROWED = ("self_attn.q_proj", "self_attn.o_proj", "mlp")  # of the last layer


@contextmanager
def cheaper_adapters(model: torch.nn.Module) -> Iterator[None]:
    """Inside, plain LoRA adapters cost little more than their products.

    PEFT computes (x B) A in the adapter's precision and passes over the layer's output four times to add it. Here the
    product is added where that output lies, and in its precision. A wide adapter on a narrow layer, as of the nano
    models, is cheaper folded: x (W + B A) costs three products with a full matrix (forward, to the input, to the weight)
    where x W + (x B) A costs two, and six with each of the thin ones. When the block ends, the gradient of each sum goes
    on to its A and B.
    """
    layers = [module for module in model.modules() if _is_plain(module)]
    sums = []
    for layer in layers:
        if _is_cheaper_folded(layer):
            whole = layer.base_layer.weight + sum(layer.get_delta_weight(name) for name in layer.active_adapters)
            leaf = whole.detach().requires_grad_()
            layer.forward = _with_weight(leaf, layer.base_layer.bias)
            sums.append((whole, leaf))
        else:
            layer.forward = _with_product(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
    used = [(whole, leaf.grad) for whole, leaf in sums if leaf.grad is not None]
    torch.autograd.backward([whole for whole, _ in used], [gradient for _, gradient in used])


def _is_plain(module: torch.nn.Module) -> bool:
    """Whether it is a linear layer with adapters that add their product to its output and do nothing else."""
    if type(module) is not LoraLinear or type(module.base_layer) is not torch.nn.Linear or module.disable_adapters:
        return False
    dropout = any(isinstance(module.lora_dropout[name], torch.nn.Dropout) for name in module.active_adapters)
    return not (dropout or module.lora_variant or any(module.lora_bias.values()))


def _is_cheaper_folded(layer: LoraLinear) -> bool:
    rank = sum(layer.r[name] for name in layer.active_adapters)
    return layer.in_features * layer.out_features < 3 * rank * (layer.in_features + layer.out_features)


def _with_weight(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[..., torch.Tensor]:
    return lambda x, *_, **__: linear(x, weight, bias)


def _with_product(layer: LoraLinear) -> Callable[..., torch.Tensor]:
    def forward(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        out, tokens = layer.base_layer(x), x.flatten(0, -2)
        for name in layer.active_adapters:
            down, up = layer.lora_A[name].weight, layer.lora_B[name].weight * layer.scaling[name]
            out = torch.addmm(out.flatten(0, -2), linear(tokens, down.to(x.dtype)), up.T.to(x.dtype)).view_as(out)
        return out

    return forward


@contextmanager
def last_layer_only_where(decoder: torch.nn.Module, needed: Callable[[], torch.Tensor]) -> Iterator[None]:
    """Inside, the last layer works on the positions that `needed()`, (B, T) bool, marks; the others get nothing from it.

    Nothing reads the last layer's output but the output head, which is asked for few positions. Only its keys and values
    are computed for all.
    """
    modules = dict(decoder.layers[-1].named_modules()) if hasattr(decoder, "layers") else {}
    # On a GPU Unsloth has a forward of its own there; a mixture of experts may return more than a tensor.
    if decoder.device.type != "cpu" or not {*NARROWED, "mlp.down_proj"} <= modules.keys():
        yield
        return

    def narrowed(module, arguments):
        return (arguments[0][needed()][None],)

    def widened(module, arguments, found):
        everywhere = found.new_zeros(*needed().shape, found.shape[-1])
        return everywhere.masked_scatter(needed()[..., None], found)

    hooks = []
    for module in (modules[name] for name in NARROWED):
        hooks += [module.register_forward_pre_hook(narrowed), module.register_forward_hook(widened)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
