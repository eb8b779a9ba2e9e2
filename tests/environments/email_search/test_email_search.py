"""The email task: tools for any input that show one inbox only, the published reward, TRL's loop, the heuristic player."""

import asyncio
import hashlib
import json
import random
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from email_search import environment as task
from email_search.mailbox import SNIPPET_LENGTH, Address, Mail, Mailbox, write_mailbox
from email_search.players import avoid_giving_up, heuristic_player, ordering_player, play
from email_search.scenarios import Scenario, load_scenarios, same_answer
from environments.email_search.maker.words import KINDS

ANN, BOB, EVE = (Address(n, f"{n.split()[0].lower()}@x.example") for n in ("Ann Lee", "Bob Ray", "Eve Fox"))
SECRET = "xylophone"  # occurs in all mails that are not in Ann's inbox, and in no other


def mail(number, sender, to, subject, body, **more):
    inboxes = tuple(person.address for person in (sender, *to))
    return Mail(f"m{number}", f"2024-03-{number % 28 + 1:02d} 10:00", sender, tuple(to), subject, body, inboxes=inboxes, **more)


MAILS = [
    mail(1, BOB, [ANN], "Falcon review", "Hi Ann,\nthank you for all the good work in the past weeks. It is on 14 May.\nBob"),
    mail(2, ANN, [BOB], "Re: Falcon review", "Fine.\n\nOn 2024-03-02 Bob Ray wrote:\n> It is on 14 May.", in_reply_to="m1"),
    mail(3, EVE, [ANN], "Falcon invoice", "Hi Ann,\nhere it comes.", attachments=("falcon-invoice.pdf",)),
    mail(4, EVE, [BOB], f"Falcon {SECRET}", f"The {SECRET} review is on 15 May."),
    mail(5, BOB, [EVE], f"Again {SECRET}", f"Falcon review {SECRET}", attachments=(f"{SECRET}.pdf",)),
    *(mail(n, EVE, [ANN], f"News {n}", f"Nothing about it in number {n}.") for n in range(6, 30)),
]  # fmt: skip
SCENARIO = Scenario("t-0", "test", "When is the Falcon review?", "14 May", ("m1", "m2"), ANN.address, "2024-04-01")


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mail") / "box"
    write_mailbox(folder, MAILS)
    return Mailbox(folder)


@pytest.fixture
def search(box):
    return task.EmailSearch(box, SCENARIO)


def test_the_tools_observations(search):
    assert task.first_message(SCENARIO) == "Inbox: ann@x.example\nToday: 2024-04-01\nWhen is the Falcon review?"
    assert search.call("search_emails", '{"keywords": "falcon review", "sort": "oldest"}') == (
        "m1 2024-03-02 Bob Ray: Falcon review | Hi Ann, thank you for all the good work\n"
        "m2 2024-03-03 Ann Lee: Re: Falcon review | Fine. On 2024-03-02 Bob Ray wrote: > It"
    )
    assert search.call("read_email", {"message_id": " m1 "}) == (
        "m1\nfrom: Bob Ray <bob@x.example>\nto: Ann Lee\ndate: 2024-03-02 10:00\nsubject: Falcon review\n\n" + MAILS[0].body
    )
    assert "attached: falcon-invoice.pdf\n" in search.call("read_email", {"message_id": "m3"})
    assert search.call("search_emails", {"keywords": "nowhere"}) == "No mail fits."
    assert search.call("read_email", {"message_id": "nowhere"}) == 'There is no mail "nowhere".'
    assert len(search.call("search_emails", {}).splitlines()) == 4
    assert len(search.call("search_emails", {"max_results": 10}).splitlines()) == 10
    assert search.call("return_final_answer", {"answer": "On 14 May.", "sources": ["m1"]}) == "Thank you."
    assert (search.turns, search.ended_by, search.correct) == (8, "answered", True)
    assert search.call("search_emails", {}) == task.OVER
    assert search.turns == 8


