"""How close sampling and training are to the speed of this machine's matrix products, and where the rest of the time goes.

`python -m benchmarks.roofline [--parts sampling_email training_2048 ...]` prints one JSON line with, for each part:

- `gflop`: the floating-point operations that the work needs, each distinct token computed once (`needed`).
- `limit_s`: the time that they take at the speed of this machine, measured in isolation for matrix products and attention
  of the same shapes (`speed`); `seconds`: what the part takes, the fastest of three runs; `share` = `limit_s` / `seconds`.
- `time`: percent of the time of another run, under torch's profiler, which slows small operations down: `matmul`,
  `attention`, `softmax` (log-probabilities, entropy, drawing tokens), `tensors` (all other operations on tensors),
  `templates` (chat template, tokenizer, sequences and their layout), `environment`, `python` (everything else, with the
  dispatch of operations), `idle` (the event loop waits). On a GPU these are the times of the CPU, which starts the
  operations, and `gpu` is the part of the time in which the GPU computes.

Sampling is a step of a notebook as benchmarks.rollout gathers it; training is one optimizer step, as in benchmarks.learner.
The limit covers the arithmetic alone: tokens of a conversation are sampled one after the other, so their products have as
many rows as there are conversations.

`python -m benchmarks.roofline --notebooks 00_start_here ...` executes notebooks instead, which takes minutes each, and
prints the peak resident memory of each in GiB (Linux).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch.autograd import DeviceType
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile, record_function

import art_nb as art
from art_nb.environments import ToolEpisode
from art_nb.inference.prompts import IncrementalTemplate, PromptEncoder
from art_nb.training import learner, trainer
from art_nb.training.policy import SMALL_MODEL, Policy
from art_nb.training.prefix_tree import PrefixTree
from art_nb.training.sequences import TokenSequence, build_sequences
from benchmarks import rollout, rollout_code, rollout_email, rollout_real, rollout_service
from benchmarks.batches import batch, gathered
from benchmarks.game_2048 import rounded
from benchmarks.gathering import BASE, RolloutTask, registered
from benchmarks.result import print_result, say
from benchmarks.rollout_code import CODE_BASE
from benchmarks.rollout_email import EMAIL_BASE
from benchmarks.rollout_service import SERVICE_BASE
from code_repair.problems import problems
from course.real_model import smollm2
from customer_service import course_tasks
from email_search import scenarios as email_questions

MEASURED_S = 0.2  # how long the speed of one shape is measured
MANY_ROWS = (512, 1536, 4096)  # of a product over known tokens; the fastest counts
NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
LAST_NARROW = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # of the last layer, only for tokens with an output
KINDS = {
    "matmul": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_linear", "aten::_addmm_activation"),
    "attention": ("scaled_dot_product", "flash_attention"),
    "softmax": ("softmax", "logsumexp", "cumsum", "searchsorted", "gather", "argmax", "topk", "sort"),
    "tensors": ("aten::",),
}
RANGES = {
    "templates": (
        (IncrementalTemplate, "prompt"), (IncrementalTemplate, "answered"), (PromptEncoder, "encode"),
        (PromptEncoder, "remember"), (learner.Learner, "collate"), (trainer, "split_sequences"),
    ),
    "environment": ((ToolEpisode, "call"), (rollout.EndlessEnvironment, "move")),
    "idle": ((selectors.DefaultSelector, "select"),),
}  # fmt: skip


class Product(NamedTuple):
    """A linear layer of the model. rank: of its adapter, 0 without one. narrow: in the last layer, for some tokens only."""

    inputs: int
    outputs: int
    rank: int = 0
    first: bool = False
    narrow: bool = False


@dataclass(frozen=True)
class Shape:
    """A decoder's computation for a token: linear layers, output head, and attention heads (`kv_heads` of them for keys)."""

    products: tuple[Product, ...]
    head: Product
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype
    device: torch.device = torch.device("cpu")
    window: int = 0  # tokens that each of `windowed` layers attends to at most
    windowed: int = 0


def shape_of(policy: Policy, merged: bool = False) -> Shape:
    """Return the shape of a policy. merged: without adapters, as small models are sampled."""
    base = policy.model.get_base_model()
    config, found = base.config, []
    for name, module in base.named_modules():
        if isinstance(module, LoraLinear):
            layer = int(name.split(".layers.")[1].split(".")[0])
            rank = 0 if merged else sum(module.r[each] for each in module.active_adapters)
            narrow = layer == config.num_hidden_layers - 1 and name.endswith(LAST_NARROW)
            first = layer == 0 and name.endswith(("q_proj", "k_proj", "v_proj"))
            found.append(Product(module.in_features, module.out_features, rank, first, narrow))
    head = base.get_output_embeddings()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    windowed = (getattr(config, "layer_types", None) or [])[:-1].count("sliding_attention")  # the last one counts as full
    return Shape(
        tuple(found), Product(config.hidden_size, head.weight.shape[0]), config.num_hidden_layers,
        config.num_attention_heads, config.num_key_value_heads, size, base.dtype, base.device,
        getattr(config, "sliding_window", None) or 0, windowed,
    )  # fmt: skip


