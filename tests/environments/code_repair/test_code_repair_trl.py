"""The repair task trains in stock TRL: one step of GRPOTrainer with its environment and scripted calls."""

import json
from importlib.util import find_spec

import pytest

pytest.importorskip("trl")
from benchmarks.rollout_email import EMAIL_BASE
from benchmarks.stock_trl import GRPOTrainer, import_loss_kernel, stock_policy, stock_trainer
from code_repair import CodeRepairEnvironment, problems

pytestmark = pytest.mark.skipif(
    not (find_spec("triton") or find_spec("unsloth")), reason="stock TRL can't train without Triton or Unsloth"
)
PROBLEM = problems("train")[0]
SIZE = 4


class RepairTrainer(GRPOTrainer):
    """Stock TRL that stores the computed rewards, (rollouts, reward functions)."""

    def _calculate_rewards(self, *inputs):
        self.rewards = super()._calculate_rewards(*inputs)
        return self.rewards


def test_trl_computes_the_tasks_rewards(tmp_path, monkeypatch):
    """Two rollouts repair the code and two submit it unchanged: the first get more reward, and the weights change."""
    import_loss_kernel()
    trainer = stock_trainer(
        stock_policy(str(EMAIL_BASE), seed=0), tmp_path, [{"prompt": [{"role": "user", "content": ""}], "problem": PROBLEM.id}],
        trainer_class=RepairTrainer, environment=CodeRepairEnvironment, max_steps=1, per_device_train_batch_size=SIZE, num_generations=SIZE,
        learning_rate=1e-3, seed=0, max_completion_length=4000, max_tool_calling_iterations=4, generation_kwargs={"max_new_tokens": 64},
    )  # fmt: skip
    bug = PROBLEM.bug
    edit = {"first": bug.line, "last": bug.line + len(bug.now) - 1, "code": "\n".join(bug.was)}
    first = [("replace_lines", edit)] * 2 + [("run_tests", {})] * 2
    turns = iter([first, [("submit", {})] * SIZE, [None] * SIZE])

    def written(call) -> str:
        return f'<tool_call>{json.dumps({"name": call[0], "arguments": call[1]})}</tool_call>' if call else "done"

    def fake_turn(*_, **__):
        return [trainer.processing_class.encode(f"{written(call)}<|im_end|>") for call in next(turns)], None

    monkeypatch.setattr(trainer, "_generate_single_turn", fake_turn)
    weights = [(p, p.detach().clone()) for p in trainer.model.parameters() if p.requires_grad]
    trainer.train()
    repairs = [environment.episode for environment in trainer.environments]
    assert [repair.ended_by for repair in repairs] == ["submitted"] * SIZE
    assert [repair.hidden().passed for repair in repairs] == [True, True, False, False]
    assert trainer.rewards[:, 0].tolist() == pytest.approx([repair.reward() for repair in repairs])
    assert trainer.rewards[0, 0] == pytest.approx(2.4) and trainer.rewards[2, 0] < 1
    assert sum((p.detach() - before).abs().sum().item() for p, before in weights) > 0
