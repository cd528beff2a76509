"""The metric by which the models of a task are compared: its name, its direction and its targets."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError

TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Target accuracies, unless a task has others."""
GUESSED = 0.1
"""Accuracy of guessing among ten classes, which counts as the accuracy of a model that has diverged."""
IN_A_ROW = 3
ROUNDING = 1e-12
MAX_TARGETS = 100
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
        round rounds time_s uploads bytes_up bytes_down energy_j staleness loss global_loss client_accuracy client_loss
        merged merged_staleness merged_started_s merged_arrived_s merged_expected_s misses retiered lost
        rejected rejections rejected_by excluded exhausted note notes
        strategy dataset device seed seeds metric metrics higher_is_better time_to_s wall_s ended_early clock
        train_metrics client_metrics connected tiers latency_s
        wall_trainer limits done error kind killed diverged collapsed name group entry beta settings reference
        """,
    )
)
"""Names that files, events and tables use for other values."""


def check_metric_name(name: object) -> None:
    """Raise InputError if a metric cannot have this name, which becomes that of a field, a column and a file."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= 60 else f"{repr(name)[:59]}…"
        raise InputError(
            "the name of a metric must start with a letter and have at most 40 letters, digits, '_', '-' or '.', "
            f"got {shown}"
        )
    if name in RESERVED:
        raise InputError(f"a metric must not be called '{name}', which is a reserved name; rename the metric")


@dataclass(frozen=True)
class Metric:
    """A metric on the test data. Accuracy is from 0 to 1 and shown in percent; other metrics may be any numbers.

    Attributes:
        name: Name of the field in the files of a run, and of the columns of tables.
        higher_is_better: Whether larger values are better.
        targets: Values for which the time is reported, from the easiest to the hardest.
    """

    name: str = "accuracy"
    higher_is_better: bool = True
    targets: tuple[float, ...] = TARGETS

    def __post_init__(self) -> None:
        check_metric_name(self.name)
        if self.is_share and not self.higher_is_better:
            raise InputError("higher_is_better must be true for accuracy, got false")
        if len(self.targets) > MAX_TARGETS or not all(map(math.isfinite, self.targets)):
            raise InputError(f"targets of {self.name} must be at most {MAX_TARGETS} finite numbers")
        ordered = tuple(sorted(map(float, self.targets), reverse=not self.higher_is_better))
        if len({f"{target:g}" for target in ordered}) < len(ordered):
            raise InputError(f"targets of {self.name} must differ in their first six digits, got {list(ordered)}")
        object.__setattr__(self, "targets", ordered)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Metric":
        """Return the metric of a summary, or of another table with the entries in `fields`."""
        if "metric" not in values:
            return ACCURACY
        targets = tuple(map(float, values.get("time_to_s", ())))
        return cls(values["metric"], values.get("higher_is_better", True), targets)

    @property
    def fields(self) -> dict[str, Any]:
        """Entries of a summary that describe the metric; none for accuracy with the default targets."""
        return {} if self == ACCURACY else {"metric": self.name, "higher_is_better": self.higher_is_better}

    @property
    def outline(self) -> dict[str, Any]:
        """Entries from which `of` returns this metric if there is no summary."""
        return self.fields and {**self.fields, "time_to_s": self.times_to([], [])}

    @property
    def is_share(self) -> bool:
        """Whether values are from 0 to 1 and shown in percent."""
        return self.name == "accuracy"

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest possible value."""
        return (0.0, 1.0) if self.is_share else (-math.inf, math.inf)

    @property
    def of_diverged(self) -> float:
        """The value assigned to a model that has diverged: that of guessing, or NaN if it is unknown."""
        return GUESSED if self.is_share else math.nan

    # Comparisons

    def cost(self, value: float) -> float:
        """Return a number that is lower for better values, and infinite for NaN."""
        return math.inf if math.isnan(value) else -value if self.higher_is_better else value

    def order(self, values: ArrayLike) -> IntArray:
        """Return the indices of values from the best to the worst, NaN last; equal values keep their order."""
        signed = np.asarray(values, dtype=float) * (-1 if self.higher_is_better else 1)
        return np.argsort(signed, kind="stable")

    def time_to(self, target: float, values: ArrayLike, spent: ArrayLike) -> float | None:
        """Return what was spent (seconds, uploads, …) when a run reaches a target; None if it never does.

        This is the first evaluation at which the mean of three consecutive evaluations reaches the target.
        """
        value = np.asarray(values, dtype=float)
        if len(value) < IN_A_ROW:
            return None
        mean = sum(value[first : len(value) - IN_A_ROW + 1 + first] for first in range(IN_A_ROW)) / IN_A_ROW
        slack = ROUNDING if self.is_share else ROUNDING * abs(target)
        reached = np.flatnonzero(mean >= target - slack if self.higher_is_better else mean <= target + slack)
        return float(np.asarray(spent)[reached[0] + IN_A_ROW - 1]) if len(reached) else None

    def times_to(self, values: ArrayLike, spent: ArrayLike) -> dict[str, float | None]:
        """Return `time_to` of every target, by the target as text."""
        return {f"{target:g}": self.time_to(target, values, spent) for target in self.targets}

    # Tables and files

    @property
    def last10(self) -> str:
        """Name of the mean of the last evaluations."""
        return f"{self.name}_last10"

    @property
    def time_names(self) -> tuple[str, ...]:
        """Names of the columns with the times to targets."""
        return tuple(f"time_to_{target:g}" for target in self.targets)

    def rounded(self, values: ArrayLike) -> FloatArray:
        """Return values as archives and pages keep them: shares to four places, others to six significant digits."""
        given = np.asarray(values, dtype=float)
        return given.round(4) if self.is_share else np.array([float(f"{one:.6g}") for one in given.ravel()])


ACCURACY = Metric()
