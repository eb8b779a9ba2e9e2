"""The exercises of notebook 08: right answers are accepted in any form, and a mistake gets its hint."""

import itertools
import re
from collections import Counter

import pytest
from exercise_answers import hold_mistakes

from course.exercises.customer_service import CONFIRMED, CONVERSATIONS, EXERCISES, PASS, check
from customer_service import pass_hat_k
from customer_service.clerks import Clerk
from customer_service.front_desk import WHO


def pass_hat(tries, k):
    """Compute it by counting the selections."""
    shares = [[all(drawn) for drawn in itertools.combinations(task, k)] for task in tries]
    return sum(sum(share) / len(share) for share in shares) / len(shares)


def unconfirmed(events, agents=slice(-1, None), speaker="customer"):
    """Look back from each write. agents: which of the agent's messages may name the order. speaker: who may say yes."""
    broken = 0
    for i, (who, order) in enumerate(events):
        if who == "write":
            last, said = events[i - 1] if i else ("", "")
            proposals = [text for w, text in events[: max(0, i - 1)] if w == "agent"][agents]
            broken += not (last in speaker and re.search(r"\byes\b", said, re.I) and any(order in text for text in proposals))
    return broken


def straight_after_the_proposal(events):
    """Let no other message be between the proposal and the yes."""
    before = [events[max(0, i - 2) : i] for i, (who, _) in enumerate(events) if who == "write"]
    return unconfirmed(events) + sum([w for w, _ in two] == ["customer", "customer"] and "Yes" in two[1][1] for two in before)


def keeps_an_old_yes(events):
    """Count as the solution does, but let a later message of the agent leave the customer's yes valid."""
    broken, proposal, agreed = 0, "", False
    for who, text in events:
        if who == "agent":
            proposal = text
        elif who == "customer":
            agreed = "yes" in re.findall(r"\w+", text.lower())
        else:
            broken += not (agreed and text in proposal)
            agreed = False
    return broken


def pay(solved, due, looked, broken):
    return looked + 2 * (solved and looked) - 4 * broken


def serve(desk):
    while not desk.over:
        if desk.user is None:
            desk.call(*(("find_customer", {}) if desk.last_match(WHO) else ("ask", {"about": "who"})))
        elif desk.order is None:
            desk.call("find_order", {})
        else:
            item = re.search(r"the (\w+) of", " ".join(desk.customer_messages))[1]
            desk.call("tell_price", {"item": item})
    return desk


def rash(desk):
    """Look up the order before the customer is identified."""
    desk.call("find_order", {})
    return serve(desk)


RIGHT = {"pass_hat": pass_hat, "unconfirmed": unconfirmed, "pay": pay, "serve": serve}
WRONG = {
    "pass_hat": [
        (lambda tries, k: sum(sum(task) / len(task) for task in tries) / len(tries), "For the input"),
        (lambda tries, k: sum((sum(task) / len(task)) ** k for task in tries) / len(tries), "A success rate to the"),
        (lambda tries, k: sum(any(task) for task in tries) / len(tries), "For the input"),
        (lambda tries, k: sum(float(0 not in task) for task in tries) / len(tries), "only the k"),
        (lambda tries, k: 1 - pass_hat([[1 - x for x in task] for task in tries], k), "pass@k"),
        (lambda tries, k: (sum(map(sum, tries)) / sum(map(len, tries))) ** k, "Tasks differ"),
    ],
    "unconfirmed": [
        (lambda events: 0, "For the input"),
        (keeps_an_old_yes, "For the input"),
        (straight_after_the_proposal, "expected 0, got 1"),
        (lambda events: unconfirmed(events, speaker=("agent", "customer")), "expected 1, got 0"),
        (lambda events: unconfirmed(events, agents=slice(None)), "An earlier proposal"),
        (lambda events: Counter(who for who, _ in events)["write"], "Those after a yes are"),
    ],
    "pay": [
        (lambda solved, due, looked, broken: float(solved), "to be idle"),
        (lambda solved, due, looked, broken: solved + 0.5 * looked, "breaking a rule"),
        (lambda solved, due, looked, broken: solved * (1 + looked) - 3 * broken, "no signal"),
        (lambda solved, due, looked, broken: 0.3 * (looked and due) + (solved and (due or looked)) - 1.5 * broken, "no signal"),
        (lambda solved, due, looked, broken: looked - broken, "looked and solved"),
        (lambda solved, due, looked, broken: 5.0 * (solved and not due) + looked + solved, "Doing nothing where nothing is"),
        (lambda solved, due, looked, broken: pay(solved, due, looked, bool(broken)), "second broken rule"),
        (lambda solved, due, looked, broken: solved * looked + 0.2 * looked - broken, "breaking a rule"),  # equal, but for rounding
        (lambda solved, due, looked, broken: "well", "Expected a number"),
    ],
    "serve": [
        (lambda desk: desk, "still waiting"),
        (rash, "unidentified"),
        (lambda desk: desk.call("get_order", {}), "A call to an unknown"),
        (lambda desk: [desk.call("decline", {}) for _ in range(14)], "not answered"),
        (lambda desk: desk.conversation.nothing, "raised AttributeError"),
    ],
}  # fmt: skip


def test_there_are_answers_to_every_exercise():
    assert set(RIGHT) == set(WRONG) == set(EXERCISES)


@pytest.mark.parametrize("name", RIGHT)
def test_another_right_answer_is_right(name):
    assert check(name, RIGHT[name]).status == "right", check(name, RIGHT[name])


@pytest.mark.parametrize(("name", "answer", "words"), [(n, a, w) for n, cases in WRONG.items() for a, w in cases])
def test_a_mistake_gets_its_hint(name, answer, words):
    verdict = check(name, answer)
    assert verdict.status == "wrong" and re.search(words, verdict.text), verdict


def test_every_known_mistake_gets_its_hint():
    hold_mistakes({"pass_hat": PASS, "unconfirmed": CONFIRMED})


def test_the_solutions_agree_with_the_library():
    for tries, k in PASS.cases():
        assert pass_hat_k(tries, k).value == pytest.approx(pass_hat(tries, k))
    assert [unconfirmed(events) for events in CONVERSATIONS] == [0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 2, 1]
    assert check("serve", Clerk()).status == "right" and check("serve", Clerk(hurried=True)).status == "right"
