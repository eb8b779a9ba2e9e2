"""Compute LoRA layers with fewer passes over memory, mainly for small models on a CPU. Results are equal up to rounding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch.nn.functional import linear


@contextmanager
def fused_lora(model: torch.nn.Module) -> Iterator[None]:
    """Replace the forward of plain LoRA layers inside the `with` block.

    PEFT multiplies, scales and adds B (A x) in separate passes over memory. Here `addmm` adds the product to the output, in
    the precision of x. If the weight is float32 and the rank is high for the size of the layer, as in the nano models, the
    adapter is folded into the weight: (W + B A) x takes three products with full matrices (forward, gradients of input and
    weight); W x + B (A x) takes two, and six with thin ones. At the end the weights' gradients are propagated to A and B.
    """
    layers = [module for module in model.modules() if _is_plain_lora(module)]
    folded = []
    for layer in layers:
        if _should_fold(layer):
            weight = layer.base_layer.weight + sum(layer.get_delta_weight(name) for name in layer.active_adapters)
            leaf = weight.detach().requires_grad_()
            layer.forward = _folded_forward(leaf, layer.base_layer.bias)
            folded.append((weight, leaf))
        else:
            layer.forward = _addmm_forward(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
    used = [(weight, leaf.grad) for weight, leaf in folded if leaf.grad is not None]
    torch.autograd.backward([weight for weight, _ in used], [gradient for _, gradient in used])


def _is_plain_lora(module: torch.nn.Module) -> bool:
    """Whether the module is a linear layer with enabled adapters and no dropout (`load_policy` rejects LoRA variants)."""
    if type(module) is not LoraLinear or type(module.base_layer) is not torch.nn.Linear or module.disable_adapters:
        return False
    return not any(isinstance(module.lora_dropout[name], torch.nn.Dropout) for name in module.active_adapters)


def _should_fold(layer: LoraLinear) -> bool:
    if layer.base_layer.weight.dtype != torch.float32:
        return False  # W + B A is float32: a product with a half-precision x fails, and rounding would lose small adapters
    rank = sum(layer.r[name] for name in layer.active_adapters)
    return layer.in_features * layer.out_features < 3 * rank * (layer.in_features + layer.out_features)


def _folded_forward(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[..., torch.Tensor]:
    return lambda x, *_, **__: linear(x, weight, bias)


def _addmm_forward(layer: LoraLinear) -> Callable[..., torch.Tensor]:
    def forward(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        out, tokens = layer.base_layer(x), x.flatten(0, -2)
        for name in layer.active_adapters:
            down, up = layer.lora_A[name].weight, layer.lora_B[name].weight * layer.scaling[name]
            out = torch.addmm(out.flatten(0, -2), linear(tokens, down.to(x.dtype)), up.T.to(x.dtype)).view_as(out)
        return out

    return forward