def test_a_long_mail_is_cut(tmp_path):
    write_mailbox(tmp_path / "box", [mail(1, BOB, [ANN], "long\nsubject " * 20, "x" * 10_000)])
    search = task.EmailSearch(Mailbox(tmp_path / "box"), SCENARIO)
    (line,) = search.call("search_emails", {}).splitlines()
    assert len(line) < 80 + SNIPPET_LENGTH + 40
    assert search.call("read_email", {"message_id": "m1"}).endswith("x\n[7,000 more characters]")


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"sort": "best"}, 'sort must be relevance, newest, oldest, not "best"'),
        ({"max_results": 0}, "max_results must be 1 to 10"),
        ({"max_results": 10**30}, "max_results must be 1 to 10"),
        ({"sent_after": "2024-02-30"}, 'sent_after must be a day like 2024-05-31, not "2024-02-30"'),
        ({"sent_before": "20240301"}, "sent_before must be a day"),
        ({"sent_before": "2024-W01-1"}, "sent_before must be a day"),
        ({"keywords": "x" * 301}, "keywords is longer than 300 characters"),
        ({"from_addr": "x" * 10_000}, "from_addr is longer"),
    ],
)
def test_impossible_arguments_are_refused_with_a_reason(search, arguments, wrong):
    assert search.call("search_emails", arguments).startswith(f"Refused: {wrong}")
    assert not search.over and search.refused == 1
    assert search.call("return_final_answer", {"answer": " ", "sources": []}).startswith("Refused: answer must have")
    assert not search.over and search.refused == 2


@pytest.mark.parametrize(
    ("name", "arguments", "fault", "base"),
    [
        (None, None, "no call", -2.0), ("", "{}", "no call", -2.0),
        ("delete_emails", "{}", "unknown tool", -1.9), ("__init__", "{}", "unknown tool", -1.9), ("reward", "{}", "unknown tool", -1.9),
        ("read_email", "{", "bad arguments", -1.8), ("read_email", "[]", "bad arguments", -1.8),
        ("read_email", None, "bad arguments", -1.8), ("read_email", "[" * 100_000, "bad arguments", -1.8),
        ("read_email", "{}", "bad arguments", -1.8), ("read_email", '{"message_id": 7}', "bad arguments", -1.8),
        ("read_email", '{"message_id": "m1", "inbox": "bob@x.example"}', "bad arguments", -1.8),
        ("search_emails", '{"max_results": true}', "bad arguments", -1.8),
        ("search_emails", '{"keywords": ["falcon"]}', "bad arguments", -1.8),
        ("return_final_answer", '{"answer": "x"}', "bad arguments", -1.8),
        ("return_final_answer", '{"answer": "x", "sources": "m1"}', "bad arguments", -1.8),
        ("return_final_answer", '{"answer": "x", "sources": [1]}', "bad arguments", -1.8),
    ],
)  # fmt: skip
def test_a_malformed_call_ends_the_search(search, name, arguments, fault, base):
    assert search.call(name, arguments).startswith("Malformed: ")
    assert (search.ended_by, search.fault) == ("malformed", fault)
    assert search.reward_parts()["base"] == base
    assert search.reward() == pytest.approx(base + 0.1 + 0.01)  # no invalid read; one of ten turns
    assert search.metrics()["malformed"] == 1.0


NOISE = (
    '"', "'", "*", "(", ")", "^", ":", "-", "+", "AND", "OR", "NOT", "NEAR(a b, 2)", "falcon", "review", "subject:", "{subject body}",
    "'; DROP TABLE emails; --", "1 OR 1=1", "UNION SELECT * FROM emails", '")', "\0", "\ud800", "\udfff", "\u202e", "\u0301", "%", "_",
    "\\", "\n", "\t", "m1", "bob@x.example", "2024-03-01", "<script>", "😀", "ﬀ", "İ", "ß", "½", "\ufeff", "\u2028", "0" * 50,
)  # fmt: skip


def noise(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(("", " ")).join(rng.choices(NOISE, k=rng.randint(0, 12)))
    if kind < 0.9:
        return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x3000), rng.randrange(0x110000)))) for _ in range(rng.randint(0, 30)))
    if kind < 0.92:
        return rng.choice(NOISE) * (10_240 // 5)
    return rng.choice(NOISE)


def any_value(rng: random.Random):
    if rng.random() < 0.9:
        return noise(rng)
    return rng.choice((None, True, -1, 3, 10**40, 1.5, float("nan"), [], ["m1"], [[]], {}, {"a": 1}, [noise(rng), 2]))


SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in task.TOOLS}


