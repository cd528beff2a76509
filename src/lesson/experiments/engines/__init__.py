"""Engines that execute many runs: processes on this machine, or Ray."""

from lesson.experiments.engines.local import LocalEngine
from lesson.experiments.engines.ray import RayEngine
from lesson.experiments.engines.trial import Engine, Event, Line

__all__ = ["Engine", "Event", "Line", "LocalEngine", "RayEngine"]
