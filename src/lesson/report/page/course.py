"""What a page takes from the lines of a run, which may be many: they are read once and not kept."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

WHOLE = {"merged", "merged_staleness", "merged_started_s", "merged_arrived_s"}
"""What a line has that tells whose work was merged, and when."""
MAX_FIRST = 20_000
"""Merged updates of the rounds that are kept whole."""


@dataclass
class Course:
    """How a run went."""

    scores: list[dict[str, float]] = field(default_factory=list)
    """Its evaluations: round, time_s, accuracy, and the uploads, bytes_up and energy_j until then."""
    first: list[dict[str, Any]] = field(default_factory=list)
    """Its first rounds; none where lines do not say whose work was merged."""
    merges: Counter[int] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    """Of each client: how often it was merged, and the versions it was late in sum."""
    end_s: float = 0.0


def course_of(lines: Iterable[dict[str, Any]], final_accuracy: float) -> Course:
    """How the run of these lines went, whose final model has this accuracy."""
    course, totals, num_first = Course(), {"uploads": 0.0, "bytes_up": 0.0, "energy_j": 0.0}, 0
    line: dict[str, Any] | None = None
    for line in lines:
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
    if line is not None and "accuracy" not in line:
        course.scores.append({"round": line["round"], "time_s": line["time_s"], "accuracy": final_accuracy} | totals)
    return course
