"""Learner compared with stock TRL and with a loop over single sequences; metrics, errors, random states."""

import math
import random
import sys
from functools import partial
from itertools import product

import numpy
import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from openai.types.chat.chat_completion import Choice
from tiny_models import make_checkpoint, with_moved_adapter
from torch.nn.utils.rnn import pad_sequence

import art_nb as art
from art_nb.training import trainer as trainer_module
from art_nb.training.learner import Learner
from art_nb.training.policy import load_policy
from art_nb.training.sequences import TokenSequence, build_sequences
from art_nb.types import TrainConfig
from course import grpo

LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo"]
# Ours and TRL's names of the same metric.
METRICS = {"entropy": "entropy", "kl": "kl", "clip_fraction": "clip_ratio/region_mean"}
GROUPS, SIZE = 3, 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("qwen3"))


def make_policy(checkpoint, rank=16):
    """Return a policy whose adapter differs from zero. (At rank 16 `fused_lora` folds it.)"""
    return with_moved_adapter(load_policy(checkpoint, engine="transformers", peft_args={"r": rank, "lora_alpha": 2 * rank}))


def make_learner(policy, *, tokens_per_micro_batch=8192, **settings):
    """Return a learner with SGD: Adam would magnify rounding errors of gradients near zero."""
    settings = {"max_grad_norm": 0.0, "max_completion_length": 16} | settings
    learner = Learner(policy, grpo=settings, tokens_per_micro_batch=tokens_per_micro_batch)
    learner.optimizer = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad])
    return learner


def make_rows(seed=0):
    """Return completions of prompts of different lengths: (prompt ids, completion ids, group, reward)."""
    draw = random.Random(seed)
    rows = []
    for group in range(GROUPS):
        prompt = [draw.randrange(3, 250) for _ in range(draw.randrange(3, 9))]
        for _ in range(SIZE):
            completion = [draw.randrange(3, 250) for _ in range(draw.randrange(1, 8))]
            rows.append((prompt, completion, group, draw.choice([0.0, 1.0, 0.3])))
    return rows


def make_choice(prompt, completion, logprobs=None):
    message = {"role": "assistant", "content": "?"}
    choice = Choice(index=0, finish_reason="stop", message=message)
    choice.prompt_token_ids, choice.token_ids = prompt, completion
    choice.token_logprobs = logprobs or [math.nan] * len(completion)
    return choice


def make_groups(rows):
    """Return the rows as trajectories of one turn."""
    groups = [[] for _ in range(GROUPS)]
    for prompt, completion, group, reward in rows:
        items = [{"role": "user", "content": "?"}, make_choice(prompt, completion)]
        groups[group].append(art.Trajectory(messages_and_choices=items, reward=reward))
    return [art.TrajectoryGroup(members) for members in groups]


class Stock:
    """Stock TRL on tensors in its own format; SGD, one micro-batch."""

    def __init__(self, policy, rows, folder):
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
        from trl.trainer import utils as trl_utils

        args = {"per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 16}
        self.trainer = GRPOTrainer(
            model=policy.model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=str(folder), report_to="none", use_cpu=True, bf16=False,
                gradient_checkpointing=False, **args,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["?"] * 4}),
            processing_class=policy.tokenizer,
        )  # fmt: skip
        if trl_utils._ChunkedLogProbFunction is None:  # TRL 1.15 without Triton has a loss, but no forward
            self.trainer._get_per_token_logps_and_entropies = self.forward
        self.trainer.current_gradient_accumulation_steps = 1
        self.trainer.model.train()
        self.policy, self.inputs = policy, stock_inputs(rows)

    def learn(self, *, rate, updates=1, **options):
        for name, value in options.items():
            setattr(self.trainer, name, value)
        self.trainer._metrics["train"].clear()
        inputs = dict(self.inputs)
        with torch.no_grad(), self.policy.model.disable_adapter():
            inputs["ref_per_token_logps"] = self.logprobs()
        with torch.no_grad():
            inputs["old_per_token_logps"] = self.logprobs()
        trained = [p for p in self.policy.model.parameters() if p.requires_grad]
        optimizer, losses = torch.optim.SGD(trained, lr=rate), []
        for _ in range(updates):
            optimizer.zero_grad()
            loss = self.trainer._compute_loss(self.policy.model, inputs)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seen = self.trainer._metrics["train"]
        metrics = {ours: sum(seen[name]) / updates for ours, name in METRICS.items() if name in seen}
        return metrics | {"loss": sum(losses) / updates}

    def logprobs(self):
        i = self.inputs
        ids = torch.cat([i["prompt_ids"], i["completion_ids"]], 1)
        mask = torch.cat([i["prompt_mask"], i["completion_mask"]], 1)
        return self.forward(self.policy.model, ids, mask, i["completion_ids"].shape[1])[0]

    def forward(self, *inputs, **named):
        return plain_forward(*inputs, temperature=self.trainer.temperature, **named)


