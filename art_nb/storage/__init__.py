"""Files of a run: checkpoints, metrics and trajectories, written atomically.

Depends on `trajectories` and `metrics`. Does not depend on what a checkpoint contains, or on training and sampling.
"""