def any_call(rng: random.Random) -> tuple:
    name = rng.choice([*SCHEMAS] * 5 + [None, "", "drop_table", noise(rng)])
    if rng.random() < 0.1:
        return name, rng.choice((noise(rng), None, [], 3, json.dumps(noise(rng)), '{"keywords": "\\ud800"}'))
    known = SCHEMAS.get(name, {"properties": {"a": 1}})
    names = [parameter for parameter in known["properties"] if rng.random() < 0.5 or parameter in known.get("required", ())]
    given = {parameter: any_value(rng) for parameter in names}
    if "max_results" in given and rng.random() < 0.8:
        given["max_results"] = rng.randint(-1, 12)
    if "sources" in given and rng.random() < 0.8:
        given["sources"] = [noise(rng) for _ in range(rng.randint(0, 3))]
    for text in ("sort", "sent_after", "sent_before"):
        if rng.random() < 0.8:
            given.pop(text, None)
    return name, given if rng.random() < 0.5 else json.dumps(given)


@pytest.mark.parametrize("seed", range(10))
def test_random_input_is_answered_and_reveals_no_other_inbox(box, seed):
    """10,000 calls each. Every observation is valid text for JSON, and Ann never sees mails of Bob and Eve."""
    rng, endings, results = random.Random(seed), set(), set()
    search = task.EmailSearch(box, SCENARIO, max_turns=50)
    for _ in range(10_000):
        if search.over:
            endings.add(search.ended_by)
            assert -2 <= search.reward() <= 2 and all(isinstance(value, float) for value in search.metrics().values())
            search = task.EmailSearch(box, SCENARIO, max_turns=50)
        name, arguments = any_call(rng)
        result = search.call(name, arguments)
        assert type(result) is str and len(result.encode()) < 4000
        assert SECRET not in result and "m4" not in search.shown and "m5" not in search.shown | search.read
        results.add(result.split()[0])
    assert endings >= {"malformed", "answered"}
    assert {"Malformed:", "Refused:", "No", "There", "Thank"} <= results and results & {"m1", "m2"}


words = st.sampled_from([SECRET, "falcon", "review", "eve", "bob", "ann", "x.example", "15", "m4", "m5", "", EVE.address, BOB.address])


@settings(max_examples=300, deadline=None)
@given(words, words, words, st.sampled_from(["relevance", "newest", "oldest"]))
def test_no_tool_reveals_another_inbox(box, keywords, sender, recipient, sort):
    search = task.EmailSearch(box, SCENARIO)
    arguments = {"keywords": keywords, "from_addr": sender, "to_addr": recipient, "sort": sort, "max_results": 10}
    lines = search.call("search_emails", arguments)
    own = {m.message_id for m in MAILS if ANN.address in m.inboxes}
    assert search.shown <= own and SECRET not in lines
    missing = search.call("read_email", {"message_id": "m99"})
    for other in ("m4", "m5"):
        assert search.call("read_email", {"message_id": other}) == missing.replace("m99", other)


def published(ended, correct, fault, named, few, found, read, invalid, turns, limit=10):
    """Return the reward by an independent implementation of the ART-E example's description and code."""
    if ended == "answered" and correct:
        return 1 + (0.3 if named else 0) + (0.1 / few if few else 0) + 0.1 * (limit - turns) / limit
    start = {"no call": -20, "unknown tool": -19, "bad arguments": -18}.get(fault, -10 if ended == "answered" else 0)
    return (start + found + read + (not invalid) + named + turns / limit) / 10


