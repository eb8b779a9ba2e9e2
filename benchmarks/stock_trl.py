"""The baseline: TRL's own GRPOTrainer, on the same base model with the same adapter from the same seed.

TRL 1.15 computes log-probabilities by a Triton kernel that a CPU build of torch does not have: there the
published trainer samples but can't train. Unsloth's CPU backend puts plain torch in that kernel's place, so
it is imported first where the kernel is missing. It changes nothing else of GRPOTrainer, whose class and
methods stay TRL's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

# No network: the first stops a ping at construction, the second a warning that environment_factory is experimental.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
from trl import GRPOConfig, GRPOTrainer  # noqa: E402 - after the lines above, and before Unsloth can be imported
from trl.trainer import utils as trl_utils  # noqa: E402

from art_nb.training.policy import Policy, load_policy  # noqa: E402


def stock_policy(base: str, seed: int, engine: str = "transformers") -> Policy:
    """The base model with the adapter that LocalBackend(seed=seed) starts from: through plain transformers and PEFT, or
    through Unsloth, in the precision that it is stored in."""
    return load_policy(base, engine=engine, init_args={"dtype": "auto"} if engine == "unsloth" else None, seed=seed)


def stock_trainer(
    policy: Policy,
    folder: str | Path,
    rows: list[dict],
    *,
    trainer_class: type[GRPOTrainer] = GRPOTrainer,
    environment: Callable | None = None,
    reward: Callable | None = None,
    **settings: object,
) -> GRPOTrainer:
    """A GRPOTrainer on `policy`.

    Args:
        rows: the dataset, one dict per prompt.
        environment: an `environment_factory` with a `get_reward`.
        reward: a reward function; with neither every reward is 0.
        settings: fields of `trl.GRPOConfig`.
    """
    from datasets import Dataset

    common = {
        "output_dir": str(folder), "report_to": "none", "save_strategy": "no", "logging_strategy": "no",
        "disable_tqdm": True, "use_cpu": policy.device.type == "cpu", "bf16": False, "gradient_checkpointing": False,
        "lr_scheduler_type": "constant", "weight_decay": 0.0, "temperature": 1.0, "shuffle_dataset": False,
    }  # fmt: skip
    if not (environment or reward):
        reward = lambda completions, **_: [0.0] * len(completions)  # noqa: E731
    return trainer_class(
        model=policy.model,
        reward_funcs=reward,
        args=GRPOConfig(**(common | settings)),
        train_dataset=Dataset.from_list(rows),
        processing_class=policy.tokenizer,
        environment_factory=environment,
    )


def need_a_loss() -> None:
    """Makes sure that GRPOTrainer can train on this torch. Raises: SystemExit saying what to install."""
    if getattr(trl_utils, "_ChunkedLogProbFunction", True) is not None:
        return
    try:
        import unsloth  # noqa: F401 - imported for what it replaces
    except ImportError as error:
        raise SystemExit(
            f"stock TRL can't train on torch {torch.__version__}, which has no Triton; `make setup` installs Unsloth, "
            f"whose CPU backend fills the gap ({error})"
        ) from error
