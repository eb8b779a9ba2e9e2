"""Stock TRL runs a conversation: GRPOTrainer's loop calls the shop's tools and writes to the customer."""

import json
from importlib.util import find_spec

import pytest

pytest.importorskip("trl")
from benchmarks.rollout_email import EMAIL_BASE
from benchmarks.stock_trl import import_loss_kernel, stock_policy, stock_trainer
from customer_service import course_tasks
from customer_service.environment import RetailEnvironment

pytestmark = pytest.mark.skipif(
    not (find_spec("triton") or find_spec("unsloth")), reason="stock TRL can't train without Triton or Unsloth"
)


def test_trl_calls_the_tools_writes_to_the_customer_and_rewards_the_solved_task(tmp_path, monkeypatch):
    """The model's answers are scripted. One conversation solves the task, the other only asks."""
    import_loss_kernel()
    task = next(t for t in course_tasks("retail", "train") if t.wants["kind"] == "cancel" and len(t.actions) == 1)
    trainer = stock_trainer(
        stock_policy(str(EMAIL_BASE), seed=0), tmp_path, [{"prompt": [{"role": "user", "content": ""}], "task": task.id}],
        environment=RetailEnvironment, max_steps=1, per_device_train_batch_size=2, num_generations=2, learning_rate=1e-3,
        seed=0, max_completion_length=3000, max_tool_calling_iterations=2, generation_kwargs={"max_new_tokens": 64},
    )  # fmt: skip
    asks = ("respond", {"content": "What is the reason?"})
    turns = iter([[asks, asks], [tuple(task.actions[0]), asks], [None, None]])

    def written(call):
        return f'<tool_call>{json.dumps({"name": call[0], "arguments": call[1]})}</tool_call>' if call else "done"

    def scripted(*_, **__):
        return [trainer.processing_class.encode(f"{written(call)}<|im_end|>") for call in next(turns)], None

    monkeypatch.setattr(trainer, "_generate_single_turn", scripted)
    weights = [(p, p.detach().clone()) for p in trainer.model.parameters() if p.requires_grad]
    trainer.train()
    first, second = (environment.conversation for environment in trainer.environments)
    assert (first.reward(), second.reward()) == (1, 0) and first.opening == second.opening
    assert task.wants["facts"]["reason"] in first.log[2]["content"] and len(second.agent_messages) == 2
    assert any((p.detach() != before).any() for p, before in weights)
