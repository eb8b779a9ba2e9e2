"""Run coroutines concurrently: results in order, failures counted, progress shown, tracebacks short.

The layer below trajectories: awaiting a `TrajectoryGroup` needs it, and `art_nb.gather` builds on both. Knows nothing about
models, and of trajectories only their reward and metrics.
"""
