"""The loss of GRPO in plain torch compared with stock TRL and exact expectations."""

from itertools import product

import pytest
import torch

from course import grpo

PROMPT, COMPLETION, ROWS, VOCAB = 5, 9, 6, 64
MAX_COMPLETION_LENGTH = 16
LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo"]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """A stock GRPOTrainer on a random Qwen3 of two layers, on the CPU in float32, as in its training loop."""
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import utils as trl_utils

    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="w1", eos_token="w2", unk_token="w0"
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            initializer_range=0.2,
        )
    )
    args = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        report_to="none",
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=ROWS,
        num_generations=2,
        max_completion_length=MAX_COMPLETION_LENGTH,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["w3 w4"] * 4}),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    if trl_utils._ChunkedLogProbFunction is None:  # TRL 1.15 without Triton has a loss, but no forward
        trainer._get_per_token_logps_and_entropies = plain_forward
    return trainer


def plain_forward(model, input_ids, attention_mask, logits_to_keep, **_):
    logits = model(input_ids=input_ids, attention_mask=attention_mask).logits[:, -logits_to_keep - 1 : -1]
    return grpo.token_logprobs(logits, input_ids[:, -logits_to_keep:]), grpo.entropy(logits.detach()), None


@pytest.fixture(scope="module")
def batch(trainer):
    """Completions of different lengths, with old log-probabilities far from the model's, so that ratios are clipped."""
    g = torch.Generator().manual_seed(1)
    lengths = torch.tensor([9, 4, 1, 7, 9, 2])
    completion_mask = (torch.arange(COMPLETION) < lengths[:, None]).long()
    tool_mask = torch.ones_like(completion_mask)
    tool_mask[3, 2:4] = 0
    inputs = {
        "prompt_ids": torch.randint(3, VOCAB, (ROWS, PROMPT), generator=g),
        "prompt_mask": (torch.arange(PROMPT).flip(0) < torch.tensor([5, 3, 5, 1, 2, 4])[:, None]).long(),
        "completion_ids": torch.randint(3, VOCAB, (ROWS, COMPLETION), generator=g),
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.randn(ROWS, generator=g),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }
    logp = policy_logprobs(trainer.model, inputs).detach()
    inputs["old_per_token_logps"] = logp + 0.6 * torch.randn(logp.shape, generator=g)
    inputs["ref_per_token_logps"] = logp + 0.4 * torch.randn(logp.shape, generator=g)
    return inputs


def policy_logprobs(model, inputs):
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    return plain_forward(model, ids, attention, COMPLETION)[0]


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def both(trainer, inputs, monkeypatch, *, loss_type, beta, level, unbiased=True, high=0.2):
    """Return loss, gradients and metrics of stock TRL and of `grpo_loss` on the same inputs."""
    for name, value in {
        "loss_type": loss_type,
        "beta": beta,
        "importance_sampling_level": level,
        "epsilon_low": 0.2,
        "epsilon_high": high,
    }.items():
        monkeypatch.setattr(trainer, name, value)
    monkeypatch.setattr(trainer.args, "use_bias_correction_kl", unbiased)
    trainer._metrics["train"].clear()
    stock = trainer._compute_loss(trainer.model, dict(inputs))
    stock_gradients = gradients(trainer.model, stock)
    ours, metrics = grpo.grpo_loss(
        policy_logprobs(trainer.model, inputs),
        inputs.get("old_per_token_logps"),
        inputs["advantages"],
        inputs["completion_mask"] * inputs["tool_mask"],
        ref_logp=inputs["ref_per_token_logps"],
        beta=beta,
        epsilon_high=high,
        loss_type=loss_type,
        importance_sampling_level=level,
        use_bias_correction_kl=unbiased,
        max_completion_length=MAX_COMPLETION_LENGTH,
        num_items=inputs["num_items_in_batch"],
    )
    stock_metrics = {name: values[0] for name, values in trainer._metrics["train"].items()}
    return (stock, stock_gradients, stock_metrics), (ours, gradients(trainer.model, ours), metrics)


