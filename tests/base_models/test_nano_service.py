"""The base model for customer service: its demonstrations, tokenizer and initial weights. test_data.py trains it."""

import random
from hashlib import sha256
from itertools import pairwise
from statistics import fmean

import pytest
from transformers import AutoTokenizer

from art_nb.environments import parse_arguments
from art_nb.inference.prompts import IncrementalTemplate
from course.doctor import NANO_SERVICE
from customer_service import course_tasks, course_world
from customer_service.airline_desk import AirlineDesk
from customer_service.clerks import Clerk
from customer_service.front_desk import FrontDesk
from data.chat_format import encode
from data.demonstration import Demonstration
from data.item import SUMS, read_sums
from data.nano_service.demonstrations import CARE, HASTE, WORKPLACES, DemonstrationsService, MediocreClerk, opening_of
from data.nano_service.maker import START, WORDS, initial_model
from data.nano_service.shop_demonstrations import shop_calls


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(NANO_SERVICE)


@pytest.fixture(scope="module")
def demonstrations():
    task = DemonstrationsService(random.Random(5), worlds=1)
    return [task() for _ in range(600)]


def calls_of(demonstration):
    return [m["tool_calls"][0]["function"] for m in demonstration.messages if m.get("tool_calls")]


def test_every_demonstrated_call_is_well_formed_and_has_positive_probability(demonstrations):
    for demonstration in demonstrations:
        calls = calls_of(demonstration)
        for call in calls:
            parse_arguments(demonstration.tools, call["name"], call["arguments"])
        assert len(demonstration.choices) == sum(m["role"] == "assistant" for m in demonstration.messages)
        for call, (tools, *words) in zip(calls, demonstration.choices, strict=False):
            assert tools[opening_of(call["name"], next(iter(call["arguments"]), None))] > 0
            assert all(share[reply] > 0 for reply, share in zip(call["arguments"].values(), words, strict=True))
            assert all(sum(share.values()) == pytest.approx(1) for share in (tools, *words))


def test_both_desks_and_all_their_tools_are_demonstrated(demonstrations):
    for tools in (FrontDesk.tools, AirlineDesk.tools):
        shown = {call["name"] for d in demonstrations if d.tools == tools for call in calls_of(d)}
        assert shown == {tool["function"]["name"] for tool in tools}


def test_the_front_desk_refuses_no_executable_call():
    rng, tasks = random.Random(0), course_tasks("retail", "train")
    for _ in range(150):
        desk = FrontDesk(course_world("retail"), rng.choice(tasks))
        while not desk.over:
            name, about = rng.choice(list(shop_calls(desk).items()))
            arguments: dict = {}
            for parameter, words in about.items():
                arguments[parameter] = rng.choice(words(arguments))
            answer = desk.call(name, arguments)
            assert not answer.startswith("Malformed") and (not answer.startswith("Refused") or name in ("find_order", "carry_out"))


def test_the_weights_of_the_careful_and_the_hurried_clerk():
    """Their tools have the extra probability CARE and HASTE; all other tools are equally likely."""
    rng, differ = random.Random(1), 0
    for task in course_tasks("retail", "train")[:60]:
        desk = FrontDesk(course_world("retail"), task)
        clerk = MediocreClerk(rng, desk)
        while not desk.over:
            careful, hurried = clerk.careful.next_call(), clerk.hurried.next_call()
            name, arguments, (tools, *_) = clerk.next_call()
            by_tool = {tool.split('"')[3]: share for tool, share in tools.items()}
            rest = {by_tool[tool] for tool in by_tool.keys() - {careful[0], hurried[0]}}
            assert len(rest) <= 1
            if careful[0] != hurried[0] and {careful[0], hurried[0]} <= by_tool.keys():
                differ += 1
                assert by_tool[careful[0]] - min(rest) == pytest.approx(CARE) and by_tool[hurried[0]] - min(rest) == pytest.approx(HASTE)
            clerk.make(name, arguments)
    assert differ > 5


