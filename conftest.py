"""How notebooks run under `pytest --nbmake`, and how parallel test processes share the processor."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from art_nb.course.demo import working_folder

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported; our models gain little from a second thread


def pytest_collection_modifyitems(items):
    for item in items:
        if getattr(item, "nbmake", False):
            item.add_marker(pytest.mark.timeout(1800))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A notebook runs as a copy in an empty folder beside the course's data, as under `make demo`.

    What a learner trained in notebooks/.art neither shortens the run nor is lost by it. With nbmake's `--overwrite` a
    notebook of which every cell succeeded is written back.
    """
    if not getattr(item, "nbmake", False):
        return (yield)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        item.filename = str(shutil.copy(item.path, working_folder(Path(folder))))
        result = yield
        if item.config.option.overwrite:
            shutil.copyfile(item.filename, item.path)
    return result
