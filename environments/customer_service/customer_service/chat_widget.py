"""`ChatWidget`: the reader chats with an agent as its customer. The agent's database changes are shown beside the chat."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import traitlets as t

from art_nb.environments import clean, quoted
from art_nb.widgets.view import BLUE, GREY, ORANGE, View, figure, module, png, style_axes, stylesheet, table
from customer_service import STOP, RuleCustomer, Task, World
from customer_service.conversation import Conversation
from customer_service.front_desk import FrontDesk
from customer_service.world import is_error

HERE = Path(__file__).parent
MAX_CHARACTERS = 500  # of one line of the customer
MAX_DRAWN_LINES = 26  # of the conversation in the static picture; the middle of a longer one is omitted
STYLES = {"customer": (0.0, BLUE, "sans-serif"), "agent": (0.12, "#1f2328", "sans-serif"), "call": (0.12, GREY, "monospace")}


class _AwaitingReply(BaseException):
    """Stops the agent when no line is left to replay. A `BaseException`, so that `except Exception` does not catch it."""

    def __init__(self, message: str):
        self.message = message


class _ReplayedCustomer:
    """A customer that replays the reader's lines. Raises: _AwaitingReply after the last."""

    def __init__(self, lines: Iterable[str]):
        self._lines = iter(lines)

    def open(self) -> str:
        return next(self._lines)

    def reply(self, message: Any) -> str:
        if not isinstance(message, str):
            raise TypeError(f"the message to the customer is {quoted(repr(message))}: expected text")
        for line in self._lines:
            return line
        raise _AwaitingReply(message)


