"""Signals that strategies read from their view; see `ServerView.signals`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Signals(Mapping[str, Any]):
    """Values by name. A value is computed when it is accessed, because most rounds access none."""

    def __init__(self, functions: Mapping[str, Callable[[], Any]]) -> None:
        self._functions = functions

    def __getitem__(self, name: str) -> Any:
        return self._functions[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)
