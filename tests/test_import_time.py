"""`import art_nb` loads nothing that takes long."""

import subprocess
import sys

HEAVY = [
    "torch",
    "transformers",
    "trl",
    "peft",
    "unsloth",
    "datasets",
    "openai",
    "pydantic",
    "pandas",
    "numpy",
]
HEAVY += ["matplotlib", "IPython", "anywidget", "ipywidgets", "tqdm", "httpx"]


def loaded_by(code: str) -> set[str]:
    report = f"{code}\nimport sys\nprint(*(m for m in {HEAVY} if m in sys.modules))"
    result = subprocess.run([sys.executable, "-c", report], check=True, capture_output=True, text=True)
    return set(result.stdout.split())


def test_import_loads_no_heavy_module():
    assert loaded_by("import art_nb") == set()


def test_looking_at_the_names_loads_no_heavy_module():
    assert loaded_by("import art_nb; dir(art_nb); art_nb.__all__") == set()


def test_trajectories_and_models_need_no_torch():
    code = "import art_nb as art; art.TrainableModel, art.TrajectoryGroup, art.gather_trajectory_groups"
    assert not loaded_by(code) & {"torch", "transformers", "trl", "pandas"}
