"""ChatWidget in Python: it shows the conversation that its lines produce, and escapes every text."""

import re

import pytest

from art_nb.environments import clean
from customer_service import STOP, Conversation, RuleCustomer, course_tasks, course_world
from customer_service.airline_clerk import AirlineClerk
from customer_service.airline_desk import AirlineDesk
from customer_service.chat_widget import ChatWidget
from customer_service.clerks import Clerk
from customer_service.front_desk import FrontDesk
from customer_service.players import expert, hasty

SHOP, AIRLINE = course_world("retail"), course_world("airline")
TASKS = {task.id: task for task in course_tasks("retail", "train")}
RETURN = TASKS["train-1"]  # a Wallet, refund to the gift card; the opening has a wrong order number
HOSTILE = "<img src=x onerror=alert(1)> </script> \0 \ud800 $x$ #W1"


def messages(chat, who):
    return [entry["text"] for entry in chat.shown["entries"] if entry["who"] == who]


def called(chat):
    return [entry["name"] for entry in chat.shown["entries"] if entry["who"] == "call"]


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_rule_customer_gives_the_same_conversation_as_without_the_widget(split):
    for task in course_tasks("retail", split, 12):
        chat, desk = ChatWidget(SHOP, task, Clerk()).play(), Clerk()(FrontDesk(SHOP, task))
        assert chat.served.conversation.log == desk.conversation.log and chat.served.metrics() == desk.metrics()
        assert chat.shown["over"] and chat.shown["solved"] and not chat.shown["broken"] and not chat.shown["suggestion"]
        assert chat.shown["changes"] == desk.conversation.world.differences()


def test_another_agent_and_another_world():
    task = course_tasks("airline", "val", 1)[0]
    chat, conversation = ChatWidget(AIRLINE, task, expert, desk=Conversation).play(), Conversation(AIRLINE, task, RuleCustomer(task))
    expert(conversation)
    assert chat.served.log == conversation.log and chat.shown["solved"]


def test_the_agent_continues_until_it_waits_for_the_customer():
    chat = ChatWidget(SHOP, RETURN, Clerk())
    assert chat.shown["entries"] == [] and chat.served is None and chat.shown["suggestion"] == RuleCustomer(RETURN).open()
    chat.lines = ["Hello, I want to return the Wallet of order #W22504."]
    assert messages(chat, "agent") == ["What is your email, or your name and zip?"] and not chat.shown["over"]
    assert chat.shown["suggestion"].startswith("I do not remember my email. I am Bea Crane"), "a reply to the agent's question"
    chat.lines = [*chat.lines, "I am Bea Crane, zip 02148.", "PayPal"]
    assert called(chat) == ["find_user_id_by_name_zip", "get_user_details", "get_order_details"] and not chat.shown["changes"]
    assert messages(chat, "agent")[-1].startswith("I will take back the Wallet of order #W22504, with the refund to paypal_")
    chat.lines = [*chat.lines, "No.", "Yes."]
    refusal = chat.shown["entries"][-2]
    assert refusal["refused"] and refusal["name"] == "return_delivered_order_items" and not chat.shown["changes"], "PayPal did not pay it"
    chat.lines = [*chat.lines[:2], "My gift card.", "Yes."]
    assert len(messages(chat, "agent")) == 4 and messages(chat, "agent")[-1] == "It has been done."
    assert any(re.search('"delivered" -> "return requested"', line) for line in chat.shown["changes"])
    chat.lines = [*chat.lines, f"Bye. {STOP}"]
    assert chat.shown["over"] and chat.shown["solved"]
    chat.lines = chat.lines[:1]
    assert not chat.shown["changes"] and chat.shown["lines"] == 1 and not SHOP.differences(), "taken back"


def test_violations_are_shown():
    chat = ChatWidget(SHOP, RETURN, Clerk(hurried=True)).play()
    assert chat.shown["broken"] == {"unconfirmed": 1}


def test_a_rule_based_clerk_handles_any_text():
    """It asks or declines, and never raises."""
    for words in ("Hello", HOSTILE, "my email is nobody@example.com", "I want to return the Hat of order #W22504.", "#W22504",
                  "How much was it? #W22504", "Please change the Wallet of order #W22504.", "exchange the Wallet of #W22504 PayPal"):  # fmt: skip
        for hurried in (False, True):
            chat = ChatWidget(SHOP, RETURN, Clerk(hurried), lines=[words, "I am Bea Crane, zip 02148.", words])
            assert chat.shown["error"] == "" and not chat.shown["over"] and len(messages(chat, "agent")) == 3, (words, chat.shown)
            assert not chat.shown["changes"]


AIRLINE_LINES = (
    "Hello", HOSTILE, "nobody_here_1", "I want to cancel reservation A00000.", "add two bags to reservation {key}.",
    "I want to fly to Rome.", "I want to fly from SFO to JFK on 2024-05-20.", "the name must be Bob {key}", "compensation {key}",
    "move reservation {key} to 2024-05-20", "cancel reservation {key}", "PayPal",
)  # fmt: skip


