"""Where many runs are executed: processes of this machine, or Ray."""

from lesson.engines.local import LocalEngine
from lesson.engines.ray import RayEngine
from lesson.engines.trial import Engine, Event, Line

__all__ = ["Engine", "Event", "Line", "LocalEngine", "RayEngine"]
