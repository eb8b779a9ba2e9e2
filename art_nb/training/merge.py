"""A PEFT model as the sampler runs it: plain transformers models, the adapter merged in or riding beside others on one.

They come from a fresh import of their module: Unsloth rewrites methods of transformers' classes on a GPU, and so the
sampler's forward stays the published one, with its cache interface.
"""

from __future__ import annotations

import copy
import importlib.util
import sys

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from art_nb.inference.cache import ATTENTION
from art_nb.inference.policies import AdaptedModel, Adapter

PREFIX = "base_model.model."  # of a module's name in PEFT's files


def plain_base(model: PeftModel) -> PreTrainedModel:
    """The base model, without an adapter. Its weights share their storage with `model`'s (but for those in 4 bits)."""
    return _filled(_plain_twin(model.get_base_model()), model, adapted=False)


def merged(model: PeftModel, adapter: dict[str, torch.Tensor] | None = None) -> PreTrainedModel:
    """The base model with an adapter merged in: a copy of the weights that it changes, the rest shared.

    adapter: tensors under the names of PEFT's files; None: what `model` holds now.
    """
    names = [name for name, _ in model.named_parameters() if ".default" in name]
    held = {f"model.{name}": adapter[name.replace(".default", "")] for name in names} if adapter else {}
    return torch.func.functional_call(_Merging(model), held, (_plain_twin(model.get_base_model()),))


class _Merging(torch.nn.Module):
    """A module, so that `functional_call` lets `model` hold other tensors meanwhile."""

    def __init__(self, model: PeftModel):
        super().__init__()
        self.model = model

    def forward(self, twin: PreTrainedModel) -> PreTrainedModel:
        return _filled(twin, self.model, adapted=True)


def side_by_side(model: PeftModel, base: PreTrainedModel) -> AdaptedModel | None:
    """`base`, on which adapters of the shape of `model`'s can ride; None where they can only be merged.

    A plain linear layer sees every token in its place. An expert sees some, in another order, and the output head only
    those that are asked for; other kinds of adapters do more than add a product.
    """
    layers = _adapted_layers(model)
    head = model.get_base_model().get_output_embeddings()
    plain = all(
        isinstance(layer.get_base_layer(), torch.nn.Linear)
        and not (layer.lora_variant or any(layer.lora_bias.values()) or getattr(layer, "fan_in_fan_out", False))
        and not (layer is head or ".experts." in name)
        for name, layer in layers.items()
    )
    return AdaptedModel(base, layers) if plain else None


def riding(model: PeftModel, base: PreTrainedModel, adapter: dict[str, torch.Tensor]) -> Adapter:
    """An adapter (as for `merged`) in the form and precision in which it rides on `base`."""
    found = {}
    for name, layer in _adapted_layers(model).items():
        weight = base.get_submodule(name).weight
        down, up = (adapter[f"{PREFIX}{name}.lora_{side}.weight"].T.float() for side in "AB")
        found[name] = tuple(weight.new_empty(x.shape).copy_(x) for x in (down, up * layer.scaling["default"]))
    return found


def _adapted_layers(model: PeftModel) -> dict[str, LoraLayer]:
    return {name: layer for name, layer in model.get_base_model().named_modules() if isinstance(layer, LoraLayer)}


def _plain_twin(base: PreTrainedModel) -> PreTrainedModel:
    """A model of the same class and configuration; its weights hold nothing yet."""
    config = copy.deepcopy(base.config)
    config._attn_implementation = ATTENTION
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    twin_class = getattr(_fresh_import(type(base).__module__), type(base).__name__)
    dtype = next(p.dtype for p in base.parameters() if p.is_floating_point())
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(base.device), no_init_weights():
            twin = twin_class(config)
    finally:
        torch.set_default_dtype(before)
    twin.tie_weights()
    twin.generation_config = copy.deepcopy(base.generation_config)
    return twin.requires_grad_(False).eval()


def _fresh_import(module_name: str):
    fresh_name = f"{module_name}_art_nb"
    if fresh_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(fresh_name, sys.modules[module_name].__file__)
        assert spec and spec.loader  # it lies in a file
        sys.modules[fresh_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[fresh_name])
    return sys.modules[fresh_name]


@torch.no_grad()
def _filled(twin: PreTrainedModel, model: PeftModel, adapted: bool) -> PreTrainedModel:
    """`twin` with what `model` computes with, its adapter on or off."""
    layers = dict(model.get_base_model().named_modules())
    for name, mine in twin.state_dict(keep_vars=True).items():
        path, _, leaf = name.rpartition(".")
        weight, is_copy = _effective_weight(layers[path], leaf, adapted)
        if is_copy:
            mine.copy_(weight)
        else:
            mine.data = weight.data
    return twin


def _effective_weight(layer: torch.nn.Module, leaf: str, adapted: bool) -> tuple[torch.Tensor, bool]:
    """What a layer computes with under the name `leaf`, and whether that is a tensor of its own.

    It is one where adapters' products are added to the base weight, or where that is stored in 4 bits.
    """
    changes = []
    while hasattr(layer, "base_layer"):
        if adapted and getattr(layer, "parameter_name", "weight") == leaf:
            changes += [layer.get_delta_weight(adapter) for adapter in layer.active_adapters]
        layer = layer.base_layer
    weight = getattr(layer, leaf)
    if hasattr(weight, "quant_state"):
        from peft.utils.integrations import dequantize_module_weight

        weight = dequantize_module_weight(layer)
    elif not changes:
        return weight, False
    # Summed in float32: in bfloat16 a small change would be rounded away twice.
    return sum((change.float() for change in changes), weight.float()), True
