"""What every strategy must keep, whatever it decides."""

import inspect
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.fleets import make_fleet
from helpers.strategies import KINDS, NUM_ROUNDS, Watched, everyone, make
from lesson import Fleet, InputError, Simulation
from lesson.clock.loop import RoundLoop
from lesson.strategies import STRATEGIES, FedAT, FedAvg, FedBuff, Lesson, LessonMemory, Oort, Refl, Safa
from lesson.strategies.fedbuff import Buffered
from lesson.testing import check_strategy

fleets = st.lists(st.floats(0.1, 100), max_size=9).map(lambda some: make_fleet([*some, 3.0, np.inf, 15.0, 25.0]))


def run(strategy: Any, fleet: Fleet, rounds: int = 25) -> tuple[RoundLoop, list[Any]]:
    simulation = Simulation(strategy, fleet)
    return simulation, [simulation.step() for _ in range(rounds)]


@everyone
def test_every_strategy_keeps_the_contract(kind: type[Any]) -> None:
    check_strategy(kind, rounds=NUM_ROUNDS.get(kind, 40))


@pytest.mark.parametrize(
    "strategy",
    [
        Lesson(20.0, participation=2),
        lambda: FedBuff(3, 2),
        Oort(2, 1.5, exploration=0.4, pacer_window=3),
        Refl(2, 2.0, round_limit_s=20.0, hold_off=1, max_staleness=2, adaptive_target=True),
    ],
    ids=["object", "function", "oort", "refl"],
)
def test_strategies_with_options_keep_the_contract(strategy: Any) -> None:
    """FedBuff with a concurrency of 2 declines a fleet of one client, as it may."""
    check_strategy(strategy)


@everyone
@settings(max_examples=10)
@given(fleet=fleets)
def test_no_update_is_merged_early_or_twice_and_time_moves_forward(kind: type[Any], fleet: Fleet) -> None:
    _, records = run(Watched(make(kind)), fleet)
    for before, after in pairwise(records):
        assert after.start_s == before.end_s
        assert after.end_s >= after.start_s
        assert after.version - before.version in ([1] if len(after.merged) else [0, 1])
    assert records[-1].end_s > 0
    for record in records:
        assert np.all(record.staleness >= 0)
        assert record.bytes_up == 12_500 * record.uploads
        assert record.bytes_down == 12_500 * len(record.started)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if not issubclass(kind, Buffered)], ids=lambda kind: kind.__name__
)
@settings(max_examples=10)
@given(fleet=st.lists(st.integers(1, 10**6), min_size=3, max_size=9, unique=True), data=st.data())
def test_relabelled_clients_give_the_relabelled_plan(kind: type[Any], fleet: list[int], data: st.DataObject) -> None:
    """For strategies that draw nothing."""
    latencies = [latency / 1e4 for latency in fleet] + [3.00005, 15.00005, 25.00005]
    relabel = np.array(data.draw(st.permutations(range(len(latencies)))))
    there = np.empty(len(latencies))
    there[relabel] = latencies
    _, records = run(make(kind), make_fleet(latencies), rounds=10)
    _, relabelled = run(make(kind), make_fleet(there.tolist()), rounds=10)
    for record, other in zip(records, relabelled, strict=True):
        assert record.end_s == other.end_s
        assert set(relabel[record.started]) == set(other.started)
        assert set(relabel[record.merged]) == set(other.merged)


def test_a_strategy_that_cannot_be_copied_is_an_error_in_one_line() -> None:
    strategy = FedAvg()
    strategy.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"strategy FedAvg cannot be copied: .*lock"):
        Simulation(strategy, make_fleet([1.0]))


class Weighing:
    """A strategy, with the weights of all its merges and slots kept."""

    def __init__(self, strategy: Any) -> None:
        self.strategy, self.needs = strategy, strategy.needs
        self.weights: list[tuple[list[float], dict[str, float]]] = []

    def open_round(self, *given: Any) -> Any:
        return self.strategy.open_round(*given)

    def merge(self, *given: Any) -> Any:
        merge = self.strategy.merge(*given)
        self.weights.append((merge.weights.tolist(), dict(merge.groups.weights) if merge.groups is not None else {}))
        return merge


def weights_of(kind: type[Any], weight: float) -> list[tuple[list[float], dict[str, float]]]:
    """What a strategy gives four clients that all report the same number."""
    simulation, _ = run(Weighing(make(kind)), make_fleet([3.0, 7.0, 15.0, 25.0], weight=[weight] * 4))
    weights: list[tuple[list[float], dict[str, float]]] = simulation.strategy.weights
    return weights


@everyone
@pytest.mark.parametrize("weight", [2.0**1023, 2.0**-1000])
def test_weights_are_shares_however_large_or_small_they_are(kind: type[Any], weight: float) -> None:
    """A sum of two weights of 2^1023 is infinite; as powers of two, they give the same bits as weights of 1."""
    assert weights_of(kind, weight) == weights_of(kind, 1.0)


@everyone
@pytest.mark.parametrize(
    ("weights", "got"),
    [([0.0] * 4, "0 for all"), ([1.0, np.nan, 1.0, 1.0], "nan"), ([1.0, 1.0, -2.0, 1.0], "-2"), ([np.inf] * 4, "inf")],
)
def test_invalid_client_weights_are_rejected_in_one_line(kind: type[Any], weights: list[float], got: str) -> None:
    message = rf"client_weight must be >= 0 and finite, and > 0 for some client, got {got}$"
    with pytest.raises(InputError, match=message):
        run(make(kind), make_fleet([3.0, 7.0, 15.0, 25.0], weight=weights))


@pytest.mark.parametrize("kind", [FedAvg, FedAT, Lesson, LessonMemory, Safa])
def test_aggregated_clients_must_have_a_weight(kind: type[Any]) -> None:
    """Only the client that nobody reaches has one."""
    message = "^client_weight of the clients that are aggregated must sum to more than 0, got 0$"
    with pytest.raises(InputError, match=message):
        run(make(kind), make_fleet([3.0, 7.0, 15.0, np.inf], weight=[0.0, 0.0, 0.0, 1.0]))


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_registered_strategies_explain_themselves(name: str) -> None:
    kind = STRATEGIES[name]
    assert kind.__doc__
    summary, _, rest = kind.__doc__.partition("\n")
    assert summary.endswith(".")
    assert not rest or rest.startswith("\n")
    assert inspect.getmodule(kind).__doc__  # type: ignore[union-attr]
