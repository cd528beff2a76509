"""Measured clients as the setting `[fleet] latencies`."""

import math
from pathlib import Path

import numpy as np
import pytest

from lesson import InputError, Settings, draw_fleet
from lesson.clock.simulate import simulate
from lesson.fleet.measured import samples_note, with_listed_clients
from lesson.strategies import Lesson

FILE = "client,latency_s,num_samples\nphone,12,300\ntablet,25,\ngone,inf,70\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab.csv").write_text(FILE)


def test_the_fleet_is_that_of_the_file() -> None:
    fleet = draw_fleet(Settings(latencies="lab.csv", samples_per_client=40))
    assert list(fleet.names) == ["phone", "tablet", "gone"]
    assert fleet.latency_s.tolist() == [12.0, 25.0, math.inf]
    assert fleet.num_samples.tolist() == [300, 40, 70]
    with pytest.raises(InputError, match="num_clients must not be given with \\[fleet\\] latencies"):
        draw_fleet(Settings(latencies="lab.csv"), num_clients=2)


def test_the_number_of_clients_follows_from_the_file() -> None:
    assert with_listed_clients(Settings(latencies="lab.csv")).fleet.num_clients == 3
    assert with_listed_clients(Settings(latencies="lab.csv", num_clients=3)).fleet.num_clients == 3
    assert with_listed_clients(Settings(num_clients=7)).fleet.num_clients == 7
    wrong = Settings(latencies="lab.csv", num_clients=7)
    message = "[fleet] num_clients must be 3, the number of clients in lab.csv, got 7; leave it unset"
    for use in (with_listed_clients, draw_fleet):
        with pytest.raises(InputError) as caught:
            use(wrong)
        assert str(caught.value) == message


def test_a_changed_file_is_read_again() -> None:
    settings = Settings(latencies="lab.csv")
    assert len(draw_fleet(settings)) == 3
    Path("lab.csv").write_text("client,latency_s\na,1\n")
    assert list(draw_fleet(settings).names) == ["a"]


def test_the_fastest_client_of_a_file_is_promoted_only_on_request() -> None:
    assert not draw_fleet(Settings(latencies="lab.csv")).at_deadline(5.0).promoted
    asked = Settings(latencies="lab.csv", ensure_first_tier=True).with_changes(beta=0.1)
    promoted = draw_fleet(asked).at_deadline(5.0).promoted
    assert promoted is not None
    assert (promoted.client, promoted.latency_s) == (0, 12.0)


def test_settings_that_need_positions_are_rejected_at_once() -> None:
    for name, value in (("fading", "rayleigh"), ("shadowing_db", 4.0), ("spectrum", "equal"), ("download", True)):
        with pytest.raises(InputError) as caught:
            Settings(latencies="lab.csv", **{name: value})
        assert str(caught.value) == (
            f"[radio] {name} cannot be combined with measured latencies, which include no client positions"
        )


def test_settings_without_effect_on_measured_latencies_are_reported() -> None:
    assert not Settings(latencies="lab.csv").caveats()
    assert not Settings(preset="printed", latencies="lab.csv").caveats()
    assert Settings(latencies="lab.csv", bandwidth_hz=1e5, local_steps=3).caveats() == [
        "bandwidth_hz = 100000.0 has no effect unless latencies is unset",
        "local_steps = 3 does not change the latencies, which lab.csv gives",
    ]


def test_a_split_that_ignores_numbers_of_samples_is_reported() -> None:
    assert samples_note(Settings(latencies="lab.csv")) == [
        "num_samples in lab.csv has no effect: split = dirichlet-per-class determines how many samples each client "
        "holds; dirichlet-per-client and dirichlet-pool use the file's numbers"
    ]
    for split in ("dirichlet-per-client", "dirichlet-pool"):
        assert not samples_note(Settings(latencies="lab.csv", split=split))
    Path("lab.csv").write_text("client,latency_s\na,1\n")
    assert not samples_note(Settings(latencies="lab.csv"))


def test_measured_energies_are_counted() -> None:
    """Two rounds of 5 s: a (4 s, 3 J) is aggregated twice, b (8 s, 10 J) once; 2·3 + 10 = 16 J."""
    Path("lab.csv").write_text("client,latency_s,compute_s,upload_s,compute_j,transmit_j\na,4,3,1,2,1\nb,8,6,2,9,1\n")
    settings = Settings(latencies="lab.csv")
    records = list(simulate(Lesson(5.0), draw_fleet(settings), rounds=2, settings=settings))
    assert sum((record.compute_j or 0) + (record.transmit_j or 0) for record in records) == pytest.approx(16)
    Path("lab.csv").write_text("client,latency_s,compute_s,upload_s,compute_j\na,4,3,1,2\nb,8,6,2,\n")
    fleet = draw_fleet(settings)
    assert np.isnan(fleet.transmit_j).all()
    assert next(iter(simulate(Lesson(8.0), fleet, rounds=1))).compute_j is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,4,3,1,-1,1", "line 2: compute_j must be a number >= 0, got '-1'"),
        ("a,4,3,1,1,inf", "line 2: transmit_j must be finite, got inf"),
        ("a,4,,,1,1", "line 2: compute_j requires compute_s, got an empty cell; add the time or remove the energy"),
        ("a,4,3,,1,1", "line 2: transmit_j requires upload_s, got an empty cell"),
    ],
)
def test_wrong_energies(row: str, message: str) -> None:
    Path("lab.csv").write_text(f"client,latency_s,compute_s,upload_s,compute_j,transmit_j\n{row}\n")
    with pytest.raises(InputError) as caught:
        draw_fleet(Settings(latencies="lab.csv"))
    assert message in str(caught.value)
