"""A fitted fleet as input files: a run that reads them has the times of the replicate."""

from pathlib import Path

import numpy as np

from helpers.flights import flight
from lesson import FedAvg, Settings, simulate
from lesson.fleet.csv_files import read_fleet
from lesson.fleet.traces import read_presence, read_work
from lesson.flight.files import write_fleet
from lesson.flight.fit import fit
from lesson.flight.replay import simulate_replicate


def test_a_run_with_the_files_has_the_rounds_of_the_replay(tmp_path: Path) -> None:
    extra = [
        {"event": "connected", "t_s": 0.0, "client": "b"},
        {"event": "left", "t_s": 12.0, "client": "b"},
        {"event": "connected", "t_s": 31.0, "client": "b"},
    ]
    rows = [[5.0, 8.0], [-2.0, 8.5], [5.5, 8.0], [6.0, 9.0]] * 3
    fitted = fit(flight(tmp_path / "f", rows, overhead_s=1.0, extra=extra))
    files = write_fleet(fitted, tmp_path / "fleet", seed=1, replicate=2)
    trace, settings = fitted.draw_trace(1, 2), Settings(**files)
    read = read_work(files["trace"], fitted.names)
    assert np.array_equal(read.compute_s, trace.compute_s)
    assert np.array_equal(read.upload_s, trace.upload_s)
    assert read.is_lost is not None
    assert np.array_equal(read.is_lost, trace.is_lost)
    assert read_presence(files["presence"], fitted.names).next_change_s(0.0) == 12.0
    fleet = read_fleet(files["latencies"], settings)
    ran = list(simulate(FedAvg(), fleet, until_s=120.0, seed=2, settings=settings))
    replayed = simulate_replicate(fitted, trace, FedAvg(), 2, 120.0)
    assert [(one.end_s, one.merged.tolist(), one.lost) for one in ran] == [
        (one.end_s, one.merged.tolist(), one.lost) for one in replayed
    ]
    assert any(one.lost for one in ran)
