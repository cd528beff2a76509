"""Contract tests for custom strategies and worlds, to be called from your own test suite; they do not need pytest."""

from lesson.testing.strategies import check_strategy
from lesson.testing.worlds import check_world

__all__ = ["check_strategy", "check_world"]
