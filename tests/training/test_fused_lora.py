"""fused_lora and narrow_last_layer: equal outputs and gradients, restored forwards, and models that they skip."""

import pytest
import torch
from tiny_models import make_checkpoint

from art_nb.inference.last_layer import narrow_last_layer
from art_nb.training.fused_lora import fused_lora
from art_nb.training.policy import load_policy


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("qwen2"), "qwen2")  # it has biases too


def make_model(checkpoint, **peft_args):
    model = load_policy(checkpoint, engine="transformers", peft_args=peft_args).model
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    return model.train()


IDS = torch.randint(3, 250, (3, 11), generator=torch.Generator().manual_seed(2))
NEEDED = torch.rand(3, 11, generator=torch.Generator().manual_seed(3)) < 0.3


def own_forwards(model):
    """Return the names of modules with a replaced forward or with hooks."""
    return [n for n, m in model.named_modules() if "forward" in m.__dict__ or m._forward_hooks or m._forward_pre_hooks]


def gradients(model):
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def assert_equal_gradients(found, expected):
    assert found.keys() == expected.keys() and len(found) > 20
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() < 1e-5 * gradient.abs().max(), name


@pytest.mark.parametrize("rank", [16, 2], ids=["folded", "added"])
def test_fused_lora_gives_the_same_outputs_and_gradients(checkpoint, rank):
    model = make_model(checkpoint, r=rank)
    weights = torch.randn(3, 11, 259, generator=torch.Generator().manual_seed(4))
    expected = model(input_ids=IDS).logits
    (expected * weights).sum().backward()
    expected_gradients = gradients(model)
    with fused_lora(model):
        assert len(own_forwards(model)) == 14
        for row in range(3):  # summed over several passes
            logits = model(input_ids=IDS[row : row + 1]).logits
            assert (logits[0] - expected[row]).abs().max() < 1e-5 * expected.abs().max()
            (logits * weights[row]).sum().backward()
    assert_equal_gradients(gradients(model), expected_gradients)
    assert own_forwards(model) == []


@pytest.mark.parametrize("rank", [16, 2])
def test_in_bfloat16_the_product_is_added_in_the_output_dtype(checkpoint, rank):
    """Adapters are not folded into a bfloat16 weight, at any rank."""
    model = load_policy(checkpoint, engine="transformers", init_args={"dtype": torch.bfloat16}, peft_args={"r": rank}).model
    layer = model.get_base_model().model.layers[0].mlp.up_proj
    torch.nn.init.normal_(layer.lora_B["default"].weight)
    x = torch.randn(1, 9, 32).bfloat16()
    expected = layer(x)
    with fused_lora(model):
        found = layer(x)
        found.float().sum().backward()
    moved = [layer.lora_A["default"].weight.grad, layer.lora_B["default"].weight.grad]
    assert all(gradient.isfinite().all() and gradient.any() for gradient in moved)
    assert found.dtype == torch.bfloat16 and layer.lora_B["default"].weight.dtype == torch.float32
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()


def test_other_kinds_of_adapters_are_not_replaced(checkpoint):
    model = make_model(checkpoint, r=16, lora_dropout=0.5)
    with fused_lora(model):
        assert own_forwards(model) == []
    model = make_model(checkpoint, r=16)
    with model.disable_adapter(), fused_lora(model):
        assert own_forwards(model) == []


def test_an_error_inside_the_block_restores_the_forwards(checkpoint):
    model = make_model(checkpoint, r=16)
    decoder = model.get_base_model().model
    with pytest.raises(KeyboardInterrupt), fused_lora(model), narrow_last_layer(decoder, lambda: NEEDED):
        model(input_ids=IDS).logits.sum().backward()
        raise KeyboardInterrupt
    assert own_forwards(model) == []


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_last_layer_is_computed_only_at_needed_positions(checkpoint, checkpointing):
    model = make_model(checkpoint, r=4)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    decoder, seen = model.get_base_model().model, []
    before, last = own_forwards(model), decoder.layers[-1]
    narrow = (last.mlp.gate_proj, last.self_attn.q_proj.base_layer, last.self_attn.o_proj.base_layer)
    counters = [m.register_forward_hook(lambda *a: seen.append(a[1][0].shape[:-1].numel())) for m in narrow]
    weights = torch.randn(int(NEEDED.sum()), 32, generator=torch.Generator().manual_seed(4))
    expected = decoder(input_ids=IDS).last_hidden_state[NEEDED]
    (expected * weights).sum().backward()
    expected_gradients = gradients(model)
    assert set(seen) == {33}
    seen.clear()
    with narrow_last_layer(decoder, lambda: NEEDED):
        found = decoder(input_ids=IDS).last_hidden_state[NEEDED]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        (found * weights).sum().backward()
    assert set(seen) == {int(NEEDED.sum())}
    assert_equal_gradients(gradients(model), expected_gradients)
    for counter in counters:
        counter.remove()
    assert own_forwards(model) == before


def test_a_mixture_of_experts_is_not_narrowed(tmp_path):
    model = make_model(make_checkpoint(tmp_path, "deepseek_v3"), r=4)
    with narrow_last_layer(model.get_base_model().model, lambda: NEEDED):
        assert own_forwards(model) == []
