"""ChatWidget's Python side: what it shows follows from the lines, is what a conversation without it gives, and is escaped."""

import re

import pytest

from art_nb.tasks.customer_service import STOP, Conversation, RuleCustomer, course_tasks, course_world
from art_nb.tasks.customer_service.clerks import Clerk
from art_nb.tasks.customer_service.front_desk import FrontDesk
from art_nb.tasks.customer_service.players import expert
from art_nb.widgets import ChatWidget

SHOP, AIRLINE = course_world("retail"), course_world("airline")
TASKS = {task.id: task for task in course_tasks("retail", "train")}
RETURN = TASKS["train-1"]  # of a Wallet, money to the gift card; first a wrong order number
HOSTILE = "<img src=x onerror=alert(1)> </script> \0 \ud800 $x$ #W1"


def said(chat, who):
    return [entry["text"] for entry in chat.shown["entries"] if entry["who"] == who]


def called(chat):
    return [entry["name"] for entry in chat.shown["entries"] if entry["who"] == "call"]


@pytest.mark.parametrize("split", ["val", "test"])
def test_with_the_customer_by_rule_it_comes_out_as_without_the_widget(split):
    for task in course_tasks("retail", split, 12):
        chat, desk = ChatWidget(SHOP, task, Clerk()).play(), Clerk()(FrontDesk(SHOP, task))
        assert chat.served.talk.log == desk.talk.log and chat.served.metrics() == desk.metrics()
        assert chat.shown["over"] and chat.shown["solved"] and not chat.shown["broken"] and not chat.shown["suggestion"]
        assert chat.shown["changes"] == desk.talk.world.differences()


def test_it_serves_another_agent_in_another_world():
    task = course_tasks("airline", "val", 1)[0]
    chat, talk = ChatWidget(AIRLINE, task, expert, desk=Conversation).play(), Conversation(AIRLINE, task, RuleCustomer(task))
    expert(talk)
    assert chat.served.log == talk.log and chat.shown["solved"]


def test_line_by_line_the_agent_goes_on_until_it_needs_the_customer():
    chat = ChatWidget(SHOP, RETURN, Clerk())
    assert chat.shown["entries"] == [] and chat.served is None and chat.shown["suggestion"] == RuleCustomer(RETURN).open()
    chat.lines = ["Hello, I want to return the Wallet of order #W22504."]
    assert said(chat, "agent") == ["What is your email, or your name and zip?"] and not chat.shown["over"]
    assert chat.shown["suggestion"].startswith("I do not remember my email. I am Bea Crane"), "a reply to what was asked"
    chat.lines = [*chat.lines, "I am Bea Crane, zip 02148.", "PayPal"]
    assert called(chat) == ["find_user_id_by_name_zip", "get_user_details", "get_order_details"] and not chat.shown["changes"]
    assert said(chat, "agent")[-1].startswith("I will take back the Wallet of order #W22504, with the refund to paypal_")
    chat.lines = [*chat.lines, "No.", "Yes."]
    refusal = chat.shown["entries"][-2]
    assert refusal["refused"] and refusal["name"] == "return_delivered_order_items" and not chat.shown["changes"], "PayPal did not pay it"
    chat.lines = [*chat.lines[:2], "My gift card.", "Yes."]
    assert len(said(chat, "agent")) == 4 and said(chat, "agent")[-1] == "It has been done."
    assert any(re.search('"delivered" -> "return requested"', line) for line in chat.shown["changes"])
    chat.lines = [*chat.lines, f"Bye. {STOP}"]
    assert chat.shown["over"] and chat.shown["solved"]
    chat.lines = chat.lines[:1]
    assert not chat.shown["changes"] and chat.shown["lines"] == 1 and not SHOP.differences(), "taken back"


def test_rules_that_the_agent_breaks_are_shown():
    chat = ChatWidget(SHOP, RETURN, Clerk(hurried=True)).play()
    assert chat.shown["broken"] == {"unconfirmed": 1}


def test_a_clerk_by_rule_answers_whatever_a_reader_writes():
    """It asks, or declines what it has no words for, and never waits in vain."""
    for words in ("Hello", HOSTILE, "my email is nobody@example.com", "I want to return the Hat of order #W22504.", "#W22504",
                  "How much was it? #W22504", "Please change the Wallet of order #W22504.", "exchange the Wallet of #W22504 PayPal"):  # fmt: skip
        for hurried in (False, True):
            chat = ChatWidget(SHOP, RETURN, Clerk(hurried), lines=[words, "I am Bea Crane, zip 02148.", words])
            assert chat.shown["error"] == "" and not chat.shown["over"] and len(said(chat, "agent")) == 3, (words, chat.shown)
            assert not chat.shown["changes"]


def test_what_the_readers_own_agent_raises_is_said():
    def broken(desk):
        desk.call("find_customer", {})
        raise RuntimeError(HOSTILE)

    chat = ChatWidget(SHOP, RETURN, broken, lines=["I am Bea Crane, zip 02148."])
    assert chat.shown["error"].startswith("The agent raised RuntimeError: <img") and chat.shown["over"]
    assert called(chat) == ["find_user_id_by_name_zip", "get_user_details"] and not chat.shown["suggestion"]


def test_the_still_shows_the_conversation_and_its_text_is_escaped():
    played = ChatWidget(SHOP, RETURN, Clerk()).play()
    assert played.static_png().startswith(b"\x89PNG") and len(played.static_png()) < 90_000
    assert "return_delivered_order_items" in played.static_html() and "It has been done." in played.static_html()
    assert played.summary() == "5 messages of the customer, 4 of the agent, 5 calls; 3 changes; solved"
    assert played.static_png() != ChatWidget(SHOP, RETURN, Clerk()).static_png()
    hostile = ChatWidget(SHOP, RETURN, Clerk(), lines=[HOSTILE, HOSTILE * 90])
    assert "<img" not in hostile.static_html() and "&lt;img" in hostile.static_html()
    assert hostile.static_png().startswith(b"\x89PNG") and "\0" not in hostile.lines[0] and len(hostile.lines[1]) == 500


def test_without_a_script_the_reader_speaks_alone():
    from dataclasses import replace

    chat = ChatWidget(SHOP, replace(RETURN, wants={}), Clerk(), lines=["Hello"])
    assert chat.shown["suggestion"] == "" and said(chat, "agent")
    with pytest.raises(ValueError, match="no script"):
        chat.play()
