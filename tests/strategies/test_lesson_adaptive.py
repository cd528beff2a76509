"""The adaptive deadline on the four clients of the traces, with scripted signals, written out by hand.

τ begins at 10 s: client 0 takes 5 s (tier 1), 1 takes 16 s (tier 2), 2 takes 30 s (tier 3), 3 takes 38 s (tier 4). A
tenth and a half of them are faster than 8.3 s and 23 s. The first look is when round 51 opens, at 500 s.
"""

import json
import math
from typing import Any

import pytest

from helpers.fleets import make_fleet
from lesson import InputError, Simulation, simulate
from lesson.strategies import LessonAdaptive, make_strategy

LATENCIES = [5.0, 16.0, 30.0, 38.0]
HELD = "limited so that a tenth to a half of the clients are in tier 1"


class Confirming:
    """A learner whose signal grows by the same pair between two looks, another for each look."""

    def __init__(self, *pairs: tuple[float, float]) -> None:
        self.pairs, self.round = pairs, 0

    def signals(self, names: frozenset[str], version: int) -> dict[str, tuple[float, float]]:
        assert names == {"confirmation"}
        told = self.pairs[: self.round // 50]
        return {"confirmation": (sum(pair[0] for pair in told), sum(pair[1] for pair in told))}

    def merge(self, updates: Any, weights: Any, merge: Any, version: int, round: int) -> list[Any]:
        self.round = round
        return []

    def forget(self, version: int) -> None: ...


def run(strategy: LessonAdaptive, learner: Any, rounds: int, latencies: list[float] | None = None) -> list[Any]:
    simulation = Simulation(strategy, make_fleet(latencies or LATENCIES), model_server=learner)
    return [simulation.step() for _ in range(rounds)]


def test_trace_of_a_change() -> None:
    """Nothing was confirmed: τ becomes 10·exp(0.3·0.25) s. Clients 2 and 3, at work since 480 s, are merged at the
    first ends after their arrival at 510 and 518 s; the others keep their tiers, and so do they from then on."""
    tau = 10 * math.exp(0.3 * 0.25)
    records = run(LessonAdaptive(deadline_s=10.0), Confirming((0.0, 2.0)), 56)
    assert {record.note for record in records[:50]} == {""}
    assert records[50].note == "deadline 10 s → 10.78 s: 0.00 confirmed, target 0.25"
    assert [(record.started.tolist(), sorted(record.merged.tolist())) for record in records[48:56]] == [
        ([0, 1, 2, 3], [0]),
        ([0], [0, 1]),
        ([0, 1], [0, 2]),
        ([0, 2], [0, 1, 3]),
        ([0, 1, 3], [0]),
        ([0], [0, 1, 2]),
        ([0, 1, 2], [0]),
        ([0], [0, 1, 3]),
    ]
    assert [record.end_s for record in records[49:56]] == [500.0, *(500 + n * tau for n in range(1, 7))]


def test_old_measurements_fade_and_bounds_hold() -> None:
    """Looks at 1.0, 1.0 and 0.2: down by the most, exp(−0.12); down again, to the bound of 8.3 s. Then, with a fifth of
    what was seen before the change, c = (0.2·(0.2·4 + 4) + 0.8) / (0.2·(0.2·4 + 4) + 4) = 1.76 / 4.96: at the bound."""
    strategy = LessonAdaptive(deadline_s=10.0)
    records = run(strategy, Confirming((4.0, 4.0), (4.0, 4.0), (0.8, 4.0)), 151)
    assert [record.note for record in records if record.note] == [
        "deadline 10 s → 8.869 s: 1.00 confirmed, target 0.25",
        f"deadline 8.869 s → 8.3 s: 1.00 confirmed, target 0.25; {HELD}",
        "deadline stays at 8.3 s: 0.35 confirmed, target 0.25",
    ]


@pytest.mark.parametrize(("begin_s", "bound_s"), [(60.0, 23.0), (1.0, 8.3)])
def test_the_initial_deadline_is_within_its_bounds(begin_s: float, bound_s: float) -> None:
    strategy = LessonAdaptive(deadline_s=begin_s)
    (record,) = run(strategy, Confirming(), 1)
    assert record.note == f"deadline {begin_s:g} s → {bound_s:g} s: {HELD}"
    assert record.end_s == bound_s


def test_an_unreachable_fleet_is_not_an_error() -> None:
    records = run(LessonAdaptive(deadline_s=10.0), Confirming(), 2, [math.inf, math.inf])
    assert "none can start" in records[0].note


def test_measurements_fade_to_seven_tenths_if_the_deadline_stays() -> None:
    """c = 0.3 and then (0.7·1.2 + 1.0) / (0.7·4 + 4) = 0.27: neither moves τ by 5 %."""
    records = run(LessonAdaptive(deadline_s=10.0), Confirming((1.2, 4.0), (1.0, 4.0)), 101)
    assert [record.note for record in records if record.note] == [
        "deadline stays at 10 s: 0.30 confirmed, target 0.25",
        "deadline stays at 10 s: 0.27 confirmed, target 0.25",
    ]


def test_a_change_of_four_percent_is_not_made() -> None:
    """exp(0.3·(0.25 − 0.12)) = 1.04."""
    records = run(LessonAdaptive(deadline_s=10.0), Confirming((0.12, 1.0)), 51)
    assert records[50].note == "deadline stays at 10 s: 0.12 confirmed, target 0.25"


def test_small_changes_accumulate() -> None:
    """Looks at c = 0.12: exp(0.3·0.13) = 1.04 is too little, twice it is 1.081, so τ becomes 10.81 s at the second.

    The change fades the measurements but not c: the third look starts again with 1.04 and the fourth makes it 11.69 s.
    """
    small = [(0.12, 1.0)] * 4
    records = run(LessonAdaptive(deadline_s=10.0, accumulate=True), Confirming(*small), 201)
    assert [record.note for record in records if record.note] == [
        "deadline stays at 10 s: 0.12 confirmed, target 0.25",
        "deadline 10 s → 10.81 s: 0.12 confirmed, target 0.25",
        "deadline stays at 10.81 s: 0.12 confirmed, target 0.25",
        "deadline 10.81 s → 11.69 s: 0.12 confirmed, target 0.25",
    ]
    skipped = run(LessonAdaptive(deadline_s=10.0), Confirming(*small), 201)
    assert {record.note for record in skipped if record.note} == {"deadline stays at 10 s: 0.12 confirmed, target 0.25"}


def test_wishes_beyond_the_limits_do_not_accumulate() -> None:
    """τ starts at its lower limit of 8.3 s and c is 1 for five looks. Then a look at 0 with all older ones faded to
    nothing counts at once: exp(0.3·0.25) = 1.078. Had the five wishes built up, τ would take as long to return."""
    pairs = [(1.0, 1.0)] * 5 + [(0.0, 1e9)]
    records = run(LessonAdaptive(deadline_s=8.3, accumulate=True), Confirming(*pairs), 301)
    notes = [record.note for record in records if record.note]
    assert notes[:5] == ["deadline stays at 8.3 s: 1.00 confirmed, target 0.25"] * 5
    assert notes[5] == "deadline 8.3 s → 8.946 s: 0.00 confirmed, target 0.25"


def test_accumulated_changes_continue_after_a_restart() -> None:
    simulation = Simulation(
        LessonAdaptive(deadline_s=10.0, accumulate=True),
        make_fleet(LATENCIES),
        model_server=Confirming(*[(0.12, 1.0)] * 2),
    )
    for _ in range(101):
        replacement = LessonAdaptive(deadline_s=10.0, accumulate=True)
        replacement.restore(json.loads(json.dumps(simulation.strategy.state(), allow_nan=False)))
        simulation.strategy = replacement
        record = simulation.step()
    assert record is not None
    assert record.note == "deadline 10 s → 10.81 s: 0.12 confirmed, target 0.25"


def test_the_limits_stay_the_same_after_a_restart() -> None:
    """In real time, the first latencies of a restarted server are those that were measured before."""
    simulation = Simulation(LessonAdaptive(deadline_s=10.0), make_fleet(LATENCIES), model_server=Confirming())
    simulation.step()
    replacement = LessonAdaptive(deadline_s=10.0)
    replacement.restore(json.loads(json.dumps(simulation.strategy.state(), allow_nan=False)))
    assert replacement == simulation.strategy


@pytest.mark.parametrize("accumulate", [1, "yes", None])
def test_accumulate_is_a_flag(accumulate: Any) -> None:
    with pytest.raises(InputError, match="accumulate must be true or false"):
        LessonAdaptive(deadline_s=10.0, accumulate=accumulate)


def test_unreachable_clients_do_not_affect_the_bounds() -> None:
    latencies = [*LATENCIES, 300.0, math.inf, math.inf]
    first = run(LessonAdaptive(deadline_s=100.0), Confirming((0.0, 1.0)), 51, latencies)[0]
    assert first.note == f"deadline 100 s → 30 s: {HELD}"


def test_small_changes_are_not_made_and_missing_stale_updates_are_noted() -> None:
    """At 0.2 τ would grow by 1.5 %. Nothing seen since: 0.7 of it is still remembered."""
    records = run(LessonAdaptive(deadline_s=10.0), Confirming((0.8, 4.0), (0.0, 0.0)), 101)
    assert records[50].note == records[100].note == "deadline stays at 10 s: 0.20 confirmed, target 0.25"
    silent = run(LessonAdaptive(deadline_s=10.0), Confirming((0.0, 0.0)), 51)
    assert silent[50].note == "deadline stays at 10 s: no stale updates"


def test_timing_alone_is_lesson() -> None:
    adaptive, lesson = (
        [(record.end_s, record.merged.tolist(), record.note) for record in simulate(strategy, fleet, rounds=120)]
        for fleet in [make_fleet(LATENCIES)]
        for strategy in (make_strategy("lesson-adaptive", 10.0), make_strategy("lesson", 10.0))
    )
    assert adaptive == lesson


def test_continues_after_a_restart() -> None:
    pairs = [(0.0, 2.0), (3.0, 2.0), (0.1, 2.0)]
    expected = run(LessonAdaptive(deadline_s=10.0), Confirming(*pairs), 160)
    simulation = Simulation(LessonAdaptive(deadline_s=10.0), make_fleet(LATENCIES), model_server=Confirming(*pairs))
    for record in expected:
        replacement = LessonAdaptive(deadline_s=10.0)
        replacement.restore(json.loads(json.dumps(simulation.strategy.state(), allow_nan=False)))
        simulation.strategy = replacement
        again = simulation.step()
        assert again is not None
        assert (again.end_s, again.merged.tolist(), again.note) == (record.end_s, record.merged.tolist(), record.note)


def test_a_draw_of_clients_follows_the_new_tiers() -> None:
    """At 20 s, and at 17.74 s after a look at 1, clients 0 and 1 are in tier 1 and one of them starts in each round. At
    15.73 s, after another, tier 1 is client 0 alone, and of 1 and 2 one starts every second round."""
    records = run(LessonAdaptive(deadline_s=20.0, participation=1), Confirming((1.0, 1.0), (1.0, 1.0)), 130)
    before, later = ([set(record.started.tolist()) for record in some] for some in (records[:100], records[102:]))
    assert {len(started & {0, 1}) for started in before} == {1}
    assert records[-1].end_s - records[-2].end_s == pytest.approx(20 * math.exp(-0.24))
    assert all(0 in started for started in later)
    assert [len(started & {1, 2}) for started in later] == [1, 0] * 14


@pytest.mark.parametrize("agreement", [0, -1, 1.5, math.nan, True, "much"])
def test_agreement_is_a_share(agreement: Any) -> None:
    with pytest.raises(InputError, match="agreement must be a number > 0 and <= 1"):
        LessonAdaptive(deadline_s=10.0, agreement=agreement)


def test_an_endless_deadline_is_rejected() -> None:
    with pytest.raises(InputError, match="deadline_s must be finite for lesson-adaptive"):
        LessonAdaptive(deadline_s=math.inf)