def plain_forward(model, input_ids, attention_mask, logits_to_keep, *, temperature, **_):
    logits = model(input_ids=input_ids, attention_mask=attention_mask).logits[:, -logits_to_keep - 1 : -1]
    logp = (logits / temperature).log_softmax(-1)
    chosen = logp.gather(-1, input_ids[:, -logits_to_keep:, None])[..., 0]
    return chosen, -(logp.exp() * logp).sum(-1).detach(), None


def stock_inputs(rows):
    """Return TRL's inputs: prompts padded on the left, completions on the right, advantages by group."""
    flipped = pad_sequence([torch.tensor(p[::-1]) for p, *_ in rows], batch_first=True)
    prompt_lengths = torch.tensor([len(p) for p, *_ in rows])[:, None]
    completions = pad_sequence([torch.tensor(c) for _, c, *_ in rows], batch_first=True)
    completion_lengths = torch.tensor([len(c) for _, c, *_ in rows])[:, None]
    rewards = torch.tensor([reward for *_, reward in rows]).view(GROUPS, SIZE)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    completion_mask = (torch.arange(completions.shape[1]) < completion_lengths).long()
    return {
        "prompt_ids": flipped.flip(1),
        "prompt_mask": (torch.arange(flipped.shape[1]) < prompt_lengths).long().flip(1),
        "completion_ids": completions,
        "completion_mask": completion_mask,
        "advantages": advantages.flatten(),
        "num_items_in_batch": completion_mask.sum(),
    }


@pytest.fixture(scope="module")
def stock(checkpoint, tmp_path_factory):
    policy = make_policy(checkpoint)
    start = {n: p.detach().clone() for n, p in policy.model.named_parameters() if p.requires_grad}
    trainer = Stock(policy, make_rows(), tmp_path_factory.mktemp("trl"))

    def learn(**options):
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                if name in start:
                    parameter.copy_(start[name])
        return trainer.learn(**options), change(policy, start)

    learn.trainer = trainer.trainer
    return learn


def change(policy, start):
    """Return the change of each LoRA tensor: learning rate times gradient, summed over the updates."""
    return {n: p.detach() - start[n] for n, p in policy.model.named_parameters() if p.requires_grad}


def ours(checkpoint, *, rate, beta=0.0, updates=1, tokens=8192, rows=None, config=None, **settings):
    policy = make_policy(checkpoint)
    learner = make_learner(policy, tokens_per_micro_batch=tokens, **settings)
    start = {n: p.detach().clone() for n, p in policy.model.named_parameters() if p.requires_grad}
    options = TrainConfig(learning_rate=rate, kl_penalty_coef=beta, num_updates=updates, **config or {})
    sequences, _ = build_sequences(make_groups(rows or make_rows()), policy.tokenizer, options)
    return learner.learn(sequences, options), change(policy, start)


def assert_same(theirs, mine, rate):
    assert max(moved.abs().max() for moved in theirs[1].values()) > 1e-2 * rate
    for name, value in [(n, theirs[0][n]) for n in ("loss", *METRICS) if n in theirs[0]]:
        assert mine[0][name] == pytest.approx(value, abs=1e-5), name
    for name, moved in theirs[1].items():
        difference = (mine[1][name] - moved).abs().max().item() / rate
        size = moved.abs().max().item() / rate
        assert difference < 1e-5 * max(1, size), f"{name}: gradients of {size} differ by {difference}"


