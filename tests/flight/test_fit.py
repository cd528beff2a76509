"""Fleets fitted to recordings, by hand."""

from pathlib import Path

import numpy as np
import pytest

from helpers.flights import changes, flight, job, write_lines
from lesson import FedAvg, Settings, simulate
from lesson.core.arrays import FloatArray
from lesson.core.errors import InputError
from lesson.fleet.csv_files import read_fleet
from lesson.fleet.traces import read_presence, read_work
from lesson.flight.files import write_fleet
from lesson.flight.fit import FittedFleet, fit
from lesson.flight.outcomes import simulate_replicate
from lesson.flight.recording import read_recording

NAN = float("nan")


def drawn(fitted: FittedFleet, replicate: int) -> FloatArray:
    """Return drawn latencies in seconds, one row for each client."""
    trace = fitted.draw_trace(0, replicate)
    return (trace.compute_s + trace.upload_s).reshape(len(fitted.names), -1)


def test_medians_samples_and_overhead(tmp_path: Path) -> None:
    fitted = fit(flight(tmp_path / "f", [[4, 8], [4, 8], [5, 9], [4, 8], [3, 10]], overhead_s=2.0))
    fleet = fitted.fleet()
    assert (list(fleet.names), fleet.num_samples.tolist()) == (["a", "b"], [100, 101])
    assert fleet.latency_s.tolist() == [4.0, 8.0]
    assert fleet.compute_s.tolist() == [3.0, 6.0]  # three quarters of the latency
    assert fleet.upload_s.tolist() == [1.0, 2.0]
    assert fitted.overhead_s == 2.0
    # Rounds last 8, 8, 9, 8 and 10 s, with 2 s between them.
    assert fitted.duration_s == 8 + 8 + 9 + 8 + 10 + 4 * 2
    assert fitted.notes == ()
    assert fitted.presence() is None


def test_clients_that_slow_down_together_are_drawn_together(tmp_path: Path) -> None:
    slow = [[4.0, 8.0]] * 10 + [[40.0, 80.0]] * 10  # both clients are ten times slower in the second half
    fitted = fit(flight(tmp_path / "f", slow))
    both = set()
    for replicate in range(30):
        latency_s = drawn(fitted, replicate)
        assert set(latency_s[0].tolist()) <= {4.0, 40.0}
        assert np.array_equal(latency_s[1], 2 * latency_s[0])
        both |= set(latency_s[0].tolist())
        changes = np.count_nonzero(np.diff(latency_s[0])) / latency_s.shape[1]
        assert changes < 0.45  # independent draws would change every second time
    assert both == {4.0, 40.0}
    assert fitted.draw_trace(0, 29).compute_s.tolist() == (0.75 * latency_s).reshape(-1).tolist()


def test_latencies_are_smoothed_by_their_variation(tmp_path: Path) -> None:
    # Steps between log-latencies are all ln 2, so the spread is ln 2 / (0.6745 · √2) and the width that times 8^(−1/5).
    fitted = fit(flight(tmp_path / "f", [[10.0], [20.0]] * 4))
    assert fitted.observed[0].bandwidth == pytest.approx(0.7266 * 0.6598, rel=1e-3)
    assert len(set(drawn(fitted, 0)[0].tolist())) > 2
    # Steps of ln 1000 would give a kernel of width 4, whose draws reach millions of seconds.
    assert fit(flight(tmp_path / "g", [[1.0], [1000.0]] * 10)).observed[0].bandwidth == 0.5


def test_few_replies_borrow_the_variation_of_others(tmp_path: Path) -> None:
    rows = [[10.0, NAN], [20.0, NAN], [5.0, NAN], [10.0, 100.0], [10.0, NAN], [10.0, 100.0]]
    fitted = fit(flight(tmp_path / "f", rows))
    assert fitted.is_pooled.tolist() == [False, True]
    # Relative to the medians, a varied by 1, 2 and 0.5; b has a median of 100 s.
    latencies = {round(float(one), 6) for replicate in range(20) for one in drawn(fitted, replicate)[1]}
    assert latencies == {50.0, 100.0, 200.0}


