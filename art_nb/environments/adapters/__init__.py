"""Adapters from other projects' environments to TRL's contract and, in `to_...` modules, the other way round.

Adapted environments plug into `rollout_environment` and stock TRL. Each adapter needs an extra, such as `art-nb[gymnasium]`,
and imports its package when it is used, `to_verifiers` when it is imported. Does not depend on tasks, models or training.
"""
