"""The mail client of TrajectoryViewer: the data of real searches, of faults and of hostile text."""

import bisect
import gzip
import json
from collections import Counter
from html.parser import HTMLParser

import hostile_mail  # noqa: E402
import pytest
import synthetic  # noqa: E402
from hostile_mail import ANSWER, END, FALCON, HOSTILE, LINK, LONG, READ, READ_1, SCENARIO, SEARCH, TURNED  # noqa: E402
from hypothesis import given, settings
from hypothesis import strategies as st

from art_nb.environments import clean  # noqa: E402
from email_search.environment import MAX_BODY_LENGTH, EmailSearch, course_mailbox, scenarios  # noqa: E402
from email_search.mail_view import OUTCOMES, mail_lines, mail_view  # noqa: E402
from email_search.mail_viewer import MailViewer  # noqa: E402
from email_search.mailbox import Address, Mail, Mailbox, fts_query, write_mailbox  # noqa: E402
from email_search.players import heuristic_player, searcher  # noqa: E402


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    return hostile_mail.mailbox(tmp_path_factory.mktemp("mail") / "box")


def text(pieces):
    return "".join(piece if isinstance(piece, str) else piece[0] for piece in pieces)


def marks(pieces):
    return [tuple(piece) for piece in pieces if not isinstance(piece, str)]


def faults(view):
    return [step["fault"] for step in view["steps"]]


def reading(body, keywords="", question="", subject=""):
    """Return mail_view's data of a mail with this body, read after a search for the keywords."""
    asked = f"Inbox: ann@x.example\nToday: 2024-04-01\n{question}"
    calls = ((SEARCH, {"keywords": keywords}, "No mail fits."), (READ, {"message_id": "m1"}, f"m1\nfrom: Bob\nsubject: {subject}\n\n{body}"))
    turns = [{"role": "user", "content": asked}]
    for name, arguments, result in calls:
        turns += [{"role": "assistant", "content": "", "tool_calls": [{"name": name, "arguments": json.dumps(arguments)}]},
                  {"role": "tool", "content": result}]  # fmt: skip
    return mail_view({"turns": turns})["steps"][1]["mail"]


def test_the_data_of_a_search(box):
    view = mail_view(hostile_mail.recorded(box, SCENARIO, FALCON, READ_1, END))
    assert (view["question"], view["inbox"], view["today"]) == (SCENARIO.question, "ann@x.example", "2024-04-01")
    assert (view["truth"], view["truth_sources"], view["answer"], view["sources"]) == ("14 May", ["m1"], "14 May", ["m1"])
    assert view["outcome"] == "correct" and faults(view) == ["", "", ""]
    assert [(step["turn"], step["result"]) for step in view["steps"]] == [(1, 2), (3, 4), (5, 6)]
    assert [step["given"] for step in view["steps"]] == [
        [["keywords", "falcon review"]], [["message_id", "m1"]], [["answer", "14 May"], ["sources", ["m1"]]]
    ]  # fmt: skip
    hit = next(hit for hit in view["steps"][0]["hits"] if hit["id"] == "m1")
    assert hit["sender"] == "Bob Ray" and hit["subject"][:4] == [["Falcon", "query"], " ", ["review", "query"], hit["subject"][3]]
    assert view["steps"][1]["mail"]["body"][1:4] == [["Falcon", "query"], " ", ["reviews", "query"]], "another grammatical form"
    lines = mail_lines(view)
    assert lines[1].startswith("  search_emails  keywords: falcon review  → 4 hits")
    assert lines[2].startswith("  read_email  message_id: m1  → Falcon review")
    assert lines[3] == "correct: 14 May   (truth: 14 May)" and len(lines) == 4


