"""Ringleader ASGD on clients of 4, 9 and 10 s, by hand."""

from pathlib import Path

import pytest

from helpers.fleets import make_fleet, traced
from helpers.one_number import OneNumber
from helpers.strategies import follow
from lesson import Fleet, Ringleader, Settings


@pytest.fixture
def three() -> Fleet:
    return make_fleet([4.0, 9.0, 10.0], weight=[1, 2, 3])


def test_models_and_trace(three: Fleet) -> None:
    """The updates of client 0, which arrive every 4 s, are 3, 9, 15, 2, 4, 6 and 16.

    10 s: all have arrived, with the means (3 + 9)/2 = 6, 9 and 3: w = 18/3 = 6. Clients 0 and 1 are still training.
    12 s: client 0 joins, (3 + 9 + 15)/3 = 9: + 21/3 = 13. 16 s: client 0 waits for the next table.
    18 s: client 1 joins, (9 + 15)/2 = 12: + 24/3 = 21. 20 and 24 s: clients 2 and 0 wait, too.
    27 s: all have arrived, with (2 + 4 + 6)/3 = 4, 10 and 7: + 21/3 = 28. Clients 0 and 2 are still training.
    28 s: client 0 joins, (2 + 4 + 6 + 16)/4 = 7: + 24/3 = 36. 30 s: client 2 joins, (7 + 13)/2 = 10: + 27/3 = 45.
    """
    server = OneNumber({0: [3, 9, 15, 2, 4, 6, 16], 1: [9, 15, 10], 2: [3, 7, 13]})
    run = follow(Ringleader(server_lr=1.0), three, 12, server=server)
    assert run.trace == [
        (4.0, [0, 1, 2], [], []),
        (8.0, [0], [], []),
        (9.0, [0], [], []),
        (10.0, [1], [0, 0, 1, 2], [0, 0, 0, 0]),
        (12.0, [2], [0], [1]),
        (16.0, [0], [], []),
        (18.0, [0], [1], [2]),
        (20.0, [1], [], []),
        (24.0, [0, 2], [], []),
        (27.0, [0], [0, 2, 0, 0, 1], [1, 2, 1, 0, 0]),
        (28.0, [1], [0], [1]),
        (30.0, [0], [2], [2]),
    ]
    assert {merge.of for merge in run.merges} == {"updates"}
    assert [float(model) for model in server.models] == pytest.approx([0, 6, 13, 21, 28, 36, 45])


def test_weights(three: Fleet) -> None:
    """η = 0.9: each client weighs 0.3. At 18 s, clients 0 and 1 have joined with a third and half of their updates: 0.1
    and 0.15."""
    run = follow(Ringleader(server_lr=0.9), three, 10)
    merge = run.merges[6]
    assert merge.groups is not None
    assert merge.groups.weights == pytest.approx(
        {"client 0": 0.2, "client 0, added": 0.1, "client 1": 0.15, "client 1, added": 0.15, "client 2": 0.3}
    )
    assert (merge.groups.names, merge.weights.tolist()) == (["client 1, added"], [1.0])
    table = run.merges[9]
    assert table.groups is not None
    assert table.weights == pytest.approx([1 / 3, 1, 1 / 3, 1 / 3, 1])
    assert sorted(table.groups.resets) == ["client 0", "client 0, added", "client 1", "client 1, added", "client 2"]


def test_a_client_that_leaves_during_training_is_not_waited_for(three: Fleet, tmp_path: Path) -> None:
    """Client 1 leaves at 15 s, before its update joins the table. At 20 s, clients 0 and 2 form the next one."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 1,0,15")
    run = follow(Ringleader(), three, 8, settings=Settings(presence=presence))
    assert [(end_s, merged) for end_s, _, merged in run.rounds if merged] == [
        (10.0, [0, 0, 1, 2]),
        (12.0, [0]),
        (20.0, [0, 2, 0]),
    ]
