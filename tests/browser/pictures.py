"""Take the README's and a notebook's pictures again: `python -m pytest tests/browser/pictures.py` (six minutes; not part of
`make test`). `-k watch_it_learn` takes the animated one alone.

Training and trajectory show notebook 02's committed outputs in the book, the live page notebook 11 while it runs in JupyterLab.
"""

from __future__ import annotations

import io
import json
import re

import pytest
from PIL import Image
from playwright.sync_api import expect
from test_book import REPOSITORY, book, open_page, site  # noqa: F401
from test_widgets_in_lab import open_notebook, press, run_all, settle

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]

def save(locator, name: str, height: float = 9999) -> None:
    """Save the upper `height` pixels as a PNG. Asserts that it has less than 150 kB.

    It keeps all colours: a palette of the most frequent ones would lose the colour of a few small dots.
    """
    path = REPOSITORY / name
    picture = Image.open(io.BytesIO(locator.screenshot())).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, round(height))))
    picture.save(path, optimize=True)
    assert path.stat().st_size < 150_000, path


def opened(page, lab, name: str) -> None:
    """Open the notebook without outputs, next to the data that it reads, in JupyterLab."""
    notebook = json.loads((REPOSITORY / f"notebooks/{name}.ipynb").read_text("utf-8"))
    notebook["metadata"].pop("widgets", None)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    path = lab.folder / f"{name}.ipynb"
    path.write_text(json.dumps(notebook), "utf-8")
    data = lab.folder.parent / "data/nano"
    data.parent.mkdir(exist_ok=True)
    if not data.exists():
        data.symlink_to(REPOSITORY / "data/nano")
    open_notebook(page, lab, path)


def test_training(page, site):  # noqa: F811
    open_page(page, f"{site}/notebooks/02_2048.html")
    view = page.locator(".an-training").first
    view.scroll_into_view_if_needed()
    expect(view.locator("[data-key=entropy] .an-line")).to_be_visible()
    save(view, "book/pictures/training.png")


def test_live_page(page, lab):
    """While workers play, after the fourth step."""
    opened(page, lab, "11_serve")
    run_all(page)
    expect(page.frame_locator("iframe.an-page").locator("#link")).to_have_text("connected", timeout=300_000)
    tab = page.context.new_page()
    tab.set_viewport_size({"width": 1100, "height": 1040})
    tab.goto(page.locator(".an-link a").get_attribute("href"))
    expect(tab.locator("#curve .an-training")).to_have_attribute("data-steps", "4", timeout=1_500_000)
    expect(tab.locator("dl div", has_text=re.compile("^worker "))).not_to_have_count(0, timeout=120_000)
    tab.locator("#newer").click()
    settle(tab)
    save(tab.locator("body"), "notebooks/pictures/dashboard.png", 1000)
    lab.shut_kernels_down()


def test_trajectory(page, site):  # noqa: F811
    open_page(page, f"{site}/notebooks/02_2048.html")
    viewer = page.locator(".an-viewer")
    viewer.evaluate("(node) => node.scrollIntoView({ block: 'center' })")
    viewer.get_by_label("Step").select_option("step 24")
    viewer.get_by_label("Sort").select_option("high")
    viewer.locator(".an-row").first.click()
    viewer.get_by_role("button", name="advantage").click()
    viewer.locator("input[type=range]").fill("60")
    press(page, "ArrowRight")
    save(viewer, "book/pictures/trajectory.png")


def test_watch_it_learn(page, book, site):  # noqa: F811
    """The slider goes through the steps on one position, then the last policy plays beside the rule."""
    page.set_viewport_size({"width": 800, "height": 1200})
    page.goto(f"{site}/book/watch_it_learn.html")
    view = page.locator(".an-policy").first
    steps = view.locator(".an-ticks button").count()
    page.wait_for_function("(count) => document.querySelector('.an-policy').dataset.shown == count", arg=steps)
    view.get_by_label("Position").select_option(label="Up or right")
    frames: list[tuple[Image.Image, int]] = []

    def take(milliseconds: int) -> None:
        page.wait_for_function("(count) => document.querySelector('.an-policy').dataset.shown == count", arg=steps)
        frames.append((Image.open(io.BytesIO(view.screenshot())).convert("RGB"), milliseconds))

    slider = view.get_by_label("Training step")
    for step in range(steps):
        slider.fill(str(step))
        take(2000 if step in (0, steps - 1) else 700)
    view.get_by_label("Temperature").fill("0")
    for _ in range(14):
        view.get_by_role("button", name="One move").click()
        take(350)
    frames[-1] = (frames[-1][0], 2000)
    palette = frames[0][0].quantize(64, dither=Image.Dither.NONE)
    first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame, _ in frames]
    path = REPOSITORY / "book/pictures/watch_it_learn.gif"
    first.save(path, save_all=True, append_images=others, duration=[shown for _, shown in frames], loop=0, optimize=True)
    assert path.stat().st_size < 2_000_000, path
