"""Rennala on the four clients of the traces, written out by hand: client 0 takes 5 s, 1 takes 16 s, 2 30 s, 3 38 s."""

import pytest

from helpers.fleets import make_fleet, peak_bytes
from helpers.strategies import follow
from lesson import InputError, Rennala, Simulation


def test_updates_of_the_newest_version_are_averaged_and_stale_ones_dropped() -> None:
    """S = 4. Client 0 sends three updates by 15 s, client 1 the fourth at 16 s. Client 0, training since 15 s, is then
    stale: its update of 20 s is dropped, as is that of client 2 at 30 s. From version 1 come 0 at 25 and 30 s, 1, which
    started at 16 s, at 32 s, and 0 at 35 s."""
    trace, merges = follow(Rennala(updates_per_round=4), make_fleet([5.0, 16.0, 30.0, 38.0]), 9)
    assert trace == [
        (5.0, [0, 1, 2, 3], [], []),
        (10.0, [0], [], []),
        (15.0, [0], [], []),
        (16.0, [0], [0, 0, 0, 1], [0, 0, 0, 0]),
        (20.0, [1], [], []),
        (25.0, [0], [], []),
        (30.0, [0], [], []),
        (32.0, [0, 2], [], []),
        (35.0, [1], [0, 0, 1, 0], [0, 0, 0, 0]),
    ]
    assert [len(merge.drops) for merge in merges] == [0, 0, 0, 0, 1, 0, 1, 0, 0]
    assert {merge.of for merge in merges} == {"updates"}
    assert merges[3].weights.tolist() == merges[8].weights.tolist() == [0.25] * 4


def test_weights_do_not_depend_on_the_data_and_surplus_arrivals_are_dropped() -> None:
    """Four arrive at 1 s, S = 3: 0.6 / 3 each; the fourth starts again with the others."""
    fleet = make_fleet([1.0] * 4, weight=[1, 2, 3, 4])
    trace, merges = follow(Rennala(updates_per_round=3, server_lr=0.6), fleet, 2)
    assert trace == [(1.0, [0, 1, 2, 3], [0, 1, 2], [0] * 3), (2.0, [0, 1, 2, 3], [0, 1, 2], [0] * 3)]
    assert merges[0].weights == pytest.approx([0.2] * 3)
    assert len(merges[0].drops) == 1


def test_the_cost_depends_on_the_clients_involved() -> None:
    assert peak_bytes(Simulation(Rennala(), make_fleet([1.0 + who for who in range(50_000)]))) < 50_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates_per_round": 0}, "updates_per_round must be a whole number >= 1, got 0"),
        ({"server_lr": 0.0}, "server_lr must be a finite number > 0, got 0.0"),
    ],
)
def test_bad_settings(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Rennala(**options)  # type: ignore[arg-type]
    assert str(caught.value) == message