def test_cold_start_is_left_out(tmp_path: Path) -> None:
    fitted = fit(flight(tmp_path / "f", [[30.0, 9.0], [4.0, 8.0], [5.0, 8.0], [4.0, 8.0], [4.0, 8.0], [4.0, 8.0]]))
    assert fitted.observed[0].latency_s.tolist() == [4, 5, 4, 4, 4]
    assert fitted.observed[1].latency_s.tolist() == [9, 8, 8, 8, 8, 8]  # 9 s is not over 1.5 times 8 s


def test_failed_jobs_keep_their_own_latency_and_have_no_upload(tmp_path: Path) -> None:
    # b has two replies after 10 s and two failures after 2 s. All clients are constant, so the pooled variation is 1.
    fitted = fit(flight(tmp_path / "f", [[4.0, 10.0], [4.0, -2.0]] * 2))
    assert fitted.is_pooled.tolist() == [True, True]
    trace = fitted.draw_trace(0, 0)
    assert trace.is_lost.any()
    assert set((trace.compute_s + trace.upload_s)[trace.is_lost].tolist()) == {2.0}
    assert set(trace.upload_s[trace.is_lost].tolist()) == {0.0}
    assert set(trace.upload_s[~trace.is_lost].tolist()) == {1.0, 2.5}


def test_failure_just_before_a_departure_does_not_count(tmp_path: Path) -> None:
    # The last job of a failed at 52 s. At 80 s, the server noticed that a had left; at 83 s, it would be too late.
    for left_s, num_jobs in ((80.0, 6), (83.0, 7)):
        extra = changes(("connected", 0.0, "a"), ("left", left_s, "a"))
        fitted = fit(flight(tmp_path / "f", [[4.0, 8.0]] * 6 + [[-4.0, 8.0]], extra=extra))
        assert len(fitted.observed[0].latency_s) == num_jobs


def test_presence_counts_from_the_first_request(tmp_path: Path) -> None:
    before = changes(("connected", 1.0, "a"), ("left", 5.0, "a"), ("connected", 7.0, "a"))
    after = changes(("left", 20.0, "a"))
    path = write_lines(tmp_path / "f", {"flight": 1}, *before, *job(1, "a", 10.0, 14.0), *after)
    assert fit(read_recording(path)).intervals == ((0, 0.0, 10.0),)


def test_failures_are_drawn_as_often_as_they_were_recorded(tmp_path: Path) -> None:
    fitted = fit(flight(tmp_path / "f", [[5.0, 8.0], [-2.0, 8.0]] * 10))
    assert fitted.fleet().latency_s.tolist() == [5.0, 8.0]  # failures do not count as latencies
    lost = np.concatenate([fitted.draw_trace(0, replicate).is_lost for replicate in range(40)])
    share = lost.reshape(40, 2, -1).mean(axis=(0, 2))
    assert share[1] == 0
    assert abs(share[0] - 0.5) < 0.05


def test_client_that_never_replies_is_unreachable_and_always_fails(tmp_path: Path) -> None:
    fitted = fit(flight(tmp_path / "f", [[5.0, -1.0]] * 6))
    assert fitted.fleet().latency_s.tolist() == [5.0, np.inf]
    assert fitted.draw_trace(0, 0).is_lost.reshape(2, -1).mean(axis=1).tolist() == [0.0, 1.0]


def test_silent_client_is_given_up_when_it_is_asked_again(tmp_path: Path) -> None:
    silent = [job(100 + one, "z", 9.0 * one, np.inf, one + 1)[0] for one in range(4)]
    fitted = fit(flight(tmp_path / "f", [[4.0, 9.0]] * 4, extra=silent))
    silent_one = fitted.observed[fitted.names.index("z")]
    assert silent_one.latency_s.tolist() == [9.0] * 4
    assert silent_one.is_lost.all()


