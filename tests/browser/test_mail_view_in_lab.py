"""The mail client of MailViewer in a real JupyterLab with hostile mails, while the kernel is busy."""

from __future__ import annotations

import pytest
from hostile_mail import HOSTILE, LINK, LONG, SCRIPTS, TURNED
from playwright.sync_api import expect
from test_widgets_in_lab import SETUP, open_notebook, run_all, set_theme, settle

pytestmark = pytest.mark.browser
expect.set_options(timeout=120_000)  # on a busy machine

MAILS = SETUP + "import hostile_mail\nfrom email_search.mail_viewer import MailViewer\nrecords = hostile_mail.records('mailbox')"
VIEWER = "MailViewer(records, kind=hostile_mail.kind)"

# Parts of the view whose content is wider than they are; those with an ellipsis are truncated on purpose.
TOO_WIDE = """(root) => [document.documentElement, root, ...root.querySelectorAll("*")].filter((node) =>
  node.clientWidth && node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).textOverflow !== "ellipsis"
).map((node) => `${node.tagName} ${node.className}: ${node.scrollWidth} > ${node.clientWidth}`)"""

# Text that a right-to-left mark elsewhere reversed or moved.
TURNED_BY_OTHERS = """(root) => {
  const range = document.createRange();
  const boxOf = (node, ...ends) => {
    if (ends.length) { range.setStart(node, ends[0]); range.setEnd(node, ends[1]); } else range.selectNode(node);
    return [...range.getClientRects()].find((box) => box.width);
  };
  const after = (a, b) => !a || !b || Math.abs(a.top - b.top) > 4 || b.left >= a.left;
  const found = [];
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const said = node.data.trim(), at = node.data.indexOf(said);
    if (said && !said.includes("\\u202e") && !node.parentElement.closest("bdi, [dir=auto], .an-talk")
      && !after(boxOf(node, at, at + 1), boxOf(node, at + said.length - 1, at + said.length))) found.push(said);
  }
  for (const bdi of root.querySelectorAll("bdi")) {
    const boxes = [...bdi.parentElement.childNodes].map((node) => boxOf(node)).filter(Boolean);
    if (boxes.some((box, i) => i && !after(boxes[i - 1], box))) found.push(bdi.parentElement.innerText);
  }
  return found;
}"""


def show(view, index):
    view.locator(".an-row").nth(index).click()
    expect(view).to_have_attribute("data-shown", str(index))


def now(view):
    return view.locator(".an-action.an-now")


def check_the_way_from_query_to_answer(viewer, shot):
    reader, verdict = viewer.locator(".an-reader"), viewer.locator(".an-verdict")
    expect(now(viewer)).to_have_attribute("data-action", "3")
    expect(reader).to_have_attribute("data-mail", "m1")  # next to the answer is its source, not the last mail that was read
    expect(verdict).to_have_attribute("data-outcome", "correct")
    expect(verdict.locator(".an-word")).to_have_text("✓ Correct")
    shot(viewer, "mail_light")

    viewer.locator("[data-action='0'] .an-call").click()
    expect(now(viewer)).to_have_attribute("data-action", "0")
    expect(reader).to_have_text("No mail has been read yet.")
    hits = viewer.locator("[data-action='0'] .an-hit")
    assert sorted(hit.get_attribute("data-id") for hit in hits.all()) == ["m1", "m2", "m3", "m4"]
    expect(viewer.locator(".an-hit.an-right")).to_have_attribute("data-id", "m1")
    assert {mark.inner_text().lower() for mark in hits.locator("mark.an-query").all()} == {"falcon", "review", "reviews"}
    viewer.locator(".an-hit[data-id=m2]").click()
    expect(now(viewer)).to_have_attribute("data-action", "2")
    expect(reader).to_have_attribute("data-mail", "m2")
    expect(viewer.locator(".an-hit.an-open")).to_have_attribute("data-id", "m2")
    reader.evaluate("(node) => { node.scrollTop = 300; }")
    viewer.locator(".an-hit[data-id=m3]").click()
    expect(reader).to_contain_text("The agent did not read this mail.")
    expect(reader).to_contain_text("Bob Ray")
    expect(reader).to_have_attribute("data-mail", "")
    expect(now(viewer)).to_have_attribute("data-action", "0")
    expect(viewer.locator(".an-hit.an-open")).to_have_attribute("data-id", "m3")
    assert reader.evaluate("(node) => node.scrollTop") == 0
    shot(viewer, "mail_peek")
    verdict.get_by_role("button").click()
    expect(now(viewer)).to_have_attribute("data-action", "1")
    expect(reader).to_have_attribute("data-mail", "m1")
    expect(reader.locator("mark").first).to_have_text("Falcon")

    viewer.get_by_role("button", name="messages and tokens").click()
    expect(viewer.locator(".an-mailbox")).to_be_hidden()
    expect(viewer.locator(".an-turn.an-now").first).to_contain_text("read_email")
    viewer.get_by_role("button", name="mail", exact=True).click()
    expect(now(viewer)).to_have_attribute("data-action", "1")