@pytest.mark.parametrize("loss_type,beta", list(product(LOSS_TYPES, [0.0, 0.3])))
def test_loss_gradient_and_metrics_equal_trl(stock, checkpoint, loss_type, beta):
    theirs = stock(rate=1.0, loss_type=loss_type, beta=beta)
    # 8192: one micro-batch; 40: several, of unequal numbers of rows and tokens.
    for tokens in (8192, 40):
        mine = ours(checkpoint, rate=1.0, beta=beta, tokens=tokens, loss_type=loss_type)
        assert ("kl" in theirs[0]) == (beta > 0)
        assert_same(theirs, mine, 1.0)


@pytest.mark.parametrize("loss_type,beta", list(product(LOSS_TYPES, [0.0, 0.3])))
def test_two_updates_equal_trl_and_clipping_acts(stock, checkpoint, loss_type, beta):
    rate = {"dr_grpo": 1.0}.get(loss_type, 0.3)
    theirs = stock(rate=rate, updates=2, loss_type=loss_type, beta=beta)
    mine = ours(checkpoint, rate=rate, updates=2, beta=beta, tokens=40, loss_type=loss_type)
    assert mine[0]["clip_fraction"] > 0.05
    assert_same(theirs, mine, rate)


@pytest.mark.parametrize("unbiased", [True, False])
def test_the_bias_correction_of_the_kl_equals_trls(stock, checkpoint, unbiased, monkeypatch):
    from trl import GRPOConfig

    assert GRPOConfig.__dataclass_fields__["use_bias_correction_kl"].default is True
    settings = {"use_bias_correction_kl": unbiased, "loss_type": "dapo"}
    mine = ours(checkpoint, rate=0.3, beta=0.5, updates=2, **settings)
    monkeypatch.setattr(stock.trainer.args, "use_bias_correction_kl", unbiased)
    theirs = stock(rate=0.3, updates=2, loss_type="dapo", beta=0.5)
    assert_same(theirs, mine, 0.3)


@pytest.mark.parametrize("loss_type", ["cispo", "sapo", "luspo"])
def test_other_losses_equal_trl(stock, checkpoint, loss_type):
    theirs = stock(rate=1.0, loss_type=loss_type, beta=0.0)
    mine = ours(checkpoint, rate=1.0, tokens=40, loss_type=loss_type)
    theirs[0].pop("clip_fraction", None)
    assert_same(theirs, mine, 1.0)


def test_gspo_equals_trl(stock, checkpoint):
    level = {"importance_sampling_level": "sequence", "loss_type": "grpo"}
    theirs = stock(rate=1.0, updates=2, beta=0.0, **level)
    stock(rate=1.0, importance_sampling_level="token")  # the fixture is shared
    theirs[0].pop("clip_fraction")  # TRL counts sequences there
    assert_same(theirs, ours(checkpoint, rate=1.0, updates=2, **level), 1.0)


def test_at_another_temperature_the_loss_equals_trls(stock, checkpoint, monkeypatch):
    # A small step: after a large one the KL is above 10, and float32 rounds it by more than the tolerance.
    # TRL's own forward, where it has one, may have been compiled for another temperature.
    monkeypatch.setattr(stock.trainer, "_get_per_token_logps_and_entropies", partial(plain_forward, temperature=0.6))
    theirs = stock(rate=0.1, updates=2, beta=0.3, loss_type="dapo", temperature=0.6)
    stock(rate=1.0, temperature=1.0)  # the fixture is shared
    mine = ours(checkpoint, rate=0.1, updates=2, beta=0.3, tokens=40, loss_type="dapo", temperature=0.6)
    assert_same(theirs, mine, 0.1)
    assert mine[0]["entropy"] < ours(checkpoint, rate=0.1, updates=2, beta=0.3, loss_type="dapo")[0]["entropy"] - 0.1


