"""Writes a fitted fleet as the input files of a run, so that any strategy can be trained on it."""

from pathlib import Path
from typing import Any

from lesson.core.csv_rows import csv_text
from lesson.core.errors import InputError
from lesson.core.files import write_all
from lesson.fleet.csv_files import fleet_csv
from lesson.flight.fit import FittedFleet
from lesson.flight.outcomes import replay_settings


def write_fleet(fitted: FittedFleet, folder: Path, *, seed: int = 0, replicate: int = 0) -> dict[str, Any]:
    """Write latencies.csv, trace.csv and presence.csv of one replicate; return the settings that use them.

    Raises InputError, and writes nothing, if the folder holds the files of another fleet: runs may have used them.
    """
    trace = fitted.draw_trace(seed, replicate)
    fleet = fitted.first_estimates(trace, replay_settings(fitted))
    length = int(trace.offsets[1])
    lost = trace.is_lost.astype(int).tolist()
    times = zip(trace.compute_s.tolist(), trace.upload_s.tolist(), lost, strict=True)
    rows = (
        [fitted.names[place // length], place % length + 1, compute_s, upload_s, fails]
        for place, (compute_s, upload_s, fails) in enumerate(times)
    )
    files = {
        folder / "latencies.csv": fleet_csv(fleet),
        folder / "trace.csv": csv_text(["client", "round", "compute_s", "upload_s", "lost"], rows),
    }
    settings: dict[str, Any] = {"latencies": str(folder / "latencies.csv"), "trace": str(folder / "trace.csv")}
    if fitted.intervals:
        spans = ([fitted.names[client], from_s, to_s] for client, from_s, to_s in fitted.intervals)
        files[folder / "presence.csv"] = csv_text(["client", "from_s", "to_s"], spans)
        settings["presence"] = str(folder / "presence.csv")
    contents = {path: text.encode() for path, text in files.items()}
    for path in (folder / name for name in ("latencies.csv", "trace.csv", "presence.csv")):
        if path.exists() and path.read_bytes() != contents.get(path):
            raise InputError(
                f"{path} is from another recording or seed; choose another output folder, or remove this one"
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_all(contents)
    server = replay_settings(fitted).server
    names = ("overhead_s", "estimate", "estimate_window", "estimate_quantile")
    return settings | {name: getattr(server, name) for name in names}