CALLS = st.sampled_from([
    ("search_emails", {"keywords": "falcon review"}), ("search_emails", {"keywords": "news"}), ("read_email", {"message_id": "m1"}),
    ("read_email", {"message_id": "m2"}), ("read_email", {"message_id": "m3"}), ("read_email", {"message_id": "m4"}),
])  # fmt: skip
ENDS = st.sampled_from([
    None, ("return_final_answer", {"answer": "14 May", "sources": ["m1"]}), ("return_final_answer", {"answer": "14 May", "sources": []}),
    ("return_final_answer", {"answer": "May 14th", "sources": ["m3", "m2", "m9"]}), (None, None), ("read", {}), ("read_email", {}),
    ("return_final_answer", {"answer": "15 May", "sources": ["m1"]}), ("return_final_answer", {"answer": "I don't know.", "sources": []}),
])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(CALLS, max_size=12), ENDS)
def test_the_reward_equals_the_published_one(box, calls, end):
    search = task.EmailSearch(box, SCENARIO)
    made = [*calls, end] if end and len(calls) < 10 else calls
    for call in made:
        search.call(*call)
    done = made[:10]
    found = any(c[1] in ({"keywords": "falcon review"}, {"message_id": "m1"}, {"message_id": "m2"}) for c in done)
    read = any(c[1] in ({"message_id": "m1"}, {"message_id": "m2"}) for c in done)
    invalid = any(c[1] == {"message_id": "m4"} for c in done)
    answer = end[1] if end in done and end[0] == "return_final_answer" else {"answer": "", "sources": []}
    few, named = len(answer["sources"]), bool({"m1", "m2"} & set(answer["sources"]))
    ended = {None: "malformed", "read": "malformed", "read_email": "malformed"}.get(end[0], "answered") if end in done else None
    fault = {None: "no call", "read": "unknown tool", "read_email": "bad arguments"}.get(end[0]) if end in done else None
    if answer["answer"].startswith("I don't"):
        ended = "gave up"
    correct = answer["answer"] in ("14 May", "May 14th")
    reward = published(ended, correct, fault, named, few, found, read, invalid, len(done))
    assert search.reward() == pytest.approx(reward)
    assert sum(part for name, part in search.metrics().items() if name.startswith("reward_")) == pytest.approx(reward)
    low, high = (1, 2) if correct else (-2, -1) if fault else (-1, 0) if ended == "answered" else (0, 1)
    assert low <= search.reward() < high
    if len(done) == 10 and ended is None:
        assert search.ended_by == "turns" and search.metrics()["out_of_turns"] == 1.0
    assert search.metrics()["turns"] == len(done)


def test_unseen_sources_are_counted(search):
    search.call("search_emails", {"keywords": "falcon invoice"})
    search.call("read_email", {"message_id": "m1"})
    search.call("return_final_answer", {"answer": "14 May", "sources": ["m1", "m3", "m4", "m77", "m1"]})
    metrics = search.metrics()
    assert (metrics["hallucinated_sources"], metrics["sources_right"], metrics["read_right"]) == (2.0, 1.0, 1.0)
    assert search.sources == ("m1", "m3", "m4", "m77")


def test_a_judge_may_override_the_match(search):
    search.call("return_final_answer", {"answer": "the fourteenth of May", "sources": []})
    assert search.reward() < 0
    search.correct = True
    assert search.reward() > 1 and search.metrics()["correct"] == 1.0


@pytest.mark.parametrize(
    ("given_answer", "truth"),
    [
        ("14 May", "14 May"), ("on the 14th of May.", "14 May"), ("May 14, 2024", "14 May"), ("412", "room 412"), ("Room 412", "room 412"),
        ("$2,400", "2400 dollars"), ("2400 USD", "2400 dollars"), ("It is at 15:30", "15:30"), ("OMAR reed", "Omar Reed"),
        ("k472", "K472"), ("I don’t know", "I don't know"), ("２４００ dollars", "2400 dollars"), ("2024", "2024"), ("the", "the"), ("K 472", "K472"),
    ],
)  # fmt: skip
def test_equivalent_answers_match(given_answer, truth):
    assert same_answer(given_answer, truth)


@pytest.mark.parametrize(
    ("given_answer", "truth"),
    [
        ("15 May", "14 May"), ("14 or 15 May", "14 May"), ("not 14 May", "14 May"), ("", "14 May"), ("May", "14 May"), ("room", "room 412"),
        ("4 May", "14 May"), ("1:30", "15:30"), ("Omar", "Omar Reed"), ("Omar Reed Fox", "Omar Reed"), ("2400 units 2500", "2400 dollars"),
        ("K47", "K472"), ("2023", "2024"), ("14 May 14 May", "14 May"), ("12 dollars 50", "1250 dollars"),
    ],
)  # fmt: skip
def test_wrong_answers_do_not_match(given_answer, truth):
    assert not same_answer(given_answer, truth)


def test_no_two_different_answers_match():
    for kind in KINDS:
        answers = sorted({s.answer for s in load_scenarios() if s.kind == kind})
        assert len(answers) > 10
        for answer in answers:
            assert [other for other in answers if same_answer(f"It is {answer}.", other)] == [answer]


