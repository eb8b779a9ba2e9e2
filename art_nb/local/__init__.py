"""`from art_nb.local import LocalBackend`, the import path that ART's examples use; knows nothing about what it does."""

from art_nb.backend import LocalBackend

__all__ = ["LocalBackend"]
