"""The live page in Chromium: login, updates, reconnecting, on a narrow screen and by keyboard."""

import asyncio
import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect
from running_server import TOKEN, Server
from test_backend import gather
from test_watch_it_learn import serve
from test_widgets_in_lab import open_notebook, run_all, set_theme

import art_nb as art
from art_nb.backends.remote import RemoteBackend

pytestmark = pytest.mark.browser
expect.set_options(timeout=60_000)  # the page reconnects after up to ten seconds, and the server takes a while to start


@pytest.fixture
def context(browser):
    """A fresh browser profile for each test: the tests log in."""
    with browser.new_context(viewport={"width": 1360, "height": 1000}) as context:
        yield context


def train(server, base, path, name="m", size=3):
    """Train one step, in another thread: Playwright's event loop runs in this one."""

    async def step():
        async with RemoteBackend(server.url, TOKEN, path=path) as backend:
            config = {"peft_args": {"r": 4, "lora_alpha": 8}}
            model = art.TrainableModel(name=name, project="p", base_model=str(base), _internal_config=config)
            await model.register(backend)
            groups = await gather(model, await model.get_step(), groups=2, size=size)
            await model.train(groups, art.TrainConfig(learning_rate=5e-2))

    with ThreadPoolExecutor() as pool:
        pool.submit(asyncio.run, step()).result()


def test_the_page_follows_the_server(page, shot, tiny_base, tmp_path):
    server = Server(tmp_path / "served", tiny=str(tiny_base)).start()
    try:
        train(server, tiny_base, tmp_path)
        page.goto(server.url)
        page.get_by_label("Access token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#link")).to_have_text("connected")
        expect(page.locator("#model-buttons button")).to_have_text(re.compile("p/m.*step 1, base model tiny"))
        expect(page.locator("#curve .an-training")).to_have_attribute("data-steps", "1")
        expect(page.locator("#trajectories .an-viewer")).to_contain_text("step 1, group 0, trajectory 0")
        train(server, tiny_base, tmp_path)
        expect(page.locator("#curve .an-training")).to_have_attribute("data-steps", "2")
        expect(page.locator("#curve .an-training")).to_contain_text("step 2 is saved")
        expect(page.locator("#newer")).to_have_text("Show step 2")
        page.locator("#newer").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#trajectories .an-viewer")).to_contain_text("step 2, group 0, trajectory 0")
        expect(page.locator("#shown")).to_have_text("")
        train(server, tiny_base, tmp_path, "second", size=65)
        page.locator("#model-buttons button", has_text="p/second").press("Enter")
        expect(page.locator("#model-buttons button", has_text="p/second")).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#curve .an-training")).to_have_attribute("data-steps", "1")
        expect(page.locator("#shown")).to_have_text("The first 128 of the step's 130 trajectories.")
        shot(page, "dashboard")
        server.kill()
        expect(page.locator("#link")).to_have_class("lost")
        server.start()
        expect(page.locator("#link")).to_have_text("connected")  # with the same cookie
        page.emulate_media(color_scheme="dark")
        expect(page.locator("#curve .an-training")).to_have_attribute("data-theme", "dark")
        page.set_viewport_size({"width": 375, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        shot(page, "dashboard-phone")
        assert TOKEN not in page.content() and TOKEN not in page.url
    finally:
        server.kill()


def login_code(server):
    """Return a login code."""
    request = urllib.request.Request(f"{server.url}/codes", method="POST", headers={"authorization": f"Bearer {TOKEN}"})
    return json.load(urllib.request.urlopen(request))["code"]


def test_a_code_opens_the_page_once(page, browser, server):
    address = f"{server.url}/#code={login_code(server)}"
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(address)
    expect(page.locator("#link")).to_have_text("connected")
    assert page.url == f"{server.url}/" and not [url for url in requested if "code=" in url]  # so no log contains it
    page.reload()
    expect(page.locator("#link")).to_have_text("connected")
    other = browser.new_context().new_page()
    with other.expect_response("**/login", timeout=60_000) as answer:
        other.goto(address)
    assert answer.value.status == 401
    expect(other.get_by_label("Access token")).to_be_visible()
    other.context.close()


ASK = """([url, token]) => fetch(`${url}/v1/models`, { headers: { authorization: `Bearer ${token}` } })
    .then(async (answer) => `${answer.status} ${await answer.text()}`, String)"""


def test_only_pages_of_the_origins_that_are_listed_may_ask(page, tiny_base, tmp_path):
    """The browser asks first whether it may send the token (a preflight request)."""
    with serve(tmp_path) as origin:
        page.goto(origin)
        for options, heard in (([f"--origins={origin}"], '"id":"tiny"'), ([], "Failed to fetch")):
            server = Server(tmp_path / f"served{len(options)}", tiny=str(tiny_base)).start(*options)
            try:
                assert heard in page.evaluate(ASK, [server.url, TOKEN])
                assert not options or page.evaluate(ASK, [server.url, "wrong"]).startswith("401 ")
            finally:
                server.kill()


def test_the_page_in_a_notebook_follows_the_server_through_jupyterlabs_proxy(page, shot, lab, tiny_base, tmp_path):
    """A real JupyterLab with jupyter-server-proxy: the page, its script and its WebSocket below /user/ann/proxy/PORT/."""
    server = Server(tmp_path / "served", tiny=str(tiny_base)).start()
    try:
        shows = f"import art_nb as art\nawait art.RemoteBackend({server.url!r}, open('token').read()).live_page()"
        (lab.folder / "token").write_text(TOKEN)
        open_notebook(page, lab, lab.write("live.ipynb", shows))
        run_all(page)
        frame = page.frame_locator("iframe.an-page")
        expect(frame.locator("#link")).to_have_text("connected")
        train(server, tiny_base, tmp_path)
        expect(frame.locator("#model-buttons button")).to_have_text(re.compile("p/m.*step 1, base model tiny"))
        expect(frame.locator("#trajectories .an-viewer")).to_contain_text("step 1, group 0, trajectory 0")
        shot(page, "live-page-in-lab")
        server.kill()
        expect(frame.locator("#link")).to_have_class("lost")
        server.start()
        expect(frame.locator("#link")).to_have_text("connected")
        near = f"{lab.url}/proxy/{server.port}/"
        cookies = [cookie for cookie in page.context.cookies() if cookie["name"].startswith("art_nb")]
        assert [(cookie["path"], cookie["httpOnly"]) for cookie in cookies] == [(f"/user/ann/proxy/{server.port}", True)]
        # A page of another origin in the same browser is rejected in spite of the cookie.
        stranger = {"cookie": f"{cookies[0]['name']}={cookies[0]['value']}", "origin": "http://127.0.0.1:9"}
        assert page.request.get(f"{near}status").status == 200
        assert page.request.get(f"{near}status", headers=stranger).status == 403
        page.keyboard.press("Control+s")
        expect(page.locator(".jp-mod-dirty")).to_have_count(0)
        assert TOKEN not in (lab.folder / "live.ipynb").read_text("utf-8") + page.content() + page.frames[-1].url
        link = page.locator(".an-link a")
        expect(link).to_have_attribute("href", re.compile(re.escape(near)))
        set_theme(page, "Dark")
        expect(link).to_have_css("color", "rgb(99, 179, 237)")  # the blue that is readable on a dark background
    finally:
        server.kill()
        lab.shut_kernels_down()
