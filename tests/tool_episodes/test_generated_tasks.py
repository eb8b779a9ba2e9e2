"""The adapter of reasoning-gym, with the package itself."""

import asyncio
import random

import pytest
from scripted_client import ScriptedClient

from art_nb.environments import environment_tools, rollout_environment
from art_nb.environments.adapters.reasoning_gym import ReasoningGymEnvironment, last_line, last_number, tag

gym = pytest.importorskip("reasoning_gym")

TASKS = [
    "basic_arithmetic", "chain_sum", "gcd", "lcm", "letter_counting", "number_sorting", "products", "simple_equations", "spell_backward",
    "word_sorting", "isomorphic_strings", "leg_counting",
]  # fmt: skip


def play(environment, answer, **row):
    client = ScriptedClient(answer)
    return asyncio.run(rollout_environment(client, lambda: environment, model="m", row=row, tools=None)), client


@pytest.mark.parametrize("name", TASKS)
def test_the_true_answer_earns_the_reward_and_another_does_not(name):
    environment = ReasoningGymEnvironment(name, size=20)
    item = gym.create_dataset(name, seed=1_000_000, size=20)[3]
    trajectory, _ = play(environment, f"I think it is <answer>{item['answer']}</answer>", index=3, split="val")
    assert item["question"] in trajectory.messages()[0]["content"] and "<answer>" in trajectory.messages()[0]["content"]
    assert trajectory.reward == 1.0 and trajectory.metrics == {
        "turns": 1, "out_of_turns": False, "correct": 1.0, "parsed": 1.0, "tool_failures": 0,
    }  # fmt: skip
    wrong, _ = play(environment, "<answer>no idea</answer>", index=3, split="val")
    assert wrong.reward < 0.5 and not wrong.metrics["correct"]


def test_an_answer_in_a_sentence_counts_with_the_parser_for_it():
    item = gym.create_dataset("chain_sum", seed=0, size=5)[0]
    sentence = f"The final answer to the arithmetic problem is {item['answer']}."
    rewards = {p: play(ReasoningGymEnvironment("chain_sum", parser=p, size=5), sentence)[0].reward for p in ("last_number", "whole")}
    assert rewards["last_number"] == 1.0 > rewards["whole"]


def test_an_answer_that_the_scorer_cannot_parse_ends_the_task_with_0():
    item = gym.create_dataset("prime_factorization", seed=0, size=5)[0]
    environment = ReasoningGymEnvironment("prime_factorization", size=5)
    rewards = [play(environment, f"<answer>{answer}</answer>")[0].reward for answer in (item["answer"], "I give up")]
    assert rewards == [1.0, 0.0] and environment.over and environment.metrics == {"correct": 0.0, "parsed": 1.0}
    client = ScriptedClient([("answer", {"text": "I give up"})], "the end")
    trajectory = asyncio.run(rollout_environment(client, lambda: environment, model="m", row={}))
    assert trajectory.metrics["turns"] == 1 and not trajectory.metrics["tool_failures"]


def test_the_tool_takes_the_answer_as_well():
    item = gym.create_dataset("gcd", seed=2_000_000, size=5)[1]
    client = ScriptedClient([("answer", {"text": item["answer"]})])
    factory = lambda: ReasoningGymEnvironment("gcd", size=5)  # noqa: E731
    trajectory = asyncio.run(rollout_environment(client, factory, model="m", row={"index": 1, "split": "test"}))
    assert trajectory.reward == 1.0 and list(environment_tools(factory())) == ["answer"]


def test_splits_share_no_item():
    environment = ReasoningGymEnvironment("chain_sum", size=50, min_terms=4)
    seen = {split: {environment.reset(index, split) for index in range(50)} for split in ("train", "val", "test")}
    assert not seen["train"] & seen["val"] and not seen["val"] & seen["test"] and len(seen["train"]) > 40


def test_what_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no item 50 of 'train'"):
        ReasoningGymEnvironment("gcd", size=50).reset(50)
    with pytest.raises(ValueError, match="no item 0 of 'dev'"):
        ReasoningGymEnvironment("gcd", size=50).reset(0, "dev")
    with pytest.raises(ValueError, match="parser is 'regex': expected last_number"):
        ReasoningGymEnvironment("gcd", parser="regex")
    with pytest.raises(ValueError, match="sudokus"):
        ReasoningGymEnvironment("sudokus")


def test_parsers():
    assert last_number("1,234 apples, so -5/6.") == "-5/6" and last_number("about 1,234.5!") == "1234.5" and last_number("none") is None
    assert last_number("pages 10-20") == "20" and last_number("(2)-3") == "3" and last_number("2 = -3") == "-3"
    assert last_line("a\n b \n\n") == "b" and last_line(" \n") is None
    assert tag("<answer>1</answer> no <answer> 2\n</answer>") == "2" and tag("<answer>") is None
    assert tag("in <answer> tags: <answer>5</answer>") == "5"
    rng = random.Random(0)
    for _ in range(200):
        number = rng.choice([rng.randint(-(10**6), 10**6), round(rng.uniform(-99, 99), 3)])
        assert float(last_number(f"{rng.randint(0, 9)} and then {number:,}.")) == number