def test_at_another_temperature_there_is_no_ratio_to_the_sampler(checkpoint):
    conversations = random_conversations()
    for c in conversations:
        c.logprobs = [-1.0] * len(c.ids)
    learner = make_learner(make_policy(checkpoint), temperature=0.6)
    assert "ratio_min" not in learner.learn(conversations, TrainConfig(learning_rate=1e-9))
    conversations[2].off_policy = [True] * len(conversations[2].ids)
    with pytest.raises(ValueError, match="another policy sampled some of the turns"):
        learner.learn(conversations, TrainConfig(learning_rate=1e-9))


def test_vespo_is_refused(checkpoint):
    with pytest.raises(ValueError, match="'vespo' takes one advantage per sequence"):
        make_learner(make_policy(checkpoint), loss_type="vespo")


@pytest.mark.parametrize("temperature", [0, 0.0, None])
def test_temperature_0_is_refused(checkpoint, temperature):
    with pytest.raises(ValueError, match=f"temperature is {temperature}: expected a number above 0"):
        make_learner(make_policy(checkpoint), temperature=temperature)


def random_conversations(seed=3, count=9):
    """Return sequences of several turns, each turn with its own advantage."""
    draw = random.Random(seed)
    conversations = []
    for _ in range(count):
        sequence = TokenSequence()
        for _ in range(draw.randrange(1, 5)):
            sequence.add([draw.randrange(3, 250) for _ in range(draw.randrange(2, 9))])
            sampled = [draw.randrange(3, 250) for _ in range(draw.randrange(1, 5))]
            sequence.add(sampled, [-1.0] * len(sampled), draw.gauss(0, 1))
        conversations.append(sequence)
    return conversations


def one_by_one(policy, conversations, loss_type, beta):
    """Return the loss of `grpo` computed from the logits of each sequence, without padding."""
    logps, references, entropies = [], [], []
    for c in conversations:
        ids = torch.tensor([c.ids])
        logits = policy.model(input_ids=ids).logits[:, :-1]
        logps.append(grpo.token_logprobs(logits, ids[:, 1:])[0])
        entropies.append(grpo.entropy(logits)[0][torch.tensor(c.trained[1:])])
        with policy.model.disable_adapter(), torch.no_grad():
            references.append(grpo.token_logprobs(policy.model(input_ids=ids).logits[:, :-1], ids[:, 1:])[0])
    advantages = pad_sequence([torch.tensor(c.advantages[1:]) for c in conversations], batch_first=True)
    mask = pad_sequence([torch.tensor(c.trained[1:]) for c in conversations], batch_first=True)
    loss, _ = grpo.grpo_loss(
        pad_sequence(logps, batch_first=True), None, advantages, mask, loss_type=loss_type, beta=beta,
        ref_logp=pad_sequence(references, batch_first=True), max_completion_length=16,
    )  # fmt: skip
    return loss, torch.cat(entropies).mean().item()


@pytest.mark.parametrize("loss_type,beta,tokens", [*product(LOSS_TYPES, [0.0, 0.2], [50]), ("dapo", 0.0, 8192)])
def test_conversations_equal_a_loop_over_single_sequences(checkpoint, loss_type, beta, tokens):
    policy = make_policy(checkpoint)
    conversations = random_conversations()
    loss, mean_entropy = one_by_one(policy, conversations, loss_type, beta)
    loss.backward()
    start = {n: p.detach().clone() for n, p in policy.model.named_parameters() if p.requires_grad}
    expected = {n: -p.grad.clone() for n, p in policy.model.named_parameters() if p.requires_grad}
    learner = make_learner(policy, tokens_per_micro_batch=tokens, loss_type=loss_type)
    metrics = learner.learn(conversations, TrainConfig(learning_rate=1.0, kl_penalty_coef=beta))
    theirs = {"loss": loss.item(), "entropy": mean_entropy, "clip_fraction": 0.0}, expected
    assert_same(theirs, (metrics, change(policy, start)), 1.0)
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in expected.values()))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_micro_batches_hold_every_sequence_once_and_stay_small(checkpoint):
    learner = make_learner(make_policy(checkpoint))
    conversations = random_conversations(count=40)
    for tokens, most in [(64, None), (64, 2), (10, None), (10**6, 7)]:
        learner.tokens_per_micro_batch = tokens
        batches = learner.micro_batches(conversations, TrainConfig(grad_accumulation_sequences=most))
        rows = [b["completion_ids"].shape[0] for b in batches]
        assert sum(rows) == 40 and max(rows) <= (most or 40)
        distinct = [b["layout"].forward["input_ids"].numel() for b in batches]
        assert all(count <= tokens or n == 1 for n, count in zip(rows, distinct, strict=True))
        assert sum(b["weight"] for b in batches) == pytest.approx(1)
        ids = sorted(
            tuple(torch.cat([p, c])[torch.cat([one, m]).bool()].tolist())
            for b in batches
            for p, c, one, m in zip(
                b["prompt_ids"], b["completion_ids"], b["prompt_mask"], b["completion_mask"], strict=True
            )
        )
        assert ids == sorted(tuple(c.ids) for c in conversations)