def test_real_searches_show_the_mailboxs_content_and_the_logged_outcome():
    box, seen = course_mailbox(), Counter()
    for i, scenario in enumerate(scenarios("val", 40)):
        for player in (heuristic_player, searcher(0.3, i), searcher(0.8, i)):
            search = EmailSearch(box, scenario)
            player(search)
            record = search.trajectory().record()
            view = mail_view(record)
            counted = next(name for name in OUTCOMES if record["metrics"][name])
            seen[counted] += 1
            assert view["outcome"] == counted == mail_view({**record, "metrics": {}})["outcome"]
            assert (view["question"], view["inbox"]) == (scenario.question, scenario.inbox)
            if search.answer is not None:
                assert (view["answer"], tuple(view["sources"])) == (search.answer, search.sources)
                unjudged = mail_view({**record, "metrics": {}, "metadata": {}})["outcome"]
                assert unjudged == ("gave_up" if counted == "gave_up" else "answered")
            for step in view["steps"]:
                asked = dict(step["given"])
                if step["name"] == SEARCH:
                    names = {"from_addr": "sender", "sent_after": "after", "sent_before": "before"}
                    found = box.search(scenario.inbox, limit=4, **{names.get(name, name): value for name, value in asked.items()})
                    assert [(hit["id"], hit["date"], hit["sender"], text(hit["subject"]), text(hit["snippet"])) for hit in step["hits"]] == [
                        (hit.message_id, hit.date[:10], hit.sender.name or hit.sender.address, hit.subject[:80], hit.snippet) for hit in found
                    ]  # fmt: skip
                if step["mail"]:
                    mail = box.read(scenario.inbox, asked["message_id"])
                    shown = {name: text(pieces) for name, pieces in step["mail"]["headers"]}
                    assert (shown["from"], shown["date"], shown["subject"]) == (str(mail.sender), mail.date, mail.subject)
                    assert text(step["mail"]["body"]).startswith(mail.body[:MAX_BODY_LENGTH])
    assert {"correct", "wrong", "gave_up", "malformed"} <= set(seen), seen


WORDS = ["review", "Reviews", "reviewed", "réview", "preview", "mid-term", "MID", "term", "O'Neill", "14", "14:30", "2024-05-14", "x_y",
         "run", "running", "ran", "Straße", "naïve", "日本", "ﬁne", "<b>", "e.g.", "--", "AND", '"or"', "falcon*", "½", "\U0001e900"]  # fmt: skip


def test_marked_words_equal_those_that_a_search_matches(tmp_path):
    """With each word alone in a mail, a search for one of them shows which others match it."""
    ann = Address("", "ann@x.example")
    write_mailbox(tmp_path / "box", [Mail(str(i), "", ann, (), "", word, inboxes=(ann.address,)) for i, word in enumerate(WORDS)])
    box, body = Mailbox(tmp_path / "box"), " zzz ".join(WORDS)
    starts = [sum(len(word) + 5 for word in WORDS[:i]) for i in range(len(WORDS))]
    for query in WORDS:
        found = {int(hit.message_id) for hit in box.search(ann.address, query, limit=100)}
        for kind_, mail in (("query", reading(body, keywords=query)), ("question", reading(body, question=query))):
            if kind_ == "question" and (len(query.split("-")) > 1 or not query.isalnum() or query.lower() in ("and",)):
                continue  # a question is split into words without stop words such as `and`
            at, marked = 0, set()
            for piece in mail["body"]:
                if not isinstance(piece, str):
                    assert piece[1] == kind_
                    marked.add(bisect.bisect(starts, at) - 1)
                at += len(piece if isinstance(piece, str) else piece[0])
            assert marked == found, (query, kind_)


def test_the_last_query_is_marked_before_the_question_and_stop_words_are_not(box):
    body = reading("When is the review of the budget?", keywords="budgets", question="When is the budget review?")["body"]
    assert marks(body) == [("review", "question"), ("budget", "query")]
    both = mail_view(hostile_mail.recorded(box, SCENARIO, FALCON, (SEARCH, {"keywords": "bob"}), READ_1))
    kinds = dict(marks(both["steps"][2]["mail"]["body"]))
    assert kinds["Falcon"] == "question" and kinds["Bob"] == "query", "words of the first query are not marked"


