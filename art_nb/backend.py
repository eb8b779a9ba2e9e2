"""`from art_nb.backend import Backend, LocalBackend`, as in ART."""

from art_nb.backends.local import LocalBackend
from art_nb.model import Backend

__all__ = ["Backend", "LocalBackend"]