def test_an_output_head_computed_in_chunks_gives_the_same(checkpoint, monkeypatch):
    whole = ours(checkpoint, rate=1.0, beta=0.1)
    monkeypatch.setattr(trainer_module, "MAX_LOGITS", 5 * 259)
    assert_same(whole, ours(checkpoint, rate=1.0, beta=0.1), 1.0)


def test_an_entropy_bonus_does_not_depend_on_the_micro_batches(checkpoint):
    for loss_type in ("dapo", "bnpo"):
        settings = {"loss_type": loss_type, "entropy_coef": 0.5}
        whole = ours(checkpoint, rate=1.0, **settings)
        assert_same(whole, ours(checkpoint, rate=1.0, tokens=40, **settings), 1.0)
        without = ours(checkpoint, rate=1.0, loss_type=loss_type)
        assert whole[0]["loss"] < without[0]["loss"] - 0.5


def test_ratio_of_the_first_update_is_one_where_the_sampler_was_exact(checkpoint):
    policy = make_policy(checkpoint)
    conversations = random_conversations()
    for c in conversations:
        with torch.no_grad():
            logp = grpo.token_logprobs(
                policy.model(input_ids=torch.tensor([c.ids])).logits[:, :-1], torch.tensor([c.ids[1:]])
            )
        c.logprobs = [0.0, *logp[0].tolist()]
    conversations[0].logprobs = [math.nan] * len(conversations[0].ids)  # sampled elsewhere: unknown
    i = conversations[1].trained.index(True)
    conversations[1].logprobs[i] -= math.log(2)
    learner = make_learner(policy, tokens_per_micro_batch=50)
    metrics = learner.learn(conversations, TrainConfig(learning_rate=1e-9))
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-4)
    assert metrics["ratio_max"] == pytest.approx(2, abs=1e-4)


@pytest.mark.parametrize(
    ("dtype", "taken", "options"),
    [(torch.float32, False, {}), (torch.bfloat16, True, {}), (torch.float32, True, {"bf16": True})],
)
def test_in_bfloat16_the_ratio_is_to_the_samplers_probability_from_the_first_update(checkpoint, dtype, taken, options):
    """With half the probability under the sampler the ratio is 2, outside the clip range."""
    if options and "unsloth" in sys.modules:
        pytest.skip("where Unsloth is loaded, no learner on a CPU uses half precision: see test_trainer.py")
    policy, conversations = make_policy(checkpoint), random_conversations()
    policy.model.to(dtype)
    for c in conversations:
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([c.ids])).logits[:, :-1].float()
        logp = grpo.token_logprobs(logits, torch.tensor([c.ids[1:]]))
        c.logprobs = [0.0, *(logp[0] - math.log(2)).tolist()]
        c.advantages = [1.0] * len(c.ids)
    metrics = make_learner(policy, **options).learn(conversations, TrainConfig(learning_rate=1e-9))
    assert metrics["ratio_min"] > 1.5 and metrics["clip_fraction"] == (1 if taken else 0)


