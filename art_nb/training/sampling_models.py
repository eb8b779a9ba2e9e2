"""Convert a PEFT model for the sampler: a plain transformers model with the adapter merged in or applied unmerged.

Does not depend on how the model was trained. The plain model's class comes from a second import of its module: on a GPU
Unsloth rewrites methods of transformers' classes, but the sampler needs the original forward with its cache interface.
"""

import copy
import importlib.util
import sys

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from art_nb.inference.cache import ATTENTION
from art_nb.inference.policies import Adapter, MultiLoraModel

PREFIX = "base_model.model."  # of the names of modules in PEFT's files


def plain_base_model(model: PeftModel) -> PreTrainedModel:
    """Return the base model without an adapter. Its weights share their storage with `model`'s, unless those are 4-bit."""
    return _with_weights(_empty_twin(model.get_base_model()), model, adapted=False)


def merged_model(model: PeftModel, adapter: dict[str, torch.Tensor] | None = None) -> PreTrainedModel:
    """Return the base model with an adapter merged in: copies of the weights that it changes, the others shared.

    adapter: tensors by their names in PEFT's files; None: the current adapter of `model`.
    """
    names = [name for name, _ in model.named_parameters() if ".default" in name]
    tensors = {f"model.{name}": adapter[name.replace(".default", "")] for name in names} if adapter else {}
    return torch.func.functional_call(_Merge(model), tensors, (_empty_twin(model.get_base_model()),))


class _Merge(torch.nn.Module):
    """A module, so that `functional_call` can substitute the adapter's tensors."""

    def __init__(self, model: PeftModel):
        super().__init__()
        self.model = model

    def forward(self, twin: PreTrainedModel) -> PreTrainedModel:
        return _with_weights(twin, self.model, adapted=True)


def multi_lora_model(model: PeftModel, base: PreTrainedModel) -> MultiLoraModel | None:
    """Return `base` prepared for unmerged adapters of the shape of `model`'s; None if they can only be merged.

    Unmerged adapters need plain linear layers that see all tokens in order. Experts see some of them, reordered, and the
    output head only those whose logits are needed.
    """
    layers = _adapted_layers(model)
    head = model.get_base_model().get_output_embeddings()
    plain = all(
        isinstance(layer.get_base_layer(), torch.nn.Linear)
        and not getattr(layer, "fan_in_fan_out", False)
        and not (layer is head or ".experts." in name)
        for name, layer in layers.items()
    )
    return MultiLoraModel(base, layers) if plain else None


def unmerged_adapter(model: PeftModel, base: PreTrainedModel, adapter: dict[str, torch.Tensor]) -> Adapter:
    """Return an adapter (as for `merged_model`) in the form and dtype that a `MultiLoraModel` of `base` applies.

    It is empty if it changes nothing, as before the first step.
    """
    layers, matrices = _adapted_layers(model), {}
    if not any(adapter[f"{PREFIX}{name}.lora_B.weight"].any() for name in layers):
        return {}
    for name, layer in layers.items():
        weight = base.get_submodule(name).weight
        down, up = (adapter[f"{PREFIX}{name}.lora_{side}.weight"].T.float() for side in "AB")
        matrices[name] = tuple(weight.new_empty(x.shape).copy_(x) for x in (down, up * layer.scaling["default"]))
    return matrices


def _adapted_layers(model: PeftModel) -> dict[str, LoraLayer]:
    return {name: layer for name, layer in model.get_base_model().named_modules() if isinstance(layer, LoraLayer)}


def _empty_twin(base: PreTrainedModel) -> PreTrainedModel:
    """Return a model of the same class and configuration with uninitialised weights."""
    config = copy.deepcopy(base.config)
    config._attn_implementation = ATTENTION
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    twin_class = getattr(_second_import(type(base).__module__), type(base).__name__)
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(next(p.dtype for p in base.parameters() if p.is_floating_point()))
    try:
        with torch.device(base.device), no_init_weights():
            twin = twin_class(config)
    finally:
        torch.set_default_dtype(default_dtype)
    twin.tie_weights()
    twin.generation_config = copy.deepcopy(base.generation_config)
    return twin.requires_grad_(False).eval()


def _second_import(module_name: str):
    name = f"{module_name}_art_nb"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, sys.modules[module_name].__file__)
        assert spec and spec.loader  # the module has a file
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@torch.no_grad()
def _with_weights(twin: PreTrainedModel, model: PeftModel, adapted: bool) -> PreTrainedModel:
    """Fill `twin` with the weights that `model` computes with, its adapter on or off."""
    layers = dict(model.get_base_model().named_modules())
    for name, target in twin.state_dict(keep_vars=True).items():
        path, _, leaf = name.rpartition(".")
        weight, is_new = _effective_weight(layers[path], leaf, adapted)
        if is_new:
            target.copy_(weight)
        else:
            target.data = weight.data
    return twin


def _effective_weight(layer: torch.nn.Module, leaf: str, adapted: bool) -> tuple[torch.Tensor, bool]:
    """Return the weight `leaf` of a layer, and whether it is a new tensor: merged or dequantised from 4 bits."""
    deltas = []
    while hasattr(layer, "base_layer"):
        if adapted and getattr(layer, "parameter_name", "weight") == leaf:
            deltas += [layer.get_delta_weight(adapter) for adapter in layer.active_adapters]
        layer = layer.base_layer
    weight = getattr(layer, leaf)
    if hasattr(weight, "quant_state"):
        from peft.utils.integrations import dequantize_module_weight

        weight = dequantize_module_weight(layer)
    elif not deltas:
        return weight, False
    # Summed in float32: in bfloat16 a small change would be rounded twice.
    return sum((delta.float() for delta in deltas), weight.float()), True
