"""FedBuff, CA²FL, FADAS, Rennala, Malenia and SAFA, which aggregate when enough updates have arrived, by hand.

Clients 0 to 3 of `fleet` take 5, 16, 30 and 38 s, and all train at the same time.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, peak_bytes, steps, traced
from helpers.one_number import OneNumber
from helpers.strategies import follow
from lesson import (
    CA2FL,
    FADAS,
    FedAsync,
    FedAvg,
    FedBuff,
    Fleet,
    InputError,
    Malenia,
    Rennala,
    Settings,
    make_loop,
)
from lesson.settings.sections import ServerSettings
from lesson.strategies import Safa


def test_fedbuff(fleet: Fleet) -> None:
    """K = 3. 0 fills the buffer at 5, 10, 15 s. At 16, 20, 25 s come 1, from version 0, and 0 twice, from 1. At 30 s 2,
    from 0, and 0, from 2; at 32 s 1, from 1. At 35 s 0, from 2; at 38 s 3, from 0; at 40 s 0."""
    run = follow(FedBuff(buffer_size=3, concurrency=4), fleet, 11)
    assert run.trace == [
        (5.0, [0, 1, 2, 3], [], []),
        (10.0, [0], [], []),
        (15.0, [0], [0, 0, 0], [0, 0, 0]),
        (16.0, [0], [], []),
        (20.0, [1], [], []),
        (25.0, [0], [1, 0, 0], [1, 0, 0]),
        (30.0, [0], [], []),
        (32.0, [0, 2], [2, 0, 1], [2, 0, 1]),
        (35.0, [1], [], []),
        (38.0, [0], [], []),
        (40.0, [3], [0, 3, 0], [1, 3, 0]),
    ]
    assert {merge.of for merge in run.merges} == {"updates"}
    assert run.merges[5].weights == pytest.approx([1 / 3 / 2**0.5, 1 / 3, 1 / 3])
    assert run.merges[7].weights == pytest.approx([1 / 3 / 3**0.5, 1 / 3, 1 / 3 / 2**0.5])
    plain = FedBuff(buffer_size=3, concurrency=4, scale_staleness=False, server_lr=0.6)
    assert follow(plain, fleet, 6).merges[5].weights == pytest.approx([0.2, 0.2, 0.2])


def test_fedbuff_empties_an_overfull_buffer_before_anybody_starts() -> None:
    """Four arrive at 1 s, K = 2: two make version 1, the others, now stale by one, version 2 at the same time."""
    trace = follow(FedBuff(buffer_size=2, concurrency=4), make_fleet([1.0] * 4), 3).trace
    assert [(end_s, starts, staleness) for end_s, starts, _, staleness in trace] == [
        (1.0, [0, 1, 2, 3], [0, 0]),
        (1.0, [], [1, 1]),
        (2.0, [0, 1, 2, 3], [0, 0]),
    ]


@pytest.mark.parametrize("kind", [FedBuff, FedAsync])
def test_clients_start_at_a_given_rate(kind: type[Any]) -> None:
    """Every client takes 25 s, and one of three starts every 10 s: at 0, 10 and 20 s. At 25 s, the first arrives and is
    idle at 30 s, and so on: two or three train at a time, where all three would without a rate."""
    options = {"buffer_size": 1} if kind is FedBuff else {}
    records = follow(kind(**options, rate_per_s=0.1), make_fleet([25.0] * 3), 10).records
    starts = [(one.start_s, len(one.started)) for one in records if len(one.started)]
    assert starts == [(0, 1), (10, 1), (20, 1), (30, 1), (40, 1), (50, 1)]
    assert [one.end_s for one in records if len(one.merged)] == [25, 35, 45, 55]
    assert [one.staleness.tolist() for one in records if len(one.merged)] == [[0], [1], [2], [2]]


def test_starts_at_which_all_clients_train_are_skipped() -> None:
    """Starts every 10 s, of one client that takes 25 s: at 0, 30 and 60 s."""
    records = follow(FedBuff(1, rate_per_s=0.1), make_fleet([25.0]), 5).records
    assert [one.start_s for one in records if len(one.started)] == [0, 30, 60]


def test_starts_at_which_nobody_is_connected_are_skipped(tmp_path: Path) -> None:
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 0,95,inf 1,95,inf")
    records = follow(FedBuff(1, rate_per_s=0.1), make_fleet([8.0] * 2), 4, settings=Settings(presence=presence)).records
    assert [(one.start_s, len(one.started)) for one in records if len(one.started)] == [(100, 1), (110, 1)]


def test_starts_during_the_overhead_of_the_server_take_place_after_it() -> None:
    """Clients arrive at 12 s and at 22 s. The server is busy until 47 s, when the starts of 20, 30 and 40 s take place,
    and again until 82 s."""
    loop = make_loop(FedBuff(1, rate_per_s=0.1), make_fleet([12.0] * 9), settings=Settings(overhead_s=35.0))
    starts = [(one.start_s, len(one.started)) for one in steps(loop, 4)]
    assert starts == [(0, 1), (10, 1), (47, 3), (82, 4)]


def test_poisson_starts_have_exponential_intervals() -> None:
    records = follow(FedBuff(1, rate_per_s=2.0, start_times="poisson"), make_fleet([0.1] * 50), 3_000).records
    gaps_s = np.diff([one.start_s for one in records if len(one.started)])
    assert gaps_s.mean() == pytest.approx(0.5, rel=0.08)
    assert gaps_s.std() == pytest.approx(0.5, rel=0.08)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate_per_s": 1.0, "concurrency": 3}, "concurrency must be unset if rate_per_s is given, got 3"),
        ({"start_times": "poisson"}, "start_times has no effect without rate_per_s"),
        ({"rate_per_s": 0.0}, "rate_per_s must be > 0"),
    ],
)
def test_options_of_starts_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FedBuff(**options)


@pytest.mark.parametrize("num_idle", [0, 9])
def test_fedbuff_maintains_its_concurrency(num_idle: int) -> None:
    """Three clients train: one starts per arrival. Any idle client may be next, so that all have their turn."""
    fleet = make_fleet([(1.0 + client) ** 0.37 for client in range(3 + num_idle)])
    rounds = follow(FedBuff(buffer_size=3, concurrency=3), fleet, 150).rounds
    assert [len(starts) for _, starts, _ in rounds] == [3] + [1] * 149
    assert {client for _, starts, _ in rounds for client in starts} == set(range(3 + num_idle))


def test_by_default_all_clients_train_and_the_buffer_holds_ten() -> None:
    """30 clients. The two that arrive at 1 s start again at once; the buffer fills at 5 s."""
    rounds = follow(FedBuff(), make_fleet([1.0, 1.0] + [50.0] * 28), 6).rounds
    assert [starts for _, starts, _ in rounds[:3]] == [list(range(30)), [0, 1], [0, 1]]
    assert [(end_s, len(merged)) for end_s, _, merged in rounds if merged] == [(5.0, 10)]


@pytest.mark.parametrize("strategy", [FedBuff(3, 4), Rennala()], ids=str)
def test_cost_of_a_round_does_not_grow_with_the_fleet(strategy: Any) -> None:
    assert peak_bytes(make_loop(strategy, make_fleet([1.0 + client for client in range(50_000)]))) < 50_000


def test_ca2fl_models_and_caches(fleet: Fleet) -> None:
    """Buffers, in the order of arrival, with h̄ = Σ h / 4:

    1. Client 0 with 3, 6, 9: v = 0 + 18/3 = 6. Its cache is the mean, h₀ = 6, so h̄ = 1.5.
    2. Client 1 with 9 and 0 with 12, 0: v = 1.5 + (9 + (12 − 6) + (0 − 6))/3 = 4.5; h₀ = 6, h₁ = 9, h̄ = 3.75.
    3. Client 2 with 10, 0 with 0, 1 with 11: v = 3.75 + (10 + (0 − 6) + (11 − 9))/3 = 5.75; h = 0, 11, 10, h̄ = 5.25.
    4. Client 0 with 3, 3 with 6, 0 with 9: v = 5.25 + (3 + 6 + 9)/3 = 11.25; h = 6, 11, 10, 6.
    """
    server = OneNumber({0: [3, 6, 9, 12, 0, 0, 3, 9], 1: [9, 11], 2: [10], 3: [6]})
    run = follow(CA2FL(buffer_size=3, concurrency=4), fleet, 11, server=server)
    assert [float(model) for model in server.models] == pytest.approx([0, 6, 10.5, 16.25, 27.5])
    caches = {name: float(vector) for name, vector in server.groups.filled.items()}
    assert caches == pytest.approx({"client 0": 6, "client 1": 11, "client 2": 10, "client 3": 6})
    assert run.trace == follow(FedBuff(buffer_size=3, concurrency=4), fleet, 11).trace


def test_ca2fl_weights() -> None:
    """Second buffer: client 1 once and client 0 twice, η = 0.6: shares 0.6/3 and 0.6·2/3; h̄ has the weight 0.6/4, as
    the unreachable client does not count."""
    fleet = make_fleet([5.0, 16.0, 30.0, 38.0, np.inf])
    merge = follow(CA2FL(buffer_size=3, concurrency=4, server_lr=0.6), fleet, 6).merges[5]
    assert merge.groups is not None
    assert merge.weights.tolist() == [1.0, 0.5, 0.5]
    assert merge.groups.names == ["client 1", "client 0", "client 0"]
    assert merge.groups.weights == pytest.approx({"client 1": 0.2, "client 0": 0.4})
    assert merge.groups.previous == pytest.approx({"client 1": -0.2, "client 0": -0.4})
    assert merge.groups.previous_total == pytest.approx(0.15)
    assert (merge.of, merge.step_scale) == ("updates", 1.0)


def test_ca2fl_counts_clients_that_take_turns(tmp_path: Path) -> None:
    """Clients 0 and 1 leave at 20 s, when 2 and 3 come: never more than two at a time, but four have trained."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 0,0,20 1,0,20 2,20,inf 3,20,inf")
    run = follow(CA2FL(1, 2), make_fleet([5.0] * 4), 13, settings=Settings(presence=presence))
    assert run.records[-1].end_s >= 30
    totals = [merge.groups.previous_total for merge in run.merges if merge.groups is not None]
    assert (totals[0], totals[-1]) == (1 / 2, 1 / 4)