def test_kl_is_measured_without_a_penalty(checkpoint):
    with_penalty = ours(checkpoint, rate=1e-9, beta=1e-9)[0]["kl"]
    watched = ours(checkpoint, rate=1e-9)[0]["kl"]
    assert with_penalty > 1e-3 and 0.1 < watched / with_penalty < 10  # a part of the batch: an estimate
    fresh = load_policy(checkpoint, engine="transformers")
    metrics = make_learner(fresh).learn(random_conversations(), TrainConfig(learning_rate=1e-9))
    assert metrics["kl"] == pytest.approx(0, abs=1e-9)


def test_the_reference_is_the_base_model_at_every_call(checkpoint):
    policy = make_policy(checkpoint)
    learner = make_learner(policy)
    sequences, _ = build_sequences(make_groups(make_rows()), policy.tokenizer, TrainConfig())
    kls = [
        learner.learn(sequences, TrainConfig(learning_rate=rate, kl_penalty_coef=beta))["kl"]
        for rate, beta in [(3.0, 1e-6), (1e-9, 1e-6), (1e-9, 0.5)]
    ]
    assert kls[1] > 1.2 * kls[0] and kls[2] == pytest.approx(kls[1], abs=1e-5)
    assert list(policy.model.peft_config) == ["default"]


def test_learning_rate_follows_the_size_unless_given(checkpoint):
    sequences = random_conversations()
    policy = make_policy(checkpoint)
    learner = make_learner(policy)
    assert learner.learn(sequences, TrainConfig())["learning_rate"] == 1e-3
    assert learner.learn(sequences, TrainConfig(learning_rate=5e-6))["learning_rate"] == 5e-6
    policy.parameters = 7_000_000_000
    assert learner.learn(sequences, TrainConfig())["learning_rate"] == 5e-6


def test_gradient_is_clipped_at_max_grad_norm(checkpoint):
    free = ours(checkpoint, rate=1.0)
    clipped = ours(checkpoint, rate=1.0, max_grad_norm=free[0]["grad_norm"] / 4)
    assert clipped[0]["grad_norm"] == pytest.approx(free[0]["grad_norm"])
    for name, moved in free[1].items():
        torch.testing.assert_close(clipped[1][name], moved / 4, atol=1e-6, rtol=1e-4)


def test_another_trainer_in_the_process_does_not_stop_or_shrink_steps(checkpoint):
    norms, adapters = [], []
    for disturbed in (False, True):
        policy = make_policy(checkpoint)
        learner = Learner(policy)
        state = Accelerator(gradient_accumulation_steps=4 if disturbed else 1)
        state.sync_gradients = not disturbed  # as a trainer leaves it that was interrupted between two steps
        try:
            norms.append(learner.learn(random_conversations(), TrainConfig(learning_rate=1e-3))["grad_norm"])
            assert (state.sync_gradients, state.gradient_accumulation_steps) == ((False, 4) if disturbed else (True, 1))
        finally:
            state.sync_gradients, state.gradient_accumulation_steps = True, 1
        adapters.append({n: p.detach().clone() for n, p in policy.model.named_parameters() if "lora" in n})
    start = dict(make_policy(checkpoint).model.named_parameters())
    assert norms[0] == norms[1] and any(not torch.equal(moved, start[name]) for name, moved in adapters[1].items())
    for name, moved in adapters[0].items():
        torch.testing.assert_close(adapters[1][name], moved)


def test_a_loss_that_is_not_finite_changes_nothing(checkpoint):
    policy = make_policy(checkpoint)
    learner = Learner(policy)
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    state = str(learner.optimizer.state_dict())
    sequences = random_conversations()
    sequences[4].advantages = [math.inf] * len(sequences[4].ids)
    with pytest.raises(FloatingPointError, match="the step was not taken"):
        learner.learn(sequences, TrainConfig(learning_rate=1.0))
    assert str(learner.optimizer.state_dict()) == state
    assert all(torch.equal(p, before[n]) and p.grad is None for n, p in policy.model.named_parameters())


