"""The live page at `/` and its WebSocket: the notebooks' widgets, with the server's data.

The page's scripts are the widgets' own (`art_nb/widgets`) and a small frame (`ui/`); it loads nothing from other origins.
"""

from __future__ import annotations

import asyncio
import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response, WebSocket, WebSocketDisconnect

from art_nb.backends.errors import StatusError
from art_nb.serving.state import ServerState
from art_nb.storage.run_log import RunLog

UI = Path(__file__).with_name("ui")
INTERVAL = 1.0  # seconds between two updates of a page
MAX_TRAJECTORIES = 128  # sent per step; the page also shows the total


@cache
def files() -> dict[str, tuple[bytes, str]]:
    """Return the page's scripts and style sheets: content and media type, by name."""
    from art_nb.widgets import TrainingView, TrajectoryViewer  # imported at first use, because they load slowly
    from art_nb.widgets.view import stylesheet

    script, style = "text/javascript", "text/css"
    return {
        "training_view.js": (TrainingView._esm.encode(), script),
        "trajectory_viewer.js": (TrajectoryViewer._esm.encode(), script),
        "widgets.css": (stylesheet().encode(), style),
        "dashboard.js": ((UI / "dashboard.js").read_bytes(), script),
        "dashboard.css": ((UI / "dashboard.css").read_bytes(), style),
    }


def routes(state: ServerState) -> APIRouter:
    """Return GET /, GET /ui/{name} and the WebSocket /live."""
    router = APIRouter(tags=["page"])

    @router.get("/", include_in_schema=False)
    def page() -> Response:
        return Response((UI / "dashboard.html").read_bytes(), media_type="text/html; charset=utf-8")

    @router.get("/ui/{name}", include_in_schema=False)
    def part(name: str) -> Response:
        if name not in files():
            raise StatusError(404, f"no file {name!r:.200}")
        content, media_type = files()[name]
        return Response(content, media_type=f"{media_type}; charset=utf-8")

    @router.websocket("/live")
    async def live(socket: WebSocket) -> None:
        """Send changes of the server's state and of the page's selected model, once a second and after a selection."""
        await socket.accept()
        updates = PageUpdates(state)
        receiving = asyncio.create_task(_receive(socket, updates))
        try:
            while not receiving.done():
                updates.selected.clear()
                for message in await asyncio.to_thread(updates.changes):
                    await socket.send_text(json.dumps(message))
                waits = [receiving, asyncio.create_task(updates.selected.wait())]
                await asyncio.wait(waits, timeout=INTERVAL, return_when=asyncio.FIRST_COMPLETED)
                waits[1].cancel()
        except (WebSocketDisconnect, RuntimeError):  # the page was closed during a send
            pass
        finally:
            receiving.cancel()

    return router


async def _receive(socket: WebSocket, updates: PageUpdates) -> None:
    """Apply the page's messages until it disconnects; close the connection after a malformed one."""
    try:
        while True:
            updates.select(json.loads(await socket.receive_text())["watch"])
    except WebSocketDisconnect:
        return
    except (ValueError, TypeError, KeyError):
        await socket.close(1007)


class PageUpdates:
    """Builds the messages for one page, each only when its content has changed."""

    def __init__(self, state: ServerState) -> None:
        self.state, self.selected = state, asyncio.Event()
        self._sent: dict[str, Any] = {}
        self._model = ""

    def select(self, model: Any) -> None:
        """Send updates of the model "project/name" from now on."""
        self._model = model if isinstance(model, str) else ""
        self._sent = {"state": self._sent.get("state")}
        self.selected.set()

    def changes(self) -> list[dict[str, Any]]:
        """Return messages for what has changed since the last call."""
        status = self.state.status()
        messages: list[dict[str, Any]] = [{"state": status}] if self._record_change("state", status) else []
        models, model = self.state.models, self._model
        project, _, name = model.partition("/")
        if (project, name) not in models.specs:
            return messages
        folder = models.folder(project, name)
        log, history = RunLog(folder), folder / "history.jsonl"
        subject, text = self.state.progress.latest
        text = text if subject == model else ""
        if self._record_change("training", (model, history.stat().st_size if history.exists() else 0, text)):
            messages.append({"model": model, "training": _training_view(log.rows(), model, text)})
        step = max((int(path.stem) for path in (folder / "trajectories/train").glob("*.jsonl")), default=None)
        if step is not None and self._record_change("step", (model, step)) and (records := log.records("train", step)):
            viewer = _trajectory_viewer(records[:MAX_TRAJECTORIES])
            messages.append({"model": model, "trajectories": {**viewer, "total": len(records)}})
        return messages

    def _record_change(self, kind: str, value: Any) -> bool:
        changed = self._sent.get(kind) != value
        self._sent[kind] = value
        return changed


def _training_view(history: list[dict[str, Any]], title: str, message: str) -> dict[str, Any]:
    from art_nb.widgets import TrainingView

    view = TrainingView.from_history(history, title=title)
    view.finished, view.message = False, message
    return {name: getattr(view, name) for name in TrainingView.class_own_traits(sync=True)}


def _trajectory_viewer(records: list[dict[str, Any]]) -> dict[str, Any]:
    from art_nb.widgets import TrajectoryViewer

    view = TrajectoryViewer(records)
    traits = {name: getattr(view, name) for name in TrajectoryViewer.class_own_traits(sync=True)}
    return {**traits, "bodies": base64.b64encode(view.bodies).decode()}
