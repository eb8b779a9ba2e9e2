"""The email task trains in stock TRL: its environment in GRPOTrainer's own loop, on the nano model, for one step."""

import json
from importlib.util import find_spec

import pytest

pytest.importorskip("trl")
from benchmarks.rollout_email import EMAIL_BASE
from benchmarks.stock_trl import GRPOTrainer, import_loss_kernel, stock_policy, stock_trainer
from email_search import environment as task

pytestmark = pytest.mark.skipif(
    not (find_spec("triton") or find_spec("unsloth")), reason="stock TRL can't train without Triton or Unsloth"
)
QUESTION = task.scenarios("train", 1)[0]
SIZE = 4


class SearchTrainer(GRPOTrainer):
    """Stock TRL that stores the computed rewards, (rollouts, reward functions)."""

    def _calculate_rewards(self, *inputs):
        self.rewards = super()._calculate_rewards(*inputs)
        return self.rewards


@pytest.fixture
def trainer(tmp_path):
    import_loss_kernel()
    policy = stock_policy(str(EMAIL_BASE), seed=0)
    rows = [{"prompt": [{"role": "user", "content": ""}], "scenario": QUESTION.id}]
    return stock_trainer(
        policy, tmp_path, rows, trainer_class=SearchTrainer, environment=task.EmailSearchEnvironment, max_steps=1,
        per_device_train_batch_size=SIZE, num_generations=SIZE, learning_rate=1e-3, seed=0,
        max_completion_length=4000, max_tool_calling_iterations=4, generation_kwargs={"max_new_tokens": 64},
    )  # fmt: skip


def step(trainer) -> tuple[list[float], float]:
    """Train one step. Returns (the searches' rewards, the total change of the weights)."""
    weights = [(p, p.detach().clone()) for p in trainer.model.parameters() if p.requires_grad]
    trainer.train()
    assert trainer.state.global_step == 1
    moved = sum((p.detach() - before).abs().sum().item() for p, before in weights)
    return [environment.episode.reward() for environment in trainer.environments], moved


def test_trl_computes_the_tasks_rewards_and_trains_on_them(trainer):
    """The nano model searches by itself. A second reward ensures that the rewards differ."""
    trainer.reward_funcs.append(lambda completions, **_: [float(i % 2) for i in range(len(completions))])
    trainer.reward_func_names.append("odd")
    trainer.reward_processing_classes.append(None)
    trainer.reward_weights = trainer.reward_weights.new_ones(2)
    worth, moved = step(trainer)
    assert trainer.rewards.tolist() == [pytest.approx([reward, i % 2]) for i, reward in enumerate(worth)]
    assert moved > 0


def say(trainer, monkeypatch, answers: list[str]) -> None:
    """Script the model's calls: each search reads the right mail, gives one of `answers`, and ends without a call."""
    (source, *_) = QUESTION.sources
    finals = [("return_final_answer", {"answer": answer, "sources": [source]}) for answer in answers]
    turns = iter([[("read_email", {"message_id": source})] * SIZE, finals, [None] * SIZE])

    def written(call) -> str:
        return f'<tool_call>{json.dumps({"name": call[0], "arguments": call[1]})}</tool_call>' if call else "done"

    def scripted(*_, **__):
        return [trainer.processing_class.encode(f"{written(call)}<|im_end|>") for call in next(turns)], None

    monkeypatch.setattr(trainer, "_generate_single_turn", scripted)


@pytest.mark.parametrize("right", [1, SIZE])
def test_weights_move_only_where_the_tasks_rewards_differ(trainer, monkeypatch, right):
    say(trainer, monkeypatch, [QUESTION.answer] * right + ["nobody"] * (SIZE - right))
    worth, moved = step(trainer)
    correct, wrong = 1 + 0.3 + 0.1 + 0.08, -1 + 0.3 + 0.1 + 0.02
    assert worth == pytest.approx([correct] * right + [wrong] * (SIZE - right))
    assert trainer.rewards[:, 0].tolist() == pytest.approx(worth)
    assert (moved > 0) == (right < SIZE)