def test_the_clerk_is_mediocre():
    rng, tasks = random.Random(0), course_tasks("retail", "train")[:300]
    desks = [FrontDesk(course_world("retail"), task) for task in tasks]
    for desk in desks:
        clerk = MediocreClerk(rng, desk)
        while not desk.over:
            clerk.make(*clerk.next_call()[:2])
    due = [desk.reward() for desk, task in zip(desks, tasks, strict=True) if task.actions or task.outputs]
    assert 0.3 < fmean(desk.reward() for desk in desks) < 0.6 and 0.25 < fmean(due) < 0.55
    assert fmean(desk.metrics()["violations"] for desk in desks) > 0.3
    assert all(Clerk()(FrontDesk(course_world("retail"), task)).reward() for task in tasks[:20])


def test_demonstrations_share_no_customer_with_the_course():
    tasks = DemonstrationsService(random.Random(5), worlds=1).tasks
    for domain in WORKPLACES:
        course = {task.user_id for split in ("train", "val", "test") for task in course_tasks(domain, split)}
        assert not course & {task.user_id for _, task in tasks[domain]}


def test_the_words_of_a_call_are_single_tokens_everywhere(tokenizer):
    function = {"name": "exchange_item", "arguments": {"item": "Lamp", "variant": "red", "payment": "credit card"}}
    reply = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    shares = ({opening_of("exchange_item", "item"): 1.0}, {"Lamp": 1.0}, {"red": 1.0}, {"credit card": 1.0})
    told = "Their delivered order: Lamp red, Mat tiny. I want the red one. Use my credit card."
    (row,) = encode(tokenizer, [Demonstration([{"role": "user", "content": told}, reply], FrontDesk.tools, [shares])])
    spoken = [row.ids[place] for place, _ in row.answers]
    assert tokenizer.convert_ids_to_tokens(spoken)[1:7:2] == [opening_of("exchange_item", "item"), '", "variant": "', '", "payment": "']
    assert [tokenizer.decode([token]) for token in spoken[2:8:2]] == ["Lamp", "red", "credit card"]
    for token in spoken[2:8:2]:
        assert row.ids.count(token) >= 2
    assert all(len(tokenizer.encode(word, add_special_tokens=False)) == 1 for word in WORDS)


def test_it_starts_from_the_layers_of_an_earlier_email_model(tokenizer):
    from transformers import AutoModelForCausalLM

    model, email = initial_model(tokenizer, 0), AutoModelForCausalLM.from_pretrained(START)
    assert all(parameter.equal(email.get_parameter(name)) for name, parameter in model.named_parameters() if "embed" not in name)
    there, here = (AutoTokenizer.from_pretrained(folder).get_vocab() for folder in (START, NANO_SERVICE))
    same = [text for text in here if text in there]
    ours, theirs = model.model.embed_tokens.weight, email.model.embed_tokens.weight
    assert len(same) > 300 and ours[[here[text] for text in same]].equal(theirs[[there[text] for text in same]])


def test_the_start_is_complete():
    assert read_sums(START) == {path.name: sha256(path.read_bytes()).hexdigest() for path in START.iterdir() if path.name != SUMS}


def test_any_text_round_trips_and_the_template_only_appends(tokenizer, demonstrations):
    for text in ("I want to return the Lamp.", "\u202eabc\n", "🙂 \x00", "<|im_end|", "ß" * 50, '"}}</tool_call', "###STOP###"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert IncrementalTemplate(tokenizer, FrontDesk.tools, {}).by_message
    messages = max((demonstration.messages for demonstration in demonstrations), key=len)
    texts = [tokenizer.apply_chat_template(messages[:k], tools=FrontDesk.tools, tokenize=False) for k in range(1, len(messages) + 1)]
    assert len(texts) > 5 and all(longer.startswith(shorter) for shorter, longer in pairwise(texts))
    assert "exchange_item(item, variant, payment)\n" in texts[0]