@pytest.mark.parametrize("hurried", [False, True])
@pytest.mark.parametrize("words", AIRLINE_LINES)
def test_the_airlines_clerk_handles_any_text(words, hurried):
    key, reservation = next(iter(AIRLINE.records("reservations").items()))
    task = course_tasks("airline", "val", 1)[0]
    lines = [words.format(key=key), f"I am {reservation['user_id']}.", words.format(key=key)]
    chat = ChatWidget(AIRLINE, task, AirlineClerk(hurried), AirlineDesk, lines)
    assert chat.shown["error"] == "" and (messages(chat, "agent") or chat.shown["over"]), chat.shown


def test_the_airlines_clerk_asks_again_after_an_unknown_user_id():
    task = course_tasks("airline", "val", 1)[0]
    chat = ChatWidget(AIRLINE, task, AirlineClerk(), AirlineDesk, ["I am nobody_here_1.", "I am nobody_here_1."])
    assert messages(chat, "agent") == ["What is your user id?"] * 2 and not chat.shown["over"]


@pytest.mark.parametrize(("split", "world"), [("retail", SHOP), ("airline", AIRLINE)])
def test_the_expert_handles_any_text(split, world):
    (task,), answers = course_tasks(split, "val", 1), ["Bea Crane", "I am Bea Crane, zip 02148.", "nobody_here_1", "#W1", "A00000", "x@y.z"]
    user_id = task.user_id
    for words in (*(line.format(key="A00000") for line in AIRLINE_LINES), "Please change the Hat of #W22504.", "I want x. #W22504"):
        lines = [words, *answers, f"I am {user_id}.", words, "PayPal"]
        for player in (expert, hasty):
            chat = ChatWidget(world, task, player, Conversation, lines)
            assert chat.shown["error"] == "", (words, chat.shown)


@pytest.mark.parametrize(("agent", "desk"), [(Clerk(), FrontDesk), (expert, Conversation)])
def test_a_yes_counts_in_any_case(agent, desk):
    lines = ["I want to return the Wallet of order #W22504.", "I am Bea Crane, zip 02148.", "gift card", "yes"]
    chat = ChatWidget(SHOP, RETURN, agent, desk, lines)
    assert messages(chat, "agent")[-1] == "It has been done." and chat.shown["changes"]
    chat.lines = [*lines[:3], "That was yesterday. Yesterday!"]
    assert not chat.shown["changes"]


def test_the_message_that_awaits_a_reply_is_cleaned_text():
    chat = ChatWidget(SHOP, RETURN, lambda desk: desk.say(HOSTILE), Conversation, ["Hello"])
    assert messages(chat, "agent") == [clean(HOSTILE)] and "\0" not in clean(HOSTILE)
    for message in (5, None):
        chat = ChatWidget(SHOP, RETURN, lambda desk, message=message: desk.say(message), Conversation, ["Hello"])
        assert chat.shown["error"] == f'The agent raised TypeError: the message to the customer is "{message}": expected text'


def test_an_exception_of_the_readers_agent_is_shown():
    def broken(desk):
        desk.call("find_customer", {})
        raise RuntimeError(HOSTILE)

    chat = ChatWidget(SHOP, RETURN, broken, lines=["I am Bea Crane, zip 02148."])
    assert chat.shown["error"].startswith("The agent raised RuntimeError: <img") and chat.shown["over"]
    assert called(chat) == ["find_user_id_by_name_zip", "get_user_details"] and not chat.shown["suggestion"]


def test_the_static_views_show_the_conversation_and_escape_its_text():
    played = ChatWidget(SHOP, RETURN, Clerk()).play()
    assert played.static_png().startswith(b"\x89PNG") and len(played.static_png()) < 90_000
    assert "return_delivered_order_items" in played.static_html() and "It has been done." in played.static_html()
    assert played.summary() == "5 messages of the customer, 4 of the agent, 5 calls; 3 changes; solved"
    assert played.static_png() != ChatWidget(SHOP, RETURN, Clerk()).static_png()
    hostile = ChatWidget(SHOP, RETURN, Clerk(), lines=[HOSTILE, HOSTILE * 90])
    assert "<img" not in hostile.static_html() and "&lt;img" in hostile.static_html()
    assert hostile.static_png().startswith(b"\x89PNG") and "\0" not in hostile.lines[0] and len(hostile.lines[1]) == 500


def test_without_a_script_nothing_is_suggested():
    from dataclasses import replace

    chat = ChatWidget(SHOP, replace(RETURN, wants={}), Clerk(), lines=["Hello"])
    assert chat.shown["suggestion"] == "" and messages(chat, "agent")
    with pytest.raises(ValueError, match="no script"):
        chat.play()