def assert_equal_losses(stock, ours):
    assert ours[0].item() == pytest.approx(stock[0].item(), abs=1e-5)
    assert max(gradient.abs().max() for gradient in ours[1].values()) > 1e-3
    for name, gradient in stock[1].items():
        torch.testing.assert_close(
            ours[1][name], gradient, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("loss_type,beta,level", list(product(LOSS_TYPES, [0.0, 0.3], ["token", "sequence"])))
def test_loss_and_gradient_equal_trl(trainer, batch, monkeypatch, loss_type, beta, level):
    stock, ours = both(trainer, batch, monkeypatch, loss_type=loss_type, beta=beta, level=level)
    assert_equal_losses(stock, ours)
    assert ours[2]["clip_low"] > 0 and ours[2]["clip_high"] > 0
    if beta:
        assert ours[2]["kl"] == pytest.approx(stock[2]["kl"], abs=1e-5)
    if level == "token":  # on the level of sequences TRL counts sequences, and this module tokens
        for mine, theirs in [("clip_low", "low"), ("clip_high", "high"), ("clip_fraction", "region")]:
            assert ours[2][mine] == pytest.approx(stock[2][f"clip_ratio/{theirs}_mean"], abs=1e-6)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_advantages_of_each_token_and_other_options_equal_trl(trainer, batch, monkeypatch, loss_type):
    inputs = batch | {"advantages": torch.randn(ROWS, COMPLETION, generator=torch.Generator().manual_seed(2))}
    for level, unbiased, high in product(["token", "sequence"], [True, False], [0.2, 0.28]):
        options = dict(loss_type=loss_type, beta=0.1, level=level, unbiased=unbiased, high=high)
        assert_equal_losses(*both(trainer, inputs, monkeypatch, **options))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_without_old_logprobs_the_ratio_is_one_as_in_trl(trainer, batch, monkeypatch, loss_type):
    inputs = {name: value for name, value in batch.items() if name != "old_per_token_logps"}
    stock, ours = both(trainer, inputs, monkeypatch, loss_type=loss_type, beta=0.1, level="token")
    assert_equal_losses(stock, ours)
    assert ours[2]["ratio_min"] == ours[2]["ratio_max"] == 1 and ours[2]["clip_fraction"] == 0


def test_dapo_over_parts_of_a_batch_adds_up_to_the_whole(batch):
    old, mask, advantages = batch["old_per_token_logps"], batch["completion_mask"], batch["advantages"]
    logp = old + 0.3 * torch.randn(old.shape)
    whole, _ = grpo.grpo_loss(logp, old, advantages, mask)
    parts = [
        grpo.grpo_loss(logp[part], old[part], advantages[part], mask[part], num_items=mask.sum())[0]
        for part in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]
    assert sum(parts).item() == pytest.approx(whole.item(), abs=1e-6)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_equal_trl(trainer, monkeypatch, scale):
    rewards = [0.0, 1.0, 5.0, 5.0, -2.0, 0.5]
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    generated = [[7] * 3] * 6, [[8] * 4] * 6, None, ["w8"] * 6, None, {}, None, None
    monkeypatch.setattr(trainer, "_generate", lambda prompts: generated)
    monkeypatch.setattr(trainer, "reward_funcs", [lambda completions, **_: rewards])
    monkeypatch.setattr(trainer, "num_generations", 3)
    monkeypatch.setattr(trainer, "scale_rewards", scale)
    stock = trainer._generate_and_score_completions([{"prompt": "w3"}] * 6)["advantages"]
    torch.testing.assert_close(grpo.group_advantages(torch.tensor(rewards), groups, scale), stock)


def test_logprobs_and_entropy_equal_torch_distributions():
    logits = torch.randn(3, 4, VOCAB, dtype=torch.float64) * 3
    ids = torch.randint(VOCAB, (3, 4))
    exact = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(grpo.token_logprobs(logits, ids), exact.log_prob(ids))
    torch.testing.assert_close(grpo.entropy(logits), exact.entropy())


@pytest.mark.parametrize(
    "ratio,advantage,value,slope",
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.5, 1.0, 1.28, 0.0),  # raised beyond the clip range
        (0.5, 1.0, 0.5, 1.0),  # fell although it should rise: not clipped
        (0.5, -1.0, -0.8, 0.0),  # lowered beyond the clip range
        (1.5, -1.0, -1.5, -1.0),  # rose although it should fall: not clipped
    ],
)
def test_clipping_by_hand(ratio, advantage, value, slope):
    r = torch.tensor(ratio, requires_grad=True)
    surrogate = grpo.clipped_surrogate(r, torch.tensor(advantage), 0.2, 0.28)
    surrogate.backward()
    assert surrogate.item() == pytest.approx(value) and r.grad.item() == pytest.approx(slope)


