"""`from art_nb.local.backend import LocalBackend`, as some of ART's examples write it."""

from art_nb.backend import LocalBackend

__all__ = ["LocalBackend"]