def test_no_snippet_reveals_an_answer():
    """In all scenarios, for any reasonable query, no result line of a source contains the answer."""
    box = task.course_mailbox()
    rng = random.Random(0)
    for s in load_scenarios():
        question = re.findall(r"\w+", s.question)
        queries = [" ".join(s.about), " ".join(rng.sample(question, 2)), s.answer, f"{s.about[0]} {s.answer}"]
        for query in queries:
            search = task.EmailSearch(box, s)
            lines = search.call("search_emails", {"keywords": query, "sort": rng.choice(["relevance", "newest"]), "max_results": 10})
            for line in lines.splitlines():
                if line.split()[0] in s.sources:
                    assert not re.search(rf"(?<!\w){re.escape(s.answer)}(?!\w)", line), (s, line)


def test_every_scenario_can_be_solved():
    """By a player that knows the facts: search, read, answer with the value in the mail."""
    box = task.course_mailbox()
    for s in load_scenarios():
        search = task.EmailSearch(box, s)
        where = {"from_addr": s.sender, "sent_after": s.after, "sent_before": s.before, "max_results": 10}
        lines = search.call("search_emails", {"keywords": " ".join(s.about)} | where | {"sort": "oldest"})
        (source, *_) = [line.split()[0] for line in lines.splitlines() if line.split()[0] in s.sources]
        assert s.answer in " ".join(search.call("read_email", {"message_id": source}).split())
        search.call("return_final_answer", {"answer": s.answer, "sources": [source]})
        assert search.reward() == pytest.approx(1 + 0.3 + 0.1 + 0.1 * 0.7)


def test_the_heuristic_is_mediocre():
    """It uses the tools only, and its success rate is neither low nor high."""
    box = task.course_mailbox()
    searches = [play(heuristic_player, task.EmailSearch(box, s)) for s in task.scenarios("test")]
    correct = sum(search.metrics()["correct"] for search in searches) / len(searches)
    assert 0.35 < correct < 0.75
    assert all(search.ended_by in ("answered", "gave up") for search in searches)
    ordered = [play(ordering_player, task.EmailSearch(box, s)).metrics()["correct"] for s in task.scenarios("test")]
    assert correct + 0.1 < sum(ordered) / len(ordered) < 0.9  # the order that the question asks for helps


def test_schemas_equal_those_of_transformers():
    get_json_schema = pytest.importorskip("transformers.utils").get_json_schema
    environment = task.EmailSearchEnvironment()
    tools = [environment.read_email, environment.return_final_answer, environment.search_emails]  # TRL passes them by name
    assert json.dumps([get_json_schema(tool) for tool in tools]) == json.dumps(task.TOOLS)


def test_an_episode_of_the_environment(box):
    environment = task.EmailSearchEnvironment(box, [SCENARIO, replace(SCENARIO, id="t-1", inbox=EVE.address)], max_turns=5)
    assert environment.reset(scenario="t-0", prompt=[], other=1) == task.first_message(SCENARIO)
    assert environment.search_emails("falcon invoice").startswith("m3 ")
    assert environment.search_emails(keywords=7).startswith("Malformed: keywords must be a string")
    assert environment.read_email("m1") == task.OVER
    assert environment.get_reward() == pytest.approx(-1.8 + 0.1 + 0.1 * 2 / 5)
    assert "eve@x.example" in environment.reset("t-1")
    assert environment.read_email("m1") == 'There is no mail "m1".'
    assert "15 May" in environment.read_email("m4")
    environment.return_final_answer("14 May", ["m4"])
    assert environment.get_reward() == pytest.approx(1 + 0.1 + 0.1 * 2 / 5)


def test_an_empty_list_of_scenarios_is_rejected(box):
    with pytest.raises(ValueError, match="scenarios is empty"):
        task.EmailSearchEnvironment(box, [])


