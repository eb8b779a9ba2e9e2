"""KLExplorer and TokenLens in a real JupyterLab: numbers compared with Python's, dragging, keys, sorting, hostile tokens."""

from __future__ import annotations

import re

import pytest
from test_widgets_in_lab import open_notebook, press, run_all, set_theme, settle, wait_idle

from course.explorers import KLExplorer, TokenLens

pytestmark = pytest.mark.browser

SETUP = "import random\nfrom course.explorers import KLExplorer, TokenLens"
HOSTILE = ["<img src=x onerror=window.hacked=1>", "</script><script>window.hacked=1</script>", " a b", "\n", "", "\u202eevil"]
LENS = f"""
tokens = {HOSTILE!r} + ["<tool_call>", '{{"name"', ":", " \\"search", "_mail", "\\"", "}}", "\\n\\n", "The", " answer", " is", " 42", "."]
draw = random.Random(4)
n = len(tokens)
old = [-draw.expovariate(1.5) for _ in tokens]
given = dict(tokens=tokens, logprobs=[x + draw.gauss(0, 0.25) for x in old], old_logprobs=old,
             ref_logprobs=[x + draw.gauss(0, 0.5) for x in old], advantages=[1.2 if i < 12 else -0.7 for i in range(n)])
"""


def number(text):
    return float(text.replace("−", "-").replace("×", ""))


def shown_numbers(view):
    """Return {k: (mean, bias, std, share below zero)} and the two divergences that the view shows."""
    found = {}
    for box in view.locator(".an-estimator").all():
        mean, bias, std, below = box.locator(".an-stats b").all_inner_texts()
        share = 0.0005 if below == "<0.1%" else float(below.rstrip("%")) / 100
        found[box.get_attribute("data-name")] = (number(mean), number(bias), number(std), share)
    return found, tuple(map(number, view.locator(".an-facts b").all_inner_texts()))


def put(view, **values):
    for name, value in values.items():
        view.locator(f"input[aria-label={name}]").fill(str(value))
    settle(view.page)


def shift_of(view):
    settle(view.page)
    return float(view.locator("input[aria-label=shift]").input_value())


def test_the_kl_explorer_agrees_with_python_and_responds_to_pointer_and_keys(page, lab, shot):
    path = lab.write("kl.ipynb", SETUP, "view = KLExplorer()\nview", lab.hold("kl"), "print('at', view.shift, view.width)")
    open_notebook(page, lab, path)
    run_all(page)
    view = page.locator(".an-kl")
    view.locator(".an-stats b").first.wait_for()
    busy = page.locator(".jp-Notebook-ExecutionIndicator[data-status=busy]")
    for shift, width in [(1, 1.5), (0, 1.5), (-2.5, 0.8), (3, 4), (0.3, 3), (-0.05, 1.45), (3, 1)]:
        put(view, shift=shift, width=width)
        python = KLExplorer(shift, width)
        found, divergences = shown_numbers(view)
        assert divergences == pytest.approx(python.divergences(), abs=6e-4, rel=0.06)
        for name, (mean, bias, std, below) in found.items():
            exact = python.estimates()[name]
            assert (mean, bias, std) == pytest.approx((exact["mean"], exact["bias"], exact["std"]), abs=6e-4, rel=0.06)
            assert below == pytest.approx(exact["below_zero"], abs=6e-4)

    put(view, shift=0.0, width=1.5)
    handle = view.locator(".an-handle circle").bounding_box()
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    slot = view.locator(".an-plot").evaluate("(plot) => (plot.clientWidth - 34) / 9")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + slot, y + 5, steps=4)
    page.mouse.move(x + 2 * slot, y + 60, steps=4)
    page.mouse.up()
    assert shift_of(view) == pytest.approx(2, abs=0.06), "the peak follows the pointer"
    page.mouse.move(x, y, steps=3)
    assert shift_of(view) == pytest.approx(2, abs=0.06), "and stays there after the release"
    assert view.locator(".an-handle").evaluate("(node) => node === document.activeElement")
    press(page, "ArrowLeft", "ArrowLeft", "ArrowUp", "Shift+ArrowRight")
    assert shift_of(view) == pytest.approx(2.3, abs=0.06)
    assert view.locator(".an-handle").get_attribute("aria-valuetext").endswith("width 1.60")
    assert busy.count(), "the kernel was busy during all of this"
    put(view, shift=2.0)
    press(page, "Home")
    put(view, shift=1.25, width=1.0)
    shot(view, "kl_light")
    lab.release("kl")
    page.get_by_text("at 1.0 1.5").wait_for()  # Python handled no message until its cells had run
    wait_idle(page)
    page.locator(".jp-CodeCell").nth(3).click()
    page.keyboard.press("Control+Enter")
    page.get_by_text("at 1.25 1.0").wait_for()
    set_theme(page, "Dark")
    view.get_by_label("Mean of n samples").select_option("16")
    view.locator(".an-handle").focus()
    press(page, "ArrowLeft")
    shot(view, "kl_dark_16")


def check_the_mean_of_n_samples(page):
    """It is narrower by the root of n."""
    view = page.locator(".an-kl")
    view.locator(".an-stats b").first.wait_for()
    exact = KLExplorer(0.8, 1.3).estimates()
    for n in (4, 16, 64):
        view.get_by_label("Mean of n samples").select_option(str(n))
        settle(page)
        found, _ = shown_numbers(view)
        for name, (mean, _, std, _) in found.items():
            assert mean == pytest.approx(exact[name]["mean"], abs=6e-4)
            # 2,000 repeats; k2 and k3 have rare large values. Another n would be off by a factor of two.
            assert std == pytest.approx(exact[name]["std"] / n**0.5, rel=0.25)
        assert found["k1"][3] < exact["k1"]["below_zero"] and found["k3"][3] == 0
    settle(page)
    again, _ = shown_numbers(view)
    view.get_by_label("Mean of n samples").select_option("1")
    view.get_by_label("Mean of n samples").select_option("64")
    settle(page)
    assert shown_numbers(view)[0] == again, "the same seed, the same draws"


