"""Environments of other projects in TRL's contract, one module for each.

The environments plug into `rollout_environment` and stock TRL. Each adapter needs an extra, such as `art-nb[gymnasium]`,
and imports its package when it is used. Does not depend on tasks, models or training.
"""
