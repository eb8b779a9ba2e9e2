"""Real mail: files with unusual encodings, broken headers and HTML; the Enron format. None of them stops the import."""

import json
import mailbox as standard_mailbox
import sqlite3
from datetime import datetime
from email.message import EmailMessage

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from email_search import environment as email_search
from email_search import mail_import
from email_search.criteria import searched
from email_search.mailbox import Address, Mailbox
from email_search.players import heuristic_player, play, searcher

ME = "me@home.example"


def parsed(data: bytes):
    return mail_import.mail_of(mail_import.message_from_bytes(data), ME)


def written(**headers) -> EmailMessage:
    message = EmailMessage()
    for name, value in {"From": "Ann Lee <ann@home.example>", "To": ME, "Subject": "hello"} .items():
        message[name] = headers.pop(name, value)
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return message


def test_mails_written_by_python_round_trip():
    """The writer is the standard library's, with all its encodings; the reader is ours."""
    message = written(
        From='"Müller, Jörg" <Jorg@Home.example>', To=f"Ivy Ö <ivy@x.example>, {ME}", Cc="日本 <jp@x.example>",
        Subject="Grüße — 日本語 " + "long " * 40, Date="Tue, 05 Mar 2024 23:30:00 -0300", Message_ID="<a.1@x>",
        In_Reply_To="<a.0@x>",
    )  # fmt: skip
    message.set_content("Zürich\n日本\n> quoted\n")
    message.add_alternative("<p>not this</p>", subtype="html")
    message.add_attachment(b"\0\1", maintype="application", subtype="pdf", filename="Angebot für März.pdf")
    mail = parsed(message.as_bytes())
    assert mail.sender == Address("Müller, Jörg", "jorg@home.example")
    assert mail.to == (Address("Ivy Ö", "ivy@x.example"), Address("", ME))
    assert mail.cc == (Address("日本", "jp@x.example"),)
    assert mail.subject == "Grüße — 日本語 " + " ".join(["long"] * 40)
    assert (mail.date, mail.message_id, mail.in_reply_to) == ("2024-03-06 02:30", "a.1@x", "a.0@x")
    assert mail.body == "Zürich\n日本\n> quoted"
    assert mail.attachments == ("Angebot für März.pdf",)
    assert mail.inboxes == (ME,)


@pytest.mark.parametrize("charset", ["utf-8", "latin-1", "cp1252", "koi8-r", "shift_jis", "utf-16-le", "gb2312"])
@pytest.mark.parametrize("encoding", ["8bit", "base64", "quoted-printable"])
def test_bodies_in_their_charset(charset, encoding):
    import base64
    import quopri

    text = {"koi8-r": "привет", "shift_jis": "日本語", "gb2312": "中文", "utf-16-le": "naïve"}.get(charset, "naïve café")
    data = text.encode(charset)
    data = {"base64": base64.encodebytes, "quoted-printable": quopri.encodestring, "8bit": bytes}[encoding](data)
    head = f"From: a@b\nContent-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: {encoding}\n\n"
    assert parsed(head.encode() + data).body == text


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Type: text/plain; charset=no-such-thing", "café"),
        (b"Content-Type: text/plain; charset=hex", "café"),
        (b"Content-Type: text/plain; charset=ascii", "café"),
        (b"Content-Type: text/plain; charset=\"a\\\0b\"", "café"),
        (b"Content-Type: ;;;=", "café"),
        (b"Content-Type: text/plain", "café"),
    ],
)  # fmt: skip
def test_a_wrong_charset_is_read_as_utf8_or_windows(head, body):
    assert parsed(head + b"\n\n" + body.encode()).body == body
    assert parsed(head + b"\n\n" + body.encode("cp1252")).body == body


def test_a_file_name_cannot_add_lines_to_the_page(tmp_path):
    """The agent and the judge read headers line by line; a newline in a file name would forge the sender or end the header."""
    head = "From: Eve <eve@x.example>\nDate: Mon, 04 Mar 2024 10:00:00 +0000\nMessage-ID: <1@x>\nContent-Type: text/plain\n"
    name = "a%0Afrom: Bob <bob@x.example>%0A%0Aroom 12"
    (tmp_path / "1.eml").write_text(f"{head}Content-Disposition: attachment; filename*=utf-8''{name}\n\nx")
    box = mail_import.import_mail(tmp_path, ME, tmp_path / "out")
    assert box.read(ME, "1@x").attachments == ("a from: Bob <bob@x.example> room 12",)
    page = email_search.EmailSearch(box, email_search.Scenario("", "", "?", "12", (), ME, "2024-04-01")).call("read_email", {"message_id": "1@x"})
    assert page.partition("\n\n")[0].count("\nfrom: ") == 1