@pytest.mark.parametrize(
    ("options", "scales"),
    [
        ({}, [1, 1, 1 / 2, 1 / 3]),
        ({"delay_threshold": 2}, [1, 1, 1, 1 / 3]),
        ({"delay_threshold": np.inf}, [1, 1, 1, 1]),
    ],
)
def test_fadas_takes_smaller_steps_for_very_stale_updates(
    fleet: Fleet, options: dict[str, Any], scales: list[float]
) -> None:
    """The buffers are FedBuff's. Their largest staleness is 0, 1, 2, 3; above the threshold, steps shrink to η/d."""
    run = follow(FADAS(buffer_size=3, concurrency=4, **options), fleet, 11)
    assert run.trace == follow(FedBuff(buffer_size=3, concurrency=4), fleet, 11).trace
    merges = [merge for merge in run.merges if len(merge.updates)]
    assert [merge.step_scale for merge in merges] == scales
    for merge in merges:
        assert (merge.of, merge.groups, merge.weights.tolist()) == ("updates", None, [1 / 3] * 3)
        assert merge.step_limit == np.inf


def test_fadas_limits_steps_as_in_the_paper(fleet: Fleet) -> None:
    """η_t = min(η, 1/d) for the staleness d = 2 and 3 above the threshold, and η for 0 and 1."""
    run = follow(FADAS(buffer_size=3, concurrency=4, reduction="limit"), fleet, 11)
    merges = [merge for merge in run.merges if len(merge.updates)]
    assert [(merge.step_scale, merge.step_limit) for merge in merges] == [
        (1.0, np.inf),
        (1.0, np.inf),
        (1.0, 1 / 2),
        (1.0, 1 / 3),
    ]