def test_presence_of_a_client_that_leaves_and_rejoins(tmp_path: Path) -> None:
    extra = changes(("connected", 0.0, "a"), ("connected", 0.0, "b"), ("left", 12.0, "b"), ("connected", 31.0, "b"))
    rows = [[10.0, 9.0], [10.0, -3.0], [10.0, NAN], [10.0, NAN], [10.0, 9.0]]
    fitted = fit(flight(tmp_path / "f", rows, extra=extra))
    assert fitted.intervals == ((1, 0.0, 12.0), (1, 31.0, np.inf))
    # b failed at 13 s because it had left at 12 s: the presence explains it, so it is not a failure of its own.
    assert fitted.observed[1].is_lost.tolist() == [False, False]


def test_request_just_before_the_end_does_not_count_as_failed(tmp_path: Path) -> None:
    # The recording ends at 48 s. Others took 8 s: c was asked 1 s before the end, and d 20 s.
    extra = [job(100, "c", 47.0, np.inf, 6)[0], job(101, "d", 28.0, np.inf, 6)[0]]
    fitted = fit(flight(tmp_path / "f", [[4.0, 8.0]] * 6, extra=extra))
    assert fitted.names == ("a", "b", "d")
    assert fitted.fleet().latency_s.tolist() == [4.0, 8.0, np.inf]


def test_restart_of_the_server_is_not_an_absence(tmp_path: Path) -> None:
    extra = [*changes(("connected", 0.0, "a"), ("connected", 17.0, "a")), {"event": "resumed", "t_s": 15.0}]
    recording = flight(tmp_path / "f", [[10.0], [4.0]], extra=extra)
    assert recording.intervals == ((0, 0.0, 15.0), (0, 17.0, np.inf))
    assert fit(recording).intervals == ()


def test_unknown_compute_times_leave_the_split_unknown(tmp_path: Path) -> None:
    fitted = fit(flight(tmp_path / "f", [[4.0, 8.0]] * 5, compute_share=None))
    assert not fitted.split_is_known
    assert np.isnan(fitted.fleet().compute_s).all()
    assert set(drawn(fitted, 0).flat) == {4.0, 8.0}


def test_recordings_without_usable_replies(tmp_path: Path) -> None:
    for latency_s in (-4.0, 0.0):
        with pytest.raises(InputError, match="repl"):
            fit(flight(tmp_path / "f", [[latency_s]]))


def test_written_fleet_reproduces_the_replay(tmp_path: Path) -> None:
    extra = changes(("connected", 0.0, "b"), ("left", 12.0, "b"), ("connected", 31.0, "b"))
    rows = [[5.0, 8.0], [-2.0, 8.5], [5.5, 8.0], [6.0, 9.0]] * 3
    fitted = fit(flight(tmp_path / "f", rows, overhead_s=1.0, extra=extra))
    files = write_fleet(fitted, tmp_path / "fleet", seed=1, replicate=2)
    trace, settings = fitted.draw_trace(1, 2), Settings(**files)
    read = read_work(files["trace"], fitted.names)
    for name in ("compute_s", "upload_s", "is_lost"):
        assert np.array_equal(getattr(read, name), getattr(trace, name))
    assert read_presence(files["presence"], fitted.names).next_change_s(0.0) == 12.0
    fleet = read_fleet(files["latencies"], settings)
    ran = list(simulate(FedAvg(), fleet, until_s=120.0, seed=2, settings=settings))
    replayed = simulate_replicate(fitted, trace, FedAvg(), 2, 120.0)
    assert [(one.end_s, one.merged.tolist(), one.lost) for one in ran] == [
        (one.end_s, one.merged.tolist(), one.lost) for one in replayed
    ]
    assert any(one.lost for one in ran)
