"""The base model for code repair: its demonstrations and tokenizer. test_data.py trains it."""

import random
import re
from itertools import pairwise

import pytest
from transformers import AutoTokenizer

from art_nb.environments import parse_arguments
from art_nb.inference.prompts import IncrementalTemplate
from code_repair.mutation_repair import MUTATION_TOOLS, MutationRepair, cached_verdict, mutation_sandbox
from code_repair.mutations import KINDS
from code_repair.problems import Check, problems
from course.doctor import NANO_CODE
from data.chat_format import Demonstration, encode
from data.nano_code.demonstrations import ANSWER, MEND, SUBMIT, TURNS, DemonstrationsCode, mediocre_repairer
from data.nano_code.maker import batches


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(NANO_CODE)


@pytest.fixture(scope="module")
def task():
    return DemonstrationsCode(random.Random(5))


@pytest.fixture(scope="module")
def demonstrations(task):
    return [task() for _ in range(60)]


def test_every_demonstrated_call_is_well_formed_and_has_positive_probability(demonstrations):
    for demonstration in demonstrations:
        calls = [m["tool_calls"][0]["function"] for m in demonstration.messages if m.get("tool_calls")]
        for call in calls:
            parse_arguments(MUTATION_TOOLS, call["name"], call["arguments"])
        assert 1 <= len(calls) <= TURNS and "submit" not in [call["name"] for call in calls[:-1]]
        shares = demonstration.choices[: len(calls)]
        assert len(demonstration.choices) == sum(m["role"] == "assistant" for m in demonstration.messages)
        for call, (names, *others) in zip(calls, shares, strict=True):
            assert names.keys() == {MEND, ANSWER, SUBMIT}
            assert [str(value) in share for value, share in zip(call["arguments"].values(), others, strict=True)] == [True] * len(others)
            assert all(sum(share.values()) == pytest.approx(1) for share in (names, *others))


def test_an_invalid_number_occurs_sometimes_and_is_never_a_target():
    task, refused = DemonstrationsCode(random.Random(1)), 0
    for demonstration in (task() for _ in range(100)):
        calls = [m["tool_calls"][0]["function"] for m in demonstration.messages if m.get("tool_calls")]
        answers = [m["content"] for m in demonstration.messages if m["role"] == "tool"]
        for call, (_, *numbers), answer in zip(calls, demonstration.choices, answers, strict=False):
            if answer.startswith("Refused"):
                refused += 1
                (reply,) = map(str, call["arguments"].values())
                assert numbers[0].pop(reply) == 0
            assert not numbers or set(numbers[0].values()) == {1 / len(numbers[0])}
    assert 3 <= refused < 50


def test_renamed_code_gives_the_same_results(task):
    """The renamed examples give the same results with the renamed code."""
    for problem in problems("train")[:60:4]:
        (text,) = problem.files.values()
        source, *calls = task.renamed(problem, "\x00".join([text, *(test.call for test in problem.visible)])).split("\x00")
        tests = tuple(Check(call, test.gives) for call, test in zip(calls, problem.visible, strict=True))
        sandbox = mutation_sandbox()
        assert cached_verdict(sandbox, source, tests).passes == cached_verdict(sandbox, text, problem.visible).passes
        assert problem.entry not in source.replace("\n", " ").partition("(")[0] or source != text


def test_only_training_functions_are_demonstrated(task):
    assert {problem.split for problem in task.problems} == {"train"}
    assert not {p.family for p in task.problems} & {p.family for split in ("val", "test") for p in problems(split)}


def test_the_player_is_mediocre():
    rng, repaired, tries, chosen = random.Random(0), 0, 0, problems("train", 300)
    for problem in chosen:
        repair = MutationRepair(problem)
        while not repair.over:
            name, arguments, _ = mediocre_repairer(rng, repair, patient=False)
            repair.call(name, arguments)
        repaired += repair.metrics()["repaired"]
        tries += len(repair.tried)
    assert 0.05 < repaired / len(chosen) < 0.2 and 1 < tries / len(chosen) < 2  # one or two mutations


def test_the_probes_labels_are_the_kinds_of_the_offered_mutations(tokenizer, task):
    ids, _, _, changes, kinds = next(batches(tokenizer, task, random.Random(0)))
    for row, tokens in enumerate(ids):
        first = tokenizer.decode(tokens).partition("<|im_end|>\n<|im_start|>assistant")[0]
        shown = re.findall(r"(?:  # |, )([a-z]+) (\d+)(?=, [a-z]+ \d+|\n)", first)
        told = [(KINDS[kind], tokenizer.decode([tokens[place]])) for (b, place), kind in zip(changes, kinds, strict=True) if b == row]
        assert told == shown and [int(number) for _, number in shown] == list(range(1, len(shown) + 1))


def test_the_words_of_a_call_are_single_tokens_with_their_own_distributions(tokenizer):
    function = {"name": "mend", "arguments": {"change": 12}}
    reply = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    shares = ({MEND: 0.5, SUBMIT: 0.5}, {"12": 0.75, "3": 0.25})
    messages = [{"role": "user", "content": "def f(a):  # bound 12"}, reply]
    (row,) = encode(tokenizer, [Demonstration(messages, MUTATION_TOOLS, [shares])])
    targets = [{tokenizer.decode([token]): p for token, p in target.items()} for _, target in row.answers]
    assert [target for target in targets if len(target) > 1] == list(shares)
    assert [row.ids[p] for p, _ in row.answers] == tokenizer.encode(
        '<tool_call>{"name": "mend", "arguments": {"change": 12}}</tool_call><|im_end|>', add_special_tokens=False
    )


def test_any_text_round_trips_and_the_template_only_appends(tokenizer, demonstrations):
    for text in ("    return x  # variable 7", "\u202eabc\n", "🙂 \x00", "<|im_end|", "ß" * 50, '"}}</tool_call'):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert IncrementalTemplate(tokenizer, MUTATION_TOOLS, {}).by_message
    messages = max((demonstration.messages for demonstration in demonstrations), key=len)
    texts = [
        tokenizer.apply_chat_template(messages[:k], tools=MUTATION_TOOLS, tokenize=False) for k in range(1, len(messages) + 1)
    ]
    assert len(texts) > 5 and all(longer.startswith(shorter) for shorter, longer in pairwise(texts))
    assert "mend(change)\n" in texts[0]