@pytest.mark.parametrize(
    ("options", "eta", "models"),
    [
        ({"bias_correction": True}, 0.1, [9.900, 9.800, 9.751, 9.652]),
        ({}, 0.1, [9.901, 9.767, 9.690, 9.521]),
        ({"reduction": "limit"}, 0.8, [9.208, 8.183, 7.652]),
    ],
)
def test_fadas_models(fleet: Fleet, options: dict[str, Any], eta: float, models: list[float]) -> None:
    """All clients train a model, 10 at first, to 9: an update is 9 − base. Buffers hold four, ε = 0.001. Their bases
    are the versions 0, 0, 0, 0; 0, 1, 0, 1; 1, 2, 0, 2; and 3, 2, 3, 3, so d = 0, 1, 2, 1.

    With bias correction and η = 0.1, as in the authors' code:

    1. Δ = −1, m = −0.1, v̂ = 0.01; m/0.1 = −1, √(v̂/0.01) = 1: 10 − 0.1/1.001 = 9.9001.
    2. Δ = −0.95005, m = −0.185005, v̂ = 0.018926; m/0.19 = −0.97371, √(v̂/0.0199) = 0.97522: 9.9001 − 0.09974 = 9.8004.
    3. Δ = −0.87520, m = −0.254025, v̂ = 0.026396; m/0.271 = −0.93736, √(v̂/0.029701) = 0.94273, η/2: 9.8004 − 0.04966.
    4. Δ = −0.76311, m = −0.304934, v̂ = 0.031956; m/0.3439 = −0.88669, √(v̂/0.039404) = 0.90055: 9.7507 − 0.09835.

    Without it, the first step is 0.1·0.1 / (0.1 + 0.001). At η = 0.8, the paper's limit is 1/2 in the third step, with
    m = −0.124706 and v̂ = 0.0135477, its largest value, from step 2: 8.18303 − 0.5·0.124706 / 0.117395.
    """
    strategy = FADAS(**options)
    server = OneNumber(lambda base: 9 - base, 10.0, ServerSettings(learning_rate=eta), strategy)
    follow(strategy, fleet, 17, server=server)
    found = [float(model) for model in server.models[1 : 1 + len(models)]]
    assert found == pytest.approx(models, abs=5e-4)


