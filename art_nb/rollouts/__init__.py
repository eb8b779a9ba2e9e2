"""Many coroutines at once: results in order, failures counted, silences explained, attempts repeated, tracebacks short.

Knows asyncio and the progress bar. Knows nothing about models, and of trajectories only that they have a reward and metrics.
"""