def table_of(view):
    heads = [re.sub(" [▴▾]$", "", text) for text in view.locator("th").all_inner_texts()]
    rows = view.locator("tbody tr[data-i]").all()
    return [dict(zip(heads, row.locator("td").all_inner_texts(), strict=True)) for row in rows]


def test_the_lens_shows_pythons_numbers_and_sorts(page, lab, shot):
    path = lab.write("lens.ipynb", SETUP, LENS + "TokenLens(**given, title='Trajectory 3')", lab.hold("lens"))
    open_notebook(page, lab, path)
    run_all(page)
    view = page.locator(".an-lens")
    view.locator(".an-chip").first.wait_for()
    scope = {}
    exec(SETUP + LENS, scope)
    python = TokenLens(**scope["given"])
    count = len(python.tokens)

    chips = view.locator(".an-chip")
    assert chips.count() == count
    assert chips.all_inner_texts()[:5] == [HOSTILE[0].replace(" ", "·"), HOSTILE[1].replace(" ", "·"), "·a·b", "⏎", "∅"]
    assert page.evaluate("window.hacked") is None and view.locator("img, script").count() == 0
    marked = [bool(re.search(r"\ban-clipped\b", chip.get_attribute("class"))) for chip in chips.all()]
    assert marked == python.columns["clipped?"] and 0 < sum(marked) < count

    def check_rows():
        for row in table_of(view):
            i = int(row["#"])
            for name, values in python.columns.items():
                if name == "clipped?":
                    assert row[name] == ("yes" if values[i] else "no")
                else:
                    assert number(row[name]) == pytest.approx(values[i], abs=6e-4, rel=6e-3)

    check_rows()
    for head in ("logprob", "KL", "ratio"):
        button = view.locator(f"th[data-head='{head}'] button")
        button.click()
        settle(page)
        assert view.locator(f"th[data-head='{head}']").get_attribute("aria-sort") == "ascending"
        ranked = sorted(range(count), key=lambda i: python.columns[head][i])
        shown = [int(row["#"]) for row in table_of(view)]
        assert shown == ranked[: len(shown)] and len(shown) > 8
        press(page, "Enter")
        assert view.locator(f"th[data-head='{head}']").get_attribute("aria-sort") == "descending"
        assert [int(row["#"]) for row in table_of(view)] == ranked[::-1][: len(shown)]
        assert view.locator("th[aria-sort]:not([aria-sort=none])").count() == 1
    check_rows()

    now = view.locator(".an-now")
    height = view.evaluate("(node) => node.clientHeight")
    chips.nth(9).hover()
    settle(page)
    facts = dict(zip(now.locator("span.an-muted").all_inner_texts(), now.locator("b").all_inner_texts(), strict=True))
    assert facts["token"].startswith('·"search') and number(facts["KL"]) == pytest.approx(python.columns["KL"][9], abs=6e-4)
    chips.nth(0).click()
    press(page, "ArrowRight", "ArrowRight")
    assert now.locator("b").first.inner_text().startswith("·a·b")
    assert view.evaluate("(node) => node.clientHeight") == height, "the layout does not jump"
    background = "(chip) => getComputedStyle(chip).backgroundColor"
    before = chips.nth(1).evaluate(background)
    for quantity in ("ratio", "KL", "advantage"):
        view.get_by_label("Colour").select_option(quantity)
        settle(page)
        assert chips.nth(1).evaluate(background) != before
        before = chips.nth(1).evaluate(background)
    view.get_by_label("Colour").select_option("ratio")
    assert page.locator(".jp-Notebook-ExecutionIndicator[data-status=busy]").count(), "the kernel was busy during all of this"
    lab.release("lens")
    shot(view, "lens_light")
    set_theme(page, "Dark")
    view.locator("th[data-head='KL'] button").click()
    view.get_by_label("Colour").select_option("KL")
    shot(view, "lens_dark")


def check_two_thousand_tokens(page, shot):
    """The view stays small, and the columns are only those of the given values."""
    view = page.locator(".an-lens")
    view.locator(".an-chip").first.wait_for()
    assert view.locator("th").count() == 3 and view.locator("option[value]").count() == 1
    assert view.locator(".an-chip").count() == 2000 and view.locator("tbody tr").count() < 40
    view.locator("th[data-head=logprob] button").click()
    settle(page)
    assert number(table_of(view)[0]["logprob"]) == pytest.approx(-1999 / 400, abs=6e-4)
    view.locator(".an-rows").evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
    page.wait_for_function("document.querySelector('.an-lens tbody').lastElementChild.dataset.i === '0'")
    view.locator(".an-chip").first.click()
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.an-lens tr.an-on')?.dataset.i === '1999'")
    assert view.locator("tr.an-on").is_visible()
    shot(view, "lens_many")


def test_means_of_n_samples_and_two_thousand_tokens(page, lab, shot):
    many = "TokenLens([f' w{i}' + '\\n' * (i % 40 == 39) for i in range(2000)], [-(i * 7919 % 2000) / 400 for i in range(2000)])"
    path = lab.write("many.ipynb", SETUP, "KLExplorer(0.8, 1.3)", many)
    open_notebook(page, lab, path)
    run_all(page)
    check_the_mean_of_n_samples(page)
    check_two_thousand_tokens(page, shot)
