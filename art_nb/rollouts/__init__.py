"""Run coroutines concurrently: results in order, failures counted, progress shown, tracebacks short.

The layer below trajectories: awaiting a `TrajectoryGroup` needs it, and `art_nb.gather` builds on both. Does not depend
on models, and only reads the reward and metrics of trajectories.
"""
