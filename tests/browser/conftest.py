"""A real JupyterLab and Debian's Chromium for the browser tests: fixtures `lab` (server) and `page` (browser tab)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from course import commands

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # noqa: E501
REPOSITORY = Path(__file__).resolve().parents[2]
# Cells of any length rendered, no autosave during a test; those against news and update checks are the settings of `make lab`.
SETTINGS = {
    "docmanager-extension/plugin.jupyterlab-settings": {"autosave": False},
    "notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Lab:
    """A running JupyterLab: its address, the folder it serves, and its kernels."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def write(self, name: str, *cells: str) -> Path:
        """Save a notebook with these code cells."""
        import nbformat.v4 as v4

        notebook = v4.new_notebook(cells=[v4.new_code_cell(source) for source in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = self.folder / name
        path.write_text(json.dumps(notebook), encoding="utf-8")
        return path

    def hold(self, name: str) -> str:
        """Source of a cell that keeps the kernel busy until `release(name)`, so that no test depends on the machine's speed."""
        gate = str(self.folder / f"{name}.go")
        return f"import os, time\nwhile not os.path.exists({gate!r}):\n    time.sleep(0.05)"

    def release(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()

    def shut_kernels_down(self) -> None:
        for session in json.load(urllib.request.urlopen(f"{self.url}/api/sessions")):
            address = f"{self.url}/api/sessions/{session['id']}"
            urllib.request.urlopen(urllib.request.Request(address, method="DELETE"))


def wait_for(url: str, server: subprocess.Popen, log: Path, seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=2)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError(f"JupyterLab did not answer at {url}. Its log:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """It is served below a path, as by JupyterHub: requests to the root of the address fail."""
    home = tmp_path_factory.mktemp("lab")
    folder = home / "notebooks"
    folder.mkdir()
    for name, content in SETTINGS.items():
        path = home / "config/lab/user-settings/@jupyterlab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    env = {**os.environ, "HOME": str(home), "JUPYTER_CONFIG_DIR": str(home / "config"), "JUPYTER_CONFIG_PATH": str(commands.LAB_SETTINGS),
           "JUPYTER_DATA_DIR": str(home / "data"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
           "IPYTHONDIR": str(home / "ipython"), "PYTHONPATH": os.environ.get("PYTHONPATH", str(REPOSITORY)), "OMP_NUM_THREADS": "1"}  # noqa: E501
    port = free_port()
    log = home / "lab.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
             "--ServerApp.ip=127.0.0.1", "--IdentityProvider.token=", "--ServerApp.password=", "--allow-root",
             f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True",
             "--ServerApp.disable_check_xsrf=True", "--ServerApp.base_url=/user/ann/"],
            env=env, stdout=out, stderr=subprocess.STDOUT,
        )  # noqa: E501
    url = f"http://127.0.0.1:{port}/user/ann"
    try:
        wait_for(f"{url}/api/status", server, log)
        yield Lab(url, folder)
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


@pytest.fixture(scope="module")  # Playwright keeps an event loop running in this thread until it is stopped
def browser():
    from playwright.sync_api import sync_playwright

    if not Path(CHROMIUM).exists():
        pytest.fail(
            f"The browser tests need Chromium at {CHROMIUM}. On Debian or Ubuntu: apt-get install -y chromium. "
            "Elsewhere set CHROMIUM to the path of its executable."
        )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def context(browser):
    """A browser profile, shared by a module's tests: a new one takes a quarter of a second and has an empty cache."""
    with browser.new_context(viewport={"width": 1360, "height": 1000}) as context:
        yield context


@pytest.fixture
def page(context):
    """Return a tab of a profile without cookies and stored data, which are deleted at the end.

    Asserts at the end that no script error occurred and that no request went to another machine.
    """
    tab = context.new_page()
    tab.set_default_timeout(30_000)
    errors, strangers = [], []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: strangers.append(request.url) if is_elsewhere(request.url) else None)
    yield tab
    context.new_cdp_session(tab).send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
    tab.close()
    assert not errors, errors
    assert not strangers, strangers


def is_elsewhere(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))


@pytest.fixture
def shot(tmp_path):
    """Save a screenshot under $ART_NB_SHOTS (or the test's own folder): shot(page_or_locator, name)."""
    folder = Path(os.environ.get("ART_NB_SHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def save(target, name: str) -> Path:
        target.screenshot(path=folder / f"{name}.png")
        return folder / f"{name}.png"

    return save


@pytest.fixture(scope="session")
def watch_folder(tmp_path_factory):
    """A folder with the views of the page "Watch it learn"."""
    from test_watch_it_learn import write_page

    return write_page(tmp_path_factory.mktemp("watch"))


@pytest.fixture(scope="session")
def watch_site(watch_folder):
    from test_watch_it_learn import serve

    with serve(watch_folder) as address:
        yield address


@pytest.fixture(scope="session")
def references():
    """The policies of the page, computed by transformers."""
    from policy_reference import ITEMS, Reference

    return {game: Reference(game) for game in ITEMS}