def check_outcomes_and_kinds(viewer, shot):
    show(viewer, 1)
    sources = viewer.locator(".an-source")
    assert [source.inner_text() for source in sources.all()][:4] == ["✗ m3", "✓ m1", f"✗ {TURNED} (never listed)", f"✗ {HOSTILE} (never listed)"]
    expect(viewer.locator("button.an-source")).to_have_text("✗ m3")
    expect(viewer.locator("[data-action='3'] .an-given bdi")).to_have_count(2 + 1 + 5)  # no source can reverse the next one
    shot(viewer, "mail_wrong")
    show(viewer, 2)
    assert viewer.locator(".an-outcome").all_inner_texts() == ["no hits", "✗ no such mail", "✗ refused", "✗ refused", ""]
    show(viewer, 3)
    expect(viewer.locator("[data-action='1'] b")).to_have_text("toString")
    shot(viewer, "mail_malformed")
    show(viewer, 6)
    expect(viewer.locator(".an-action")).to_have_count(0)
    expect(viewer.locator(".an-reader")).to_have_text("No mail has been read yet.")  # not the mail of another trajectory
    expect(viewer.locator(".an-where")).to_have_text("")
    show(viewer, 7)
    expect(viewer.locator(".an-mailbox")).to_be_hidden()
    expect(viewer.get_by_role("button", name="messages and tokens")).to_be_hidden()

    buttons = viewer.get_by_role("group", name="Kind").get_by_role("button")
    assert [button.inner_text().split("\n")[0] for button in buttons.all()][1:3] == ["malformed", f"{HOSTILE} {LONG}"]
    counts = {"malformed": 2, "correct": 1, "wrong": 1, "gave_up": 1, "out_of_turns": 1, "all": 8}
    for name, count in counts.items():
        button = viewer.get_by_role("group", name="Kind").get_by_role("button", name=name)
        expect(button).to_have_text(f"{name}{count}")
        button.click()
        expect(viewer.locator(".an-count")).to_have_text(f"{count} of 8 trajectories")
        expect(viewer.locator(".an-row")).to_have_count(count)
        expect(viewer.locator(".an-mailbox .an-verdict")).to_have_attribute("data-outcome", name if name != "all" else "out_of_turns")


def check_keys(page, viewer):
    show(viewer, 0)
    viewer.focus()
    for key, step in (("ArrowLeft", "2"), ("ArrowLeft", "1"), ("ArrowRight", "2"), ("ArrowRight", "3"), ("ArrowRight", "3")):
        page.keyboard.press(key)
        expect(now(viewer)).to_have_attribute("data-action", step)
    hit = viewer.locator(".an-hit[data-id=m2]")
    hit.focus()
    page.keyboard.press("Enter")
    expect(now(viewer)).to_have_attribute("data-action", "2")
    for shown in ("1", "2", "3"):  # the focused hit disappears with its trajectory; the keys still work
        page.keyboard.press("ArrowDown")
        expect(viewer).to_have_attribute("data-shown", shown)
    page.keyboard.press("ArrowUp")
    expect(viewer).to_have_attribute("data-shown", "2")
    page.keyboard.press(" ")
    expect(viewer.get_by_label("pause", exact=True)).to_be_visible()
    page.keyboard.press(" ")
    expect(viewer.get_by_label("play", exact=True)).to_be_visible()


def check_that_hostile_text_stays_in_its_place(page, viewer, shot):
    for theme, width in (("Light", 1360), ("Dark", 1360), ("Dark", 900)):
        set_theme(page, theme)
        page.set_viewport_size({"width": width, "height": 1000})
        for index, calls in enumerate(SCRIPTS):
            show(viewer, index)
            for step in reversed(range(len(calls)) if theme == "Light" else range(len(calls))[-1:]):
                expect(now(viewer)).to_have_attribute("data-action", str(step))
                settle(page)
                assert viewer.evaluate(TOO_WIDE) == [], (index, step)
                assert viewer.evaluate(TURNED_BY_OTHERS) == [], (index, step)
                if step and theme == "Light":
                    viewer.get_by_label("previous", exact=True).click()
        show(viewer, 1)
        shot(viewer, f"mail_{theme.lower()}_{width}")
    for index, mail, said in ((0, "m1", LINK), (1, "m3", LONG), (5, "m4", HOSTILE)):
        show(viewer, index)
        expect(viewer.locator(".an-reader")).to_have_attribute("data-mail", mail)
        assert said in viewer.locator(".an-reader").inner_text()
    assert viewer.locator("a, img, script, iframe, object, [href], [src]").count() == 0
    assert viewer.evaluate("(root) => [...root.querySelectorAll('*')].some((node) => node.getAttributeNames().some((name) => name.startsWith('on')))") is False
    assert page.evaluate("window.hacked") is None


def test_the_mail_client_while_the_kernel_is_busy(page, lab, shot):
    path = lab.write("mails.ipynb", MAILS, VIEWER, lab.hold("mails"), "print('the kernel is free')")
    page.set_default_timeout(120_000)
    open_notebook(page, lab, path)
    run_all(page)
    viewer = page.locator("[aria-label^='Trajectory viewer']")
    expect(viewer).to_have_attribute("data-shown", "0", timeout=180_000)
    check_the_way_from_query_to_answer(viewer, shot)
    check_outcomes_and_kinds(viewer, shot)
    check_keys(page, viewer)
    check_that_hostile_text_stays_in_its_place(page, viewer, shot)
    free = page.get_by_text("the kernel is free", exact=True)
    assert free.count() == 0, "the kernel was busy during all of this"
    lab.release("mails")
    free.wait_for()
