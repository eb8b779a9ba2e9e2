"""`from art_nb.local import LocalBackend`, the import path that ART's examples use."""

from .backend import LocalBackend

__all__ = ["LocalBackend"]
