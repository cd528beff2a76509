"""What a report page shows of a single run: its aggregated updates."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

DETAILS = {"merged", "merged_staleness", "merged_started_s", "merged_arrived_s"}
"""Fields of a line with the details of each aggregated update."""
MAX_FIRST = 20_000
"""Lines are kept until a run has this many aggregated updates."""


@dataclass
class Course:
    """The aggregated updates of a run."""

    num_merges: dict[int, int] = field(default_factory=dict)
    """Number of aggregations up to each round; empty for an archived run."""
    first: list[dict[str, Any]] = field(default_factory=list)
    """The lines of the first rounds; empty if lines lack the fields in `DETAILS`."""
    merges: Counter[int] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    """Per client: how many of its updates were aggregated, and the sum of their staleness in model versions."""
    end_s: float = 0.0


def course_of(lines: Iterable[dict[str, Any]]) -> Course:
    """Collect the course of a run from its lines."""
    course, num_first, num_merges = Course(), 0, 0
    for line in lines:
        course.end_s = line["time_s"]
        if "staleness" in line:
            num_merges += line["staleness"] is not None
            course.num_merges[line["round"]] = num_merges
        if line.keys() >= DETAILS:
            for client, late in zip(line["merged"], line["merged_staleness"], strict=True):
                course.merges[client] += 1
                course.staleness[client] += late
            if num_first < MAX_FIRST:
                course.first.append(line)
            num_first += max(1, len(line["merged"]))
    return course
