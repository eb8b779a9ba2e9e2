"""`import art_nb` loads nothing that takes long."""

import subprocess
import sys


def loaded_by(code: str) -> set[str]:
    """The packages outside the standard library that `code` loads."""
    report = "print(*{name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    program = f"import sys\nbefore = set(sys.modules)\n{code}\n{report}"
    return set(subprocess.check_output([sys.executable, "-c", program], text=True).split())


def test_import_loads_no_other_package():
    assert loaded_by("import art_nb") == {"art_nb"}


def test_looking_at_the_names_loads_no_other_package():
    assert loaded_by("import art_nb; dir(art_nb); art_nb.__all__") == {"art_nb"}


def test_trajectories_and_models_need_no_torch():
    code = "import art_nb as art; art.TrainableModel, art.TrajectoryGroup, art.gather_trajectory_groups"
    assert not loaded_by(code) & {"torch", "transformers", "trl", "pandas"}
