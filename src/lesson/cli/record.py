"""The command `lesson record`."""

from dataclasses import dataclass
from pathlib import Path

from lesson.cli.parser import FILE, Group, argument, option
from lesson.core.files import check_output


@dataclass(frozen=True)
class ImportCommand:
    """Convert the CSV log of a federation to a recording.

    Example: lesson record import log.csv -o flight.jsonl
    """

    log: Path = argument(
        "log",
        metavar="FILE",
        type=FILE,
        help="CSV file with a row per request to a client. Columns: client, asked_s, arrived_s (empty if no reply "
        "arrived); optionally round, compute_s, downloaded_s, trained_s, num_samples, energy_j, reason, failed_s. "
        "Times are seconds, or ISO 8601 dates and times; the earliest becomes 0.",
    )
    out: Path = option("-o", "--out", type=FILE, default=Path("flight.jsonl"), help="Recording to write.")

    def run(self) -> None:
        from lesson.flight.csv_logs import import_csv

        check_output(self.out, "--out", [".jsonl"])
        print(f"{self.out}: {import_csv(self.log, self.out)}")


record = Group(
    "record",
    help="Convert logs of other software to recordings of federations.",
    epilog="Example: lesson record import log.csv -o flight.jsonl",
)
record.add_section("Commands", **{"import": ImportCommand})