class Work(NamedTuple):
    """Distinct tokens, those of them with an output, and the sum of the tokens that each attends to, for both.

    near_pairs: as `pairs`, in layers with a window.
    """

    tokens: int
    outputs: int
    pairs: int
    output_pairs: int
    near_pairs: int = 0


def work_of(sequences: Sequence[Sequence[int]], with_output: Sequence[Sequence[int]], window: int = 0) -> Work:
    """Count the nodes of the prefix tree of `sequences`. with_output: the positions of each that have an output."""
    order = sorted(range(len(sequences)), key=lambda i: list(sequences[i]))
    tree = PrefixTree([list(sequences[i]) for i in order])
    has = torch.zeros(len(tree), dtype=torch.bool)
    for path, i in zip(tree.paths, order, strict=True):
        has[torch.from_numpy(path[list(with_output[i])])] = True
    attended = tree.positions + 1
    near = attended.clip(max=window) if window else attended
    return Work(len(tree), int(has.sum()), int(attended.sum()), int(attended[has].sum()), int(near.sum()))


def product_flops(product: Product, backward: bool) -> int:
    """Return the operations per token in a linear layer with a frozen weight, for the cheaper way to train its adapter.

    A multiply-add counts as two. Backward needs the gradient of the input, except in the first layer, and of
    the adapter's factors A and B; or, with the adapter added to the weight, of the whole weight.
    """
    full, thin = 2 * product.inputs * product.outputs, 2 * product.rank * (product.inputs + product.outputs)
    if not backward:
        return full + thin
    of_input = 0 if product.first else full
    apart = full + of_input + 3 * thin - (2 * product.rank * product.inputs if product.first and product.rank else 0)
    folded = full + of_input + full
    return min(apart, folded) if product.rank else full + of_input


class Term(NamedTuple):
    """Operations of one shape: of a linear layer, or of attention (None)."""

    product: Product | None
    flops: int


def needed(shape: Shape, work: Work, backward: bool) -> list[Term]:
    """Return the operations that the work needs, by shape. Embedding, norms, activations and the optimizer count as 0."""
    terms = [Term(p, product_flops(p, backward) * (work.outputs if p.narrow else work.tokens)) for p in shape.products]
    terms.append(Term(shape.head, product_flops(shape.head, backward) * work.outputs))
    pairs = (shape.layers - 1 - shape.windowed) * work.pairs + shape.windowed * work.near_pairs + work.output_pairs
    # Scores and weighted values forward; backward the gradients of queries, keys, values and weights.
    return [*terms, Term(None, (12 if backward else 4) * shape.heads * shape.head_size * pairs)]


def speed(shape: Shape, product: Product | None, rows: int | None, keys: int) -> float:
    """Return the measured FLOP/s of a linear layer, or of attention (None).

    rows: of the products; None: the fastest of MANY_ROWS. keys: that each of `rows` tokens attends to.
    """
    if product is None:
        return attention_speed(shape, rows, keys)
    counts = MANY_ROWS if rows is None else (rows,)
    return max(product_speed(n, product.inputs, product.outputs, shape.dtype, shape.device) for n in counts)


@cache
def product_speed(rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device) -> float:
    """Return the FLOP/s of a linear layer on `rows` tokens."""
    x = torch.randn(rows, inputs, dtype=dtype, device=device)
    weight = torch.randn(outputs, inputs, dtype=dtype, device=device)
    return 2 * rows * inputs * outputs / fastest(lambda: linear(x, weight), device)


@cache
def attention_speed(shape: Shape, rows: int | None, keys: int) -> float:
    """Return the FLOP/s of attention. rows: conversations with one new token each; None: one with 256 new tokens."""
    conversations, queries = (1, 256) if rows is None else (rows, 1)
    size = shape.head_size
    q = torch.randn(conversations, shape.heads, queries, size, dtype=shape.dtype, device=shape.device)
    k, v = torch.randn(2, conversations, shape.kv_heads, keys, size, dtype=shape.dtype, device=shape.device)
    attend = partial(scaled_dot_product_attention, q, k, v, enable_gqa=shape.heads != shape.kv_heads)
    return 4 * conversations * shape.heads * queries * keys * size / fastest(attend, shape.device)


