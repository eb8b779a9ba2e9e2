"""The live page at `/`, and what it is told over its WebSocket: the widgets of notebooks, with their values.

Its browser code is the widgets' own (`art_nb/widgets`) and a small frame around it (`ui/`). Nothing comes from elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response, WebSocket, WebSocketDisconnect

from art_nb.server.errors import Refused
from art_nb.server.registry import BASES
from art_nb.server.served import Served
from art_nb.storage import checkpoints

UI = Path(__file__).with_name("ui")
EVERY = 1.0  # seconds between two looks
MOST_TRAJECTORIES = 128
TRAINING = ("rows", "tail", "known", "quiet", "total_steps", "title", "message", "elapsed", "finished")
TRAJECTORIES = ("index", "has_boards", "has_mails", "kinds", "has_advantages", "advantage_scale")


@cache
def files() -> dict[str, tuple[bytes, str]]:
    """What the page is made of: content and type, by name."""
    from art_nb.widgets import TrainingView, TrajectoryViewer

    script, style = "text/javascript", "text/css"
    return {
        "training_view.js": (TrainingView._esm.encode(), script),
        "trajectory_viewer.js": (TrajectoryViewer._esm.encode(), script),
        "widgets.css": (TrajectoryViewer._css.encode(), style),
        "dashboard.js": ((UI / "dashboard.js").read_bytes(), script),
        "dashboard.css": ((UI / "dashboard.css").read_bytes(), style),
    }


def routes(served: Served) -> APIRouter:
    """GET /, GET /ui/{name}, and the WebSocket /live."""
    router = APIRouter(tags=["page"])

    @router.get("/", include_in_schema=False)
    def page() -> Response:
        return Response((UI / "dashboard.html").read_bytes(), media_type="text/html; charset=utf-8")

    @router.get("/ui/{name}", include_in_schema=False)
    def part(name: str) -> Response:
        if name not in files():
            raise Refused(404, f"there is no {name!r:.200}")
        content, kind = files()[name]
        return Response(content, media_type=f"{kind}; charset=utf-8")

    @router.websocket("/live")
    async def live(socket: WebSocket) -> None:
        """The state of the server once a second where it has changed, and the model that the page watches."""
        await socket.accept()
        watching = Watching(served)
        hearing = asyncio.create_task(_hear(socket, watching))
        try:
            while not hearing.done():
                for message in await asyncio.to_thread(watching.news):
                    await socket.send_text(json.dumps(message))
                watching.asked.clear()
                waits = [hearing, asyncio.create_task(watching.asked.wait())]
                await asyncio.wait(waits, timeout=EVERY, return_when=asyncio.FIRST_COMPLETED)
                waits[1].cancel()
        except (WebSocketDisconnect, RuntimeError):  # it has gone, while it was told something
            pass
        finally:
            hearing.cancel()

    return router


async def _hear(socket: WebSocket, watching: Watching) -> None:
    """Until the page goes. What is no request of it closes the connection."""
    try:
        while True:
            said = json.loads(await socket.receive_text())
            watching.watch(said["watch"])
    except WebSocketDisconnect:
        return
    except (ValueError, TypeError, KeyError):
        await socket.close(1007)


class Watching:
    """What one page has been told so far."""

    def __init__(self, served: Served) -> None:
        self.served, self.asked = served, asyncio.Event()
        self._told: dict[str, Any] = {}
        self._model: str | None = None
        self._tokens: tuple[float, float] | None = None  # sampled, and the seconds that it took

    def watch(self, model: str | None) -> None:
        """From now on the page shows this model, "project/name"."""
        self._model = model if isinstance(model, str) else None
        self._told = {"state": self._told.get("state")}
        self.asked.set()

    def news(self) -> list[dict[str, Any]]:
        """What has changed since the last call."""
        messages: list[dict[str, Any]] = []
        state = self._state()
        if self._is_new("state", state):
            messages.append({"state": state})
        registry, model = self.served.registry, self._model
        key = tuple((model or "").split("/", 1))
        if key not in registry.specs:
            return messages
        folder = registry.folder(registry.specs[key])
        text = self.served.news.last if self.served.news.about == model else ""
        if self._is_new("training", (_version(folder / "history.jsonl"), text)):
            messages.append({"model": model, "training": self._training(*key, text)})
        step = max((int(path.stem) for path in (folder / "trajectories/train").glob("*.jsonl")), default=None)
        if step is not None and self._is_new("step", step) and (records := registry.records(*key, step)):
            messages.append({"model": model, "trajectories": _trajectories(records[:MOST_TRAJECTORIES])})
        return messages

    def _is_new(self, what: str, value: Any) -> bool:
        new = self._told.get(what) != value
        self._told[what] = value
        return new

    def _state(self) -> dict[str, Any]:
        registry, sampling, work = self.served.registry, self.served.sampling(), self.served.work.counts()
        before, self._tokens = self._tokens, (sampling["tokens"], sampling["seconds"])
        tokens, seconds = (now - then for now, then in zip(self._tokens, before or self._tokens, strict=True))
        workers = self.served.work.workers()
        return {
            "models": [
                {
                    "id": f"{spec.project}/{spec.name}", "base_model": spec.base_model,
                    "step": checkpoints.latest(registry.folder(spec) / "checkpoints") or 0,
                }
                for spec in list(registry.specs.values()) if spec.project != BASES
            ],
            "facts": [
                ["conversations decoded", sampling["active"]], ["requests waiting", sampling["waiting"]],
                ["tokens sampled a second", round(tokens / seconds) if seconds else 0],
                ["workers", len(workers)], ["episodes open", work["open"]], ["episodes in hand", work["leased"]],
                ["episodes done", work["done"]], *([f"worker {name}", f"{held} episodes"] for name, held in workers.items()),
            ],
            "last": self.served.news.last,
        }  # fmt: skip

    def _training(self, project: str, name: str, text: str) -> dict[str, Any]:
        from art_nb.widgets import TrainingView

        view = TrainingView.from_history(self.served.registry.history(project, name), title=f"{project}/{name}")
        view.finished, view.message = False, text
        return {trait: getattr(view, trait) for trait in TRAINING}


def _trajectories(records: list[dict[str, Any]]) -> dict[str, Any]:
    from art_nb.widgets import TrajectoryViewer

    view = TrajectoryViewer(records)
    return {**{trait: getattr(view, trait) for trait in TRAJECTORIES}, "bodies": base64.b64encode(view.bodies).decode()}


def _version(path: Path) -> tuple[int, int]:
    """Changes when the file does."""
    if not path.exists():
        return 0, 0
    found = path.stat()
    return found.st_mtime_ns, found.st_size
