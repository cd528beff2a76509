"""The page of `lesson plan --html`: the deadline explorer of a fleet, without training."""

from collections.abc import Sequence
from pathlib import Path

from lesson.fleet.fleet import Fleet
from lesson.report.page.document import write_document
from lesson.report.page.fleet_data import EXPLORER, MAX_CLIENTS, fleet_data
from lesson.report.paths import check_file


def write_plan_page(
    path: Path | str, fleet: Fleet, deadline_s: float, ensure_first_tier: bool, source: str, notes: Sequence[str] = ()
) -> None:
    """Write a page on which the deadline can be moved and a measured fleet dropped; whole or not at all."""
    path = Path(path)
    check_page_path(path)
    data = {"fleet": fleet_data(fleet, deadline_s, ensure_first_tier, source), "notes": list(notes)}
    part = f"{MAX_CLIENTS:,} of " if len(fleet) > MAX_CLIENTS else ""
    write_document(path, f"LESSON: a deadline for {part}{len(fleet):,} clients", [*EXPLORER, "plan.js"], data)


def check_page_path(path: Path | str) -> None:
    """Raise if no page can be written there."""
    check_file(path, "html", (".html", ".htm"))
