"""Semi-synchronous federated learning on unequal, wireless clients."""

from pathlib import Path
from typing import TYPE_CHECKING

from lesson.core.interrupts import one_line_if_interrupted

with one_line_if_interrupted():
    from lesson.clock.loop import RoundLoop
    from lesson.clock.records import RoundRecord
    from lesson.clock.simulate import Simulation, simulate
    from lesson.core.errors import InputError
    from lesson.core.version import __version__
    from lesson.fleet.csv_files import read_fleet
    from lesson.fleet.fleet import Fleet, draw_fleet
    from lesson.fleet.population import Population, draw_population
    from lesson.fleet.tiers import assign_tiers, due
    from lesson.settings import Settings
    from lesson.strategies import FedAvg, FedCS, Lesson, LessonAdaptive, LessonFilled, LessonMemory, Strategy

if TYPE_CHECKING:
    from lesson.experiments.study import Run, Study

__all__ = [
    "FedAvg",
    "FedCS",
    "Fleet",
    "InputError",
    "Lesson",
    "LessonAdaptive",
    "LessonFilled",
    "LessonMemory",
    "Population",
    "RoundLoop",
    "RoundRecord",
    "Settings",
    "Simulation",
    "Strategy",
    "__version__",
    "assign_tiers",
    "draw_fleet",
    "draw_population",
    "due",
    "load",
    "read_fleet",
    "simulate",
]


def load(folder: Path | str) -> "Run | Study":
    """Return the finished run in a folder, or the study of a comparison's or sweep's finished runs."""
    from lesson.experiments.loading import load  # torch and pandas come with it, and take seconds

    return load(folder)
