"""The live page in Chromium: asked for the token, told what happens, reconnecting by itself, on a phone and by keyboard."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect
from serving import TOKEN, Server
from test_backend import gather

import art_nb as art
from art_nb.remote import RemoteBackend

pytestmark = pytest.mark.browser


def train(server, base, path, name="m"):
    """One step of training, in a thread: Playwright's loop runs in this one."""

    async def step():
        async with RemoteBackend(server.url, TOKEN, path=path) as backend:
            config = {"peft_args": {"r": 4, "lora_alpha": 8}}
            model = art.TrainableModel(name=name, project="p", base_model=str(base), _internal_config=config)
            await model.register(backend)
            groups = await gather(model, await model.get_step(), groups=2, size=3)
            await model.train(groups, art.TrainConfig(learning_rate=5e-2))

    with ThreadPoolExecutor() as pool:
        pool.submit(asyncio.run, step()).result()


def test_the_page_follows_the_server(page, shot, tiny_base, tmp_path):
    server = Server(tmp_path / "served", tiny=str(tiny_base)).start()
    try:
        train(server, tiny_base, tmp_path)
        page.goto(server.url)
        page.get_by_label("The token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("#runs button")).to_have_text(re.compile("p/m.*step 1, on tiny"))
        expect(page.locator("#curve .an-training")).to_have_attribute("data-steps", "1")
        expect(page.locator("#trajectories .an-viewer")).to_contain_text("step 1, group 0, trajectory 0")
        train(server, tiny_base, tmp_path)  # what happens meanwhile is shown
        expect(page.locator("#curve .an-training")).to_have_attribute("data-steps", "2")
        expect(page.locator("#curve .an-training")).to_contain_text("step 2 is saved")
        expect(page.locator("#newer")).to_have_text("Show those of step 2")
        page.locator("#newer").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#trajectories .an-viewer")).to_contain_text("step 2, group 0, trajectory 0")
        train(server, tiny_base, tmp_path, "second")
        page.locator("#runs button", has_text="p/second").press("Enter")
        expect(page.locator("#runs button", has_text="p/second")).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#curve .an-training")).to_have_attribute("data-steps", "1")
        shot(page, "dashboard")
        server.kill()
        expect(page.locator("#link")).to_have_class("lost")
        server.start()
        expect(page.locator("#link")).to_have_text("live")  # with the cookie that it has
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 375, "height": 700})
        expect(page.locator("#curve .an-training")).to_have_attribute("data-theme", "dark")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        shot(page, "dashboard-phone")
        assert TOKEN not in page.content() and TOKEN not in page.url
    finally:
        server.kill()
