"""Kill a Flower run after some messages."""

from typing import Any

from helpers.local_grid import LocalGrid


class KilledError(Exception):
    """Raised in place of a kill."""


def kill_after(grid: LocalGrid, num_messages: int) -> None:
    """Make a grid end the run once this many messages have been sent."""
    push = grid.push_messages

    def push_messages(messages: Any) -> list[str]:
        if grid.num_pushed >= num_messages:
            raise KilledError
        return push(messages)

    grid.push_messages = push_messages  # type: ignore[method-assign]
