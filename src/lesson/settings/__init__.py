"""Every parameter of a run, with its default, unit and bounds."""

from lesson.settings.loading import load_settings
from lesson.settings.settings import SECTIONS, Settings

__all__ = ["SECTIONS", "Settings", "load_settings"]