def test_a_repeated_word_is_searched_once(monkeypatch):
    """An agent in a loop writes one word a thousand times, for which the index needs seconds per mail."""
    asked = []
    monkeypatch.setattr("email_search.mail_view.fts_query", lambda word: asked.append(word) or fts_query(word))
    assert marks(reading("a falcon", keywords="falcon " * 1000)["body"]) == [("falcon", "query")] and set(asked) == {"falcon"}
    assert len(asked) < 10


odd = st.text(st.characters(exclude_categories=()) | st.sampled_from("\0\1\2\x0b\u202e\ud800\n falcon\"'*"), max_size=60)


@given(body=odd, keywords=odd, question=odd, subject=odd)
@settings(max_examples=150, deadline=None)
def test_marked_pieces_add_up_to_the_text(body, keywords, question, subject):
    subject = " ".join(subject.split())
    mail = reading(body, keywords, question, subject)
    expected = {"body": body, "subject": subject}
    for name, pieces in (("body", mail["body"]), ("subject", dict(mail["headers"])["subject"])):
        assert text(pieces) == clean(expected[name]).translate({1: 0xFFFD, 2: 0xFFFD})
        assert all(piece and (isinstance(piece, str) or (piece[0] and piece[1] in ("query", "question"))) for piece in pieces)


@pytest.mark.parametrize(
    ("calls", "expected", "outcome"),
    [
        ([FALCON, ("toString", {})], ["", "malformed"], "malformed"),
        ([FALCON, (None, HOSTILE), END], ["", "malformed", "too late"], "malformed"),
        ([(READ, {}), FALCON], ["malformed", "too late"], "malformed"),
        ([(SEARCH, "{")], ["malformed"], "malformed"),
        ([(SEARCH, {"sort": "best"}), (ANSWER, {"answer": " ", "sources": []}), END], ["refused", "refused", ""], "correct"),
        ([(READ, {"message_id": HOSTILE}), (ANSWER, {"answer": "15 May", "sources": []})], ["no such mail", ""], "wrong"),
        ([(ANSWER, {"answer": "I don't know.", "sources": []}), END], ["", "too late"], "gave_up"),
        ([FALCON] * 10 + [END], [""] * 10 + ["too late"], "out_of_turns"),
    ],
)  # fmt: skip
def test_faults_and_outcomes(box, calls, expected, outcome):
    record = hostile_mail.recorded(box, SCENARIO, *calls)
    view = mail_view(record)
    assert faults(view) == expected
    assert [bool(step["note"]) for step in view["steps"] if step["fault"]] == [True] * sum(map(bool, expected))
    counted = [name for name in OUTCOMES if record["metrics"][name]]
    assert [view["outcome"]] == counted == [mail_view({**record, "metrics": {}})["outcome"]] == [outcome]


def test_other_tasks_have_no_mail_view(box):
    assert mail_view(synthetic.game_record(1, 0, 0, 5)) is None and mail_view(synthetic.talk_record()) is None
    assert mail_view(synthetic.talk_record() | {"metadata": None}) is None
    silent = mail_view(hostile_mail.recorded(box, SCENARIO))
    assert silent["steps"] == [] and silent["outcome"] == "out_of_turns" and silent["answer"] is None
    assert mail_view(hostile_mail.recorded(box, SCENARIO, FALCON) | {"metadata": None, "metrics": None})["truth"] == ""


def test_a_call_without_a_result_and_two_calls_in_a_turn(box):
    record = hostile_mail.recorded(box, SCENARIO, FALCON, READ_1, END)
    view = mail_view({**record, "turns": record["turns"][:-1], "metrics": {}})
    assert view["steps"][-1]["result"] is None and view["outcome"] == "correct"
    asked, first, hits, second, page, *_ = record["turns"]
    both = mail_view({**record, "turns": [asked, {**first, "tool_calls": first["tool_calls"] + second["tool_calls"]}, hits, page]})
    assert [(step["turn"], step["result"]) for step in both["steps"]] == [(1, 2), (1, 3)]
    assert both["steps"][0]["hits"] and both["steps"][1]["mail"]["id"] == "m1"


