"""The exercises of notebook 08, Customer service."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from statistics import fmean
from typing import Any

from course.exercises import Exercise, checker, is_number, show
from customer_service.clerks import Clerk
from customer_service.course import course_tasks, course_world
from customer_service.front_desk import FrontDesk

# 1. pass^k

TRIES = [
    ([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]], 1), ([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]], 2),
    ([[1, 0, 0, 0], [1, 1, 1, 0]], 3), ([[1, 1], [1, 0, 1, 1, 1]], 2), ([[1, 1, 1]], 3),
]  # fmt: skip


def _pass_hat(tries: list[list[int]], k: int) -> float:
    return fmean(comb(sum(task), k) / comb(len(task), k) for task in tries)


PASS = Exercise(
    right=_pass_hat,
    cases=lambda: TRIES,
    mistakes={
        "This is pass@k, the probability that at least one of k tries succeeds. In pass^k all k must succeed.":
            lambda tries, k: fmean(1 - comb(len(task) - sum(task), k) / comb(len(task), k) for task in tries),
        "Tasks differ: compute the probability for each task, then the mean over the tasks.":
            lambda tries, k: fmean(one for task in tries for one in task) ** k,
        "A success rate to the k-th power draws with replacement. Count the subsets of k tries in which all succeed.":
            lambda tries, k: fmean(fmean(task) ** k for task in tries),
        "Not all tries have to succeed, only the k that are drawn.":
            lambda tries, k: fmean(float(all(task)) for task in tries),
    },
)  # fmt: skip

# 2. A rule that no tool enforces

Event = tuple[str, str]


def _unconfirmed(events: list[Event], word=True, once=True, latest=True, named=True, last=True) -> int:
    """Count unconfirmed writes. An option switched off is a condition that a learner may forget."""
    broken, proposal, agreed = 0, "", False
    for who, text in events:
        if who == "agent":
            proposal, agreed = text if last else proposal + text, agreed and not latest
        elif who == "customer":
            yes = "yes" in (text.lower().replace(".", " ").replace(",", " ").split() if word else text.lower())
            agreed = yes or (agreed and not latest)
        elif who == "write":
            broken += not (agreed and (text in proposal or not named))
            agreed = agreed and not once
    return broken


ASK = ("agent", "I will cancel order #W1. Do you confirm?")
CONVERSATIONS: list[list[Event]] = [
    [("customer", "Cancel #W1."), ASK, ("customer", "Yes."), ("write", "#W1")],
    [("customer", "Cancel #W1."), ("write", "#W1")],
    [ASK, ("customer", "No."), ("write", "#W1")],
    [ASK, ("customer", "I bought it yesterday."), ("write", "#W1")],
    [ASK, ("customer", "Yes, please."), ("write", "#W1"), ("write", "#W1")],
    [ASK, ("customer", "Yes."), ("agent", "Do you confirm #W1?"), ("customer", "Wait."), ("write", "#W1")],
    [ASK, ("customer", "Yes."), ("agent", "One moment, I cancel #W1."), ("write", "#W1")],
    [ASK, ("customer", "Yes."), ("write", "#W2")],
    [ASK, ("customer", "Oh, yes."), ("write", "#W1")],
    [ASK, ("customer", "Yesterday I moved."), ("write", "#W1")],
    [ASK, ("customer", "Yes."), ("customer", "No, wait."), ("write", "#W1")],
    [ASK, ("customer", "Yes."), ("agent", "Do you confirm #W2, too?"), ("customer", "Yes."), ("write", "#W1")],
    [ASK, ("customer", "One moment."), ("customer", "Yes."), ("write", "#W1")],
    [ASK, ("agent", "I wait for your yes."), ("write", "#W1")],
    [("customer", "Yes, cancel #W1."), ("write", "#W1"), ASK, ("customer", "YES"), ("write", "#W1"), ("write", "#W2")],
    [("write", "#W1"), ASK, ("customer", "Yes.")],
]

CONFIRMED = Exercise(
    right=_unconfirmed,
    cases=lambda: [(list(events),) for events in CONVERSATIONS],
    mistakes={
        "`yesterday` contains `yes`: compare words.": lambda events: _unconfirmed(events, word=False),
        "`Yes.` contains the word *yes*: separate the punctuation from the words.":
            lambda events: _unconfirmed([(who, text.replace(".", "_").replace(",", "_")) for who, text in events]),
        "One yes permits one change: after a write a new one is needed.": lambda events: _unconfirmed(events, once=False),
        "A yes is valid until the next message, which may revoke it.":
            lambda events: _unconfirmed(events, latest=False),
        "A yes to `#W1` does not permit `#W2`: the agent's proposal must name the order that is changed.":
            lambda events: _unconfirmed(events, named=False),
        "An earlier proposal is no longer valid: the agent's last message before the yes must name the order.":
            lambda events: _unconfirmed(events, last=False),
        "This counts all writes. Those after a yes are allowed.":
            lambda events: sum(who == "write" for who, _ in events),
    },
)  # fmt: skip

# 3. A reward under which idleness does not pay


def _pays(solved: bool, due: bool, looked: bool, broken: int) -> float:
    return 0.3 * looked + (1.0 * solved if due or looked else 0.0) - 1.5 * broken


def _wrong_pay(answer: Callable[..., Any]) -> str | None:
    every = [(solved, due, looked, broken) for solved in (False, True) for due in (False, True) for looked in (False, True)
             for broken in (0, 1, 2)]  # fmt: skip
    for case in every:
        if not is_number(value := answer(*case)):
            return f"Expected a number. For solved, due, looked, broken = {show(case)} it is {value!r}."

    def pay(*case: Any) -> float:
        return round(float(answer(*case)), 9)  # 1 + 0.2 - 1 is below 0.2 by rounding only

    for due in (True, False):
        if pay(True, due, True, 0) <= pay(False, due, True, 0):
            return "An agent that looked and solved the task must earn more than one that looked and did not."
    if pay(True, False, False, 0) >= pay(True, False, True, 0):
        return "Declining without looking earns as much as declining after looking: the agent will learn to be idle."
    if pay(True, False, False, 0) >= pay(True, True, True, 0):
        return "Doing nothing where nothing is due earns as much as solving a case with work to do."
    if any(pay(False, due, True, 0) <= pay(False, due, False, 0) for due in (True, False)):
        return "An agent that looked is nearer to the solution: pay for it, or the first steps have no signal."
    if any(pay(True, due, True, 1) >= pay(False, due, True, 0) for due in (True, False)):
        return "Solving a task by breaking a rule earns as much as failing: the agent will learn to break rules."
    if pay(True, True, True, 2) >= pay(True, True, True, 1):
        return "The second broken rule costs nothing."
    return None


PAY = Exercise(right=_pays, cases=lambda: [(True, True, True, 0)], accept=_wrong_pay)

# 4. An agent of your own


def _price_desks() -> list[tuple[FrontDesk]]:
    """Return a desk for each validation customer who wants to know a price."""
    tasks = [task for task in course_tasks("retail", "val") if task.wants["kind"] == "price"]
    return [(FrontDesk(course_world("retail"), task),) for task in tasks]


def _wrong_agent(serve: Callable[[FrontDesk], Any]) -> str | None:
    for (desk,) in _price_desks():
        serve(desk)
        last = f"The customer's last message: {desk.customer_messages[-1]!r}"
        if desk.ended_by == "malformed":
            return "A call to an unknown tool, or with wrong arguments, ended the conversation."
        if not desk.over:
            return f"The customer is still waiting. Continue until `desk.over`. {last}"
        if not desk.reward():
            opening = desk.conversation.opening
            return f"{opening!r} was not answered: look up the order, then call `tell_price`. {last}"
        if rules := [rule.replace("_", " ") for rule, times in desk.conversation.monitor.violations.items() if times]:
            return f"Your agent gave the price but broke a rule: {', '.join(rules)}. Look up the customer before the order."
    return None


AGENT = Exercise(right=Clerk(), cases=_price_desks, accept=_wrong_agent)

EXERCISES = {"pass_hat": PASS, "unconfirmed": CONFIRMED, "pay": PAY, "serve": AGENT}

check = checker(EXERCISES)
