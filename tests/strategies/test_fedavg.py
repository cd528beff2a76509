"""Which clients FedAvg selects, by hand; of the clients in `fleet`, 0 has the highest data rate, and 3 the lowest."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, traced
from helpers.strategies import follow
from lesson import FedAvg, Fleet, InputError, Settings, simulate


def starts(strategy: FedAvg, fleet: Fleet, rounds: int, **options: Any) -> list[list[int]]:
    return [clients for _, clients, _ in follow(strategy, fleet, rounds, **options).rounds]


class Descending:
    """Draws the largest number for the first client, so that the last one wins a tie; `sign` = −1 reverses this."""

    def __init__(self, sign: int = 1) -> None:
        self.sign = sign

    def random(self, count: int) -> np.ndarray:
        return -self.sign * np.arange(float(count))


def test_number_of_clients_in_a_round(fleet: Fleet) -> None:
    assert {len(clients) for clients in starts(FedAvg(clients_per_round=3), fleet, 20)} == {3}
    assert starts(FedAvg(clients_per_round=9), fleet, 2) == [[0, 1, 2, 3]] * 2
    assert starts(FedAvg(fraction=0.5, select="best-channel"), fleet, 2) == [[0, 1]] * 2
    with pytest.raises(InputError, match="clients_per_round must be unset if fraction is given, got 3"):
        FedAvg(clients_per_round=3, fraction=0.5)


def test_round_robin(fleet: Fleet) -> None:
    """0 1 2, 3 0 1, 2 3 0, 1 2 3, and from the start again."""
    strategy = FedAvg(clients_per_round=3, select="round-robin")
    assert starts(strategy, fleet, 5) == [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3], [0, 1, 2]]


def test_best_channel(fleet: Fleet) -> None:
    assert starts(FedAvg(clients_per_round=2, select="best-channel"), fleet, 3) == [[0, 1]] * 3


def test_age(fleet: Fleet) -> None:
    """Round 1: no update yet, so the three highest rates. 2: client 3, and 0 and 1, whose updates are as old as that of
    2 and which have higher rates. 3: client 2 (round 1), and 0 and 1 of those of round 2. 4: client 3 (round 2) again.
    """
    assert starts(FedAvg(clients_per_round=3, select="age"), fleet, 4) == [[0, 1, 2], [0, 1, 3], [0, 1, 2], [0, 1, 3]]


def test_proportional_fair(tmp_path: Path) -> None:
    """In uploads per second, rates are estimated as 1/2 and 1/4 at first. Round 1: a tie, which client 0 wins; its rate
    is now 1. 2: its ratio is 1 / (1/2), that of 1 is 1: client 0, whose rate is now 1/4. 3: 1/4 / (3/4) < 1: client 1,
    whose rate is now 1/8. 4: 1/4 / (7/12) < 1/8 / (1/4): client 1, whose rate is now 1/2. 5: 1/4 / (1/2) and
    1/2 / (7/32): client 1."""
    rows = "0,1,2,1 0,2,2,4 0,3,2,2 1,1,4,8 1,2,4,2 1,3,4,1"
    work = traced(tmp_path / "work.csv", f"client,round,compute_s,upload_s {rows}")
    strategy = FedAvg(clients_per_round=1, select="proportional-fair")
    fleet, options = make_fleet([4.0, 8.0]), {"settings": Settings(trace=work), "rng": Descending(-1)}
    assert starts(strategy, fleet, 5, **options) == [[0], [0], [1], [1], [1]]


def test_proportional_fair_draws_at_random_if_channels_do_not_change(fleet: Fleet) -> None:
    strategy = FedAvg(clients_per_round=2, select="proportional-fair")
    assert starts(strategy, fleet, 20, rng=Descending()) == [[2, 3]] * 20


@pytest.mark.parametrize("rule", ["best-channel", "proportional-fair", "age"])
def test_rules_that_need_data_rates(rule: Any, fleet: Fleet) -> None:
    fleet.upload_s[2] = np.nan
    with pytest.raises(InputError, match=f"select = {rule} needs upload_s > 0 of every client, got nan for client 2"):
        list(simulate(FedAvg(select=rule), fleet, rounds=1))
