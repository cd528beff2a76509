"""Tiers of clients that are slower on first contact, or once, or from some round on: traces written out by hand."""

from helpers.fleets import make_fleet
from helpers.wall import Took, on_the_wall, outline
from lesson import Lesson
from lesson.flower.strategy import MeasuredFirst


def test_cold_first_replies_do_not_raise_tiers() -> None:
    """First replies come after 48, 50 and 47 s, later ones after 9, 16 and 38 s; rounds of 10 s, tiers 1, 2 and 4.

    Round 1 waits for everybody, until 50 s. All are then still estimated at 10 s and start in tier 1. Client 0 is there
    at 59 s. Client 1, at 66 s, is late and is in tier 2 from then on: from 70 to 90 s. Client 2 comes at 88 s, late by
    three rounds, and is in tier 4: from 90 to 130 s. Every round aggregates somebody.
    """
    takes: list[list[Took]] = [[48.0, 9.0], [50.0, 16.0], [47.0, 38.0]]
    federation, clients = on_the_wall(MeasuredFirst(Lesson(10.0)), make_fleet(3 * [10.0]), takes, first_is_cold=True)
    assert [outline(federation.step()) for _ in range(7)] == [
        (50.0, [0, 1, 2], [2, 0, 1]),
        (60.0, [0, 1, 2], [0]),
        (70.0, [0], [1, 0]),
        (80.0, [0, 1], [0]),
        (90.0, [0], [1, 2, 0]),
        (100.0, [0, 1, 2], [0]),
        (110.0, [0], [1, 0]),
    ]
    assert clients.lr_scales[:6] == [
        {0: 1, 1: 1, 2: 1},
        {0: 1, 1: 1, 2: 1},
        {0: 1},
        {0: 1, 1: 2},
        {0: 1},
        {0: 1, 1: 2, 2: 4},
    ]
    assert federation.fleet.latency_s.tolist() == [9.0, 16.0, 38.0]


def test_tier_changes_with_the_second_slow_reply() -> None:
    """Client 0 takes 6 s, and 27 s from its third local training on: two of these, from 20 and 50 s, begin in tier 1,
    and are aggregated at 50 and 80 s; the next begins in tier 3. If only one reply is slow, it stays in tier 1."""
    for slow, tiers in (([27.0], [1, 1, 1, 1, 3]), ([27.0, 6.0], [1, 1, 1, 1, 1, 1, 1])):
        takes: list[list[Took]] = [[6.0, 6.0, *slow], [15.0]]
        federation, clients = on_the_wall(Lesson(10.0), make_fleet([6.0, 15.0]), takes)
        for _ in range(9):
            federation.step()
        assert [scales[0] for scales in clients.lr_scales if 0 in scales] == tiers
