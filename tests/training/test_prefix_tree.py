"""Prefix trees compared with padded rows, their attention with brute force, and the amount of computation."""

import itertools
import random
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tiny_models import LINEAR_ONLY_HERE, make_checkpoint, with_moved_adapter
from torch.nn.attention.flex_attention import flex_attention

from art_nb.training import prefix_tree
from art_nb.training.learner import Learner
from art_nb.training.micro_batches import split_sequences
from art_nb.training.policy import load_policy
from art_nb.training.prefix_tree import PrefixTree, supports_prefix_trees
from art_nb.training.sequences import TokenSequence
from art_nb.types import TrainConfig

WINDOW = 5
FAMILIES = ("qwen3", "llama", "deepseek_v3")
NANO = Path(__file__).parents[2] / "data/nano"
needs_unsloth = pytest.mark.skipif(not find_spec("unsloth"), reason="Unsloth is not installed")


def make_policy(folder, family, engine="transformers"):
    """Return a policy whose adapter differs from zero; qwen3's first layer attends to a window of WINDOW tokens."""
    only = {"target_modules": LINEAR_ONLY_HERE[family]} if family in LINEAR_ONLY_HERE else {}
    windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW, "use_sliding_window": True}
    checkpoint = make_checkpoint(folder, family, **windows if family == "qwen3" else {})
    return with_moved_adapter(load_policy(checkpoint, engine=engine, peft_args={"r": 16, **only}))


def random_sequences(seed, count=6):
    """Return sequences that branch off each other or are equal; advantages differ by turn."""
    draw = random.Random(seed)
    sequences = []
    for _ in range(count):
        sequence = TokenSequence()
        if sequences and draw.random() < 0.85:
            like = draw.choice(sequences)
            cut = draw.randrange(1, len(like.ids) + 1)
            for name in ("ids", "trained", "logprobs", "advantages", "off_policy"):
                setattr(sequence, name, getattr(like, name)[:cut])
        for _ in range(draw.randrange(0 if any(sequence.trained[1:]) else 1, 4)):
            sequence.add([draw.randrange(3, 250) for _ in range(draw.randrange(1, 6))])
            sampled = [draw.randrange(3, 250) for _ in range(draw.randrange(1, 5))]
            sequence.add(sampled, [-1.0] * len(sampled), draw.gauss(0, 1))
        sequences.append(sequence)
    return sequences


def learnt(learner, sequences, config, as_tree):
    """Take a step and undo it. Return its metrics and the change of the weights."""
    model, learner.as_tree = learner.policy.model, as_tree
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    metrics = learner.learn(sequences, config)
    change = torch.cat([(p.detach() - s).flatten() for p, s in zip(trained, start, strict=True)])
    with torch.no_grad():
        for parameter, value in zip(trained, start, strict=True):
            parameter.copy_(value)
    return metrics, change


def assert_equal_training(learner, sequences, config):
    (mine, moved), (theirs, expected) = (learnt(learner, sequences, config, as_tree) for as_tree in (True, False))
    assert (moved - expected).norm() < 1e-4 * expected.norm(), config
    for name in ("loss", "grad_norm", "entropy", "kl", "clip_fraction"):
        assert mine.get(name) == pytest.approx(theirs.get(name), rel=1e-4, abs=1e-5), name
    return mine, expected


def plain_descent(learner):
    """Adam would magnify rounding errors of gradients near zero."""
    learner.optimizer = torch.optim.SGD([p for p in learner.policy.model.parameters() if p.requires_grad])
    return learner


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradient_equal_those_of_padded_rows(tmp_path, family):
    """On random trees: several losses, with and without KL, one update and several, in which ratios are clipped."""
    policy = make_policy(tmp_path, family)
    learners = {
        loss: plain_descent(Learner(policy, grpo={"loss_type": loss, "max_grad_norm": 0.0}))
        for loss in ("dapo", "grpo", "bnpo")
    }
    clipped = shared = 0
    for seed, (loss, kl, updates, tokens) in enumerate(itertools.product(learners, (0, 0.1, 0.2), (1, 2), (60, 1000))):
        learner = learners[loss]
        learner.tokens_per_micro_batch = tokens
        config = TrainConfig(learning_rate=0.1, kl_penalty_coef=kl, num_updates=updates)
        sequences = random_sequences(seed)
        metrics, change = assert_equal_training(learner, sequences, config)
        assert change.abs().max() > 0
        clipped += metrics["clip_fraction"] > 0
        shared += sum(len(s.ids) for s in sequences) > 1.3 * len(beginnings([s.ids for s in sequences]))
    assert clipped >= 15 and shared >= 25


