"""Semi-synchronous federated learning on unequal, wireless clients."""

from pathlib import Path
from typing import TYPE_CHECKING

from lesson.stopping import one_line_if_interrupted

with one_line_if_interrupted():
    from lesson.errors import InputError
    from lesson.fleet import Fleet, draw_fleet
    from lesson.fleet_csv import read_fleet
    from lesson.records import RoundRecord
    from lesson.scenario import Population, Scenario, draw_population
    from lesson.simulate import Simulation, simulate
    from lesson.strategies import FedAvg, FedCS, Lesson, LessonAdaptive, LessonFilled, LessonMemory, Strategy
    from lesson.tiers import assign_tiers, due

if TYPE_CHECKING:
    from lesson.study import Run, Study

__version__ = "0.1.0"

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
    "RoundRecord",
    "Scenario",
    "Simulation",
    "Strategy",
    "assign_tiers",
    "draw_fleet",
    "draw_population",
    "due",
    "load",
    "read_fleet",
    "simulate",
]


def load(folder: Path | str) -> "Run | Study":
    """The finished run of a folder, or the finished runs of a comparison or a sweep."""
    from lesson.folders import load  # torch and pandas come with it, and take seconds

    return load(folder)
