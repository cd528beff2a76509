"""Work in flight whose arrival is not known when it starts, among work whose is."""

import numpy as np

from lesson.clock.in_flight import InFlight


def launched(takes_s: list[float], flight: InFlight | None = None, now_s: float = 0.0) -> InFlight:
    """Everybody at work since a time; who takes infinitely long lands when `arrive` says."""
    flight = InFlight(len(takes_s)) if flight is None else flight
    flight.launch(
        np.arange(len(takes_s)),
        version=0,
        round=1,
        now_s=now_s,
        arrives_s=now_s + np.array(takes_s),
        expected_s=np.ones(len(takes_s)),
        lr_scale=1.0,
        local_steps=np.ones(len(takes_s), dtype=np.int64),
        batches=1,
    )
    return flight


def test_nobody_lands_who_has_not_been_said_to_arrive() -> None:
    flight = launched([np.inf, np.inf])
    assert len(flight.land(1e9)) == 0
    assert len(flight) == 2
    assert (flight.nth_arrival_s(1), flight.last_arrival_s(np.array([0])), flight.final_arrival_s()) == (np.inf,) * 3


def test_who_arrives_lands_in_the_order_of_arrival() -> None:
    """2 at 3 s, 0 at 4 s, 1 not yet, 3 at 3.5 s as launched."""
    flight = launched([np.inf, np.inf, np.inf, 3.5])
    flight.arrive(2, 3.0)
    flight.arrive(0, 4.0)
    assert [flight.nth_arrival_s(count) for count in (1, 2, 3, 4, 5)] == [3.0, 3.5, 4.0, np.inf, np.inf]
    assert flight.last_arrival_s(np.array([0, 2])) == 4.0
    assert flight.last_arrival_s(np.array([0, 1])) == np.inf
    assert flight.land(3.9).client.tolist() == [2, 3]
    landed = flight.land(4.0)
    assert (landed.client.tolist(), landed.arrived_s.tolist()) == ([0], [4.0])
    assert flight.everybody().tolist() == [1]


def test_who_arrives_at_the_same_time_lands_in_the_order_of_starts() -> None:
    flight = launched([np.inf, np.inf, np.inf])
    for client in (2, 0, 1):
        flight.arrive(client, 3.0)
    assert flight.land(3.0).client.tolist() == [0, 1, 2]


def test_an_arrival_of_work_taken_out_since_is_forgotten() -> None:
    """0 has arrived at 3 s, is taken out before it lands, and works again: it lands when it arrives again."""
    flight = launched([np.inf])
    flight.arrive(0, 3.0)
    flight.take(np.array([0]))
    launched([np.inf], flight, now_s=2.0)
    assert flight.nth_arrival_s(1) == np.inf
    assert len(flight.land(5.0)) == 0
    flight.arrive(0, 6.0)
    landed = flight.land(6.0)
    assert (landed.index.tolist(), landed.arrived_s.tolist()) == ([1], [6.0])


def test_arrivals_survive_a_restart() -> None:
    """0 is said to arrive at 4 s, 1 not yet."""
    before = launched([np.inf, np.inf])
    before.arrive(0, 4.0)
    after = InFlight(2)
    after.restore({name: array.copy() for name, array in before.state().items()})
    assert (len(after), after.nth_arrival_s(1), after.nth_arrival_s(2)) == (2, 4.0, np.inf)
    after.arrive(1, 5.0)
    assert after.land(9.0).client.tolist() == [0, 1]
