"""Numbers of docs/tutorials/fleet.md and docs/explanation/replay.md, from the recordings in examples/fleet-trial.

    python tools/fleet_figures.py

prints the outputs of `lesson replay` as the tutorial shows them, the gain, and the rows of the table of calibration.
"""

import os
import runpy
from pathlib import Path

from lesson.cli import main as lesson_command
from lesson.flight.advice import choose_deadline_s
from lesson.flight.check import check_recording
from lesson.flight.fit import fit
from lesson.flight.recording import read_recording

ROOT = Path(__file__).parent.parent
TRIAL = ROOT / "examples" / "fleet-trial"
RECORDINGS = TRIAL / "recordings"


def calibration_row(path: Path) -> str:
    """Return a row of the table of calibration: the second half of a recording, predicted from the first."""
    recording = read_recording(path)
    check = check_recording(recording)
    length, rate, late = check.predictions
    cells = [
        f"{len(recording.rounds)}",
        f"{length.predicted.mean:.1f} s ({length.predicted.low:.1f}–{length.predicted.high:.1f})",
        f"{length.measured:.1f} s",
        f"{length.error:.0%}",
        ", ".join("yes" if one.is_covered else "no" for one in (length, rate)),
        f"{late.predicted.mean:.0%} ({late.predicted.low:.0%}–{late.predicted.high:.0%}), {late.measured:.0%}",
        f"{check.order * check.num_pairs:.0f} of {check.num_pairs}",
        f"{check.num_clients - len(check.wrong_tiers)} of {check.num_clients}",
        f"{check.latency_coverage:.0%}, {check.round_coverage:.0%}",
    ]
    return f"| `{path.name}` | {' | '.join(cells)} |"


def main() -> None:
    """Print everything."""
    os.environ["COLUMNS"] = "80"
    lesson_command(["replay", str(RECORDINGS / "fedavg.jsonl")])
    lesson_command(["replay", str(RECORDINGS / "fedavg.jsonl"), "--check"])
    fedavg, switched = (read_recording(RECORDINGS / f"{name}.jsonl") for name in ("fedavg", "lesson"))
    print(runpy.run_path(str(TRIAL / "trial.py"))["compare"](fedavg, switched, choose_deadline_s(fit(fedavg))))
    for path in sorted(RECORDINGS.glob("fedavg*.jsonl")):
        print(calibration_row(path))


if __name__ == "__main__":
    main()
