"""SequenceTrainer in float16, whose gradients are scaled, and what its constructor changes. torch's scaler for CPUs runs here."""

import math
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
import torch
import transformers
from accelerate import Accelerator
from tiny_models import with_moved_adapter

from art_nb.training.learner import Learner
from art_nb.training.policy import load_policy
from art_nb.training.process_group import SingleProcess
from art_nb.training.sequences import TokenSequence
from art_nb.training.supervised import SupervisedLearner
from art_nb.types import TrainConfig, TrainSFTConfig

STEP = TrainConfig(learning_rate=1e-3)


@pytest.fixture(autouse=True)
def scaler_on_cpu(request, monkeypatch):
    """Accelerate creates a gradient scaler on a GPU only; where Unsloth is loaded, no learner on a CPU uses half precision."""
    if "unsloth" in sys.modules and request.function is not test_half_precision_in_a_process_without_unsloth:
        pytest.skip("runs in a process without Unsloth")
    create = Accelerator.__init__

    def created(self, *arguments, **options):
        create(self, *arguments, **options)
        self.scaler = torch.amp.GradScaler("cpu") if self.mixed_precision == "fp16" else None

    monkeypatch.setattr(Accelerator, "__init__", created)


def make_policy(base, dtype=torch.float32):
    policy = load_policy(base, engine="transformers", init_args={"dtype": dtype}, peft_args={"r": 4, "lora_alpha": 8})
    return with_moved_adapter(policy)


def batch(count=6):
    """Return sequences with random tokens and advantages."""
    draw, sequences = random.Random(0), []
    for _ in range(count):
        sequences.append(TokenSequence())
        sequences[-1].add(draw.choices(range(3, 250), k=draw.randint(2, 9)))
        sequences[-1].add(draw.choices(range(3, 250), k=5), [math.nan] * 5, draw.gauss(0, 1))
    return sequences


def learner(policy, scale=2.0**16, *, sgd=False):
    """Return a learner in float16, with the given gradient scale. sgd: Adam would magnify errors of gradients near zero."""
    made = Learner(policy, grpo={"fp16": True, "max_grad_norm": 0.0})
    made.accelerator.scaler._init_scale = scale
    if sgd:
        raw = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad])
        made.optimizer = type(made.optimizer)(raw, scaler=made.accelerator.scaler)
    return made


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy.model.parameters() if p.requires_grad])


class ThreadGroup(SingleProcess):
    """One of several learners in this process, each in its own thread."""

    def __init__(self, rank, size, barrier, passed):
        self.rank, self.size, self.barrier, self.passed = rank, size, barrier, passed

    def shard(self, items):
        return items[self.rank :: self.size]

    def gather(self, value):
        self.passed[self.rank] = value
        self.barrier.wait(60)
        values = [self.passed[rank] for rank in range(self.size)]
        self.barrier.wait(60)
        return values

    def sum_in_place(self, tensors):
        for each, *of_all in zip(tensors, *self.gather([tensor.detach().clone() for tensor in tensors]), strict=True):
            each.copy_(sum(of_all))

    def minimum(self, values):
        return [min(each) for each in zip(*self.gather(values), strict=True)]


