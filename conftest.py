"""Run notebooks under `pytest --nbmake` in a folder of their own, and give each test process one thread."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from course.demo import working_folder

# A notebook that runs alone has all cores. Tests compare a server with this process; it leaves one core to its event loop.
if "PYTEST_XDIST_WORKER" in os.environ or "--nbmake" not in sys.argv:
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it at import; our models gain little from a second thread


# Tests that train, start servers or kernels. `python -m art_nb test --quick` leaves them out, like notebooks and browsers.
SLOW = (
    "tests/backends/", "tests/base_models/", "tests/benchmarks/", "tests/export/", "tests/serving/",
    "tests/course/test_colab.py", "tests/course/test_demo.py", "tests/course/test_exercises.py",
    "tests/course/test_overlap.py", "tests/course/test_setup_cell.py",
    "tests/model/test_art_compat.py", "tests/model/test_art_notebooks.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    root = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(root) and item.path.relative_to(root).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if getattr(item, "nbmake", False):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Run a copy of the notebook in an empty folder beside the course's data, as `make demo` does.

    The run neither uses nor changes what a learner trained in notebooks/.art. With nbmake's `--overwrite` a notebook is
    written back when every cell succeeded.
    """
    if not getattr(item, "nbmake", False):
        return (yield)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        item.filename = str(shutil.copy(item.path, working_folder(Path(folder))))
        result = yield
        if item.config.option.overwrite:
            shutil.copyfile(item.filename, item.path)
    return result
