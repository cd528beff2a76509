import math
from pathlib import Path

import numpy as np
import pytest

from lesson import InputError, Settings, draw_fleet, read_fleet
from lesson.fleet.csv_files import fleet_csv


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "fleet.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_latencies_alone(tmp_path: Path) -> None:
    fleet = read_fleet(write(tmp_path, "client,latency_s\nphone,12.5\npi,40\n"), Settings())
    assert list(fleet.names) == ["phone", "pi"]
    assert fleet.latency_s.tolist() == [12.5, 40.0]
    assert np.all(np.isnan([fleet.compute_s, fleet.upload_s, fleet.compute_j, fleet.transmit_j]))
    assert fleet.num_samples.tolist() == [1000, 1000]
    assert fleet.population is None


def test_all_columns_in_any_order(tmp_path: Path) -> None:
    text = "num_samples,latency_s,client,upload_s,compute_s\n300,12.5,a,2.5,10\n100,40,b,10,30\n"
    fleet = read_fleet(write(tmp_path, text), Settings(weighting="samples"))
    assert fleet.compute_s.tolist() == [10.0, 30.0]
    assert fleet.upload_s.tolist() == [2.5, 10.0]
    assert fleet.client_weight.tolist() == [300.0, 100.0]
    fleet = read_fleet(write(tmp_path, text), Settings(local_epochs=1, batch_size=150, model_bits=8e4))
    assert fleet.local_steps.tolist() == [2, 1]
    assert fleet.model_bits == 8e4


def test_a_range_of_samples_counts_as_its_middle(tmp_path: Path) -> None:
    fleet = read_fleet(write(tmp_path, "client,latency_s\na,1\n"), Settings(samples_per_client=(10, 31)))
    assert fleet.num_samples.tolist() == [20]


def test_measurements_may_be_rounded(tmp_path: Path) -> None:
    text = "client,latency_s,compute_s,upload_s\na,10,5,{upload_s}\n"
    assert read_fleet(write(tmp_path, text.format(upload_s=5.09)), Settings()).upload_s.tolist() == [5.09]
    with pytest.raises(InputError, match="must equal latency_s to within 1 %"):
        read_fleet(write(tmp_path, text.format(upload_s=5.2)), Settings())


def test_cells_may_be_empty_where_columns_may_be_missing(tmp_path: Path) -> None:
    text = "client,latency_s,compute_s,upload_s,num_samples\na,3,,,\nb,4,4,0,7\n"
    fleet = read_fleet(write(tmp_path, text), Settings())
    assert np.isnan(fleet.compute_s).tolist() == [True, False]
    assert fleet.upload_s[1] == 0
    assert fleet.num_samples.tolist() == [1000, 7]


def test_numbers_as_names_become_numbers(tmp_path: Path) -> None:
    assert list(read_fleet(write(tmp_path, "client,latency_s\n7,1\n3,2\n"), Settings()).names) == [7, 3]
    assert list(read_fleet(write(tmp_path, "client,latency_s\n7,1\n03,2\n"), Settings()).names) == ["7", "03"]
    long = "9" * 30
    assert list(read_fleet(write(tmp_path, f"client,latency_s\n{long},1\n"), Settings()).names) == [long]


