"""Semi-synchronous federated learning on unequal, wireless clients."""

from lesson.errors import InputError
from lesson.fleet import Fleet, draw_fleet
from lesson.fleet_csv import read_fleet
from lesson.records import RoundRecord
from lesson.scenario import Population, Scenario, draw_population
from lesson.simulate import Simulation, simulate
from lesson.strategies import FedAvg, FedCS, Lesson, LessonAdaptive, LessonFilled, LessonMemory, Strategy
from lesson.tiers import assign_tiers, due

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
    "read_fleet",
    "simulate",
]
