"""The base settings of a reproduction."""

from functools import cache

from lesson.settings.settings import Settings


@cache
def base_settings(preset: str = "released") -> Settings:
    """Return the settings of a preset; under `released`, tier 1 is never empty, as in the authors' code."""
    return Settings(preset=preset, ensure_first_tier=preset == "released")