def test_rennala(fleet: Fleet) -> None:
    """S = 4. Client 0 sends three updates by 15 s, client 1 the fourth at 16 s. Client 0, training since 15 s, is then
    stale: its update of 20 s is dropped, as is that of client 2 at 30 s. From version 1 come 0 at 25 and 30 s, 1, which
    started at 16 s, at 32 s, and 0 at 35 s."""
    run = follow(Rennala(updates_per_round=4), fleet, 9)
    assert run.trace == [
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
    assert [len(merge.drops) for merge in run.merges] == [0, 0, 0, 0, 1, 0, 1, 0, 0]
    assert {merge.of for merge in run.merges} == {"updates"}
    assert run.merges[3].weights.tolist() == run.merges[8].weights.tolist() == [0.25] * 4


def test_rennala_drops_surplus_arrivals_and_ignores_sample_counts() -> None:
    """Four arrive at 1 s, S = 3: 0.6 / 3 each; the fourth starts again with the others."""
    run = follow(Rennala(updates_per_round=3, server_lr=0.6), make_fleet([1.0] * 4, weight=[1, 2, 3, 4]), 2)
    assert run.rounds == [(1.0, [0, 1, 2, 3], [0, 1, 2]), (2.0, [0, 1, 2, 3], [0, 1, 2])]
    assert run.merges[0].weights == pytest.approx([0.2] * 3)
    assert len(run.merges[0].drops) == 1


@pytest.fixture
def three() -> Fleet:
    return make_fleet([5.0, 8.0, 12.0], weight=[1, 2, 3])


@pytest.mark.parametrize("updates_per_round", [None, 3])
def test_malenia(three: Fleet, updates_per_round: int | None) -> None:
    """At 12 s, 0 has sent two updates, 1 and 2 one each. Those of 0 at 15 s and of 1 at 16 s are stale. From version 1
    come 0 at 20 s, and 2 and 1, which started at 12 and 16 s, at 24 s. A client weighs 1/3, whatever its data."""
    run = follow(Malenia(updates_per_round), three, 8)
    assert run.trace == [
        (5.0, [0, 1, 2], [], []),
        (8.0, [0], [], []),
        (10.0, [1], [], []),
        (12.0, [0], [0, 1, 0, 2], [0, 0, 0, 0]),
        (15.0, [2], [], []),
        (16.0, [0], [], []),
        (20.0, [1], [], []),
        (24.0, [0], [0, 2, 1], [0, 0, 0]),
    ]
    assert {merge.of for merge in run.merges} == {"updates"}
    assert [len(merge.drops) for merge in run.merges] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert run.merges[3].weights == pytest.approx([1 / 6, 1 / 3, 1 / 6, 1 / 3])
    assert run.merges[7].weights == pytest.approx([1 / 3] * 3)


def test_malenia_waits_until_the_harmonic_mean_reaches_s_over_n(three: Fleet) -> None:
    """S = 4, so 3 / Σ 1/B must reach 4/3. At 12 s, B = (2, 1, 1): 3 / 2.5. At 15 s, (3, 1, 1): 3 / 2.33. At 16 s,
    (3, 2, 1): 3 / 1.83, which is enough. η = 0.9."""
    run = follow(Malenia(updates_per_round=4, server_lr=0.9), three, 6)
    assert [(end_s, merged) for end_s, _, merged in run.rounds if merged] == [(16.0, [0, 1, 0, 2, 0, 1])]
    assert run.merges[5].weights == pytest.approx([0.1, 0.15, 0.1, 0.3, 0.1, 0.15])


def test_malenia_does_not_wait_for_clients_that_have_left(three: Fleet, tmp_path: Path) -> None:
    """Client 2 leaves at 6 s without an update, client 0 at 7 s with one: 1, at 8 s, is the last of two."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 0,0,7 2,0,6")
    run = follow(Malenia(), three, 4, settings=Settings(presence=presence))
    assert [merged for _, _, merged in run.rounds] == [[], [], [], [0, 1]]
    assert run.simulation.now_s == 8.0


def test_safa(fleet: Fleet) -> None:
    """A round waits for one client that was not picked last, and aggregates the cached models of all four, a quarter
    each; models of clients that are not picked enter the cache a round later.

    1. 0 is picked: 4/4. 2. 0 is back at 10 s, but was picked; 1 is picked at 16 s, and 0's model bypasses: (4 + 8)/4.
    3. 0, again at 21 s, is picked, and its model that bypassed, 99, is dropped: (12 + 8)/4. 4. 0 bypasses at 26 s, 2 is
    picked at 30 s: (12 + 8 + 20)/4. 5. 1, since 16 s, is picked at 32 s; 0's of 26 s, from version 3, enters too:
    (28 + 16 + 20)/4. 6. 0 is picked: (40 + 16 + 20)/4. 7. 3 is picked at 38 s: (40 + 16 + 20 + 24)/4.
    """
    server = OneNumber({0: [4, 99, 12, 28, 40], 1: [8, 16], 2: [20], 3: [24]})
    run = follow(Safa(fraction=0.25, lag_tolerance=10), fleet, 7, server=server)
    assert run.trace == [
        (5.0, [0, 1, 2, 3], [0], [0]),
        (16.0, [0], [1], [1]),
        (21.0, [0, 1], [0], [0]),
        (30.0, [0], [2], [3]),
        (32.0, [0, 2], [0, 1], [1, 2]),
        (35.0, [1], [0], [1]),
        (38.0, [0], [3], [6]),
    ]
    assert [len(merge.drops) for merge in run.merges] == [0, 0, 1, 0, 0, 0, 0]
    assert [float(model) for model in server.models] == [0, 1, 3, 5, 10, 16, 19, 25]


def test_safa_cancels_lagging_clients_and_ends_rounds_at_the_limit() -> None:
    """Rounds of 10 s, two picks; clients count 1, 3, 2 and 2 eighths.

    1. 0 alone: 8/8. 2. 1, not picked before, then 0: (16 + 3·8)/8. 3. 2, then 0: (24 + 3·8 + 2·12)/8. 4. Client 3, at
    work for three rounds, is deprecated: it starts anew at 30 s, its training so far is lost, and its entry becomes the
    newest model, 9. 1 is back at 36 s: (32 + 3·16 + 2·12 + 2·9)/8.
    """
    server = OneNumber({0: [8, 16, 24, 32], 1: [8, 16], 2: [12]})
    fleet = make_fleet([5.0, 16.0, 30.0, 38.0], weight=[1, 3, 2, 2])
    run = follow(Safa(fraction=0.5, lag_tolerance=3, round_limit_s=10.0), fleet, 4, server=server)
    assert run.trace == [
        (10.0, [0, 1, 2, 3], [0], [0]),
        (20.0, [0], [0, 1], [0, 1]),
        (30.0, [0, 1], [0, 2], [0, 2]),
        (40.0, [0, 2, 3], [0, 1], [0, 1]),
    ]
    assert [float(model) for model in server.models] == [0, 1, 5, 9, 15.25]


def test_safa_with_all_clients_has_the_timing_of_fedavg(fleet: Fleet) -> None:
    assert follow(Safa(fraction=1.0), fleet, 3).trace == follow(FedAvg(), fleet, 3).trace


def test_safa_gives_unreachable_clients_no_weight() -> None:
    (merge,) = follow(Safa(), make_fleet([1.0, np.inf, 2.0]), 1).merges
    assert merge.groups is not None
    assert merge.groups.weights == {"client 0": 0.5, "client 2": 0.5}
