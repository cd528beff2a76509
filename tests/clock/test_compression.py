"""What the level of an upload changes on the clock, by hand: times, energy, bytes, estimates."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, traced
from helpers.scripted import Scripted, ids
from helpers.strategies import follow
from lesson import AllOf, FedAvg, Fleet, InputError, Lesson, LessonFitted, RoundPlan, Settings, make_loop, simulate

BITS = {32.0: 320.0, 16.0: 160.0, 8.0: 81.0, 4.0: 40.0}


def compressed(fleet: Fleet, **columns: Any) -> Fleet:
    """Return the fleet with uploads of 81 bits (11 bytes), at level 8."""
    return replace(fleet, model_bits=320.0, level=8.0, level_bits=BITS, **columns)


def test_level_of_a_start_changes_time_energy_and_bytes() -> None:
    """Client 0 computes 5 s for 1 J and sends 81 bits in 5 s for 10 J; client 1 takes 4 s and 2 J, 4 s and 20 J.
    At levels 32 and 4, the uploads take 320/81 and 40/81 of this, and have 40 and 5 bytes."""
    fleet = compressed(make_fleet([10.0, 8.0]))
    plans = RoundPlan(ids(0, 1), AllOf(ids(0, 1))), RoundPlan(ids(0, 1), AllOf(ids(0, 1)), compression=[32.0, 4.0])
    first, second = simulate(Scripted(*plans), fleet, rounds=2)
    assert (first.end_s, first.bytes_up, first.bytes_down) == (10.0, 11 + 11, 40 + 40)
    assert (first.compute_j, first.transmit_j) == (3.0, 30.0)
    assert (second.merged_arrived_s - 10).tolist() == pytest.approx([4 + 4 * 40 / 81, 5 + 5 * 320 / 81])
    assert (second.bytes_up, second.bytes_down) == (40 + 5, 40 + 40)
    assert (second.compute_j, second.transmit_j) == pytest.approx((3, 10 * 320 / 81 + 20 * 40 / 81))


def test_estimate_of_the_usual_upload_follows_from_any_level(tmp_path: Path) -> None:
    """With level 32, client 0 sends its second update in 320/81 of the 4 s that the trace has for the usual level; the
    server then expects 3 + 4 s again, and the same for the usual level."""
    settings = Settings(trace=traced(tmp_path / "work.csv", "client,round,compute_s,upload_s 0,1,2,1 0,2,3,4"))
    plans = RoundPlan(ids(0), AllOf(ids(0))), RoundPlan(ids(0), AllOf(ids(0)), compression=32.0)
    loop = make_loop(
        Scripted(*plans), replace(make_fleet([3.0]), level=8.0, level_bits=BITS, model_bits=81.0), settings=settings
    )
    for end_s in (3.0, 6 + 4 * 320 / 81):
        record = loop.step()
        assert record is not None
        assert record.end_s == pytest.approx(end_s)
    assert (loop.fleet.compute_s.tolist(), loop.fleet.upload_s.tolist()) == ([3.0], [pytest.approx(4.0)])


@pytest.fixture
def links() -> Fleet:
    """Four clients that send 40.5 bits a second at 1 W, so that levels 32, 16, 8 and 4 take 7.9, 4, 2 and 1 s."""
    compute_s, upload_s = np.array([1.0, 5.0, 9.5, 9.0]), np.full(4, 2.0)
    times = {"compute_s": compute_s, "upload_s": upload_s, "latency_s": compute_s + upload_s}
    return compressed(make_fleet([1.0] * 4), **times, transmit_j=upload_s, shared_transmit_j=upload_s)


def test_fit_upload_by_hand(links: Fleet) -> None:
    """τ = 10 s. Client 0 meets it without compression (8.9 s), 1 at level 16 (9 s) and 3 only at level 4 (10 s). Client
    2 is in tier 2 at every level (10.5 s at level 4), so it does not compress: 17.4 s. Bytes: 40 + 20 + 5, then with
    client 2 another 40; energy is 1 W times the upload time."""
    run = follow(Lesson(10.0, fit_upload=True), links, 2)
    levels = [np.asarray(plan.compression).tolist() for plan in run.plans]
    assert levels == [[32, 16, 32, 4], [32, 16, 4]]
    assert [plan.tiers.tolist() for plan in run.plans if plan.tiers is not None] == [[1, 1, 2, 1], [1, 1, 1]]
    assert [record.bytes_up for record in run.records] == [40 + 20 + 5, 40 + 20 + 5 + 40]
    assert run.records[0].transmit_j == pytest.approx(2 * (320 + 160 + 40) / 81)


def test_fitted_work_takes_the_fitted_upload_into_account(links: Fleet) -> None:
    """τ = 10 s. Clients need 1, 5, 9.5 and 9 s for 20 samples. With 4, nobody has to compress, and after uploads of 7.9
    s, there is time for 42, 8.4, 4.4 and 4.7. With 20, clients compress as those of LESSON: uploads take 7.9, 4, 7.9
    (in tier 2) and 1 s, which leaves time for 42, 24, 25.4 and 20."""
    for granule, levels, samples in ((4, [32, 32, 32, 32], [40, 8, 4, 4]), (20, [32, 16, 32, 4], [40, 20, 20, 20])):
        (plan,) = follow(LessonFitted(10.0, fit_upload=True, granule=granule), links, 1).plans
        assert np.asarray(plan.compression).tolist() == levels
        assert np.asarray(plan.samples).tolist() == samples


def test_fit_upload_needs_compression_and_upload_times(links: Fleet) -> None:
    unknown = replace(links, upload_s=np.full(4, np.nan), compute_s=np.full(4, np.nan))
    for fleet, word in ((make_fleet([5.0]), "compression"), (unknown, "upload_s")):
        with pytest.raises(InputError, match=word):
            make_loop(Lesson(10.0, fit_upload=True), fleet).step()


def test_view_has_rates_payload_and_energies(links: Fleet) -> None:
    """81 bits in 2 s are 40.5 bit/s."""
    seen = follow(Spy(), links, 1).simulation.strategy.seen
    assert seen.rate_bps.tolist() == [40.5] * 4
    assert (seen.upload_bits, seen.level_bits) == (81.0, BITS)
    assert (seen.compute_j.tolist(), seen.transmit_j.tolist()) == ([1, 2, 3, 4], [2] * 4)


class Spy(FedAvg):
    """FedAvg that keeps the view of the last round."""

    seen: Any = None

    def open_round(self, view: Any, rng: Any) -> RoundPlan:
        self.seen = view
        return super().open_round(view, rng)
