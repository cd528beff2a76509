"""Data of single runs for a report page: the aggregated updates and the stored clients."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lesson.core.errors import InputError
from lesson.report.groups import Group

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


def stored_clients(group: Group) -> list[dict[str, Any]]:
    """Return the stored clients of each run, with their actual latencies; empty for a run without any."""
    stored = [run.read_clients() for run in group.runs]
    known = [(run, clients) for run, clients in zip(group.runs, stored, strict=True) if clients]
    for run, clients in known:
        count, wanted = (len(columns.get("class_accuracy", [])) for columns in (clients, known[0][1]))
        if count != wanted:
            raise InputError(
                f"{run.path}/clients.json: class_accuracy must have {wanted} values, as in "
                f"{known[0][0].path}/clients.json, got {count}"
            )
    return [_actual(clients) for clients in stored]


def _actual(kept: dict[str, Any]) -> dict[str, Any]:
    """Replace the assumed latency of a promoted client by its actual latency."""
    promoted = kept.get("promoted")
    if promoted is None or promoted["client"] not in kept["clients"]["number"]:
        return kept
    place, columns = kept["clients"]["number"].index(promoted["client"]), dict(kept["clients"])
    if not columns["latency_s"][place]:
        return kept
    factor = promoted["latency_s"] / columns["latency_s"][place]
    for name in ("compute_s", "upload_s", "latency_s"):
        values = list(columns[name])
        values[place] = values[place] and values[place] * factor
        columns[name] = values
    return kept | {"clients": columns}