def test_kl_estimators_in_exact_expectation():
    """Exact expectations over a small vocabulary: which estimators are unbiased, and what their gradients are."""
    logits = torch.randn(8, dtype=torch.float64, requires_grad=True)
    ref = torch.randn(8, dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    sampled = logp.detach().exp()  # the tokens were sampled from the current policy

    def gradient(value):
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    kl = (logp.exp() * (logp - ref)).sum()
    other_kl = (ref.exp() * (ref - logp)).sum()
    k1, k2, k3 = (estimate(logp, ref) for estimate in (grpo.kl_k1, grpo.kl_k2, grpo.kl_k3))
    assert (sampled * k1).sum().item() == pytest.approx(kl.item())
    assert (sampled * k3).sum().item() == pytest.approx(kl.item())
    assert (k3 >= 0).all() and (k2 >= 0).all()
    assert gradient((sampled * k1).sum()).abs().max() < 1e-12
    torch.testing.assert_close(gradient((sampled * k2).sum()), gradient(kl))
    torch.testing.assert_close(gradient((sampled * k3).sum()), gradient(other_kl))
    corrected = k3 * grpo.ratio(logp, logp.detach())
    torch.testing.assert_close(gradient((sampled * corrected).sum()), gradient(kl))


def test_an_update_on_policy_has_loss_zero_and_a_gradient():
    """Advantages that sum to zero make the loss zero, but not its gradient. (A common question.)"""
    logp = torch.randn(4, 3, requires_grad=True)
    advantages = grpo.group_advantages(torch.tensor([0.0, 1.0, 1.0, 4.0]), torch.zeros(4).long())
    loss, _ = grpo.grpo_loss(logp, None, advantages, torch.ones(4, 3))
    loss.backward()
    assert abs(loss.item()) < 1e-7
    torch.testing.assert_close(logp.grad, -(advantages / 12)[:, None].expand(4, 3))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_without_sampled_tokens_the_loss_is_zero_not_nan(loss_type):
    logp = torch.zeros(2, 3, requires_grad=True)
    loss, metrics = grpo.grpo_loss(
        logp, None, torch.ones(2), torch.zeros(2, 3), loss_type=loss_type, max_completion_length=3
    )
    assert loss.item() == 0 and metrics["clip_fraction"] == 0 and metrics["ratio_max"] == 1


def test_invalid_options_raise_with_their_name():
    logp, mask, advantages = torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2)
    with pytest.raises(ValueError, match="loss_type is 'ppo'"):
        grpo.grpo_loss(logp, None, advantages, mask, loss_type="ppo")
    with pytest.raises(ValueError, match="give max_completion_length"):
        grpo.grpo_loss(logp, None, advantages, mask, loss_type="dr_grpo")
    with pytest.raises(ValueError, match="needs ref_logp"):
        grpo.grpo_loss(logp, None, advantages, mask, beta=0.1)
    with pytest.raises(ValueError, match="importance_sampling_level is 'turn'"):
        grpo.grpo_loss(logp, None, advantages, mask, importance_sampling_level="turn")