def test_stock_trl_searches_and_answers(tmp_path, monkeypatch):
    """Only the model's answers are scripted: search, read the first hit, answer with its date."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from test_game_2048 import tiny_policy

    model, tokenizer = tiny_policy()
    config = trl.GRPOConfig(
        str(tmp_path), per_device_train_batch_size=2, num_generations=2, max_completion_length=4000,
        max_steps=1, use_cpu=True, bf16=False, report_to=[],
    )  # fmt: skip
    found = [s for s in task.scenarios("train") if s.kind == "date" and s.which == "final" and len(s.sources) == 1][:2]
    rows = [{"prompt": [{"role": "user", "content": ""}], "scenario": s.id} for s in found]
    trainer = trl.GRPOTrainer(
        model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        environment_factory=partial(task.EmailSearchEnvironment, max_turns=6),
    )  # fmt: skip
    by_question = {task.first_message(s): s for s in found}

    def next_call(text: str) -> tuple[str, dict] | None:
        question, *turns = [turn.removesuffix("<|im_end|>\n") for turn in re.split(r"<\|im_start\|>(?:user|tool)\n", text)[1:]]
        s = by_question[question.split("<|im_end|>")[0]]
        results = [turn.split("<|im_end|>")[0] for turn in turns]
        if not results:
            return "search_emails", {"keywords": " ".join(s.about), "sort": "newest", "max_results": 10}
        if len(results) == 1:
            return "read_email", {"message_id": s.sources[0]}
        if len(results) == 2:
            assert s.answer in " ".join(results[1].split())
            return "return_final_answer", {"answer": s.answer, "sources": [s.sources[0]]}
        return None

    def answer(prompt_ids, *_, **__):
        texts = []
        for ids in prompt_ids:
            call = next_call(tokenizer.decode(ids))
            written = call and json.dumps({"name": call[0], "arguments": call[1]})
            texts.append(f"<tool_call>{written}</tool_call><|im_end|>" if call else "done<|im_end|>")
        return [tokenizer.encode(text) for text in texts], None

    monkeypatch.setattr(trainer, "_generate_single_turn", answer)
    trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    for environment in trainer.environments:
        assert (environment.episode.ended_by, environment.episode.correct, environment.episode.turns) == ("answered", True, 3)
        assert environment.get_reward() == pytest.approx(1 + 0.3 + 0.1 + 0.1 * 3 / 6)


def test_the_database_file_is_never_written(box, search):
    path = box._database.execute("PRAGMA database_list").fetchone()[2]
    with open(path, "rb") as file:
        before = hashlib.sha256(file.read()).hexdigest()
    rng = random.Random(7)
    for _ in range(200):
        task.EmailSearch(box, SCENARIO).call(*any_call(rng))
    with open(path, "rb") as file:
        assert hashlib.sha256(file.read()).hexdigest() == before


def test_each_call_has_its_own_reward(search, box):
    calls = [
        (("search_emails", {"keywords": "falcon", "from_addr": "eve"}), 0), (("search_emails", {"keywords": "falcon", "sort": "newest"}), 0.25),
        (("search_emails", {"keywords": "falcon review", "sort": "oldest"}), 0.25), (("read_email", {"message_id": "m3"}), 0),
        (("read_email", {"message_id": "m2"}), 0.5), (("read_email", {"message_id": "m1"}), 0), (("search_emails", {"sort": "best"}), 0),
        (("return_final_answer", {"answer": "14 May", "sources": []}), 1), (("read_email", {}), None),
    ]  # fmt: skip
    for call, _ in calls:
        search.call(*call)
    assert search.turn_rewards == [gain for _, gain in calls if gain is not None]
    for end, gain in (((None, None), -1), (("return_final_answer", {"answer": "15 May", "sources": []}), 0)):
        search = task.EmailSearch(box, SCENARIO)
        search.call(*end)
        assert search.turn_rewards == [gain]


def test_a_model_that_avoids_giving_up_answers_what_is_most_probable():
    def choice(answer, *logprobs):
        function = SimpleNamespace(name="return_final_answer", arguments=json.dumps({"answer": answer}))
        calls = [SimpleNamespace(function=function)] if answer else None
        tokens = [SimpleNamespace(logprob=logprob) for logprob in logprobs]
        return SimpleNamespace(message=SimpleNamespace(tool_calls=calls), logprobs=SimpleNamespace(content=tokens))

    def asked(*choices):
        """Return the index of the choice that the client returns."""

        async def create(**request):
            assert request == {"temperature": 1.0, "n": len(choices), "logprobs": True}
            return SimpleNamespace(choices=list(choices))

        client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
        client = avoid_giving_up(client, len(choices))
        (found,) = asyncio.run(client.chat.completions.create(temperature=1.0, logprobs=False)).choices
        return next(i for i, each in enumerate(choices) if each is found)

    no, yes, likely = choice(task.I_DONT_KNOW, -0.1), choice("10:30", -1.0, -2.0), choice("11:30", -1.0, -1.5)
    assert asked(no, yes, likely) == 2 and asked(no, yes) == 1 and asked(no) == 0
    assert asked(no, choice(None, -1.0)) == 1  # an answer without a call is none that gives up
    with pytest.raises(ValueError, match="at least 1"):
        avoid_giving_up(None, 0)
