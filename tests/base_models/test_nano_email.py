"""The base model for email search: its demonstrations, tokenizer and attention loss. test_data.py trains it."""

import random
import re
from itertools import pairwise

import pytest
import torch
from transformers import AutoTokenizer

from art_nb.environments import parse_arguments
from art_nb.inference.prompts import IncrementalTemplate
from course.doctor import NANO_EMAIL
from data.nano_email import maker as nano_email
from data.nano_email.demonstrations import NEWEST_SHARE, DemonstrationsEmail, mediocre_searcher
from email_search.environment import TOOLS, EmailSearch, course_mailbox, scenarios
from email_search.questions import MONTHS, PATTERNS, read_question
from environments.email_search.maker.maker import make
from environments.email_search.maker.words import KINDS


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(NANO_EMAIL)


@pytest.fixture(scope="module")
def demonstrations():
    generator = DemonstrationsEmail(random.Random(5), mailboxes=1, ordered=True)
    return [generator() for _ in range(200)]


def test_every_demonstrated_call_is_well_formed_and_the_last_one_answers(demonstrations):
    for demonstration in demonstrations:
        calls = [m["tool_calls"][0]["function"] for m in demonstration.messages if m.get("tool_calls")]
        for call in calls:
            parse_arguments(TOOLS, call["name"], call["arguments"])
        names = [call["name"] for call in calls]
        assert names[0] == "search_emails" and names[-1] == "return_final_answer"
        assert names.count("return_final_answer") == 1 and len(calls) <= 10
        assert len(demonstration.choices) == sum(m["role"] == "assistant" for m in demonstration.messages)


def test_demonstrations_contain_no_mail_of_the_courses_mailbox(demonstrations):
    """The generated mailboxes use the course's words, but no mail has the same text and date as one of the course's."""
    ours = {(mail.date, mail.body) for mail in make(0)[0]}
    generator = DemonstrationsEmail(random.Random(5), mailboxes=1)
    mailbox = generator.questions[0][0]
    theirs = {(mail.date, mail.body) for inbox in mailbox.inboxes() for mail in mailbox.mails(inbox)}
    assert len(theirs) > 5000 and not ours & theirs


@pytest.mark.parametrize("ordered", [False, True])
def test_the_searcher_is_mediocre(ordered):
    """It answers a fifth of the questions. Its orders fit as often as NEWEST_SHARE says, or are drawn regardless of the question."""
    rng, correct, asked = random.Random(0), 0, scenarios("train")
    orders: dict[str, list] = {version: [] for version in NEWEST_SHARE}
    for scenario in asked:
        search = EmailSearch(course_mailbox(), scenario)

        def call(name, search=search, scenario=scenario, **given):
            if name == "search_emails":
                orders[read_question(scenario.question).which].append(given.get("sort"))
            return search.call(name, given)

        mediocre_searcher(rng, scenario, call, ordered)
        correct += search.metrics()["correct"]
    assert 0.15 < correct / len(asked) < 0.25
    for version, drawn in orders.items():
        assert drawn.count("newest") / len(drawn) == pytest.approx(NEWEST_SHARE[version] if ordered else 0.22, abs=0.08)
        assert (None in drawn) == (not ordered)


def test_what_a_question_asks_for_is_read_from_its_words():
    finals = [re.escape(text).replace(r"\{e\}", ".+") for about in KINDS.values() for text in about.final]
    for scenario in scenarios("train"):
        kind, which, month = nano_email.question_classes(scenario.question)
        assert re.search(PATTERNS[kind][1], scenario.answer if scenario.kind != "place" else f"to {scenario.answer}")
        assert (which == 1) == (scenario.which == "first")
        assert (which == 2) == any(re.fullmatch(final, scenario.question) for final in finals)
        assert month == next((n for n, name in enumerate(MONTHS, 1) if f" {name} " in scenario.question), 0)


def test_a_value_begins_with_the_same_token_everywhere(tokenizer):
    """Alone, in a sentence and in a call. Its form shows the kind, except of amounts and counts, which both begin with digits."""

    def first(value, text):
        ids = tokenizer.encode(text, add_special_tokens=False)
        pieces = tokenizer.convert_ids_to_tokens(ids)
        return pieces[next(i for i in range(len(ids)) if tokenizer.decode(ids[i:]).startswith(value))]

    call = '<tool_call>{"name": "return_final_answer", "arguments": {"answer": "'
    starts = {
        "10:30": "10:", "2 October": "2 ", "Kate Winter": "Kate ", "room 317": "room ", "B417": "B", "Oslo": "Oslo",
        "40 dollars": "40", "12 units": "12",
    }  # fmt: skip
    for value, start in starts.items():
        for text in (value, f"It is {value}.", f'{call}{value}", "sources": ['):
            assert first(value, text) == start, text


def test_any_text_round_trips_and_numbers_are_split_into_pairs_of_digits(tokenizer):
    for text in ("m4811", "Kate Winter", "14:30", "\u202eabc\n", "🙂 \x00", "<|im_end|", "ß" * 50, '"}}</tool_call'):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    for number in ("4811", "100", "7", "2024"):
        pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode(number, add_special_tokens=False))
        assert pieces == [number[i : i + 2] for i in range(0, len(number), 2)]


def test_the_template_lists_the_tools_and_only_appends(tokenizer, demonstrations):
    shown = tokenizer.apply_chat_template(demonstrations[0].messages[:1], tools=TOOLS, tokenize=False)
    for tool in TOOLS:
        names = ", ".join(tool["function"]["parameters"]["properties"])
        assert f"{tool['function']['name']}({names})\n" in shown
    assert IncrementalTemplate(tokenizer, TOOLS, {}).by_message
    messages = demonstrations[0].messages
    texts = [tokenizer.apply_chat_template(messages[:k], tools=TOOLS, tokenize=False) for k in range(1, len(messages) + 1)]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))


def test_occurrences_equal_brute_force():
    draw = random.Random(1)
    ids = torch.tensor([[draw.randrange(5) for _ in range(24)] for _ in range(8)])
    said = nano_email.occurrences(ids)
    for row, found in zip(ids.tolist(), said, strict=True):
        at = dict(enumerate(row))
        for i in range(len(row) - 1):
            same = [j for j in range(i + 1) if row[j] == row[i + 1] and at.get(j - 1, -1) == row[i]]
            closer = [j for j in same if at.get(j - 2, -1) == at.get(i - 1, -1)]
            assert found[i].nonzero().flatten().tolist() == (closer or same)
