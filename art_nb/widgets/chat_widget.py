"""ChatWidget: you are the customer and an agent serves you; beside it stands what its calls change in the database."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import traitlets as t

from art_nb.tasks.customer_service import STOP, RuleCustomer, Task, World
from art_nb.tasks.customer_service.conversation import Conversation
from art_nb.tasks.customer_service.front_desk import FrontDesk
from art_nb.tasks.customer_service.policy import refused
from art_nb.tasks.email_search.mailbox import clean

from .view import BLUE, GREY, HERE, ORANGE, View, calm, figure, module, png, table

LONGEST = 500  # characters of one message that are heard
DRAWN = 26  # lines of the conversation that fit the picture
LOOKS = {"customer": (0.0, BLUE, "sans-serif"), "agent": (0.12, "#1f2328", "sans-serif"), "call": (0.12, GREY, "monospace")}


class _YourTurn(BaseException):
    """The agent has written, and waits for the customer. No agent should catch it: hence no Exception."""

    def __init__(self, message: str):
        self.message = message


class _Reader:
    """A customer who says these lines, and then has not answered yet."""

    def __init__(self, lines: Iterable[str]):
        self._lines = iter(lines)

    def open(self) -> str:
        return next(self._lines)

    def reply(self, message: str) -> str:
        for line in self._lines:
            return line
        raise _YourTurn(message)


class ChatWidget(View):
    """A conversation with an agent, in which you play the customer or let the customer by rule speak.

    world, task: what the customer has and wants; the world is left alone. agent: works until the conversation is over, as
    `Clerk()` at a FrontDesk or `expert` in a Conversation. It is run from the start after each of your lines, so it must
    answer the same to the same. desk: FrontDesk, or whatever else is made of a world, a task and a customer.

    `lines` is what the customer has said; all that is shown follows from it. `served` is the desk as the agent left it, or
    None before the first line. What you write is heard by the agent and read by nothing else, and shown as text.
    """

    _esm = module("chat_widget")
    _css = View._css + (HERE / "chat_widget.css").read_text("utf-8")
    lines = t.List(t.Unicode()).tag(sync=True)
    shown = t.Dict().tag(sync=True)  # see `_answer`
    role = t.Unicode().tag(sync=True)
    stop = t.Unicode(STOP).tag(sync=True)
    longest = t.Int(LONGEST).tag(sync=True)

    def __init__(
        self, world: World, task: Task, agent: Callable[[Any], Any], desk: Callable[..., Any] = FrontDesk,
        lines: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self._world, self._task, self._agent, self._open = world, task, agent, desk
        self.served: Any = None
        super().__init__(lines=list(lines), role=task.instruction)
        self.shown = self._answer()

    def play(self) -> ChatWidget:
        """Lets the customer by rule say all that is left to say; returns the widget.

        Raises: ValueError for a task without a script.
        """
        RuleCustomer(self._task)
        while self.shown["suggestion"]:
            self.lines = [*self.lines, self.shown["suggestion"]]
        return self

    @t.validate("lines")
    def _heard(self, proposal: Any) -> list[str]:
        return [clean(line)[:LONGEST] for line in proposal["value"]]

    @t.observe("lines")
    def _said(self, change: Any) -> None:
        self.shown = self._answer()

    def _answer(self) -> dict[str, Any]:
        """Runs the agent; what the browser draws.

        Returns: {"lines": how many were heard, "entries": what was said and called, in order, "changes": lines of
          `World.differences`, "broken": {rule: times}, "over": bool, "solved": bool, "error": what the agent raised, or "",
          "suggestion": what the customer by rule would say now, or ""}.
        """
        pending, error, over = "", "", False
        self.served = self._open(self._world, self._task, _Reader(self.lines)) if self.lines else None
        if self.served is not None:
            try:
                self._agent(self.served)
                over = True
            except _YourTurn as turn:
                pending = turn.message
            except Exception as raised:  # the reader's own agent: what it raised is the news
                over, error = True, f"The agent raised {type(raised).__name__}: {raised}"
        talk = self._talk()
        entries = _entries(talk.log) if talk else []
        if pending:
            entries.append({"who": "agent", "text": pending})
        return {
            "lines": len(self.lines), "entries": entries, "over": over, "error": clean(error),
            "changes": talk.world.differences() if talk else [],
            "broken": {rule: times for rule, times in talk.watch.broken.items() if times} if talk else {},
            "solved": bool(talk and talk.solved()), "suggestion": "" if over else self._suggestion(pending),
        }  # fmt: skip

    def _talk(self) -> Conversation | None:
        return getattr(self.served, "talk", self.served)

    def _suggestion(self, pending: str) -> str:
        """What the customer by rule would say now: their first message, or the reply to the agent's last."""
        if not self._task.wants:
            return ""
        customer = RuleCustomer(self._task)
        said, talk = customer.open(), self._talk()
        for message in [*talk.said, pending] if talk else []:
            said = customer.reply(message)
        return said

    def summary(self) -> str:
        turns = [sum(entry["who"] == who for entry in self.shown["entries"]) for who in ("customer", "agent", "call")]
        end = ("; solved" if self.shown["solved"] else "; not solved") if self.shown["over"] else ""
        changes = len(self.shown["changes"])
        return f"{turns[0]} messages of the customer, {turns[1]} of the agent, {turns[2]} calls; {changes} changes{end}"

    def static_png(self) -> bytes:
        rows = [(entry["who"], line) for entry in self.shown["entries"] for line in _wrapped(entry)]
        rows = rows if len(rows) <= DRAWN else [*rows[: DRAWN - 7], ("call", "..."), *rows[-6:]]
        right = [line for change in self.shown["changes"] or ["nothing"] for line in textwrap.wrap(change, 44)]
        right += [f"broken rule: {rule}, {times} times" for rule, times in self.shown["broken"].items()]
        height = 0.9 + 0.19 * max(len(rows), len(right), 3)
        fig = figure(9.6, height)
        talk, changes = fig.subplots(1, 2, width_ratios=[1.9, 1])
        for axes, title in ((talk, "The conversation (customer blue, calls grey)"), (changes, "Changed in the database")):
            calm(axes, title)
            axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(max(len(rows), len(right), 3), -0.6))
            axes.grid(False)
        for y, (who, line) in enumerate(rows):
            x, colour, family = LOOKS[who]
            talk.text(x, y, line, color=colour, family=family, fontsize=7 if who == "call" else 8, parse_math=False)
        for y, line in enumerate(right):
            changes.text(0, y, line, color=ORANGE, family="monospace", fontsize=7, parse_math=False)
        return png(fig)

    def static_html(self) -> str:
        rows = [[entry["who"], entry["text"] if "text" in entry else f"{_call(entry)} → {entry['answer']}"]
                for entry in self.shown["entries"]]  # fmt: skip
        return table(["who", "said or called"], [*rows, *(["database", line] for line in self.shown["changes"])])


def _entries(log: list[dict]) -> list[dict]:
    """A conversation's log as it is drawn: messages {"who", "text"}, calls {"who", "name", "given", "answer", "refused"}."""
    entries = []
    for message, after in zip(log, [*log[1:], {}], strict=True):
        for call in message.get("tool_calls") or ():
            name, given = call["function"]["name"], call["function"]["arguments"]
            given = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            answer = after.get("content", "")
            entries.append({"who": "call", "name": clean(str(name)), "given": clean(given), "answer": clean(answer),
                            "refused": refused(answer)})  # fmt: skip
        if message["role"] in ("user", "assistant") and message["content"]:
            who = "customer" if message["role"] == "user" else "agent"
            entries.append({"who": who, "text": clean(message["content"])})
    return entries


def _call(entry: dict) -> str:
    return f"{entry['name']}({entry['given']})"


def _wrapped(entry: dict) -> list[str]:
    """An entry as lines of the picture; of a call the one that names it."""
    if entry["who"] == "call":
        return [textwrap.shorten(f"{'✗ ' if entry['refused'] else ''}{_call(entry)}", 84, placeholder=" ...")]
    return textwrap.wrap(entry["text"].replace(STOP, "").strip() or "(leaves)", 88)
