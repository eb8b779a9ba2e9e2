"""In sampling and training, skip the computations of a model's last layer on which no result depends."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch

NARROWED = ("self_attn.q_proj", "self_attn.o_proj", "mlp")  # modules of the last layer


@contextmanager
def narrow_last_layer(decoder: torch.nn.Module, needed: Callable[[], torch.Tensor]) -> Iterator[None]:
    """On a CPU, restrict the last layer's `NARROWED` modules to the positions marked by `needed()` inside the `with` block.

    needed: returns (B, T) bool; elsewhere these modules output 0, on which no result depends. Keys and values are still
    computed at all positions.
    """
    on_cpu = decoder.device.type == "cpu" and hasattr(decoder, "layers")  # on a GPU Unsloth replaces the layer's forward
    modules = dict(decoder.layers[-1].named_modules()) if on_cpu else {}
    if not {*NARROWED, "mlp.down_proj"} <= modules.keys():  # the MLP of a mixture of experts may return more than a tensor
        yield
        return

    def places() -> torch.Tensor:  # faster than the mask itself with two threads (benchmarks/RESULTS.md)
        return needed().flatten().nonzero()[:, 0]

    def select(module, arguments):
        return (arguments[0].flatten(0, 1).index_select(0, places())[None],)

    def scatter(module, arguments, output):
        full = output.new_zeros(needed().numel(), output.shape[-1])
        return full.index_copy(0, places(), output[0]).view(*needed().shape, -1)

    with ExitStack() as hooks:
        for module in (modules[name] for name in NARROWED):
            hooks.callback(module.register_forward_pre_hook(select).remove)
            hooks.callback(module.register_forward_hook(scatter).remove)
        yield