@torch.inference_mode()
def fastest(call: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of the fastest call, of as many as fit into MEASURED_S and at least five.

    On a GPU, which computes while the next call is prepared, the mean of 20 calls, in the fastest such series.
    """
    in_a_row = 20 if device.type == "cuda" else 1
    until, best, rows = time.perf_counter() + MEASURED_S, float("inf"), 0
    while rows < 5 or time.perf_counter() < until:
        started = time.perf_counter()
        for _ in range(in_a_row):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best, rows = min(best, (time.perf_counter() - started) / in_a_row), rows + 1
    return best


def limits(shape: Shape, work: Work, backward: bool, rows: int | None = None, keys: int = 256) -> dict[str, float]:
    """Return the operations that the work needs, in 10^9, and their seconds at the machine's `speed`."""
    terms = needed(shape, work, backward)
    seconds = sum(term.flops / speed(shape, term.product, rows, keys) for term in terms if term.flops)
    return {"gflop": sum(term.flops for term in terms) / 1e9, "limit_s": seconds}


@contextmanager
def named_ranges() -> Iterator[None]:
    """Record the functions of RANGES in the profiler under their kind."""
    with ExitStack() as patches:
        for kind, functions in RANGES.items():
            for owner, name in functions:
                patches.enter_context(patch.object(owner, name, recorded(kind, getattr(owner, name))))
        yield


def recorded(kind: str, function: Callable) -> Callable:
    """Return the function as a range of the profiler with this name."""

    def call(*arguments: Any, **named: Any) -> Any:
        with record_function(kind):
            return function(*arguments, **named)

    return call


def kind_of(event: str) -> str | None:
    """Return the kind of a profiled event by its name; None: it is counted as Python."""
    if event in RANGES:
        return event
    if event in ("aten::exp", "aten::exp_"):  # `aten::expand` is another operation
        return "softmax"
    return next((kind for kind, names in KINDS.items() if any(name in event for name in names)), None)


def timed(run: Callable[[], Any]) -> float:
    """Return the seconds of a run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def shares_of_time(run: Callable[[], Any]) -> dict[str, float]:
    """Run under the profiler. Returns percentages of the time by kind, see the module's description."""
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with named_ranges(), profile(activities=activities) as profiler:
        seconds = timed(run)
    spent = dict.fromkeys([*KINDS, *RANGES], 0.0)
    events = profiler.key_averages()
    for event in events:
        if kind := kind_of(event.key):
            spent[kind] += event.self_cpu_time_total / 1e6
    spent["python"] = seconds - sum(spent.values())
    if on_gpu:
        kernels = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
        spent["gpu"] = sum(event.self_device_time_total for event in kernels) / 1e6
    return {kind: 100 * each / seconds for kind, each in spent.items()}


def measured(run: Callable[[], Any], limit: dict[str, float]) -> dict[str, Any]:
    """Run three times, and once more under the profiler."""
    seconds = min(timed(run) for _ in range(3))
    return limit | {"seconds": seconds, "share": limit["limit_s"] / seconds, "time": shares_of_time(run)}


def training(name: str, base: str = "", **overrides: int) -> dict[str, Any]:
    """Measure an optimizer step on a batch of benchmarks.learner. overrides: arguments of its gathering, for a quick run."""
    chosen = batch(name, base)
    with tempfile.TemporaryDirectory() as folder:

        async def gather() -> tuple[list[art.TrajectoryGroup], learner.Learner]:
            model = await registered(folder, chosen.base, name, engine="transformers")
            return await gathered(model, name, **overrides), model.backend().loaded(model).learner

        groups, trained = asyncio.run(gather())
        policy = trained.policy

        def sequences() -> list[TokenSequence]:
            return build_sequences(groups, policy.tokenizer, chosen.config)[0]

        shape, found = shape_of(policy), sequences()
        # The last token of a sequence predicts nothing.
        outputs = [[i - 1 for i, is_trained in enumerate(s.trained) if is_trained and i] for s in found]
        work = work_of([s.ids[:-1] for s in found], outputs, shape.window)
        trained.learn(sequences(), chosen.config)  # warms up
        return measured(lambda: trained.learn(sequences(), chosen.config), limits(shape, work, backward=True))


Rollouts = Callable[[art.TrainableModel], list[list[Coroutine]]]


def sampling(base: str, rollouts: Rollouts) -> dict[str, Any]:
    """Measure how long gathering the rollouts takes, with an empty cache and the same draws each time."""

    async def gather(model: art.TrainableModel) -> list[art.TrajectoryGroup]:
        return await art.gather_trajectory_groups([art.TrajectoryGroup(each) for each in rollouts(model)], pbar_desc=None)

    with tempfile.TemporaryDirectory() as folder:
        model = asyncio.run(registered(folder, base, "model", engine="transformers"))
        sampler, policy = model.backend().loaded(model).sampler, model.backend().loaded(model).learner.policy

        def run() -> list[art.TrajectoryGroup]:
            sampler.forget()
            return asyncio.run(gather(model))

        groups = run()  # warms up
        choices = [choice for group in groups for trajectory in group for choice in trajectory.choices()]
        shape = shape_of(policy, merged=policy.parameters < SMALL_MODEL)
        limit = sampling_limit(shape, choices, sum(map(len, groups)))
        return measured(run, limit)


def sampling_limit(shape: Shape, choices: list[Any], conversations: int) -> dict[str, float]:
    """Return the limit of sampling these choices: known tokens in large products, sampled ones a row per conversation."""
    prompts, answers = [c.prompt_token_ids for c in choices], [c.token_ids for c in choices]
    whole = [[*prompt, *answer[:-1]] for prompt, answer in zip(prompts, answers, strict=True)]
    predicting = [range(len(p) - 1, len(w)) for p, w in zip(prompts, whole, strict=True)]
    total = work_of(whole, predicting, shape.window)
    # A token that is fed back after it was sampled is computed once for every answer that draws it.
    drawn = sum(len(answer) - 1 for answer in answers)
    reached = [len(p) + i for p, a in zip(prompts, answers, strict=True) for i in range(1, len(a))]
    attended, near = sum(reached), sum(min(each, shape.window or each) for each in reached)
    tokens, pairs, near_pairs = total.tokens - drawn, total.pairs - attended, total.near_pairs - near
    known = Work(max(0, tokens), len(choices), max(0, pairs), sum(map(len, prompts)), max(0, near_pairs))
    sampled = Work(drawn, drawn, attended, attended, near)
    keys = max(1, attended // max(1, drawn))
    of_known = limits(shape, known, backward=False)
    of_sampled = limits(shape, sampled, False, conversations, keys)
    return {name: of_known[name] + of_sampled[name] for name in of_known}


def of_task(task: RolloutTask, scenarios: list[Any], size: int) -> Rollouts:
    """Return the rollouts of a task of benchmarks.rollout."""
    return lambda model: [[task.rollout(model, scenario, task.max_turns) for _ in range(size)] for scenario in scenarios]


def parts(groups: int = 16, size: int = 8, turns: int = 40, base: str = "") -> dict[str, Callable[[], dict]]:
    """Return the measurable parts, by name. base: of the parts with 2048, by default the nano model."""
    def tool_calls(base: Path, task: RolloutTask, scenarios: Callable[[], list[Any]]) -> Callable[[], dict]:
        return lambda: sampling(str(base), of_task(task, scenarios(), size))

    games = partial(rollout.games, groups=groups // 2, size=size, turns=turns)
    found: dict[str, Callable[[], dict]] = {
        "sampling_2048": lambda: sampling(base or str(BASE), games),
        "sampling_email": tool_calls(EMAIL_BASE, rollout_email.TASK, lambda: email_questions("train", groups)),
        "sampling_retail": tool_calls(SERVICE_BASE, rollout_service.TASK, lambda: course_tasks("retail", "train", groups)),
        "sampling_code": tool_calls(CODE_BASE, rollout_code.TASK, lambda: problems("train", groups)),
    }
    found["sampling_answers"] = lambda: sampling(smollm2(), partial(rollout_real.answers, groups=8, size=8))
    found |= {f"training_{name}": partial(training, name) for name in ("email", "answers", "tools")}
    return found | {f"training_{name}": partial(training, name, base) for name in ("2048", "games")}


def peak_memory(notebook: str) -> float:
    """Execute a notebook in a kernel of its own. Returns the largest resident memory of one of its processes, GiB."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--nbmake", f"{notebook}.ipynb"]
    say(f"executing {notebook}")
    run = subprocess.Popen(command, cwd=NOTEBOOKS, stdout=sys.stderr)
    _, status, usage = os.wait4(run.pid, 0)
    if status:
        raise SystemExit(f"{notebook} failed")
    return usage.ru_maxrss / 2**20


def main() -> None:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [name for name in parts() if name != "training_games"]
    parser.add_argument("--parts", nargs="+", choices=list(parts()), default=usual)
    parser.add_argument("--base", default="", help="folder of the base model that plays 2048 (default: the nano model)")
    parser.add_argument("--turns", type=int, default=40, help="turns per game in sampling_2048")
    parser.add_argument("--notebooks", nargs="+", metavar="NAME", help="measure the memory of these notebooks instead")
    a = parser.parse_args()
    if a.notebooks:
        print_result("memory", lambda: {"gib": {name: peak_memory(name) for name in a.notebooks}})
        return

    def all_parts() -> dict:
        numbers = {}
        for name in a.parts:
            say(name)
            numbers[name] = parts(turns=a.turns, base=a.base)[name]()
            say(json.dumps(rounded(numbers[name])))
        return {"parts": numbers}

    print_result("roofline", all_parts)


if __name__ == "__main__":
    main()
