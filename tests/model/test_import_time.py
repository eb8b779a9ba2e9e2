"""`import art_nb` imports no slow package."""

import os
import subprocess
import sys

import pytest


def loaded_by(code: str) -> set[str]:
    """Return the packages outside the standard library that `code` imports."""
    report = "print(*{name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    program = f"import sys\nbefore = set(sys.modules)\n{code}\n{report}"
    return set(subprocess.check_output([sys.executable, "-c", program], text=True).split())


def test_import_loads_no_other_package():
    assert loaded_by("import art_nb") == {"art_nb"}


def test_listing_the_names_loads_no_other_package():
    assert loaded_by("import art_nb; dir(art_nb); art_nb.__all__") == {"art_nb"}


# What reads the setting, without the seconds that `import torch` takes.
LOAD_LIBGOMP = """
import ctypes, importlib.util, pathlib
ctypes.CDLL(str(next(pathlib.Path(importlib.util.find_spec("torch").origin).parents[1].glob("torch*/**/libgomp*"))))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="torch's threads are libgomp's on Linux alone")
@pytest.mark.parametrize(
    ("setting", "count", "load"),
    [({}, "10000", "import torch"), ({"GOMP_SPINCOUNT": "70"}, "70", LOAD_LIBGOMP), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0", LOAD_LIBGOMP)],
)
def test_torchs_threads_spin_for_the_documented_time(setting, count, load):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    run = subprocess.run(
        [sys.executable, "-c", f"import art_nb\n{load}"], env=env | setting | {"OMP_DISPLAY_ENV": "VERBOSE"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert f"GOMP_SPINCOUNT = '{count}'" in run.stderr
