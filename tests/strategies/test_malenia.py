"""Malenia on three clients, written out by hand: client 0 takes 5 s, 1 takes 8 s, 2 takes 12 s."""

from pathlib import Path

import pytest

from helpers.fleets import make_fleet, traced
from helpers.strategies import follow
from lesson import Fleet, InputError, Malenia, Settings, Simulation


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet([5.0, 8.0, 12.0], weight=[1, 2, 3])


@pytest.mark.parametrize("updates_per_round", [None, 2, 3])
def test_a_version_has_an_update_of_each_client(fleet: Fleet, updates_per_round: int | None) -> None:
    """At 12 s, 0 has sent two updates, 1 and 2 one each. Those of 0 at 15 s and of 1 at 16 s are stale. From version 1
    come 0 at 20 s, and 2 and 1, which started at 12 and 16 s, at 24 s. A client weighs 1/3, whatever its data."""
    trace, merges = follow(Malenia(updates_per_round), fleet, 8)
    assert trace == [
        (5.0, [0, 1, 2], [], []),
        (8.0, [0], [], []),
        (10.0, [1], [], []),
        (12.0, [0], [0, 1, 0, 2], [0, 0, 0, 0]),
        (15.0, [2], [], []),
        (16.0, [0], [], []),
        (20.0, [1], [], []),
        (24.0, [0], [0, 2, 1], [0, 0, 0]),
    ]
    assert {merge.of for merge in merges} == {"updates"}
    assert [len(merge.drops) for merge in merges] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert merges[3].weights == pytest.approx([1 / 6, 1 / 3, 1 / 6, 1 / 3])
    assert merges[7].weights == pytest.approx([1 / 3] * 3)


def test_the_harmonic_mean_of_the_numbers_of_updates_reaches_s_over_n(fleet: Fleet) -> None:
    """S = 4, so 3 / Σ 1/B must reach 4/3. At 12 s, B = (2, 1, 1): 3 / 2.5. At 15 s, (3, 1, 1): 3 / 2.33. At 16 s,
    (3, 2, 1): 3 / 1.83, which is enough. η = 0.9."""
    trace, merges = follow(Malenia(updates_per_round=4, server_lr=0.9), fleet, 6)
    assert [end_s for end_s, _, merged, _ in trace if merged] == [16.0]
    assert trace[5] == (16.0, [0], [0, 1, 0, 2, 0, 1], [0] * 6)
    assert merges[5].weights == pytest.approx([0.1, 0.15, 0.1, 0.3, 0.1, 0.15])


def test_clients_that_have_left_are_not_waited_for(fleet: Fleet, tmp_path: Path) -> None:
    """Client 2 leaves at 6 s without an update, client 0 at 7 s with one: 1, at 8 s, is the last of two."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 0,0,7 2,0,6")
    simulation = Simulation(Malenia(), fleet, settings=Settings(presence=presence))
    records = [simulation.step() for _ in range(4)]
    assert [record.merged.tolist() for record in records if record] == [[], [], [], [0, 1]]
    assert simulation.now_s == 8.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates_per_round": 1.5}, "updates_per_round must be a whole number >= 1, got 1.5"),
        ({"server_lr": -1.0}, "server_lr must be a finite number > 0, got -1.0"),
    ],
)
def test_bad_settings(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Malenia(**options)  # type: ignore[arg-type]
    assert str(caught.value) == message