@pytest.mark.parametrize("engine", ["transformers", pytest.param("unsloth", marks=needs_unsloth)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_both_engines_and_gradient_checkpointing(tmp_path, engine, checkpointing):
    learner = plain_descent(Learner(make_policy(tmp_path, "qwen3", engine), grpo={"gradient_checkpointing": checkpointing}))
    assert learner.as_tree
    assert_equal_training(learner, random_sequences(3), TrainConfig(learning_rate=0.1, kl_penalty_coef=0.1))


def beginnings(sequences):
    return {tuple(ids[:end]) for ids in sequences for end in range(1, len(ids) + 1)}


def ids_in_training(seed, count=12):
    """Return ids as in training: sorted, then without the last, so that one of them is a prefix of the one before it."""
    draw = random.Random(seed)
    whole = [[1, 1, 1] + draw.choices((2, 3), k=draw.randrange(2, 12)) for _ in range(count)]
    return [ids[:-1] for ids in sorted([*whole, [4, 5, 6, 4], [4, 5, 7]])]


@pytest.mark.parametrize("seed", range(5))
def test_the_nodes_are_the_distinct_prefixes(seed):
    sequences = ids_in_training(seed)
    tree = PrefixTree(sequences)
    held = {}
    for ids, path in zip(sequences, tree.paths, strict=True):
        assert tree.ids[path].tolist() == ids and tree.positions[path].tolist() == list(range(len(ids)))
        held |= {node: tuple(ids[: i + 1]) for i, node in enumerate(path)}
    assert len(tree) == len(held) == len(set(held.values())) and set(held.values()) == beginnings(sequences)
    for node, beginning in held.items():
        below = [other for other, longer in held.items() if longer[: len(beginning)] == beginning]
        assert sorted(below) == list(range(node, int(tree.ends[node])))


def brute_force(query, key, value, tree, scaling, window):
    """Softmax over the ancestors within the window, with an N x N mask."""
    seen = torch.zeros(len(tree), len(tree), dtype=torch.bool)
    for path in map(torch.from_numpy, tree.paths):
        for i, node in enumerate(path):
            seen[node, path[max(0, i - window + 1) if window else 0 : i + 1]] = True
    repeat = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeat, dim=1) for x in (key, value))
    scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("window", [None, 1, 4, 10**6])
@pytest.mark.parametrize("queries", [3, 256])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_attention_equals_brute_force(monkeypatch, window, queries, on_cpu):
    monkeypatch.setattr(prefix_tree, "_on_cpu", lambda query: on_cpu)
    monkeypatch.setattr(prefix_tree, "MAX_QUERIES", queries)
    monkeypatch.setattr(prefix_tree, "CALL_COST", 20)
    tree, generator = PrefixTree(ids_in_training(7)), torch.Generator().manual_seed(0)
    needed = torch.rand(len(tree), generator=generator) < 0.3
    tree.set_needed(needed)
    query, key, value = (torch.randn(1, heads, len(tree), size, generator=generator) for heads, size in [(4, 8), (2, 8), (2, 6)])
    expected = brute_force(query, key, value, tree, 0.3, window)
    torch.testing.assert_close(tree.attend(query, key, value, 0.3, window, last=False), expected, atol=1e-5, rtol=1e-5)
    last = tree.attend(query, key, value, 0.3, window, last=True)
    torch.testing.assert_close(last[:, needed], expected[:, needed], atol=1e-5, rtol=1e-5)
    assert not last[:, ~needed].any()


def test_attention_of_bfloat16_is_computed_in_float32():
    tree = PrefixTree([[1, 2, 3], [1, 2, 4]])
    query, key, value = (torch.randn(1, heads, 4, 8).bfloat16() for heads in (4, 2, 2))
    found = tree.attend(query, key, value, 0.35, None, False)
    expected = tree.attend(query.float(), key.float(), value.float(), 0.35, None, False)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected.bfloat16())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 1, 4, 10**6])
def test_the_mask_of_flex_attention_is_the_same(window):
    """The mask used on a GPU, evaluated with FlexAttention's unfused implementation."""
    tree, generator = PrefixTree(ids_in_training(7)), torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, len(tree), 16, generator=generator) for _ in range(3))
    found = flex_attention(query, key, value, block_mask=tree.block_mask(window), scale=0.3)
    expected = brute_force(query, key, value, tree, 0.3, window)
    torch.testing.assert_close(found.transpose(1, 2), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("tokens", "most"), [(30, 100), (30, 2), (1, 100), (10**6, 100)])
