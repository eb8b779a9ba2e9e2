"""A server's models as if they were here: `RemoteBackend(url, api_key)` in the place of `LocalBackend()`.

Knows HTTP from the client's side and what a `Backend` promises. Knows nothing about how the server samples or learns.
"""

from art_nb.remote.backend import RemoteBackend

__all__ = ["RemoteBackend"]
