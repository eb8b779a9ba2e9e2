"""ChatWidget in a real JupyterLab: writing and clicking as the customer, hostile text, a busy kernel, keys, both themes."""

from __future__ import annotations

import pytest
from test_widgets_in_lab import SETUP, open_notebook, press, run_all, save, set_theme, settle, wait_idle

pytestmark = pytest.mark.browser

CHAT = """
from customer_service import course_tasks, course_world
from customer_service.clerks import Clerk
from customer_service.chat_widget import ChatWidget
tasks = {task.id: task for task in course_tasks("retail", "train")}
chat = ChatWidget(course_world("retail"), tasks["train-1"], Clerk())
"""
HOSTILE = """<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> I am Bea Crane, zip 02148."""


def texts(view, kind):
    settle(view.page)
    return [node.inner_text() for node in view.locator(kind).all()]


def answered(view, lines):
    view.page.wait_for_function(f"document.querySelector('.an-chat').dataset.lines === '{lines}'")
    settle(view.page)


def check_the_customer(page, view, lab, path, shot):
    view.locator(".an-said").first.wait_for()
    button = lambda name: view.get_by_role("button", name=name)  # noqa: E731
    status = view.locator(".an-outcome")
    assert "solved" in status.inner_text() and "I am Bea Crane" in view.locator(".an-card").inner_text()
    assert len(texts(view, ".an-changes li")) == 3 and texts(view, ".an-broken li") == ["none"]
    assert button("Send").is_disabled() and button("Let the customer speak").is_disabled()

    # the kernel is busy with the last cell: messages wait, and the widget shows it
    button("Restart").click()
    settle(page)
    assert status.inner_text().startswith("Waiting for the kernel") and button("Restart").is_disabled()
    shot(view, "chat_waits")
    lab.release("chat")
    answered(view, 0)
    assert status.inner_text() == "You begin." and texts(view, ".an-said") == []

    button("Let the customer speak").click()
    answered(view, 1)
    assert "I want to return the Wallet of order #W7197" in texts(view, ".an-customer")[0]
    assert len(texts(view, ".an-call")) == 3 and texts(view, ".an-refused") == ['✗ get_order_details {"order_id": "#W7197"}']
    refused = view.locator(".an-refused details")
    assert "Error: order not found" not in view.locator(".an-talk").inner_text(), "folded"
    refused.locator("summary").focus()
    press(page, "Enter")
    assert "Error: order not found" in view.locator(".an-talk").inner_text()

    line = view.get_by_label("What you say as the customer")
    line.fill("It is #W22504, to my gift card")
    press(page, "Enter")
    answered(view, 2)
    assert "Do you confirm?" in texts(view, ".an-agent")[-1] and texts(view, ".an-changes li") == ["nothing"]
    assert refused.get_attribute("open") is not None, "expanded entries stay expanded"
    assert line.input_value() == "" and line.evaluate("(node) => node === document.activeElement")
    shot(view, "chat_light")
    line.type("Yes")
    press(page, "Tab")
    press(page, "Enter")
    answered(view, 3)
    assert "return requested" in texts(view, ".an-changes li")[0]
    set_theme(page, "Dark")
    button("Leave").click()
    answered(view, 4)
    assert status.inner_text().endswith("solved.") and "leaves" in texts(view, ".an-customer")[-1]
    shot(view, "chat_dark")
    button("Undo").click()
    answered(view, 3)
    assert status.inner_text() == "Your turn."
    wait_idle(page)

    saved = save(page, path)
    assert sum("image/png" in out.get("data", {}) for out in saved["cells"][1]["outputs"]) == 1, "a static picture was saved"
    page.locator(".jp-CodeCell").nth(2).click()
    page.keyboard.press("Control+Enter")
    page.get_by_text("solved True").wait_for()


def check_hostile_text(page, view, shot):
    line = view.get_by_label("What you say as the customer")
    page.set_viewport_size({"width": 480, "height": 900})
    line.fill(HOSTILE)
    press(page, "Enter")
    answered(view, 1)
    assert texts(view, ".an-customer .an-words") == [HOSTILE] and len(texts(view, ".an-call")) == 2, "the agent used the name"
    line.fill("   ")
    press(page, "Enter")
    assert view.get_attribute("data-lines") == "1", "an empty message is not sent"
    assert page.evaluate("window.hacked") is None and view.locator("img, script").count() == 0
    shot(view, "chat_phone")


def test_the_reader_is_the_customer_and_hostile_text_is_escaped(page, lab, shot):
    path = lab.write("chat.ipynb", SETUP + CHAT, "chat.play()\nchat", "print('solved', chat.shown['solved'])", lab.hold("chat"))
    open_notebook(page, lab, path)
    run_all(page)
    view = page.locator(".an-chat")
    check_the_customer(page, view, lab, path, shot)
    view.get_by_role("button", name="Restart").click()
    answered(view, 0)
    set_theme(page, "Light")
    check_hostile_text(page, view, shot)
