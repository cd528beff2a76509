"""The course of a run, collected in a single pass over its metrics, which may be too long to hold in memory."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lesson.runs.summary import with_final_score

WHOLE = {"merged", "merged_staleness", "merged_started_s", "merged_arrived_s"}
"""Fields of a line with the details of each aggregated update."""
MAX_FIRST = 20_000
"""Number of aggregated updates after which the lines of further rounds are not kept."""


@dataclass
class Course:
    """Evaluations and aggregated updates of a run."""

    scores: list[dict[str, float]] = field(default_factory=list)
    """Its evaluations: round, time_s, accuracy, and uploads, bytes_up and energy_j summed up to that round."""
    first: list[dict[str, Any]] = field(default_factory=list)
    """The lines of its first rounds; empty if lines lack the fields in `WHOLE`."""
    merges: Counter[int] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    """Per client: how many of its updates were aggregated, and the sum of their staleness in model versions."""
    end_s: float = 0.0


def course_of(lines: Iterable[dict[str, Any]], final_accuracy: float) -> Course:
    """Collect the course of a run from its lines.

    If the last round was not evaluated, its point gets the accuracy of the final model.
    """
    course, totals, num_first = Course(), {"uploads": 0.0, "bytes_up": 0.0, "energy_j": 0.0}, 0
    for line in with_final_score(lines, {"accuracy": final_accuracy}):
        course.end_s = line["time_s"]
        for name in totals:
            totals[name] += float("nan") if line[name] is None else line[name]
        if "accuracy" in line:
            course.scores.append({name: line[name] for name in ("round", "time_s", "accuracy")} | totals)
        if line.keys() >= WHOLE:
            for client, late in zip(line["merged"], line["merged_staleness"], strict=True):
                course.merges[client] += 1
                course.staleness[client] += late
            if num_first < MAX_FIRST:
                course.first.append(line)
            num_first += max(1, len(line["merged"]))
    return course
