"""`from art_nb.local import LocalBackend`, the import path that ART's examples use."""

from art_nb.backends.local import LocalBackend

__all__ = ["LocalBackend"]