def test_spreadsheets_are_read(tmp_path: Path) -> None:
    text = '\ufeffclient, latency_s\r\n"Ana, phone", 5\r\n\r\nBé,inf\r\n'
    fleet = read_fleet(write(tmp_path, text), Settings())
    assert list(fleet.names) == ["Ana, phone", "Bé"]
    assert fleet.latency_s.tolist() == [5.0, math.inf]
    assert fleet.reachable.tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "line 1: the header must be client,latency_s, optionally with "
            "compute_s,upload_s,num_samples,compute_j,transmit_j, got ''",
        ),
        ("client,latency\na,1\n", "line 1: the header must be client,latency_s, optionally with"),
        ("client,latency_s,speed\na,1,2\n", "got 'client,latency_s,speed'"),
        ("client,latency_s,latency_s\na,1,1\n", "line 1: the header must be"),
        ("client;latency_s\na;1\n", "got 'client;latency_s'; separate columns with commas"),
        ("client\tlatency_s\na\t1\n", "got 'client latency_s'; separate columns with commas"),
        ("a,1\nb,2\n", "line 1: the header must be"),
        ("client,latency_s\n", "has no clients; add one line per client below the header"),
        ("client,latency_s\na,1\nb,-2\n", "line 3: latency_s must be a number > 0, got '-2'"),
        ("client,latency_s\na,0\n", "line 2: latency_s must be a number > 0, got '0'"),
        (
            "client,latency_s\na,\n",
            "line 2: latency_s must be a number > 0, got ''; write inf for a client that cannot be reached",
        ),
        (
            "client,latency_s\na,nan\n",
            "line 2: latency_s must be a number > 0, got 'nan'; write inf for a client that cannot be reached",
        ),
        ("client,latency_s\na,1_0\n", "line 2: latency_s must be a number > 0, got '1_0'"),
        ("client,latency_s\na,٣\n", "line 2: latency_s must be a number > 0, got '٣'"),
        ('client,latency_s\n"a\nb",1\n"a\nb",2\n', "client 'a b' is listed twice"),
        (
            "client,latency_s\na,fast\n",
            "line 2: latency_s must be a number > 0, got 'fast'; write inf for a client that cannot be reached",
        ),
        ("client,latency_s\na,1,2\n", "line 2: a row must have 2 values, as many as the header, got 3"),
        ("client,latency_s\na\n", "line 2: a row must have 2 values, as many as the header, got 1"),
        ("client,latency_s\na,1\na,2\n", "line 3: client 'a' is listed twice, first on line 2; rename one"),
        ("client,latency_s\n,1\n", "line 2: client must have a name, got an empty one"),
        (
            "client,latency_s,num_samples\na,1,2.5\n",
            "number from 1 to 1000000000000, got '2.5'",
        ),
        (
            "client,latency_s,num_samples\na,1,0\n",
            "line 2: num_samples must be a whole number from 1 to 10",
        ),
        ("client,latency_s,num_samples\na,1,1000000000001\n", "from 1 to 1000000000000, got '1000000000001'"),
        (
            "client,latency_s,compute_s,upload_s\na,10,5,6\n",
            "line 2: compute_s + upload_s must equal latency_s to within 1 %, got 11 and 10",
        ),
        ('client,latency_s\n"a,1\n', "cannot be read: after line 2, unexpected end of data"),
        ("client,latency_s\n" + "a" * 140_000 + ",1\n", "cannot be read: after line 2, field larger than field limit"),
        ("client,latency_s,compute_s\na,3,300\n", "line 2: compute_s and upload_s must not exceed latency_s = 3"),
        ("client,latency_s,compute_s,upload_s\na,10,5,inf\n", "must equal latency_s to within 1 %, got inf and 10"),
        ("client,latency_s,compute_s\na,3,-1\n", "line 2: compute_s must be a number >= 0, got '-1'"),
        ("client,latency_s\n" + "\0" * (1 << 21), "cannot be read: a line must have at most 1048576 characters"),
        (b"client,latency_s\n\xff\xfe,1\n", "cannot be read: not a CSV file in UTF-8"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "cannot be read: not a CSV file in UTF-8"),
    ],
)
def test_bad_files_are_one_line_with_the_place(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_fleet(write(tmp_path, text), Settings())
    assert message in str(caught.value)
    assert "fleet.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.csv does not exist; latencies must be a CSV file"):
        read_fleet(tmp_path / "none.csv", Settings())
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_fleet(tmp_path, Settings())


def test_a_fleet_is_written_as_it_is_read(tmp_path: Path) -> None:
    """Six digits; what is not known stays empty; names with commas are quoted."""
    text = (
        "client,latency_s,compute_s,upload_s,num_samples\n"
        '"Ana, phone",12.5,10,2.5,300\n'
        "pi,40,,,1000\n"
        "gone,inf,inf,inf,7\n"
        "far,1.23457e+06,,,1000\n"
    )
    fleet = read_fleet(write(tmp_path, text), Settings())
    assert fleet_csv(fleet) == text
    fleet.latency_s[1] = 39.99999999
    assert "pi,40,,,1000\n" in fleet_csv(fleet)


def test_a_drawn_fleet_can_be_written_and_planned_from(tmp_path: Path) -> None:
    fleet = draw_fleet(Settings(), 20, seed=5)
    again = read_fleet(write(tmp_path, fleet_csv(fleet)), Settings())
    assert list(again.names) == list(range(20))
    for name in ("latency_s", "compute_s", "upload_s", "num_samples", "client_weight", "local_steps"):
        np.testing.assert_allclose(getattr(again, name), getattr(fleet, name), rtol=1e-5, err_msg=name)


def test_epochs_over_more_samples_than_64_bits_count_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path, "client,latency_s,num_samples\na,1,1000000000000\n")
    with pytest.raises(InputError, match=r"local_epochs \* num_samples must be at most 1e\+18, got 1000001 and 10{12}"):
        read_fleet(path, Settings(local_epochs=1_000_001))