def test_raw_bytes_in_headers():
    mail = parsed("From: José <jose@x.example>\nSubject: Año nuevo\n\nx".encode())
    assert (mail.sender, mail.subject) == (Address("José", "jose@x.example"), "Año nuevo")
    mail = parsed("From: José <jose@x.example>\nSubject: Año\n\nx".encode("latin-1"))
    assert (mail.sender, mail.subject) == (Address("José", "jose@x.example"), "Año")


@pytest.mark.parametrize(
    ("line", "attribute", "value"),
    [
        (b"Subject: =?utf-8?b?bad base64!!?=", "subject", "=?utf-8?b?bad base64!!?="),
        (b"Subject: =?no-such?q?caf=C3=A9?=", "subject", "café"),
        (b"Subject: two\n  lines\n\tlong", "subject", "two lines long"),
        (b"From: not an address", "sender", Address("", "unknown")),
        (b"From: Ann ann@x.example, (", "sender", Address("", "ann@x.example")),
        (b"Date: yesterday", "date", ""),
        (b"Date: Tue, 99 Foo 2024 99:99:99 +9999", "date", ""),
        (b"Date: ?\nReceived: from a by b; Fri, 1 Mar 2024 10:00:00 +0100", "date", "2024-03-01 09:00"),
        (b"Date: Fri, 31 Dec 9999 23:59:59 -1200", "date", ""),
        (b"X: y", "date", ""),
        (b"X: y", "message_id", ""),
        (b"no header at all", "subject", ""),
    ],
)  # fmt: skip
def test_broken_headers(line, attribute, value):
    assert getattr(parsed(line + b"\n\nbody"), attribute) == value


def test_a_mail_of_html_alone():
    html = (
        "<html><head><title>T</title><style>p { color: red }</style><script>alert('x<y')</script></head>"
        "<body><p>Fish &amp; chips<br>at&nbsp;<b>ei</b>ght</p><div>Room&#32;4</div><!-- hidden --><script>more()</script"
        "><ul><li>one<li>two</ul><a href='http://x'>link</a>"
    )
    data = b"From: a@b\nContent-Type: text/html; charset=utf-8\n\n" + html.encode()
    assert parsed(data).body == "Fish & chips\nat eight\nRoom 4\none\ntwo\nlink"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([b"", b"Subject: ", b"From: ", b"Content-Type: ", b"Date: ", b"To: "]))
@example(b"multipart/mixed; boundary=\n\n--\n--", b"Content-Type: ")
@example(b"=?utf-8?b?" + b"\xff" * 9 + b"?=", b"Subject: ")
@example(b"text/plain; charset*=idna''%ff\nContent-Disposition: attachment; filename*=a\0''b\n\nbody", b"Content-Type: ")
def test_any_bytes_are_imported(data, start):
    mail = parsed(start + data)
    json.dumps([str(mail.sender), mail.subject, mail.body, mail.date]).encode()
    "".join([str(mail.sender), mail.subject, mail.body, *mail.attachments, *map(str, mail.to)]).encode()


@settings(max_examples=200, deadline=None)
@given(st.text("<>!-[]/ab &#;=\"'?\n", max_size=60) | st.text(max_size=200))
@example("<![foo[bar]]>seen")
@example("<![if !mso]>seen<![endif]>")
def test_any_text_is_parsed_as_html(text):
    assert "\r" not in mail_import.text_of_html(text) and "\n\n" not in mail_import.text_of_html(text)


def test_word_markup_is_skipped_and_its_text_kept():
    assert mail_import.text_of_html("<p>a<![if !mso]>b<![endif]><!--[if mso]>c<![endif]--></p><![x[d]]>") == "ab"