def test_a_gradient_scaler_changes_neither_norm_nor_step(checkpoint):
    """On a GPU without bfloat16 gradients are scaled. Here by torch's scaler for CPUs."""
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu")):
        policy = make_policy(checkpoint)
        learner = make_learner(policy, max_grad_norm=0.01)
        if scaler:
            learner.accelerator.scaler = scaler
            learner.optimizer = AcceleratedOptimizer(learner.optimizer, scaler=scaler)
            broken = random_conversations()
            broken[4].advantages = [math.inf] * len(broken[4].ids)
            with pytest.raises(FloatingPointError, match="the step was not taken"):
                learner.learn(broken, TrainConfig(learning_rate=1.0))
        start = {n: p.detach().clone() for n, p in policy.model.named_parameters() if p.requires_grad}
        metrics = learner.learn(random_conversations(), TrainConfig(learning_rate=1.0))
        found.append((metrics["grad_norm"], change(policy, start)))
    (norm, plain), (same_norm, scaled) = found
    assert same_norm == pytest.approx(norm, rel=1e-5) and norm > 0.01
    for name, moved in plain.items():
        torch.testing.assert_close(scaled[name], moved, rtol=1e-4, atol=1e-7)


def test_global_random_states_are_preserved_and_dropout_follows_the_seed(checkpoint):
    random.seed(5), numpy.random.seed(5), torch.manual_seed(5)
    expected = random.random(), numpy.random.rand(), torch.rand(1).item()
    random.seed(5), numpy.random.seed(5), torch.manual_seed(5)
    moved = []
    for noise, seed in [(0, 1), (17, 1), (17, 2)]:
        policy = load_policy(checkpoint, engine="transformers", peft_args={"lora_dropout": 0.5})
        learner = make_learner(policy)
        with torch.random.fork_rng():
            torch.manual_seed(noise)
            learner.learn(random_conversations(), TrainConfig(learning_rate=1.0), seed=seed)
        moved.append(torch.cat([p.flatten() for n, p in policy.model.named_parameters() if "lora_B" in n]))
    assert torch.equal(moved[0], moved[1]) and not torch.equal(moved[0], moved[2])
    assert (random.random(), numpy.random.rand(), torch.rand(1).item()) == expected


def test_trl_options_without_effect_are_warned_about(checkpoint):
    with pytest.warns(UserWarning, match="have no effect here: num_generations, num_iterations"):
        mine = ours(checkpoint, rate=1.0, num_generations=8, num_iterations=4)
    with pytest.warns(UserWarning, match="have no effect here: beta, learning_rate, max_steps .*KL penalty"):
        make_learner(make_policy(checkpoint), beta=0.1, learning_rate=1.0, max_steps=3)
    silent = {
        "mask_truncated_completions": True, "multi_objective_aggregation": "normalize_then_sum", "neftune_noise_alpha": 5.0,
        "reward_weights": [2.0],
    }  # fmt: skip
    with pytest.warns(UserWarning, match=f"have no effect here: {', '.join(silent)} "):
        learner = make_learner(make_policy(checkpoint), **silent)
    assert learner.args.neftune_noise_alpha is None and not learner.mask_truncated_completions
    with pytest.raises(ValueError, match="use_adaptive_entropy"):
        make_learner(make_policy(checkpoint), use_adaptive_entropy=True)
    assert mine[1].keys() and mine[0]["loss"] == pytest.approx(ours(checkpoint, rate=1.0)[0]["loss"])


def test_gradient_checkpointing_gives_the_same(checkpoint):
    plain = ours(checkpoint, rate=1.0)
    assert_same(plain, ours(checkpoint, rate=1.0, gradient_checkpointing=True), 1.0)


def test_the_model_keeps_its_own_forward(checkpoint):
    policy = make_policy(checkpoint)
    ids = torch.tensor([[5, 6, 7]])
    before = policy.model(input_ids=ids).logits
    Learner(policy), Learner(policy)
    assert "forward" not in policy.model.get_base_model().__dict__
    assert torch.equal(policy.model(input_ids=ids).logits, before)


def test_progress_is_reported_for_every_micro_batch(checkpoint):
    texts = []
    learner = make_learner(make_policy(checkpoint), tokens_per_micro_batch=50)
    config = TrainConfig(num_updates=2)
    learner.learn(random_conversations(), config, texts.append)
    count = len(texts) // 2
    assert texts[0] == f"update 1, micro-batch 1 of {count}"
    assert texts[-1] == f"update 2, micro-batch {count} of {count}"
