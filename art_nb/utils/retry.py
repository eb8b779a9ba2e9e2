"""`from art_nb.utils.retry import retry`, as ART's examples write it."""

from art_nb.rollouts.retrying import retry

__all__ = ["retry"]
