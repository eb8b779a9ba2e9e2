"""`from art_nb.local.backend import LocalBackend`, as some of ART's examples write it."""

from art_nb.backends.local import LocalBackend

__all__ = ["LocalBackend"]