@pytest.mark.parametrize("count", [9, 1], ids=["a share for each process", "the second has no micro-batch"])
def test_processes_with_different_gradient_scales_take_the_same_step(tiny_base, count):
    barrier, passed, moved = threading.Barrier(2), {}, {}

    def train(name, made):
        start = weights(made.policy)
        metrics = made.learn(batch(count), TrainConfig(learning_rate=1.0, grad_accumulation_sequences=5))
        moved[name] = metrics["grad_norm"], weights(made.policy) - start

    train("alone", learner(make_policy(tiny_base), 2.0**10, sgd=True))
    threads = []
    for rank, scale in enumerate((2.0**16, 2.0**14)):
        made = learner(make_policy(tiny_base), scale, sgd=True)
        made.process_group = ThreadGroup(rank, 2, barrier, passed)
        threads.append(threading.Thread(target=train, args=(rank, made), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for rank in (0, 1):
        assert moved[rank][0] == pytest.approx(moved["alone"][0], rel=1e-2)
        assert (moved[rank][1] - moved["alone"][1]).norm() < 1e-2 * moved["alone"][1].norm()


def test_gradients_that_overflow_are_computed_again(tiny_base):
    """One batch: at the initial scale nothing would be learnt, and a new learner would start from that scale again."""
    found = []
    for scale in (2.0**10, 2.0**34):
        policy = make_policy(tiny_base, torch.float16)
        made, start = learner(policy, scale, sgd=True), weights(policy)
        metrics = made.learn(batch(), STEP)
        found.append((metrics, weights(policy) - start))
    assert made.accelerator.scaler.get_scale() < 2.0**34
    (expected, moved), (metrics, same) = found
    for name in ("loss", "grad_norm", "entropy"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-2, abs=1e-4)
    assert (same - moved).norm() < 1e-2 * moved.norm()
    scaler = made.accelerator.scaler
    assert Learner(policy, grpo={"fp16": True}).optimizer.scaler is scaler
    assert SupervisedLearner(policy, sft={"fp16": True}).accelerator.scaler is scaler


def test_gradients_that_are_never_finite_raise(tiny_base):
    policy = make_policy(tiny_base, torch.float16)
    made, start = learner(policy), weights(policy)
    parameter = next(p for n, p in policy.model.named_parameters() if "lora_B" in n)
    hook = parameter.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(FloatingPointError, match=r"gradient norm nan.*the step was not taken"):
        made.learn(batch(), STEP)
    assert torch.equal(weights(policy), start)
    hook.remove()
    made.learn(batch(), STEP)
    assert made.accelerator.scaler.get_scale() > 2.0**8  # not 1, at which small gradients are 0 in float16
    assert not torch.equal(weights(policy), start)


def test_an_interrupt_within_a_step_leaves_the_next_one_as_it_was(tiny_base):
    policy = make_policy(tiny_base)
    made = learner(policy)

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = made.optimizer.optimizer.register_step_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.learn(batch(), STEP)
    hook.remove()
    start = weights(policy)
    assert math.isfinite(made.learn(batch(), STEP)["grad_norm"])
    assert not torch.equal(weights(policy), start)


@pytest.mark.parametrize("kind", [Learner, SupervisedLearner])
def test_of_several_gpus_one_is_used(tiny_base, monkeypatch, kind):
    """TRL refuses more: transformers would replicate the model."""
    check = transformers.TrainingArguments.__post_init__

    def checked(self):
        check(self)
        self._n_gpu = 2

    monkeypatch.setattr(transformers.TrainingArguments, "__post_init__", checked)
    assert kind(make_policy(tiny_base)).args.n_gpu == 1


def test_the_adapter_of_a_4_bit_model_stays_in_float32(tiny_base):
    """A bfloat16 weight has 8 significant bits: most of Adam's steps would be rounded away."""
    policy = make_policy(tiny_base)
    policy.model.is_loaded_in_4bit = True  # as bitsandbytes does
    for made in (Learner(policy), SupervisedLearner(policy)):
        assert {p.dtype for p in policy.model.parameters() if p.requires_grad} == {torch.float32}
        made.learn(*([batch()], TrainSFTConfig()) if isinstance(made, SupervisedLearner) else (batch(), STEP))
        states = made.optimizer.state_dict()["state"].values()
        assert {value.dtype for state in states for value in state.values()} == {torch.float32}


def test_random_states_are_preserved_if_the_constructor_raises(tiny_base, monkeypatch):
    def fail(*_, **__):
        random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
        raise OSError

    monkeypatch.setattr(transformers.Trainer, "__init__", fail)
    policy = make_policy(tiny_base)
    random.seed(5), numpy.random.seed(5), torch.manual_seed(5)
    expected = random.random(), numpy.random.rand(), torch.rand(1).item()
    random.seed(5), numpy.random.seed(5), torch.manual_seed(5)
    with pytest.raises(OSError):
        Learner(policy)
    assert (random.random(), numpy.random.rand(), torch.rand(1).item()) == expected


def test_half_precision_in_a_process_without_unsloth():
    """The tests that are skipped where another test has loaded Unsloth."""
    if "unsloth" in sys.modules:
        ratio = Path(__file__).with_name("test_learner.py")
        tests = [__file__, f"{ratio}::test_in_bfloat16_the_ratio_is_to_the_samplers_probability_from_the_first_update"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *tests]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0 and "skipped" not in ran.stdout, ran.stdout[-3000:]
