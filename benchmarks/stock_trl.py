"""The baseline: TRL's GRPOTrainer, with the same base model and initial adapter.

TRL 1.15 computes log-probabilities with a Triton kernel, and CPU builds of torch come without Triton, so there the
published trainer can sample but not train. Unsloth's CPU backend replaces the kernel with plain torch and changes nothing
else in GRPOTrainer; `import_loss_kernel` imports it where the kernel is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # no warning that environment_factory is experimental
from transformers import AutoConfig  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402 - after the lines above, and before Unsloth can be imported
from trl.trainer import utils as trl_utils  # noqa: E402

from art_nb.training.policy import Policy, load_policy  # noqa: E402
from art_nb.training.trainer import trl_settings  # noqa: E402


def stock_policy(base: str, seed: int, engine: str = "transformers") -> Policy:
    """Load the base model with the initial adapter of LocalBackend(seed=seed).

    engine: plain transformers and PEFT, or Unsloth in the dtype of the stored weights (on a GPU it rejects "auto").
    """
    as_stored = {"dtype": AutoConfig.from_pretrained(base).dtype} if engine == "unsloth" else None
    return load_policy(base, engine=engine, init_args=as_stored, seed=seed)


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
    """Return a GRPOTrainer for `policy`.

    rows: the dataset, one dict per prompt. environment: an `environment_factory` with a `get_reward`. reward: a reward
    function; without either all rewards are 0. settings: fields of `trl.GRPOConfig`.
    """
    from datasets import Dataset

    ours = trl_settings(policy, str(folder))
    common = {
        "output_dir": str(folder), "report_to": "none", "save_strategy": "no", "logging_strategy": "no",
        "disable_tqdm": True, **{name: ours[name] for name in ("use_cpu", "bf16", "fp16")},
        "gradient_checkpointing": False,
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


def import_loss_kernel() -> None:
    """Make GRPOTrainer able to train with this torch. Raises: SystemExit if Unsloth is missing."""
    if getattr(trl_utils, "_ChunkedLogProbFunction", True) is not None:
        return
    try:
        import unsloth  # noqa: F401 - imported for the kernel that it replaces
    except ImportError as error:
        raise SystemExit(
            f"stock TRL cannot train with torch {torch.__version__}, which lacks Triton ({error}); `make setup` installs "
            "Unsloth, whose CPU backend replaces it"
        ) from error
