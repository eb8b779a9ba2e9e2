"""Code that only the notebooks use: setup, the doctor, the demo, exercise checks, explorers, the planner.

Depends on `art_nb` and on the environments. Neither depends on this package.
"""
