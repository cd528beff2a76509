"""Contract tests for custom strategies, to be called from your own test suite; they do not need pytest."""

from lesson.testing.strategies import check_strategy

__all__ = ["check_strategy"]
