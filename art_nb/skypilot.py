"""`from art_nb.skypilot import SkyPilotBackend`, the import path that ART's examples use."""

from art_nb.backends.skypilot import SkyPilotBackend

__all__ = ["SkyPilotBackend"]
