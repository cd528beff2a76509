"""Measured fleets: CSV files, and the setting `[fleet] latencies`."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lesson import Fleet, InputError, Settings, draw_fleet, read_fleet
from lesson.clock.simulate import simulate
from lesson.fleet.csv_files import fleet_csv
from lesson.fleet.measured import samples_note
from lesson.fleet.spread import DISTRIBUTIONS
from lesson.runs.resolve import resolve
from lesson.strategies import Lesson


@pytest.fixture(autouse=True)
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab.csv").write_text("client,latency_s,num_samples\nphone,12,300\ntablet,25,\ngone,inf,70\n")


def read(text: str | bytes, **settings: Any) -> Fleet:
    Path("fleet.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_fleet(Path("fleet.csv"), Settings(**settings))


def test_latencies_alone() -> None:
    fleet = read("client,latency_s\nphone,12.5\npi,40\n")
    assert list(fleet.names) == ["phone", "pi"]
    assert fleet.latency_s.tolist() == [12.5, 40.0]
    assert np.all(np.isnan([fleet.compute_s, fleet.upload_s, fleet.compute_j, fleet.transmit_j]))
    assert fleet.num_samples.tolist() == [1000, 1000]
    assert fleet.population is None


def test_all_columns_in_any_order_with_empty_cells() -> None:
    text = "num_samples,latency_s,client,upload_s,compute_s\n300,12.5,a,2.5,10\n100,40,b,10,30\n,5,c,,\n"
    fleet = read(text, weighting="samples")
    assert fleet.compute_s.tolist()[:2] == [10.0, 30.0]
    assert fleet.upload_s.tolist()[:2] == [2.5, 10.0]
    assert np.isnan([fleet.compute_s[2], fleet.upload_s[2]]).all()
    assert fleet.client_weight.tolist() == [300.0, 100.0, 1000.0]
    fleet = read(text, local_epochs=1, batch_size=150, model_bits=8e4)
    assert fleet.local_steps.tolist() == [2, 1, 7]
    assert fleet.model_bits == 8e4


def test_rows_with_a_count_stand_for_several_clients() -> None:
    fleet = read("client,latency_s,num_samples,sd_s,distribution,count\na,4,7,1,gamma,2\nb,5,,,,\n7,6,,3,,1\n")
    assert list(fleet.names) == ["a-1", "a-2", "b", "7"]
    assert (fleet.latency_s.tolist(), fleet.num_samples.tolist()) == ([4, 4, 5, 6], [7, 7, 1000, 1000])
    assert fleet.spread is not None
    assert fleet.spread.cv.tolist() == [0.25, 0.25, 0, 0.5]
    assert [[*DISTRIBUTIONS][place] for place in fleet.spread.distribution] == ["gamma", "gamma", "normal", "normal"]
    assert read("client,latency_s,sd_s\na,4,0\n").spread is None


def test_compression_shortens_measured_uploads() -> None:
    """Uploads in the file are those of whole models: a quarter of 4 s is left of a's, and of its 2 J."""
    sizes = {"compression": "qsgd", "level": 8.0, "level_bits": {"32.0": 100.0, "8.0": 25.0}, "model_bits": 100.0}
    header = "client,latency_s,compute_s,upload_s,transmit_j\n"
    fleet = read(f"{header}a,10,6,4,2\nb,inf,,,\n", upload=sizes)
    assert (fleet.upload_s[0], fleet.latency_s.tolist(), fleet.transmit_j[0]) == (1.0, [7.0, math.inf], 0.5)
    with pytest.raises(InputError, match="upload_s"):
        read("client,latency_s\na,10\n", upload=sizes)


def test_local_training_that_overflows_is_an_error() -> None:
    with pytest.raises(InputError, match=r"local_epochs \* num_samples must be at most"):
        read("client,latency_s,num_samples\na,5,1000000000000\n", local_epochs=10**9)


def test_measurements_may_be_rounded() -> None:
    text = "client,latency_s,compute_s,upload_s\na,10,5,{upload_s}\n"
    assert read(text.format(upload_s=5.09)).upload_s.tolist() == [5.09]
    with pytest.raises(InputError, match="latency_s"):
        read(text.format(upload_s=5.2))


@pytest.mark.parametrize(("names", "read_as"), [("7 3", [7, 3]), ("7 03", ["7", "03"]), ("9" * 30, ["9" * 30])])
def test_names_that_are_all_numbers_become_numbers(names: str, read_as: list[int | str]) -> None:
    assert list(read("client,latency_s\n" + "".join(f"{name},1\n" for name in names.split())).names) == read_as


