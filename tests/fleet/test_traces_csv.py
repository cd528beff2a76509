"""Traces of work, presence, positions and SNR, and one-line errors for invalid files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lesson import InputError
from lesson.fleet.traces import Presence, read_positions, read_presence, read_snr, read_work

INF = np.inf


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def read_places(path: Path, names: Any) -> Any:
    return read_positions(path, names, area_km=2.0)


def test_work_is_looked_up_and_repeats(tmp_path: Path) -> None:
    """Client 7 has two pieces of work, client 3 one; the order of the file does not matter."""
    text = "client,round,compute_s,upload_s\n3,1,5,0.5\n7,2,2,0\n7,1,1,0.25\n"
    work = read_work(write(tmp_path, text), [7, 3])
    compute_s, upload_s = work.at(ids(0, 1, 0, 0, 1), ids(0, 0, 1, 2, 9))
    assert compute_s.tolist() == [1, 5, 2, 1, 5]
    assert upload_s.tolist() == [0.25, 0.5, 0, 0.25, 0.5]
    assert [part.tolist() for part in work.at(ids(), ids())] == [[], []]


def test_presence(tmp_path: Path) -> None:
    """Client 0 is present 0–10 and 20–30 s, 1 from 10 s on, 2 always, 3 at 5–15 s, in two intervals that touch."""
    text = "client,from_s,to_s\n0,20,30\n0,0,10\n1,10,inf\n3,8,15\n3,5,8\n"
    presence = read_presence(write(tmp_path, text), range(4))
    present = [np.flatnonzero(presence.is_available(now_s)).tolist() for now_s in (0, 4.9, 5, 10, 15, 20, 30)]
    expected = [[0, 2], [0, 2], [0, 2, 3], [1, 2, 3], [1, 2], [0, 1, 2], [1, 2]]
    assert present == expected
    assert presence.leaves_s(ids(0, 2, 3), 5.0).tolist() == [10, INF, 15]
    assert presence.leaves_s(ids(2, 0, 1), 20.0).tolist() == [INF, 30, INF]
    assert presence.leaves_s(ids(), 20.0).tolist() == []
    assert presence.leaves_s(ids(0, 1, 3), 17.0).tolist() == [17, INF, 17], "who is not there has left already"
    assert presence.leaves_s(ids(1), 3.0).tolist() == [3]
    assert [presence.next_change_s(now_s) for now_s in (0, 5, 10, 15, 29, 30)] == [5, 10, 15, 20, 30, INF]
    assert [presence.next_arrival_s(now_s) for now_s in (-1, 0, 5, 10, 20)] == [0, 5, 10, 20, INF]


@given(
    st.lists(st.lists(st.integers(0, 30), unique=True, max_size=6).map(sorted), min_size=1, max_size=5),
    st.integers(0, 31),
    st.integers(0, 31),
)
def test_presence_follows_from_the_intervals(turns: list[list[int]], now_s: int, later_s: int) -> None:
    """A client comes and leaves in turn at its times; one with an odd number of them stays for ever."""
    rows = [
        (client, begin, end)
        for client, times in enumerate(turns)
        for begin, end in zip(times[::2], [*times[1::2], INF], strict=False)
    ]
    client, from_s, to_s = np.array(rows, dtype=float).reshape(-1, 3).T
    presence = Presence(len(turns), client.astype(np.int64), from_s, to_s)
    everybody = np.arange(len(turns))

    def there(at_s: float) -> list[bool]:
        return [not times or sum(time <= at_s for time in times) % 2 == 1 for times in turns]

    assert presence.is_available(now_s).tolist() == there(now_s)
    leaves_s = [
        next((t for t in times if t > now_s), INF) if there(now_s)[i] else now_s for i, times in enumerate(turns)
    ]
    assert presence.leaves_s(everybody, now_s).tolist() == leaves_s
    assert presence.next_change_s(now_s) == min((t for times in turns for t in times if t > now_s), default=INF)
    came, left = presence.changes(now_s, max(now_s, later_s))
    before, after = np.array(there(now_s)), np.array(there(max(now_s, later_s)))
    assert (came.tolist(), left.tolist()) == (everybody[after & ~before].tolist(), everybody[before & ~after].tolist())


def test_positions_are_sorted_by_time(tmp_path: Path) -> None:
    text = "client,time_s,x_km,y_km\nb,10,1,-1\na,0,0.5,0\nb,0,0,0.25\n"
    time_s, x_km, y_km, offsets = read_places(write(tmp_path, text), ["a", "b"])
    assert (time_s.tolist(), offsets.tolist()) == ([0, 0, 10], [0, 1, 3])
    assert (x_km.tolist(), y_km.tolist()) == ([0.5, 0, 1], [0, 0.25, -1])


def read_channels(path: Path, _: Any) -> Any:
    return read_snr(path)


def test_order_of_snr_traces_and_their_rows(tmp_path: Path) -> None:
    text = "snr_db,trace,time_s\n-3.5,b,10\n20,a,7\n1,b,0\n-200,c,0\n"
    time_s, snr_db, offsets = read_channels(write(tmp_path, text), None)
    assert (time_s.tolist(), snr_db.tolist()) == ([0, 10, 7, 0], [1, -3.5, 20, -200])
    assert offsets.tolist() == [0, 2, 3, 4]


SNR = "trace,time_s,snr_db\n"
WORK, PRESENCE, PLACES = "client,round,compute_s,upload_s\n", "client,from_s,to_s\n", "client,time_s,x_km,y_km\n"


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_work, "", "line 1: the header"),
        (read_work, WORK, "no rows"),
        (read_work, WORK + "0,1,1\n", "line 2: a row"),
        (read_work, WORK + "0,1,1,1\n9,1,1,1\n", "line 3: unknown client '9'"),
        (read_work, WORK + "0,one,1,1\n", "line 2: round"),
        (read_work, WORK + "0,1,-2,1\n", "line 2: compute_s"),
        (read_work, WORK + "0,1,0,0\n", "line 2: compute_s"),
        (read_work, WORK + "0,1,1,1\n1,1,1,1\n0,1,2,2\n", "line 4: client '0' has round 1 twice"),
        (read_work, WORK + "0,3,1,1\n0,1,1,1\n1,1,1,1\n", "line 2: client '0' has round 1 and 3 but not 2"),
        (read_work, WORK + "1,1,1,1\n", "no row for client '0'"),
        (read_presence, PRESENCE + "0,-1,2\n", "line 2: from_s"),
        (read_presence, PRESENCE + "0,2,2\n", "line 2: to_s"),
        (read_presence, PRESENCE + "0,5,20\n1,0,inf\n0,0,5.5\n", "line 4: client '0' has overlapping intervals"),
        (read_places, PLACES + "0,0,1,1\n1,0,0.5,-1.5\n", "line 3: y_km"),
        (read_places, PLACES + "0,5,0,1\n0,5,0,0\n", "line 3: client '0' has time_s 5 twice"),
        (read_channels, SNR + "a,0,1\na,1,inf\n", "line 3: snr_db"),
        (read_channels, SNR + "a,2,0\nb,2,0\na,2,1\n", "line 4: trace 'a' has time_s 2 twice"),
        (read_presence, b"\x89PNG\r\n\x1a\n\x00", "UTF-8"),
        (read_places, None, "does not exist"),
    ],
)
def test_errors_name_the_place_in_one_line(
    tmp_path: Path, read: Callable[[Path, Any], Any], text: str | bytes | None, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "trace.csv" if text is None else write(tmp_path, text), range(2))
    assert message in str(caught.value)
    assert "trace.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