def test_micro_batches_hold_every_sequence_once_and_few_distinct_tokens(tokens, most):
    sequences = random_sequences(5, count=30)
    cuts = split_sequences(sequences, tokens, most, as_tree=True)
    assert sorted(id(s) for cut in cuts for s in cut) == sorted(map(id, sequences))
    for cut in cuts:
        assert len(cut) == 1 or len(cut) <= most and len(beginnings([s.ids for s in cut])) <= tokens
    # No cut without need: the first sequence of the next would have been one too many, or too much.
    for cut, after in zip(cuts, cuts[1:], strict=False):
        assert len(cut) == most or len(beginnings([s.ids for s in (*cut, after[0])])) > tokens


def siblings(groups=6, size=4, shared=150, own=80):
    """Return a batch typical of agents: the sequences of a group share a prefix, and few later tokens were sampled."""
    draw = random.Random(0)
    sequences = []
    for _ in range(groups):
        prompt = [draw.randrange(3, 250) for _ in range(shared)]
        for _ in range(size):
            sequence = TokenSequence()
            sequence.add(prompt)
            for _ in range(4):
                sequence.add([draw.randrange(3, 250) for _ in range(5)], [-1.0] * 5, draw.gauss(0, 1))
                sequence.add([draw.randrange(3, 250) for _ in range(draw.randrange(own // 8, own // 3))])
            sequences.append(sequence)
    return sequences


class Kept:
    """Counts the bytes that a micro-batch saves for its backward pass, without the weights."""

    def __init__(self, model):
        self.weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.storages, self.most = {}, 0

    def keep(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights:
            self.storages[storage.data_ptr()] = storage.nbytes()
            self.most = max(self.most, sum(self.storages.values()))
        return tensor

    def next_micro_batch(self, text):
        self.storages.clear()


def test_the_tree_takes_less_memory_and_computes_each_prefix_once():
    """With the default settings of the learner and the nano model."""
    policy, sequences = load_policy(NANO, engine="transformers"), siblings()
    learner, kept = Learner(policy), {}
    base = policy.model.get_base_model()
    entered, headed = [], []
    counters = [
        base.get_input_embeddings().register_forward_hook(lambda *a: entered.append(a[1][0].numel())),
        base.get_output_embeddings().register_forward_hook(lambda *a: headed.append(len(a[1][0]))),
    ]
    tokens = learner.tokens_per_micro_batch
    for as_tree, at_once in ((False, 2048), (True, tokens)):
        learner.as_tree, learner.tokens_per_micro_batch = as_tree, at_once
        counter = Kept(policy.model)
        entered.clear(), headed.clear()
        with torch.autograd.graph.saved_tensors_hooks(counter.keep, lambda tensor: tensor):
            learner.learn(sequences, TrainConfig(kl_penalty_coef=0.1), counter.next_micro_batch)
        kept[as_tree] = counter.most, max(entered), sum(entered) / 2, sum(headed) / 2  # two passes: one for the KL
    for counter in counters:
        counter.remove()
    cuts = split_sequences(sequences, tokens, len(sequences), as_tree=True)
    distinct = sum(len(beginnings([s.ids[:-1] for s in cut])) for cut in cuts)
    predicting = sum(len({tuple(s.ids[:i]) for s in cut for i in range(1, len(s.ids)) if s.trained[i]}) for cut in cuts)
    assert kept[True][2:] == (distinct, predicting) < (0.7 * kept[False][2], kept[False][3])
    assert kept[True][0] <= kept[False][0] and kept[True][1] <= kept[False][1], kept


def test_a_family_that_does_not_support_trees_is_trained_on_padded_rows(tmp_path, monkeypatch):
    """GPT-OSS, for example: its attention has sinks, which tree attention lacks."""
    import transformers

    tiny = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": 2}
    config = transformers.GptOssConfig(**tiny, **experts, pad_token_id=0, initializer_range=0.2)
    torch.manual_seed(0)
    assert not supports_prefix_trees(transformers.GptOssModel(config))
    policy = make_policy(tmp_path, "llama")
    assert supports_prefix_trees(policy.model.get_base_model().model)
    policy.model.config.attention_dropout = 0.1  # trees do not drop attention weights
    assert not supports_prefix_trees(policy.model.get_base_model().model)
    gpt2 = transformers.GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.1)
    assert not supports_prefix_trees(transformers.GPT2Model(gpt2))
    policy.model.config.attention_dropout = 0.0
    monkeypatch.setattr("art_nb.training.trainer.supports_prefix_trees", lambda decoder: False)
    with pytest.warns(UserWarning, match="LlamaForCausalLM does not support prefix trees"):
        learner = Learner(policy)
    learner.learn(random_sequences(1), TrainConfig())
    assert not learner.as_tree and policy.model.config._attn_implementation == "sdpa"
