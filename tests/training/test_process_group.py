"""Two processes that train one policy: the gradient equals that of one process, and a lost peer raises PeerLost.

The test starts this file as a program: the second process.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from tiny_models import with_moved_adapter

from art_nb.training.learner import Learner
from art_nb.training.policy import load_policy
from art_nb.training.process_group import PeerLost, ProcessGroup
from art_nb.training.sequences import TokenSequence
from art_nb.types import TrainConfig

CONFIG = TrainConfig(learning_rate=1e-3, grad_accumulation_sequences=4, kl_penalty_coef=0.1)
TIMEOUT = 120.0


def batch(count):
    """Return sequences with common prefixes and different lengths, with advantages and logprobs."""
    dice = random.Random(0)
    sequences = []
    for _ in range(count):
        prompt, completion = [5, 6, 7] + dice.choices(range(3, 250), k=3), dice.choices(range(3, 250), k=dice.randint(2, 30))
        sequence = TokenSequence()
        sequence.add(prompt)
        sequence.add(completion, [dice.uniform(-6, -4) for _ in completion], dice.gauss(0, 1))
        sequences.append(sequence)
    return sequences


def learner(base, folder, process_group=None):
    policy = with_moved_adapter(load_policy(base, engine="transformers", peft_args={"r": 4, "lora_alpha": 8}))
    made = Learner(policy, output_dir=str(folder))
    made.process_group = process_group or made.process_group
    return made


def steps(made):
    """Learn twice. Return Adam's first moments, flattened, and the metrics of each; the second batch fits one process only."""
    found = []
    for count, config in ((30, CONFIG), (3, CONFIG.model_copy(update={"num_updates": 2}))):
        metrics = made.learn(batch(count), config)
        state = made.optimizer.state_dict()["state"]
        found.append((torch.cat([state[i]["exp_avg"].flatten() for i in sorted(state)]), metrics))
    return found


def test_two_processes_compute_the_gradient_of_one(tiny_base, tmp_path):
    """After one step Adam's first moment is the gradient times 0.1."""
    from running_server import free_port

    port = free_port()
    command = [sys.executable, __file__, str(tiny_base), str(tmp_path / "second"), str(port)]
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    second = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path})
    try:
        group = ProcessGroup(0, 2, "127.0.0.1", port, join_timeout=TIMEOUT)
        together = steps(learner(tiny_base, tmp_path / "first", group))
        assert second.wait(TIMEOUT) == 0
    finally:
        second.kill()
    with pytest.raises(PeerLost):
        group.sum_in_place([torch.ones(3)])
    alone = steps(learner(tiny_base, tmp_path / "alone"))
    for (gradient, metrics), (of_two, metrics_of_two), far in zip(alone, together, (1e-5, 1e-3), strict=True):
        assert 0 < float((gradient - of_two).norm() / gradient.norm()) < far
        for name in set(metrics) - {"train_s", "train_tokens_per_s"}:
            assert metrics_of_two[name] == pytest.approx(metrics[name], rel=1e-3, abs=1e-5), name
    assert len(batch(30)) / 4 > 2  # both had several micro-batches of the first


def test_the_first_process_listens_on_the_given_interface_only():
    """`ss` would show 0.0.0.0 otherwise: torch's store lets anybody who reaches it read and write."""
    from running_server import free_port

    port = free_port()
    group = ProcessGroup(0, 1, "127.0.0.1", port)
    sockets = psutil.Process().net_connections("tcp")
    assert [c.laddr.ip for c in sockets if c.status == "LISTEN" and c.laddr.port == port] == ["127.0.0.1"]
    assert group.minimum([1.0]) == [1.0]


if __name__ == "__main__":
    _, base, folder, port = sys.argv
    steps(learner(base, folder, ProcessGroup(1, 2, "127.0.0.1", int(port), join_timeout=TIMEOUT)))
