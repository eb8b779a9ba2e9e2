"""Estimate a run's cost: tokens, floating-point operations, GPU hours, memory and price, each with an interval.

The model has one empirical parameter, the utilisation: the share of a GPU's peak throughput that such runs reach, waiting
included. It is fitted to published runs with known cost. `held_out` predicts each of them, with an interval, from the rest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Trains = Literal["lora", "full"]
Interval = tuple[float, float]

# Dense bfloat16 operations per second and bytes of memory, from NVIDIA's data sheets of data center boards (the A100 with
# 80 GB, the SXM boards of H100 and H200; for L4, H100 and H200, half of the figure "with sparsity").
GPUS = {
    "T4": (65e12, 16e9),  # float16: it does not support bfloat16
    "L4": (121e12, 24e9),
    "A40": (149.7e12, 48e9),
    "A100": (312e12, 80e9),
    "H100": (989e12, 80e9),
    "H200": (989e12, 141e9),
}
# Student's t at 90% (two-sided), by degrees of freedom.
T90 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02}
TOO_WIDE = 4.0  # highest over lowest: beyond it an interval does not tell one GPU from the next


@dataclass(frozen=True)
class Run:
    """A run of GRPO.

    parameters: of the base model; for a mixture of experts, those active per token.
    prompt: tokens before the first answer; turns: answers of the model in an episode; answer, observation: tokens of each
    answer and of each observation. Each a number, or (lowest, highest) if it is a guess.
    trains: "lora" or "full". reference: whether a reference model's log-probabilities are needed (KL).
    share_prompts: whether a group's common prompt is computed once, in sampling and in training, as art_nb does.
    """

    parameters: float
    steps: int
    groups: int
    group_size: int
    prompt: float | Interval
    turns: float | Interval
    answer: float | Interval
    observation: float | Interval = 0.0
    trains: Trains = "lora"
    reference: bool = False
    share_prompts: bool = True

    def __post_init__(self) -> None:
        if self.trains not in ("lora", "full"):
            raise ValueError(f"trains is {self.trains!r}: expected 'lora' or 'full'")
        for name in ("parameters", "steps", "groups", "group_size"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: expected more than 0")
        for name in ("prompt", "turns", "answer", "observation"):
            low, high = _ends(getattr(self, name))
            if not 0 <= low <= high:
                given = getattr(self, name)
                raise ValueError(f"{name} is {given}: expected a number of at least 0, or a pair (lowest, highest)")
        if not self.processed()[0]:
            raise ValueError("at the lowest values the run has no tokens: raise the lower end of prompt or turns")

    @property
    def trajectories(self) -> int:
        return self.steps * self.groups * self.group_size

    def context(self) -> Interval:
        """Return the tokens of an episode at its end."""
        return self._each(lambda prompt, turns, answer, observation: prompt + turns * (answer + observation))

    def sampled(self) -> Interval:
        """Return the number of sampled tokens in the run."""
        return self._each(lambda prompt, turns, answer, observation: self.trajectories * turns * answer)

    def processed(self) -> Interval:
        """Return the number of processed tokens in the run: all of each episode, and a shared prompt once per group."""
        share = 1 / self.group_size if self.share_prompts else 1.0
        return self._each(lambda prompt, turns, answer, obs: self.trajectories * (share * prompt + turns * (answer + obs)))

    def operations(self) -> Interval:
        """Return the floating-point operations of the run.

        Per parameter and token: forward pass 2; backward pass with respect to the inputs 2, with respect to the weights 2
        (none with LoRA, which has few weights); recomputed activations 2. Attention over the context is neglected.
        Source: Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 2.1.
        """
        sample, learn = 2, 6 if self.trains == "lora" else 8
        again = 2 + (2 if self.reference else 0)  # log-probabilities of the policy that sampled, and of the reference
        low, high = self.processed()
        per_token = (sample + learn + again) * self.parameters
        return low * per_token, high * per_token

    def _each(self, of) -> Interval:
        ends = [_ends(getattr(self, name)) for name in ("prompt", "turns", "answer", "observation")]
        return of(*(end[0] for end in ends)), of(*(end[1] for end in ends))


@dataclass(frozen=True)
class Published:
    """A published run. gpu_hours: as published, or derived from a published price; source: where it is published."""

    name: str
    runs: tuple[Run, ...]
    gpu: str
    gpu_hours: Interval
    source: str
    assumed: str

    def utilisation(self) -> float:
        """Return the utilisation, from the geometric means of both intervals."""
        operations = _middle(_added(run.operations() for run in self.runs))
        return operations / (_middle(self.gpu_hours) * 3600 * GPUS[self.gpu][0])


@dataclass(frozen=True)
class Plan:
    """Estimated needs of a run, with 90% intervals, which are based on few published runs.

    gpu_hours: of all GPUs together; price: at the given prices; memory: bytes on each GPU while training.
    """

    run: Run
    gpu: str
    gpus: int
    middle: float
    gpu_hours: Interval
    price: Interval
    memory: float
    assumptions: list[str] = field(default_factory=list)

    @property
    def hours(self) -> Interval:
        return self.gpu_hours[0] / self.gpus, self.gpu_hours[1] / self.gpus

    @property
    def fits(self) -> bool:
        return self.memory <= GPUS[self.gpu][1]

    @property
    def width(self) -> float:
        """The highest price divided by the lowest; if the lowest is 0, the highest GPU hours divided by the lowest."""
        low, high = self.price if self.price[0] else self.gpu_hours
        return high / low

    def __str__(self) -> str:
        """Return the estimate; for a GPU with too little memory only its memory, because the run would not start on it."""
        memory = f"needs {self.memory / 1e9:.3g} GB of memory, has {GPUS[self.gpu][1] / 1e9:.3g} GB"
        if not self.fits:
            return f"{self.gpus} x {self.gpu}: {memory}: does not fit, so time and price are not estimated"
        (low, high), (cheap, dear) = self.gpu_hours, self.price
        too_wide = f"; too wide to plan with: the highest is {self.width:.0f} times the lowest"
        return (
            f"{self.gpus} x {self.gpu}: {memory}; {low:.3g} to {high:.3g} GPU hours, "
            f"{self.hours[0]:.3g} to {self.hours[1]:.3g} hours, price {cheap:.3g} to {dear:.3g}"
            f"{too_wide if self.width > TOO_WIDE else ''}"
        )


def plan(run: Run, gpu: str, price_per_hour: float | Interval, gpus: int = 1, in_parallel: int = 16) -> Plan:
    """Estimate what `run` needs on `gpus` GPUs of the kind `gpu`.

    price_per_hour: of one GPU, in any currency. in_parallel: episodes whose keys and values are kept at once.

    Raises: ValueError for a GPU that is not in `GPUS`, or an invalid price.
    """
    if gpu not in GPUS:
        raise ValueError(f"gpu is {gpu!r}: expected one of {', '.join(GPUS)}")
    cheap, dear = _ends(price_per_hour)
    if not 0 <= cheap <= dear or gpus < 1:
        expected = "a price of at least 0, or a pair (lowest, highest), and at least one GPU"
        raise ValueError(f"price_per_hour is {price_per_hour}, gpus {gpus}: expected {expected}")
    share, spread = calibrated(PUBLISHED)
    low, high = run.operations()
    middle = math.sqrt(low * high) / (share * 3600 * GPUS[gpu][0])
    # The guesses of the run and the spread of the utilisation are assumed independent: logarithms add in quadrature.
    factor = math.exp(math.hypot(math.log(spread), math.log(high / low) / 2))
    hours = middle / factor, middle * factor
    assumptions = [
        f"{share:.1%} of the peak is reached, within a factor of {spread:.2g}, as in {len(PUBLISHED)} published runs",
        "waiting for the environment, for scoring and for restarts is included as far as it was in those runs",
        "contexts so long that attention dominates cost more than estimated",
    ]
    price = hours[0] * cheap, hours[1] * dear
    return Plan(run, gpu, gpus, middle, hours, price, memory(run, gpus, in_parallel), assumptions)


def memory(run: Run, gpus: int = 1, in_parallel: int = 16) -> float:
    """Return the bytes on each GPU, in bfloat16: weights, training state, keys and values of the episodes, activations.

    Full training keeps gradients (2 bytes per parameter), Adam's moments and a float32 copy (12), and a reference model's
    weights (2), sharded over the GPUs. With LoRA the base model is the reference. For a mixture of experts the result is
    too low: all experts are in memory, not only the active ones.
    Assumed, not measured: LoRA's weights are 2% of the model's, and activations, with checkpointing, are 16 numbers times
    the square root of the parameters per token of one episode.
    Keys and values take about 1.1 bytes times the square root of the parameters per token: 0.73, 0.66 and 1.6 for Qwen2.5
    of 1.5, 7 and 14 billion, from their published shapes.
    """
    weights = 2 * run.parameters * ((1 + run.reference) / gpus if run.trains == "full" else 1)
    training = 14 * run.parameters / gpus if run.trains == "full" else 0.02 * run.parameters * 16
    cache = in_parallel / gpus * run.context()[1] * 1.1 * math.sqrt(run.parameters)
    activations = 2 * run.context()[1] * 16 * math.sqrt(run.parameters)
    return weights + training + cache + activations


def calibrated(published: Iterable[Published]) -> tuple[float, float]:
    """Return the mean utilisation, and the factor within which 90% of further runs are expected.

    Mean and prediction interval of the logarithms, by Student's t. Raises: ValueError for fewer than two runs.
    """
    logs = [math.log(each.utilisation()) for each in published]
    if len(logs) < 2:
        raise ValueError("one run does not show how far runs differ: pass at least two")
    spread = statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs))
    return math.exp(statistics.fmean(logs)), math.exp(T90[min(len(logs) - 1, max(T90))] * spread)


def held_out() -> list[dict[str, float | str]]:
    """Predict each published run from the others, in GPU hours.

    Each row has the published hours, the predicted ones, the 90% interval from the others alone (low, high), and width: high
    over low.
    """
    rows: list[dict[str, float | str]] = []
    for each in PUBLISHED:
        share, spread = calibrated(other for other in PUBLISHED if other is not each)
        published = _middle(each.gpu_hours)
        predicted = published * each.utilisation() / share
        interval = {"low": predicted / spread, "high": predicted * spread, "width": spread**2}
        rows.append({"run": each.name, "gpu": each.gpu, "published": published, "predicted": predicted, **interval})
    return rows


def _ends(value: float | Interval) -> Interval:
    low, high = value if isinstance(value, tuple | list) else (value, value)
    return low, high


def _middle(interval: Interval) -> float:
    return math.sqrt(interval[0] * interval[1])


def _added(intervals: Iterable[Interval]) -> Interval:
    lows, highs = zip(*intervals, strict=True)
    return sum(lows), sum(highs)


# 1.78 billion parameters, as the hub counts them; prompt lengths are assumed.
_MATH: Any = {"parameters": 1.78e9, "prompt": (50, 200), "turns": 1, "trains": "full", "reference": True}
PUBLISHED = (
    Published(
        "ART-E (Qwen2.5-14B, LoRA)",
        (Run(14.8e9, 594, 12, 4, prompt=(700, 1500), turns=(3, 6), answer=(40, 120), observation=(200, 700)),),
        "H100",
        (20.0, 40.0),
        "zenml.io/llmops-database, Building ART-E: a single H100, under $80; github.com/OpenPipe/ART, examples/art-e, "
        "all_experiments.py: model 008, 12 groups of 4, at most 10 turns; the script that put it on the hub: its step 594",
        "80 dollars, at 2 to 4 an hour; lengths of prompt and answers, and how many turns",
    ),
    Published(
        "DeepScaleR (1.5B, full)",
        (
            Run(steps=1040, groups=128, group_size=8, answer=(3500, 5500), **_MATH),
            Run(steps=710, groups=128, group_size=16, answer=(3500, 9000), **_MATH),
        ),
        "A100",
        (3800.0, 3800.0),
        "pretty-radio-b75.notion.site, DeepScaleR: 3,800 A100 hours, $4,500, 1,750 steps, 1,040 of them with 8K, in which "
        "answers fell from 5,500 tokens to 3,500; huggingface.co/agentica-org/DeepScaleR-1.5B-Preview: 128 prompts of 8 "
        "samples; its scripts run_deepscaler_1.5b_16k.sh and _24k.sh: 128 of 16, and a penalty on the divergence",
        "how long answers were after the first 1,040 steps",
    ),
    Published(
        "Open-RS (1.5B, full)",
        (Run(steps=1167, groups=6, group_size=6, answer=(1500, 3500), **_MATH),),
        "A40",
        (96.0, 96.0),
        "huggingface.co/knoveleng/Open-RS3: 7,000 samples, 42,000 outputs, 4 A40 in 24 hours, $42; arXiv:2503.16219; "
        "github.com/knoveleng/open-rs, recipes/grpo.yaml: 6 of each, answers of at most 3,584 tokens",
        "how long answers were, up to the limit of 3,584 tokens; that all 24 hours were used; that the KL penalty was on",
    ),
)