def test_spreadsheets_are_read() -> None:
    fleet = read('\ufeffclient, latency_s\r\n"Ana, phone", 5\r\n\r\nBé,inf\r\n')
    assert list(fleet.names) == ["Ana, phone", "Bé"]
    assert fleet.latency_s.tolist() == [5.0, math.inf]
    assert fleet.reachable.tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the header"),
        ("client,latency_s,speed\na,1,2\n", "line 1: the header"),
        ("client;latency_s\na;1\n", "commas"),
        ("client,latency_s\n", "no rows"),
        ("client,latency_s\na,1\nb,-2\n", "line 3: latency_s"),
        ("client,latency_s\na,\n", "line 2: latency_s"),
        ("client,latency_s\na,1,2\n", "line 2: a row"),
        ("client,latency_s\na,1\na,2\n", "line 3: client 'a'"),
        ("client,latency_s\n,1\n", "line 2: client"),
        ("client,latency_s,num_samples\na,1,0\n", "line 2: num_samples"),
        ("client,latency_s,compute_s,upload_s\na,10,5,6\n", "line 2: latency_s must be compute_s + upload_s"),
        ("client,latency_s,compute_s\na,3,300\n", "line 2: compute_s"),
        ("client,latency_s,compute_s,compute_j\na,4,3,-1\n", "line 2: compute_j"),
        ("client,latency_s,upload_s,transmit_j\na,4,1,inf\n", "line 2: transmit_j"),
        ("client,latency_s,compute_j\na,4,1\n", "compute_j"),
        ("client,latency_s,sd_s\na,4,-1\n", "line 2: sd_s"),
        ("client,latency_s,sd_s\na,4,inf\n", "line 2: sd_s must be finite"),
        ("client,latency_s,distribution\na,4,gamma\n", "line 2: sd_s must be given where distribution is"),
        ("client,latency_s,sd_s,distribution\na,4,1,beta\n", "line 2: distribution must be normal or log-normal or"),
        (
            "client,latency_s,sd_s,distribution\na,4,3.1,half-normal\n",
            "sd_s must be at most 0.7555 * latency_s",
        ),
        ("client,latency_s,count\na,4,1.5\n", "line 2: count must be a whole number"),
        ("client,latency_s,count\na,4,9e6\nb,4,9e6\n", "count must sum to at most 10000000"),
        ("client,latency_s,count\na-2,4,\na,4,3\n", "client 'a-2' is also one of those that count adds"),
        ('client,latency_s\n"a,1\n', "cannot be read"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "UTF-8"),
    ],
)
def test_errors_name_the_place_in_one_line(text: str | bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert message in str(caught.value)
    assert "fleet.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_an_error() -> None:
    with pytest.raises(InputError, match=r"none\.csv"):
        read_fleet(Path("none.csv"), Settings())


def test_written_fleet_can_be_read_back() -> None:
    """Six digits; what is not known stays empty; names with commas are quoted."""
    text = (
        "client,latency_s,compute_s,upload_s,num_samples\n"
        '"Ana, phone",12.5,10,2.5,300\n'
        "pi,40,,,1000\n"
        "gone,inf,inf,inf,7\n"
        "far,1.23457e+06,,,1000\n"
    )
    fleet = read(text)
    assert fleet_csv(fleet) == text
    fleet.latency_s[1] = 39.99999999
    assert "pi,40,,,1000\n" in fleet_csv(fleet)
    drawn = draw_fleet(Settings(), 20, seed=5)
    again = read(fleet_csv(drawn))
    for name in ("names", "latency_s", "compute_s", "upload_s", "num_samples", "client_weight", "local_steps"):
        np.testing.assert_allclose(getattr(again, name), getattr(drawn, name), rtol=1e-5, err_msg=name)


def test_fleet_comes_from_the_file() -> None:
    fleet = draw_fleet(Settings(latencies="lab.csv", samples_per_client=40))
    assert list(fleet.names) == ["phone", "tablet", "gone"]
    assert fleet.latency_s.tolist() == [12.0, 25.0, math.inf]
    assert fleet.num_samples.tolist() == [300, 40, 70]


def test_number_of_clients_follows_from_the_file() -> None:
    assert resolve(Settings(latencies="lab.csv")).settings.fleet.num_clients == 3
    for use in (resolve, draw_fleet):
        with pytest.raises(InputError, match="num_clients must be 3"):
            use(Settings(latencies="lab.csv", num_clients=50))


def test_changed_file_is_read_again() -> None:
    assert len(draw_fleet(Settings(latencies="lab.csv"))) == 3
    Path("lab.csv").write_text("client,latency_s\na,1\n")
    assert list(draw_fleet(Settings(latencies="lab.csv")).names) == ["a"]


def test_fastest_client_of_a_file_is_promoted_only_on_request() -> None:
    assert not draw_fleet(Settings(latencies="lab.csv")).at_deadline(5.0).promoted
    asked = Settings(latencies="lab.csv", ensure_first_tier=True).with_changes(beta=0.1)
    promoted = draw_fleet(asked).at_deadline(5.0).promoted
    assert promoted is not None
    assert (promoted.client, promoted.latency_s) == (0, 12.0)


@pytest.mark.parametrize(
    ("name", "value"), [("fading", "rayleigh"), ("shadowing_db", 4.0), ("spectrum", "equal"), ("download", True)]
)
def test_settings_that_need_positions_are_rejected(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"latencies cannot be combined with .* {name}: "):
        Settings(latencies="lab.csv", **{name: value})


def test_settings_without_effect_on_measured_latencies_are_reported() -> None:
    assert not Settings(preset="printed", latencies="lab.csv").caveats()
    notes = Settings(latencies="lab.csv", bandwidth_hz=1e5, local_steps=3).caveats()
    assert [note.split()[0] for note in notes] == ["bandwidth_hz", "local_steps"]


def test_split_that_ignores_sample_counts_is_reported() -> None:
    assert len(samples_note(Settings(latencies="lab.csv"))) == 1
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
