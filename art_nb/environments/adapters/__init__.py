"""Environments of other projects in TRL's contract, one module for each.

What they make plugs into `rollout_environment` and into stock TRL. Each needs its extra (`pip install 'art-nb[gymnasium]'`)
and imports it when it is used. Does not depend on tasks, models or training.
"""
