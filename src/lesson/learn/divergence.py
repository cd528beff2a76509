"""Errors about models that are no longer finite."""

from dataclasses import dataclass

import numpy as np

from lesson.core.errors import DivergedError
from lesson.learn.cohort import PlannedCohort


@dataclass(frozen=True, eq=False)
class NewestCohort:
    """The cohort that was aggregated last, for the error message if the model is no longer finite."""

    cohort: PlannedCohort | None
    """None before the first aggregation."""
    round: int
    remedy: str

    def __str__(self) -> str:
        if self.cohort is None:
            return "before the first aggregation"
        columns = self.cohort.columns
        num_clients = np.count_nonzero(columns["first"] == 0)
        return (
            f"after round {self.round}, with {num_clients} client{'s' if num_clients > 1 else ''} that started from "
            f"version {self.cohort.base_version} at step size {columns['lr'].max():g}; {self.remedy}"
        )


def not_finite(what: str, newest_cohort: NewestCohort) -> DivergedError:
    """Return the error about a model, or a score of it, that is no longer finite."""
    return DivergedError(f"the {what} is no longer finite {newest_cohort}")


def check_finite(what: str, finite: bool, newest_cohort: NewestCohort) -> None:
    """Raise DivergedError unless `finite`."""
    if not finite:
        raise not_finite(what, newest_cohort)