def deepest(form):
    """Return the maximum depth of JSON that the parser accepts here."""
    def too_deep(depth):
        try:
            json.loads(form[0] * depth + "1" + form[1] * depth)
        except RecursionError:
            return True
        return False

    return bisect.bisect_left(range(300_000), True, key=too_deep)


ODD = ["", "{", "null", "[]", "5", '{"keywords": 5}', '{"keywords": [1, {"a": null}]}', '{"keywords": NaN}', '{"keywords": 1e999}',
       '{"keywords": %s}' % ("1" * 5000), '{"keywords": "\\ud800\\u0000\\u0001"}', '{"": {}}', '{"keywords": "a", "keywords": "b"}',
       json.dumps({LONG: HOSTILE}), {"keywords": "an object"}]  # fmt: skip


@pytest.mark.parametrize("name", [SEARCH, READ, ANSWER, "toString"])
def test_odd_arguments_are_shown_as_they_were_written(box, name):
    for arguments in ODD:
        record = hostile_mail.recorded(box, SCENARIO, FALCON, (name, arguments))
        record["turns"][3]["tool_calls"][0]["arguments"] = arguments
        check_sendable(record)


@pytest.mark.parametrize("form", ['[]', ('{"a":', "}")])
def test_deep_arguments(box, form):
    limit = deepest(form)
    for depth in {1, *range(max(1, limit - 60), limit + 10), 200_000}:
        record = hostile_mail.recorded(box, SCENARIO, FALCON)
        record["turns"][1]["tool_calls"][0]["arguments"] = f'{{"keywords": {form[0] * depth}1{form[1] * depth}}}'
        assert mail_view(record)["steps"][0]["given"][0][0] in ("keywords", "arguments"), depth


def check_sendable(record):
    """Assert that the data for the viewer consist of texts and lists of texts."""
    view = mail_view(record)
    for step in view["steps"]:
        for argument, value in step["given"]:
            assert isinstance(argument, str) and (isinstance(value, str) or all(isinstance(item, str) for item in value))
    assert all(isinstance(line, str) and "\n" not in line and line.encode() for line in mail_lines(view))
    (body,) = json.loads(gzip.decompress(MailViewer([record]).bodies))
    assert body["pane"] == view


def test_the_static_rendering_of_hostile_text_is_escaped_and_small(tmp_path):
    every = [record for record in hostile_mail.records(tmp_path / "box") for _ in range(4)]
    viewer = MailViewer(every, kind=lambda record: f"{hostile_mail.kind(record)} {LINK} \ud800")
    picture, numbers = viewer._still()
    tags, said = [], []

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attributes):
            tags.append((tag, *(name for name, _ in attributes)))

        def handle_data(self, data):
            said.append(data)

    Parser().feed(numbers["text/html"])
    ours = {("style",), ("div", "class"), ("details",), ("summary",), ("table",), ("tr",), ("th",), ("td",)}
    assert not [tag for tag in tags if tag not in ours][:3]
    assert any(LINK in line and "correct" in line for line in said), "the content is shown as text"
    assert numbers["text/html"].encode() and picture["text/plain"].encode()
    assert len(picture["image/png"]) < 90_000
    for record in hostile_mail.records(tmp_path / "box"):
        if view := mail_view(record):
            assert len(json.dumps(view)) < 12 * len(json.dumps(record)) and max(map(len, mail_lines(view))) < 900
    assert len(viewer.bodies) < 60_000, "80 trajectories with words of 10 kB"


def test_the_static_picture_accepts_any_text(box):
    said = {"role": "assistant", "content": f"\ud800\x01$x_{{ {TURNED}", "trainable": False}
    for turns in ([said], hostile_mail.recorded(box, SCENARIO, (SEARCH, '{"keywords": "\\ud800 $\\\\frac"}'))["turns"]):
        record = {"step": 1, "group": 0, "index": 0, "reward": 1.0, "turns": turns}
        assert MailViewer([record]).static_png().startswith(b"\x89PNG")
