"""Designs: what to run. A design names its runs, and turns those that are done into a study."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from lesson.core.errors import InputError
from lesson.experiments.run import Run
from lesson.settings.settings import Settings

if TYPE_CHECKING:  # for annotations only
    from lesson.experiments.study import Study

Named = dict[str, Settings]
"""The settings of runs by name."""


def combined(parts: Iterable[Named]) -> Named:
    """Return all runs of several designs; raise InputError if two of them have the same name but other settings."""
    runs: Named = {}
    for part in parts:
        for name, settings in part.items():
            if runs.setdefault(name, settings) != settings:
                raise InputError(f"two runs would have the same name, {name}; write their values differently")
    return runs


class Design(Protocol):
    """A plan for many runs. `Grid`, `TunedComparison` and the paper's `Reproduction` are designs."""

    @property
    def kind(self) -> str:
        """The kind of its studies, as recorded in study.toml."""
        ...

    @property
    def toml(self) -> str:
        """The text of a settings file that defines these runs; study.toml starts with it."""
        ...

    @property
    def archived(self) -> bool:
        """Whether runs are also kept in an archive. If so, a run that diverged is a result, not a failure."""
        ...

    def runs(self, done: Mapping[str, Run]) -> Named:
        """Return the runs to execute, given those that are done. A tuning phase adds runs once it is complete."""
        ...

    def later(self, done: Mapping[str, Run]) -> Named:
        """Return stand-ins for the runs that a tuning phase will add, so that their number and length are known."""
        ...

    def study(self, done: Mapping[str, Run], failures: Mapping[str, str]) -> "Study":
        """Return the runs of this design that are done, as a study."""
        ...
