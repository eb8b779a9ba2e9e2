"""The roofline: operations against torch's own counter, distinct tokens against a brute-force count, and a quick run."""

from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from art_nb.training.policy import Policy
from benchmarks import large_base, rollout, roofline
from benchmarks.gathering import BASE

LENGTH, ROWS = 12, 3


@pytest.fixture(scope="module")
def policy():
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=40,
        max_position_embeddings=64, attn_implementation="eager", tie_word_embeddings=False,
    )  # fmt: skip
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(Qwen3ForCausalLM(config), LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=modules))
    return Policy(model, None, "transformers", 0)


def counted(policy, backward):
    """Return the operations of the matrix products of plain PEFT, as torch counts them."""
    ids = torch.randint(40, (ROWS, LENGTH))
    with FlopCounterMode(display=False) as counter:
        logits = policy.model(input_ids=ids, use_cache=False).logits
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
def test_needed_operations_are_those_that_torch_counts(policy, backward):
    """Without common prefixes, with an output at each token, and with attention to all tokens, as eager attention computes it."""
    shape = roofline.shape_of(policy)
    everything = shape.__class__(**{**shape.__dict__, "products": tuple(p._replace(narrow=False) for p in shape.products)})
    tokens, pairs = ROWS * LENGTH, ROWS * LENGTH**2
    terms = roofline.needed(everything, roofline.Work(tokens, tokens, pairs, pairs), backward)
    assert sum(term.flops for term in terms) == pytest.approx(counted(policy, backward), rel=0.01)  # torch also counts the rotary products
    narrow = roofline.needed(shape, roofline.Work(tokens, 5, pairs, 5 * LENGTH), backward)
    assert sum(term.flops for term in narrow) < sum(term.flops for term in terms)


def test_distinct_tokens_are_counted_once():
    sequences = [[1, 2, 3, 4], [1, 2, 3], [1, 2, 5, 6], [7, 2]]
    outputs = [[2, 3], [2], [1, 3], []]
    prefixes = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    with_output = {tuple(s[: i + 1]) for s, has in zip(sequences, outputs, strict=True) for i in has}
    for window in (0, 2):
        near = sum(min(len(prefix), window or 9) for prefix in prefixes)
        work = roofline.work_of(sequences, outputs, window)
        assert work == (len(prefixes), len(with_output), sum(map(len, prefixes)), sum(map(len, with_output)), near)


def test_layers_with_a_window_attend_to_fewer_tokens(policy):
    shape = roofline.shape_of(policy)
    narrow = shape.__class__(**{**shape.__dict__, "window": 4, "windowed": 1})
    work = roofline.Work(10, 10, 55, 55, near_pairs=34)
    (*_, full), (*_, near) = (roofline.needed(each, work, backward=False) for each in (shape, narrow))
    assert shape.windowed == 0 and full.flops - near.flops == 4 * shape.heads * shape.head_size * (55 - 34)


def test_an_adapter_of_high_rank_is_cheaper_in_the_weight():
    low, high = (roofline.product_flops(roofline.Product(100, 100, rank), backward=True) for rank in (4, 64))
    assert low == 2 * 2 * 100 * 100 + 3 * 2 * 4 * 200 and high == 3 * 2 * 100 * 100


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ("aten::mm", "matmul"), ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"), ("aten::_log_softmax", "softmax"),
        ("aten::silu", "tensors"), ("aten::expand", "tensors"), ("aten::exp", "softmax"), ("environment", "environment"), ("autograd::engine::evaluate_function: MmBackward0", None),
    ],
)  # fmt: skip
def test_the_kind_of_an_event(event, kind):
    assert roofline.kind_of(event) == kind


def test_a_quick_run_has_a_share_and_where_the_time_went(monkeypatch):
    monkeypatch.setattr(roofline, "MEASURED_S", 0.01)
    played = roofline.sampling(str(BASE), partial(rollout.games, groups=1, size=2, turns=3))
    learned = roofline.training("2048", groups=1, size=2)
    for numbers in (played, learned):
        assert 0 < numbers["share"] < 1 and numbers["gflop"] > 0
        assert min(numbers["time"].values()) >= 0  # the rest counts as Python, so a time counted twice makes it negative
        assert numbers["time"]["matmul"] > 0 and numbers["time"]["templates"] > 0
    assert played["time"]["environment"] > 0 == learned["time"]["environment"]


@torch.no_grad()
def test_the_large_base_predicts_what_the_nano_model_predicts():
    small = AutoModelForCausalLM.from_pretrained(BASE).eval()
    large = large_base.embed(small, layers=6, width=256, vocabulary=1000).eval()
    ids = torch.randint(3, 570, (2, 400), generator=torch.Generator().manual_seed(0))  # longer than the window of attention
    expected, found = small(ids).logits.softmax(-1), large(ids).logits.softmax(-1)
    used = expected.shape[-1]
    assert found[..., used:].sum(-1).max() < 1e-6
    assert (found[..., :used] - expected).abs().sum(-1).max() < 0.1


def test_rounding_errors_do_not_dominate_the_gradient_of_the_large_base():
    small = AutoModelForCausalLM.from_pretrained(BASE).eval()
    large = large_base.embed(small, layers=5, width=256, vocabulary=1000).to(torch.bfloat16).eval()
    stream = []
    hook = large.model.norm.register_forward_pre_hook(lambda module, arguments: stream.append(arguments[0].detach()))
    ids = torch.randint(3, 570, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        large(ids)
    hook.remove()
    hidden = stream[0].requires_grad_()
    logits = large.lm_head(large.model.norm(hidden)).float()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    size = small.config.hidden_size
    assert hidden.grad[..., size].norm() < 0.01 * hidden.grad[..., :size].norm()  # `size`: the dimension that is constant