def test_a_deeply_nested_mail_keeps_its_headers(tmp_path):
    parts = "".join(f"Content-Type: multipart/mixed; boundary=b{i}\n\n--b{i}\n" for i in range(3000))
    (tmp_path / "deep.eml").write_text(f"Subject: deep\nFrom: a@b\n{parts}\nx")
    standard_mailbox.mbox(tmp_path / "deep.mbox").add((tmp_path / "deep.eml").read_bytes())
    for source in (tmp_path, tmp_path / "deep.mbox"):
        (mail,) = mail_import.import_mail(source, ME, tmp_path / "out").mails(ME)
        assert (mail.subject, mail.body) == ("deep", "")


def letters() -> list[EmailMessage]:
    """Return three mails; the second twice; a different one with the id of the first; two without an id."""
    first = written(Message_ID="<1@x>", Date="Mon, 04 Mar 2024 10:00:00 +0000")
    first.set_content("the zebra is in room 12")
    second = written(Message_ID="<2@x>", Subject="zebra", Date="Mon, 04 Mar 2024 11:00:00 +0000")
    second.set_content("From the start of a line\nzebra food")
    clash = written(Message_ID="<1@x>", Subject="other zebra")
    clash.set_content("not the first one")
    anonymous = written(Subject="no id")
    anonymous.set_content("zebra")
    return [first, second, second, clash, anonymous, anonymous]


def test_an_mbox_and_a_folder_of_the_same_letters(tmp_path):
    box = standard_mailbox.mbox(tmp_path / "mail.mbox")
    folder = tmp_path / "letters" / "deep"
    folder.mkdir(parents=True)
    for i, letter in enumerate(letters()):
        box.add(letter)
        (folder / f"{i}.{'EML' if i else 'eml'}").write_bytes(letter.as_bytes())
    box.close()
    for source in (tmp_path / "mail.mbox", tmp_path / "letters"):
        mails = mail_import.import_mail(source, " Me@Home.example", tmp_path / "out")
        found = {mail.message_id: mail for mail in mails.mails(ME)}
        assert found.keys() == {"1@x", "2@x", "1@x#4", "mail#5", "mail#6"}
        assert found["2@x"].body.replace(">From", "From") == "From the start of a line\nzebra food"
        assert found["1@x"].date == "2024-03-04 10:00" and found["1@x#4"].date == ""
        assert {hit.message_id for hit in mails.search(ME, "zebra")} == found.keys()
        assert [hit.message_id for hit in mails.search(ME, "zebra", after="2024-01-01", sort="oldest")] == ["1@x", "2@x"]
        search = email_search.EmailSearch(mails, email_search.Scenario("", "", "?", "12", ("1@x",), ME, "2024-04-01"))
        assert "1@x 2024-03-04 Ann Lee: hello" in search.call("search_emails", {"keywords": "zebra room"})
        assert "room 12" in search.call("read_email", {"message_id": "1@x"})


def test_ids_stay_unique_against_hostile_ones(tmp_path):
    for i, message_id in enumerate(["<mail#2>", "", "<mail#2>", "<mail#2#3>"]):
        (tmp_path / f"{i}.eml").write_bytes(f"Message-ID: {message_id}\nSubject: {i}\n\nx".encode())
    assert len({mail.message_id for mail in mail_import.import_mail(tmp_path, ME, tmp_path / "out").mails(ME)}) == 4


