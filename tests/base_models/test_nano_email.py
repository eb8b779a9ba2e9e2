"""The base model for email search: its demonstrations, tokenizer and attention loss. test_data.py trains it."""

import random
from itertools import pairwise

import pytest
import torch
from transformers import AutoTokenizer

from art_nb.environments import parse_arguments
from art_nb.inference.prompts import IncrementalTemplate
from course.doctor import NANO_EMAIL
from data.nano_email import maker as nano_email
from data.nano_email.demonstrations import DemonstrationsEmail, mediocre_searcher
from email_search.environment import TOOLS, EmailSearch, course_mailbox, scenarios
from environments.email_search.maker.maker import make


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(NANO_EMAIL)


@pytest.fixture(scope="module")
def demonstrations():
    generator = DemonstrationsEmail(random.Random(5), mailboxes=1)
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


def test_the_searcher_is_mediocre():
    rng, correct, asked = random.Random(0), 0, scenarios("train")
    for scenario in asked:
        search = EmailSearch(course_mailbox(), scenario)
        mediocre_searcher(rng, scenario, lambda name, search=search, **given: search.call(name, given))
        correct += search.metrics()["correct"]
    assert 0.15 < correct / len(asked) < 0.25  # a fifth


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
