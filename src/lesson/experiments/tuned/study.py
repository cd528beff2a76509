"""The study of a tuned comparison."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.experiments.tuned.measures import table

if TYPE_CHECKING:
    from lesson.experiments.tuned.design import TunedComparison


@dataclass(frozen=True)
class TunedStudy(Study):
    """The final runs of a tuned comparison, labeled by entry, group and β."""

    design: "TunedComparison" = field(kw_only=True)
    done: Mapping[str, Run] = field(kw_only=True)
    """All runs by name, tuning runs included."""

    def table(self) -> pd.DataFrame:
        """Return one row per group, β and complete entry: its settings, and the measures that the rules ask for.

        NAME_ci95 is half the 95 % interval of a mean over the seeds of this study; `time_ratio` and `accuracy_gain`
        (or METRIC_gain) compare an entry with the group's reference, paired over seeds.
        """
        return self._table.copy()

    @cached_property
    def _table(self) -> pd.DataFrame:
        return table(self.design.rules, self.design.groups, self.design.cases, self.done, self.runs)

    def __repr__(self) -> str:
        return super().__repr__().replace("Study", "TunedStudy", 1)