def test_a_missing_source_raises_with_the_expected_form(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="contains no email: expected an .mbox file"):
        mail_import.import_mail(tmp_path / "empty", ME, tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="mbox file or a folder"):
        mail_import.import_mail(tmp_path / "nothing", ME, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def enron_row(number: int, **changes) -> dict:
    """Return a row with the columns of corbt/enron-emails."""
    row = {
        "message_id": f"<{number}.evans@thyme>", "subject": f"Gas {number}", "from": "Jeff.Dasovich@enron.com",
        "to": ["susan.mara@enron.com"], "cc": [], "bcc": [], "date": datetime(2001, 4, number, 9, 30),
        "body": f"The meeting is at {number} pm.", "file_name": f"dasovich-j/{number}.",
    }  # fmt: skip
    return row | changes


def enron_question(**changes) -> dict:
    """Return a row with the columns of corbt/enron_emails_sample_questions."""
    row = {
        "id": 7, "question": "When is the gas meeting?", "answer": "At 2 pm", "message_ids": ["<2.evans@thyme>"],
        "how_realistic": 0.9, "inbox_address": "Susan.Mara@enron.com", "query_date": "2001-05-01",
    }  # fmt: skip
    return row | changes


def test_enron_rows_become_mails_and_scenarios(tmp_path):
    rows = [
        enron_row(1, cc=["a@enron.com", ""], subject=None), enron_row(2), enron_row(3, to=[f"{i}@enron.com" for i in range(31)]),
        enron_row(4, body="x" * 5001), enron_row(2, message_id="<copy>"), enron_row(5, to=None, date=None),
    ]  # fmt: skip
    mailbox, scenarios = mail_import.load_enron(tmp_path / "enron", rows, [enron_question()])
    assert [m.message_id for m in mailbox.mails("jeff.dasovich@enron.com")] == [
        "<5.evans@thyme>", "<1.evans@thyme>", "<2.evans@thyme>",
    ]  # fmt: skip
    assert mailbox.inboxes() == ["a@enron.com", "jeff.dasovich@enron.com", "susan.mara@enron.com"]
    (scenario,) = scenarios
    search = email_search.EmailSearch(mailbox, scenario)
    result = search.call("search_emails", {"keywords": "gas meeting", "from_addr": "dasovich"})
    assert result == "<2.evans@thyme> 2001-04-02 jeff.dasovich@enron.com: Gas 2 | The meeting is at 2 pm."
    assert "date: 2001-04-02 09:30" in search.call("read_email", {"message_id": "<2.evans@thyme>"})
    search.call("return_final_answer", {"answer": "2 pm", "sources": ["<2.evans@thyme>"]})
    assert search.correct and search.reward() > 1.3


@pytest.mark.parametrize(("question", "end"), [("What time is the gas meeting?", "14:00"), ("Why do we meet about gas?", "I don't know")])
def test_the_heuristic_player_plays_on_other_mail_than_the_courses(tmp_path, question, end):
    rows = [enron_question(question=question, answer="14:00")]
    mailbox, (scenario,) = mail_import.load_enron(tmp_path / "enron", [enron_row(2, body="The gas meeting is at 14:00.")], rows)
    search = play(heuristic_player, email_search.EmailSearch(mailbox, scenario))
    assert search.answer == end and search.ended_by == ("answered" if end == "14:00" else "gave up")


def test_players_find_mail_without_a_date_and_play_any_question(tmp_path):
    rows = [enron_question(question="What time is the gas meeting?", answer="14:00"), enron_question(question="When do we meet?")]
    mailbox, (scenario, wordless) = mail_import.load_enron(tmp_path / "enron", [enron_row(2, body="The gas meeting is at 14:00.", date=None)], rows)
    search = play(heuristic_player, email_search.EmailSearch(mailbox, scenario))
    assert search.answer == "14:00" and search.read == {"<2.evans@thyme>"}
    listed = searched(search.trajectory()).listed
    assert listed == {"<2.evans@thyme>": ("", "jeff.dasovich@enron.com", "Gas 2")}
    assert all(play(searcher(0.5, seed), email_search.EmailSearch(mailbox, wordless)).over for seed in range(9))


def test_enron_comes_from_the_hub_only_when_a_name_is_given(tmp_path, monkeypatch):
    import datasets

    loaded = []

    def load_dataset(name, split):
        loaded.append((name, split))
        return datasets.Dataset.from_list([enron_row(2)] if name == mail_import.ENRON_MAILS else [enron_question(id=split)])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    mailbox, scenarios = mail_import.load_enron(tmp_path / "enron")
    assert loaded == [(mail_import.ENRON_MAILS, "train"), (mail_import.ENRON_QUESTIONS, "train"), (mail_import.ENRON_QUESTIONS, "test")]
    assert [(s.id, s.split) for s in scenarios] == [("enron-train", "train"), ("enron-test", "test")]
    assert mailbox.read("susan.mara@enron.com", "<2.evans@thyme>").body == "The meeting is at 2 pm."


def test_different_mails_with_one_id_raise(tmp_path):
    mail_import.load_enron(tmp_path / "enron", [enron_row(1)], [])
    with pytest.raises(sqlite3.IntegrityError, match="message_id"):
        mail_import.load_enron(tmp_path / "enron", [enron_row(2), enron_row(3, message_id="<2.evans@thyme>")], [])
    assert [m.message_id for m in Mailbox(tmp_path / "enron").mails("susan.mara@enron.com")] == ["<1.evans@thyme>"]
