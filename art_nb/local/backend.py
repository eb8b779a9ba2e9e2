"""`from art_nb.local.backend import LocalBackend`, the import path that some of ART's examples use."""

from art_nb.backends.local import LocalBackend

__all__ = ["LocalBackend"]
