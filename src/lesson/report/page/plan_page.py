"""The page of `lesson plan --html`: an interactive explorer of deadlines for a fleet."""

from collections.abc import Sequence
from pathlib import Path

from lesson.core.files import check_output
from lesson.fleet.fleet import Fleet, columns_of, sample_by_latency
from lesson.planning.plan import propose_deadline_s
from lesson.report.page.document import write_document
from lesson.report.page.explorer import EXPLORER, Advice, Origin, explorer_data

MAX_CLIENTS = 5000
"""Maximum number of clients on a page; a larger fleet is sampled evenly by latency."""


def write_plan_page(
    path: Path | str,
    fleet: Fleet,
    deadline_s: float,
    origin: Origin,
    notes: Sequence[str] = (),
    advice: Advice | None = None,
) -> None:
    """Atomically write a page on which users can change the deadline.

    By default, the page proposes the deadline for the whole fleet.
    """
    path = Path(path)
    check_page_path(path)
    explorer = explorer_data(
        columns_of(fleet, sample_by_latency(fleet, MAX_CLIENTS)),
        len(fleet),
        deadline_s,
        origin,
        ensure_first_tier=fleet.ensure_first_tier,
        advice=advice or Advice(propose_deadline_s(fleet)),
    )
    data = {"fleet": explorer, "notes": list(notes)}
    part = f"{MAX_CLIENTS:,} of " if len(fleet) > MAX_CLIENTS else ""
    write_document(path, f"LESSON: a deadline for {part}{len(fleet):,} clients", [*EXPLORER, "plan.js"], data)


def check_page_path(path: Path | str) -> None:
    """Raise InputError if a page cannot be written to this path."""
    check_output(path, "html", (".html", ".htm"))
