"""Names of runs: how a run differs from its preset, and its seed."""

from functools import cache
from typing import Any

from lesson.experiments.grid import in_words
from lesson.settings.settings import Settings

BARE = ("fleet", "radio", "upload", "strategy", "training", "data")
"""Sections whose settings are named without their section."""
QUALIFIED = ("server", "faults", "guards")


def series_name(settings: Settings) -> str:
    """Return strategy, data set and all differences from the preset, with the learning rate last."""
    ours, usual = settings.to_sections(), _defaults(settings.preset)
    options = settings.strategy.options
    changed: dict[str, Any] = {}
    for section in (*BARE, *QUALIFIED):
        prefix = f"{section}." if section in QUALIFIED else ""
        values = {name: one for name, one in ours[section].items() if usual[section].get(name) != one}
        changed |= {f"{prefix}{name}": one for name, one in values.items() if name not in ("name", "dataset", *options)}
        changed |= options if section == BARE[-1] else {}
    parts = [settings.strategy.name, settings.data.dataset]
    parts += [settings.preset] if settings.preset != "released" else []
    parts += [f"{name}={in_words(changed[name])}" for name in sorted(changed, key="learning_rate".__eq__)]
    return "-".join(parts)


@cache
def _defaults(preset: str) -> dict[str, Any]:
    return Settings(preset=preset).to_sections()


def run_name(settings: Settings) -> str:
    """Return the name of a run's series, followed by its seed."""
    return f"{series_name(settings)}-seed{settings.run.seed}"
