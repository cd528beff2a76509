"""The page of `lesson plan --html`: an interactive explorer of deadlines for a fleet."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lesson.core.files import check_output
from lesson.fleet.fleet import Fleet, columns_of, sample_by_latency
from lesson.planning.plan import propose_deadline_s
from lesson.report.page.document import write_document

EXPLORER = (
    "tiers.js",
    "fleet_csv.js",
    "flight_jsonl.js",
    "explorer_words.js",
    "explorer_charts.js",
    "explorer_deploy.js",
    "explorer.js",
)
"""Scripts of the explorer in the order in which they are loaded."""
MAX_CLIENTS = 5000
"""Most clients that a page holds; a larger fleet is sampled evenly by latency."""


@dataclass(frozen=True)
class Advice:
    """What a page says about a deadline to start with.

    Attributes:
        proposed_s: The proposed deadline in seconds.
        min_on_time: Share of updates for which this deadline was chosen; None if it was chosen by latency alone.
        on_time: Share of updates that arrive on time at this deadline; None if it was not simulated.
        fedavg_round_s: Simulated mean round length of FedAvg; None if latencies do not vary.
    """

    proposed_s: float
    min_on_time: float | None = None
    on_time: float | None = None
    fedavg_round_s: float | None = None


@dataclass(frozen=True)
class Origin:
    """Where the clients of a page come from.

    Attributes:
        source: Text that names the file or the seed.
        flags: Flags of `lesson run` for the same clients; None if there are none.
        recording: File of the recording to which the fleet was fitted; None for other fleets.
    """

    source: str
    flags: str | None = None
    recording: str | None = None


def fleet_data(fleet: Fleet, deadline_s: float, origin: Origin, advice: Advice | None = None) -> dict[str, Any]:
    """Return the data for `Explorer.mount`: the clients, their origin and the initial settings.

    `num_clients` counts the whole fleet, so that the page can say if it holds only a part of it. The default advice is
    the deadline proposed for the whole fleet.
    """
    return {
        "clients": columns_of(fleet, sample_by_latency(fleet, MAX_CLIENTS)),
        "num_clients": len(fleet),
        "deadline_s": deadline_s,
        "ensure_first_tier": fleet.ensure_first_tier,
        **asdict(origin),
        "advice": asdict(advice or Advice(propose_deadline_s(fleet))),
    }


def write_plan_page(
    path: Path | str,
    fleet: Fleet,
    deadline_s: float,
    origin: Origin,
    notes: Sequence[str] = (),
    advice: Advice | None = None,
) -> None:
    """Atomically write a page on which users can move the deadline and drop a file of latencies or a recording."""
    path = Path(path)
    check_page_path(path)
    data = {"fleet": fleet_data(fleet, deadline_s, origin, advice), "notes": list(notes)}
    part = f"{MAX_CLIENTS:,} of " if len(fleet) > MAX_CLIENTS else ""
    write_document(path, f"LESSON: a deadline for {part}{len(fleet):,} clients", [*EXPLORER, "plan.js"], data)


def check_page_path(path: Path | str) -> None:
    """Raise InputError if a page cannot be written to this path."""
    check_output(path, "html", (".html", ".htm"))