class ChatWidget(View):
    """A chat with an agent. You write the customer's lines, or let a `RuleCustomer` write them.

    world: the database; it is copied. task: what the customer wants. agent: a callable that serves the customer until the
    conversation is over, such as `Clerk()` (takes a FrontDesk) or `expert` (takes a Conversation). It is rerun from the
    start after each of your lines, so it must be deterministic. desk: FrontDesk, or a callable (world, task, customer).

    `lines` are the customer's lines; everything shown is computed from them. `served` is the object that `desk` returned
    for the agent's last run, or None before the first line. Your lines are displayed as text, never as HTML.
    """

    _esm = module("chat_widget", HERE)
    _css = stylesheet(HERE / "chat_widget.css")
    lines = t.List(t.Unicode()).tag(sync=True)
    shown = t.Dict().tag(sync=True)  # see `_run_agent`
    role = t.Unicode().tag(sync=True)
    stop = t.Unicode(STOP).tag(sync=True)
    longest = t.Int(MAX_CHARACTERS).tag(sync=True)

    def __init__(
        self, world: World, task: Task, agent: Callable[[Any], Any], desk: Callable[..., Any] = FrontDesk,
        lines: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self._world, self._task, self._agent, self._open = world, task, agent, desk
        self.served: Any = None
        super().__init__(lines=list(lines), role=task.instruction)
        self.shown = self._run_agent()

    def play(self) -> ChatWidget:
        """Have a `RuleCustomer` finish the conversation. Returns the widget.

        Raises: ValueError for a task without a script.
        """
        RuleCustomer(self._task)  # raises the ValueError
        while self.shown["suggestion"]:
            self.lines = [*self.lines, self.shown["suggestion"]]
        return self

    @t.validate("lines")
    def _limit_lines(self, proposal: Any) -> list[str]:
        return [clean(line)[:MAX_CHARACTERS] for line in proposal["value"]]

    @t.observe("lines")
    def _lines_changed(self, change: Any) -> None:
        self.shown = self._run_agent()

    def _run_agent(self) -> dict[str, Any]:
        """Run the agent from the start; return the data that the browser draws:

        {"lines": number of lines in this run, "entries": messages and calls in order, see `_entries`, "changes":
        `World.differences`, "broken": {rule: number of violations}, "over": whether the agent returned or raised, "solved":
        bool, "error": the agent's exception or "", "suggestion": the line that a RuleCustomer would write next or ""}.
        """
        pending, error, over = "", "", False
        self.served = self._open(self._world, self._task, _ReplayedCustomer(self.lines)) if self.lines else None
        if self.served is not None:
            try:
                self._agent(self.served)
                over = True
            except _AwaitingReply as turn:
                pending = turn.message
            except Exception as raised:  # the agent may be the reader's own code
                over, error = True, f"The agent raised {type(raised).__name__}: {raised}"
        conversation = self._conversation()
        entries = _entries(conversation.log) if conversation else []
        if pending:
            entries.append({"who": "agent", "text": clean(pending)})
        return {
            "lines": len(self.lines), "entries": entries, "over": over, "error": clean(error),
            "changes": conversation.world.differences() if conversation else [],
            "broken": {rule: n for rule, n in conversation.monitor.violations.items() if n} if conversation else {},
            "solved": bool(conversation and conversation.solved()), "suggestion": "" if over else self._suggestion(pending),
        }  # fmt: skip

    def _conversation(self) -> Conversation | None:
        return getattr(self.served, "conversation", self.served)

    def _suggestion(self, pending: str) -> str:
        """Return the line that a RuleCustomer would write next; "" for a task without a script."""
        if not self._task.wants:
            return ""
        customer = RuleCustomer(self._task)
        line, conversation = customer.open(), self._conversation()
        for message in [*conversation.agent_messages, pending] if conversation else []:
            line = customer.reply(message)
        return line

    def summary(self) -> str:
        turns = [sum(entry["who"] == who for entry in self.shown["entries"]) for who in ("customer", "agent", "call")]
        end = ("; solved" if self.shown["solved"] else "; not solved") if self.shown["over"] else ""
        changes = len(self.shown["changes"])
        return f"{turns[0]} messages of the customer, {turns[1]} of the agent, {turns[2]} calls; {changes} changes{end}"

    def static_png(self) -> bytes:
        rows = [(entry["who"], line) for entry in self.shown["entries"] for line in _wrapped(entry)]
        rows = rows if len(rows) <= MAX_DRAWN_LINES else [*rows[: MAX_DRAWN_LINES - 7], ("call", "..."), *rows[-6:]]
        right = [line for change in self.shown["changes"] or ["nothing"] for line in textwrap.wrap(change, 44)]
        right += [f"rule {rule} violated {times} times" for rule, times in self.shown["broken"].items()]
        height = 0.9 + 0.19 * max(len(rows), len(right), 3)
        fig = figure(9.6, height)
        chat, changes = fig.subplots(1, 2, width_ratios=[1.9, 1])
        for axes, title in ((chat, "The conversation (customer blue, calls grey)"), (changes, "Changed in the database")):
            style_axes(axes, title)
            axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(max(len(rows), len(right), 3), -0.6))
            axes.grid(False)
        for y, (who, line) in enumerate(rows):
            x, colour, family = STYLES[who]
            chat.text(x, y, line, color=colour, family=family, fontsize=7 if who == "call" else 8, parse_math=False)
        for y, line in enumerate(right):
            changes.text(0, y, line, color=ORANGE, family="monospace", fontsize=7, parse_math=False)
        return png(fig)

    def static_html(self) -> str:
        rows = [[entry["who"], entry["text"] if "text" in entry else f"{_call(entry)} → {entry['answer']}"]
                for entry in self.shown["entries"]]  # fmt: skip
        return table(["speaker", "message or call"], [*rows, *(["database", line] for line in self.shown["changes"])])


def _entries(log: list[dict]) -> list[dict]:
    """Convert a log to entries: messages {"who", "text"} and calls {"who", "name", "given", "answer", "refused"}."""
    entries = []
    for message, after in zip(log, [*log[1:], {}], strict=True):
        for call in message.get("tool_calls") or ():
            name, given = call["function"]["name"], call["function"]["arguments"]
            given = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            answer = after.get("content", "")
            entries.append({"who": "call", "name": clean(str(name)), "given": clean(given), "answer": clean(answer),
                            "refused": is_error(answer)})  # fmt: skip
        if message["role"] in ("user", "assistant") and message["content"]:
            who = "customer" if message["role"] == "user" else "agent"
            entries.append({"who": who, "text": clean(message["content"])})
    return entries


def _call(entry: dict) -> str:
    return f"{entry['name']}({entry['given']})"


def _wrapped(entry: dict) -> list[str]:
    """Return an entry's lines for the static picture; a call is shortened to one line."""
    if entry["who"] == "call":
        return [textwrap.shorten(f"{'✗ ' if entry['refused'] else ''}{_call(entry)}", 84, placeholder=" ...")]
    return textwrap.wrap(entry["text"].replace(STOP, "").strip() or "(leaves)", 88)
