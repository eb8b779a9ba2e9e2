"""PolicyExplorer in a real JupyterLab: it waits for a busy kernel, then computes as transformers does with the checkpoints' weights."""

from __future__ import annotations

import pytest
from policy_reference import Reference, checkpoints
from test_watch_it_learn import check_table
from test_widgets_in_lab import open_notebook, press, run_all, save

from course.policy_files import POSITIONS

pytestmark = pytest.mark.browser


def test_it_gets_its_weights_when_the_kernel_is_free_and_the_notebook_keeps_none(page, lab, tmp_path, shot):
    reference, cells = Reference("2048"), POSITIONS["2048"][0][2]
    steps = reference.steps[-2:]
    adapters = {step: str(path) for step, path in checkpoints(reference, tmp_path, steps).items()}
    source = f"""
from pathlib import Path
from course.explorers import PolicyExplorer
adapters = {{step: Path(path) for step, path in {adapters!r}.items()}}
PolicyExplorer("2048", {str(reference.base)!r}, adapters, winning_tile=256)
"""
    path = lab.write("policy.ipynb", source, lab.hold("policy"))
    open_notebook(page, lab, path)
    run_all(page)
    view = page.locator(".an-policy")
    view.get_by_text("Waiting for the weights").wait_for()
    lab.release("policy")
    page.wait_for_function("document.querySelector('.an-policy').dataset.loaded == 3", timeout=60_000)
    check_table(view, reference, "2048", 0, cells)
    view.get_by_label("Training step").focus()
    press(page, "End")
    check_table(view, reference, "2048", steps[-1], cells)
    assert view.locator(".an-facts").inner_text() == f"After step {steps[-1]}."
    shot(view, "policy_in_lab")
    save(page, path)
    assert path.stat().st_size < 300_000
    lab.shut_kernels_down()
