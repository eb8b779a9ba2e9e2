"""Two shortcuts that leave a forward pass's result as it is and make small models on a CPU train faster.

They change what single modules do inside a `with` block and know nothing of losses or data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch.nn.functional import linear

NARROWED = ("self_attn.q_proj", "self_attn.o_proj", "mlp")  # of the last layer


@contextmanager
def folded_adapters(model: torch.nn.Module) -> Iterator[None]:
    """Inside, each adapter is added to its base weight once, not to every token's output.

    x (W + B A) costs three products with a full matrix (forward, to the input, to the weight) where x W + (x B) A
    costs two, and six with each of the thin ones. A wide adapter on a narrow layer is cheaper folded: for the nano
    model by a fifth. When the block ends, the gradient of each sum goes on to its A and B.
    """
    sums = []
    for layer in filter(_is_cheaper_folded, model.modules()):
        whole = layer.base_layer.weight + sum(layer.get_delta_weight(name) for name in layer.active_adapters)
        leaf = whole.detach().requires_grad_()
        layer.forward = _with_weight(leaf, layer.base_layer.bias)
        sums.append((layer, whole, leaf))
    try:
        yield
    finally:
        for layer, _, _ in sums:
            del layer.forward
    used = [(whole, leaf.grad) for _, whole, leaf in sums if leaf.grad is not None]
    torch.autograd.backward([whole for whole, _ in used], [gradient for _, gradient in used])


def _is_cheaper_folded(layer: torch.nn.Module) -> bool:
    if type(layer) is not LoraLinear or type(layer.base_layer) is not torch.nn.Linear or layer.disable_adapters:
        return False
    plain = all(not isinstance(layer.lora_dropout[name], torch.nn.Dropout) for name in layer.active_adapters)
    rank = sum(layer.r[name] for name in layer.active_adapters)
    wide = layer.in_features * layer.out_features < 3 * rank * (layer.in_features + layer.out_features)
    return plain and wide and not any(layer.use_dora.values())


def _with_weight(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x, *_, **__: linear(x, weight, bias)


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
