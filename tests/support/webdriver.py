"""Firefox and WebKitGTK by the commands of W3C WebDriver. Depends on the standard library.

Playwright drives only its own builds of them. Firefox takes the commands on its Marionette socket, as it takes them from geckodriver.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEYS = {"End": "\ue010", "Home": "\ue011", "ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015"}
CALL = "const [f, given, done] = arguments; Promise.resolve().then(() => window.eval(f)(given)).then((v) => done([v]), (e) => done(`${e}`))"
CENTRE = """([selector, i]) => { const node = document.querySelectorAll(selector)[i]; node.scrollIntoView({ block: "center" });
  const { x, y, width, height } = node.getBoundingClientRect(); return [Math.round(x + width / 2), Math.round(y + height / 2)]; }"""


def wait_for(condition: Callable[[], Any], seconds: float = 30) -> Any:
    until = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > until:
            raise TimeoutError(f"waited for {seconds} s")
        time.sleep(0.05)
    return found


class Tab:
    """One tab. A subclass starts its browser, and sends a command by its name (Firefox) or its path (WebKit)."""

    programs: tuple[str, ...]
    processes: list[subprocess.Popen]

    def command(self, name: str, path: str, **parameters: Any) -> Any: ...

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
            process.wait(20)

    def open(self, url: str) -> None:
        self.command("Navigate", "url", url=url)

    def evaluate(self, function: str, given: Any = None) -> Any:
        """Call a JavaScript function with one argument and wait for its promise."""
        found = self.command("ExecuteAsyncScript", "execute/async", script=CALL, args=[function, given])
        assert isinstance(found, list), found  # text: an exception
        return found[0]

    def wait(self, function: str, given: Any = None) -> None:
        wait_for(lambda: self.evaluate(function, given))

    def act(self, kind: str, *actions: dict) -> None:
        self.command("PerformActions", "actions", actions=[{"type": kind, "id": kind, "actions": list(actions)}])

    def press(self, *keys: str) -> None:
        self.act("key", *({"type": action, "value": KEYS.get(key, key)} for key in keys for action in ("keyDown", "keyUp")))

    def click(self, selector: str, i: int = 0) -> None:
        self.drag((selector, i))

    def drag(self, *places: tuple[str, int]) -> None:
        """Press the mouse button at the first place, move over the others, release it. A place: the i-th node of a selector."""
        start, *moves = [{"type": "pointerMove", "x": x, "y": y} for x, y in (self.evaluate(CENTRE, list(place)) for place in places)]
        self.act("pointer", start, {"type": "pointerDown", "button": 0}, *moves, {"type": "pointerUp", "button": 0})


class Firefox(Tab):
    programs = ("firefox-esr",)

    def __init__(self, folder: Path) -> None:
        (folder / "user.js").write_text('user_pref("marionette.port", 0);')  # any free port, which it writes to a file
        arguments = ["firefox-esr", "--headless", "--marionette", "--no-remote", "--profile", str(folder)]
        self.processes = [subprocess.Popen(arguments, env=os.environ | {"HOME": str(folder)})]
        port = wait_for(lambda: (place := folder / "MarionetteActivePort").exists() and place.read_text())
        self.socket = socket.create_connection(("127.0.0.1", int(port)), timeout=120)
        self.stream = self.socket.makefile("rb")
        self._read()
        self.command("NewSession", "", capabilities={})

    def _read(self) -> Any:
        size = b"".join(iter(lambda: self.stream.read(1), b":"))
        return json.loads(self.stream.read(int(size)))

    def command(self, name: str, path: str, **parameters: Any) -> Any:
        message = json.dumps([0, 1, f"WebDriver:{name}", parameters]).encode()
        self.socket.sendall(b"%d:%b" % (len(message), message))
        error, result = self._read()[2:]
        assert not error, error
        return result.get("value", result)


class WebKit(Tab):
    """WebKitGTK has no headless mode: it draws on a screen of its own."""

    programs = ("WebKitWebDriver", "Xvfb")

    def __init__(self, folder: Path) -> None:
        screen = subprocess.Popen(["Xvfb", "-displayfd", "1", "-nolisten", "tcp", "-screen", "0", "1400x1100x24"], stdout=subprocess.PIPE, text=True)
        assert screen.stdout
        display = screen.stdout.readline().strip()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        driver = subprocess.Popen(["WebKitWebDriver", f"--port={port}"], env=os.environ | {"DISPLAY": f":{display}", "HOME": str(folder)})
        self.processes = [driver, screen]
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        self.url = f"http://127.0.0.1:{port}/session"
        self.url += "/" + self.command("NewSession", "", capabilities={})["sessionId"]

    def __exit__(self, *_: object) -> None:
        urllib.request.urlopen(urllib.request.Request(self.url, method="DELETE"), timeout=20).close()
        super().__exit__()

    def command(self, name: str, path: str, **parameters: Any) -> Any:
        request = urllib.request.Request(f"{self.url}/{path}".rstrip("/"), json.dumps(parameters).encode())
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["value"]
