"""The baselines on the four clients of the traces, written out by hand: times, merges, staleness and weights.

Client 0 takes 5 s, 1 takes 16 s, 2 takes 30 s, 3 takes 38 s, half of it for computing.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, peak_bytes, traced
from helpers.strategies import follow
from lesson import FedAvg, Fleet, InputError, Settings, Simulation, simulate
from lesson.core.arrays import FloatArray
from lesson.strategies import FedAsync, FedAT, FedBuff, Safa, SemiSyncSteps, Strategy
from lesson.strategies.base import Merge, ServerView, Updates


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet([5.0, 16.0, 30.0, 38.0])


def test_fedavg_with_a_fraction_waits_for_those_drawn(fleet: Fleet) -> None:
    """round(0.5·4) = 2 clients a round, which lasts as long as the slower of them; each is drawn in half the rounds."""
    trace, _ = follow(FedAvg(fraction=0.5), fleet, 400)
    for (start_s, *_), (end_s, starts, merged, staleness) in zip([(0.0,), *trace], trace, strict=False):
        assert end_s - start_s == pytest.approx([5.0, 16.0, 30.0, 38.0][max(starts)])
        assert (sorted(merged), staleness) == (starts, [0, 0])
    drawn = np.bincount(np.concatenate([starts for _, starts, _, _ in trace]), minlength=4)
    assert drawn.sum() == 800
    assert np.all(np.abs(drawn - 200) < 40)  # four standard deviations of 10


def test_fedavg_draws_one_client_at_least(fleet: Fleet) -> None:
    assert all(len(starts) == 1 for _, starts, _, _ in follow(FedAvg(fraction=0.01), fleet, 5)[0])


def test_fedasync(fleet: Fleet) -> None:
    """Arrivals: 0 at 5, 10, …; 1 at 16, 32; 2 at 30; 3 at 38. Every round makes a version. At 30 s clients 2, at work
    since 0 s, and 0, since 25 s, arrive together and make one version, the seventh."""
    assert follow(FedAsync(), fleet, 12)[0] == [
        (5.0, [0, 1, 2, 3], [0], [0]),
        (10.0, [0], [0], [0]),
        (15.0, [0], [0], [0]),
        (16.0, [0], [1], [3]),
        (20.0, [1], [0], [1]),
        (25.0, [0], [0], [0]),
        (30.0, [0], [2, 0], [6, 0]),
        (32.0, [0, 2], [1], [3]),
        (35.0, [1], [0], [1]),
        (38.0, [0], [3], [9]),
        (40.0, [3], [0], [1]),
        (45.0, [0], [0], [0]),
    ]


@pytest.mark.parametrize(
    ("settings", "fourth", "seventh", "tenth"),
    [
        # Staleness 3; 6 and 0; 9. Of the seventh round's two, the later leaves 1 − 0.5 of the earlier.
        ({"staleness": "constant"}, 0.5, [0.5 * 0.5, 0.5], 0.5),
        ({"staleness": "polynomial", "a": 1.0}, 0.5 / 4, [0.5 / 7 * 0.5, 0.5], 0.5 / 10),
        ({"staleness": "polynomial"}, 0.5 / 4**0.5, [0.5 / 7**0.5 * 0.5, 0.5], 0.5 / 10**0.5),
        ({"staleness": "hinge"}, 0.5, [0.5 / (10 * 2 + 1) * 0.5, 0.5], 0.5 / (10 * 5 + 1)),
        ({"staleness": "hinge", "a": 2.0, "b": 1}, 0.5 / 5, [0.5 / 11 * 0.5, 0.5], 0.5 / 17),
    ],
)
def test_fedasync_mixes_by_staleness(
    fleet: Fleet, settings: dict[str, Any], fourth: float, seventh: list[float], tenth: float
) -> None:
    _, merges = follow(FedAsync(mixing=0.5, **settings), fleet, 10)
    assert merges[0].weights.tolist() == [0.5]
    assert merges[3].weights == pytest.approx([fourth])
    assert merges[6].weights == pytest.approx(seventh)
    assert merges[9].weights == pytest.approx([tenth])


def test_fedasync_mixes_simultaneous_arrivals_one_after_the_other() -> None:
    """Three models at once, α = 0.5 each: (((w + a)/2 + b)/2 + c)/2 = w/8 + a/8 + b/4 + c/2."""
    _, merges = follow(FedAsync(mixing=0.5), make_fleet([1.0, 1.0, 1.0]), 1)
    assert merges[0].weights.tolist() == [0.125, 0.25, 0.5]


def test_fedbuff(fleet: Fleet) -> None:
    """All four at work, K = 3. 0 fills the buffer at 5, 10, 15 s. At 16, 20, 25 s come 1, from version 0, and 0 twice,
    from 1. At 30 s 2, from 0, and 0, from 2; at 32 s 1, from 1. At 35 s 0, from 2; at 38 s 3, from 0; at 40 s 0."""
    trace, merges = follow(FedBuff(buffer_size=3, concurrency=4), fleet, 11)
    assert trace == [
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
    assert {merge.of for merge in merges} == {"updates"}
    assert merges[5].weights == pytest.approx([1 / 3 / 2**0.5, 1 / 3, 1 / 3])
    assert merges[7].weights == pytest.approx([1 / 3 / 3**0.5, 1 / 3, 1 / 3 / 2**0.5])


def test_fedbuff_without_scaling_and_with_a_server_step(fleet: Fleet) -> None:
    _, merges = follow(FedBuff(buffer_size=3, concurrency=4, scale_staleness=False, server_lr=0.6), fleet, 6)
    assert merges[5].weights == pytest.approx([0.2, 0.2, 0.2])


def test_fedbuff_empties_an_overfull_buffer_before_anybody_starts() -> None:
    """Four arrive at 1 s, K = 2: two make version 1, the others, now stale by one, version 2 at the same time."""
    trace, _ = follow(FedBuff(buffer_size=2, concurrency=4), make_fleet([1.0] * 4), 3)
    assert [(end_s, starts, staleness) for end_s, starts, _, staleness in trace] == [
        (1.0, [0, 1, 2, 3], [0, 0]),
        (1.0, [], [1, 1]),
        (2.0, [0, 1, 2, 3], [0, 0]),
    ]


def test_fedbuff_keeps_its_concurrency() -> None:
    """Three of twelve at work: one start per arrival. Whoever is idle may be next, so that all have their turn."""
    trace, _ = follow(
        FedBuff(buffer_size=4, concurrency=3), make_fleet([(1.0 + who) ** 0.37 for who in range(12)]), 200
    )
    assert [len(starts) for _, starts, _, _ in trace] == [3] + [1] * 199
    assert {who for _, starts, _, _ in trace for who in starts} == set(range(12))


def test_all_clients_train_by_default_in_fedbuff() -> None:
    """30 clients. The two that arrive at 1 s start again at once; the buffer of 10 fills at 5 s."""
    trace, _ = follow(FedBuff(), make_fleet([1.0, 1.0] + [50.0] * 28), 6)
    assert [starts for _, starts, _, _ in trace[:3]] == [list(range(30)), [0, 1], [0, 1]]
    assert [(end_s, len(merged)) for end_s, _, merged, _ in trace if merged] == [(5.0, 10)]


def test_the_cost_of_fedbuff_depends_on_the_clients_involved() -> None:
    simulation = Simulation(FedBuff(buffer_size=3, concurrency=4), make_fleet([1.0 + who for who in range(50_000)]))
    assert peak_bytes(simulation) < 50_000


def test_fedat() -> None:
    """Tier 1 is clients 0 and 1, reporting every 16 s; tier 2 is 2 and 3, every 38 s. At 38 s client 0 has been waiting
    for one second: its tier reports at 48 s. A tier weighs as often as the other has reported."""
    fleet = make_fleet([5.0, 16.0, 30.0, 38.0], weight=[1, 3, 2, 2])
    trace, merges = follow(FedAT(num_tiers=2), fleet, 6)
    assert trace == [
        (16.0, [0, 1, 2, 3], [0, 1], [0, 0]),
        (32.0, [0, 1], [0, 1], [0, 0]),
        (38.0, [0, 1], [2, 3], [2, 2]),
        (48.0, [2, 3], [0, 1], [1, 1]),
        (64.0, [0, 1], [0, 1], [0, 0]),
        (76.0, [0, 1], [2, 3], [2, 2]),
    ]
    groups = [merge.groups for merge in merges if merge.groups is not None]
    reports = [(1, 0), (2, 0), (2, 1), (3, 1), (4, 1), (4, 2)]
    assert [dict(group.weights) for group in groups] == [
        {"tier 1": second / (first + second), "tier 2": first / (first + second)} for first, second in reports
    ]
    assert groups[0].names == ["tier 1", "tier 1"]
    assert merges[0].weights.tolist() == [0.25, 0.75]
    assert merges[2].weights.tolist() == [0.5, 0.5]


def test_fedat_cuts_tiers_of_equal_numbers() -> None:
    """Seven reachable clients in three tiers: 3, 2 and 2 of them, by latency. The second ends at 50 s."""
    trace, _ = follow(FedAT(num_tiers=3), make_fleet([70.0, 60.0, np.inf, 50.0, 40.0, 30.0, 20.0, 10.0]), 2)
    assert trace == [(30.0, [0, 1, 3, 4, 5, 6, 7], [7, 6, 5], [0, 0, 0]), (50.0, [5, 6, 7], [4, 3], [1, 1])]


def test_fedat_tiers_that_report_together_make_one_version() -> None:
    """1 s and 2 s: at 2 s both report. By then T = (2, 1)."""
    trace, merges = follow(FedAT(num_tiers=2), make_fleet([1.0, 2.0]), 2)
    assert trace[1] == (2.0, [0], [1, 0], [1, 0])
    assert merges[1].groups is not None
    assert merges[1].groups.weights == {"tier 1": 1 / 3, "tier 2": 2 / 3}


def test_fedat_with_a_fraction_waits_for_those_drawn() -> None:
    """One tier, half of it: two of four clients a round."""
    trace, merges = follow(FedAT(num_tiers=1, fraction=0.5), make_fleet([1.0, 2.0, 3.0, 4.0]), 50)
    assert all(len(starts) == 2 and sorted(merged) == starts for _, starts, merged, _ in trace)
    assert {who for _, starts, _, _ in trace for who in starts} == {0, 1, 2, 3}
    assert merges[0].weights.tolist() == [0.5, 0.5]


def test_safa(fleet: Fleet) -> None:
    """A round waits for one client that was not picked last. Round 2: 0 is back at 10 s, but was picked; 1 is picked at
    16 s, and 0's model bypasses. Round 3: 0, again at 21 s, is picked, the one bypassed dropped. Round 4: 0 bypasses at
    26 s, 2 is picked at 30 s. Round 5: 1, since 16 s, is picked at 32 s; 0's of 26 s, from version 3, enters too."""
    trace, merges = follow(Safa(fraction=0.25, lag_tolerance=10), fleet, 7)
    assert trace == [
        (5.0, [0, 1, 2, 3], [0], [0]),
        (16.0, [0], [1], [1]),
        (21.0, [0, 1], [0], [0]),
        (30.0, [0], [2], [3]),
        (32.0, [0, 2], [0, 1], [1, 2]),
        (35.0, [1], [0], [1]),
        (38.0, [0], [3], [6]),
    ]
    assert [len(merge.drops) for merge in merges] == [0, 0, 1, 0, 0, 0, 0]
    assert merges[4].groups is not None
    assert merges[4].groups.names == ["client 0", "client 1"]


def test_safa_cancels_lagging_clients_and_ends_rounds_at_the_limit() -> None:
    """Rounds of 10 s, two picks. Round 2: 1, not picked before, then 0. Round 3: 2, then 0. Round 4: client 3, at work
    for three rounds, is deprecated, starts anew at 30 s, and its entry is the newest model; 1 is back at 36 s."""
    fleet = make_fleet([5.0, 16.0, 30.0, 38.0], weight=[1, 3, 2, 2])
    trace, merges = follow(Safa(fraction=0.5, lag_tolerance=3, round_limit_s=10.0), fleet, 4)
    assert trace == [
        (10.0, [0, 1, 2, 3], [0], [0]),
        (20.0, [0], [0, 1], [0, 1]),
        (30.0, [0, 1], [0, 2], [0, 2]),
        (40.0, [0, 2, 3], [0, 1], [0, 1]),
    ]
    groups = [merge.groups for merge in merges if merge.groups is not None]
    assert [group.resets for group in groups] == [[], [], [], ["client 3"]]
    assert groups[0].weights == {"client 0": 1 / 8, "client 1": 3 / 8, "client 2": 2 / 8, "client 3": 2 / 8}
    assert merges[3].weights.tolist() == [1.0, 1.0]


def test_safa_with_everybody_is_fedavg_in_time(fleet: Fleet) -> None:
    """All were picked last time, so the round waits for all and picks all of them again."""
    assert follow(Safa(fraction=1.0), fleet, 3)[0] == follow(FedAvg(), fleet, 3)[0]


def test_safa_leaves_the_unreachable_out() -> None:
    _, merges = follow(Safa(), make_fleet([1.0, np.inf, 2.0]), 1)
    assert merges[0].groups is not None
    assert merges[0].groups.weights == {"client 0": 0.5, "client 2": 0.5}


def test_semisync_steps(fleet: Fleet) -> None:
    """Computing takes 2.5, 8, 15 and 19 s a step, so the period is 2·19 = 38 s: 15, 4, 2 and 2 steps. With the uploads
    they arrive after 37.5 + 2.5, 32 + 8, 30 + 15 and 38 + 19 s; at 40 s in the order of start."""
    trace, _ = follow(SemiSyncSteps(), fleet, 2)
    assert trace == [(57.0, [0, 1, 2, 3], [0, 1, 2, 3], [0] * 4), (114.0, [0, 1, 2, 3], [0, 1, 2, 3], [0] * 4)]
    # Client i spends i + 1 J a step and 10·(i + 1) J on sending.
    record = next(simulate(SemiSyncSteps(), fleet, rounds=1))
    assert (record.compute_j, record.transmit_j) == (15 * 1 + 4 * 2 + 2 * 3 + 2 * 4, 100)


def test_semisync_steps_trains_one_step_at_least(fleet: Fleet) -> None:
    """A tenth of 19 s is less than anybody's step: everybody does one, as in FedAvg."""
    assert follow(SemiSyncSteps(period_factor=0.1), fleet, 2)[0] == follow(FedAvg(), fleet, 2)[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedAvg(fraction=0.0), "fraction must be a number > 0 and <= 1, got 0.0"),
        (lambda: FedAvg(fraction=1.1), "fraction must be a number > 0 and <= 1, got 1.1"),
        (lambda: FedAvg(fraction="all"), "fraction must be a number > 0 and <= 1, got 'all'"),
        (lambda: FedAsync(mixing=1.5), "mixing must be a number > 0 and <= 1, got 1.5"),
        (lambda: FedAsync(mixing=float("nan")), "mixing must be a number > 0 and <= 1, got nan"),
        (lambda: FedAsync(staleness="linear"), "staleness must be one of constant, polynomial, hinge, got 'linear'"),
        (lambda: FedAsync(a=0), "a must be a finite number > 0, got 0"),
        (lambda: FedAsync(b=-1), "b must be a number >= 0, got -1"),
        (lambda: FedBuff(buffer_size=0), "buffer_size must be a whole number >= 1, got 0"),
        (lambda: FedBuff(concurrency=2.5), "concurrency must be a whole number >= 1, got 2.5"),
        (lambda: FedBuff(server_lr=float("inf")), "server_lr must be a finite number > 0, got inf"),
        (lambda: FedBuff(scale_staleness="no"), "scale_staleness must be true or false, got 'no'"),
        (lambda: FedAT(num_tiers=True), "num_tiers must be a whole number >= 1, got True"),
        (lambda: FedAT(fraction=-0.5), "fraction must be a number > 0 and <= 1, got -0.5"),
        (lambda: Safa(fraction=2), "fraction must be a number > 0 and <= 1, got 2"),
        (lambda: Safa(lag_tolerance=0), "lag_tolerance must be a whole number >= 1, got 0"),
        (lambda: Safa(round_limit_s=0.0), "round_limit_s must be a number > 0, got 0.0"),
        (lambda: SemiSyncSteps(period_factor=0.0), "period_factor must be a finite number > 0, got 0.0"),
    ],
)
def test_bad_settings(make: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (FedBuff(buffer_size=5, concurrency=2), "buffer_size must be <= 4, the number of clients"),
        (FedBuff(buffer_size=2, concurrency=5), "concurrency must be <= 4, the number of clients"),
        (FedAT(num_tiers=5), "num_tiers must be <= 4, the number of clients that can be reached, got 5"),
        (Safa(lag_tolerance=2, round_limit_s=2.4), "safa would never receive an update: the fastest client takes 5 s"),
    ],
    ids=str,
)
def test_options_that_do_not_suit_the_fleet_are_rejected(strategy: Strategy, message: str) -> None:
    with pytest.raises(InputError, match=message):
        next(simulate(strategy, make_fleet([5.0, 16.0, 30.0, 38.0, np.inf]), rounds=1))


@pytest.mark.parametrize("kind", [FedAsync, FedBuff, FedAT, Safa, SemiSyncSteps])
def test_a_fleet_that_nobody_can_reach(kind: type[Any]) -> None:
    with pytest.raises(InputError, match="no client can be reached: all 2 latencies are infinite"):
        next(simulate(kind(), make_fleet([np.inf, np.inf]), rounds=1))


def test_semisync_steps_needs_to_know_how_long_a_step_takes(fleet: Fleet) -> None:
    fleet.compute_s[:] = np.nan
    with pytest.raises(InputError, match="semisync-steps needs compute_s > 0 of every client"):
        next(simulate(SemiSyncSteps(), fleet, rounds=1))


@pytest.mark.parametrize("tiny_s", [0.0, 1e-9])
def test_semisync_steps_continues_when_a_trace_says_that_computing_takes_no_time(tiny_s: float, tmp_path: Path) -> None:
    """Client 0 computes for 1 s, then for no time, by which no number of steps can be told: it then trains one step, as
    usual, which takes 1 s again. Client 1 always takes 5 s: of 10 s, that is 2 steps, and client 0's are 10."""
    rows = f"client,round,compute_s,upload_s 0,1,1,1 0,2,{tiny_s},1 0,3,1,1 1,1,5,1"
    settings = Settings(trace=traced(tmp_path / "trace.csv", rows))
    simulation = Simulation(SemiSyncSteps(), make_fleet([2.0, 10.0]), settings=settings)
    steps = []
    decide = simulation.strategy.open_round
    simulation.strategy.open_round = lambda view, rng: steps.append(decide(view, rng)) or steps[-1]  # type: ignore[func-returns-value]
    for _ in range(5):
        simulation.step()
    assert [plan.local_steps.tolist() for plan in steps] == [[10, 2], [10, 2], [1, 2], [10, 2], [10, 2]]


def test_semisync_steps_checks_clients_that_come_later(tmp_path: Path, fleet: Fleet) -> None:
    fleet.compute_s[3] = 0.0
    settings = Settings(presence=traced(tmp_path / "presence.csv", "client,from_s,to_s 3,50,inf"))
    with pytest.raises(InputError, match="semisync-steps needs compute_s > 0 of every client, got 0 for client 3"):
        Simulation(SemiSyncSteps(), fleet, settings=settings).step()


class Cache:
    """A learner of one number: client i's k-th model is its base + i + k/10; it merges by groups."""

    def __init__(self, num_clients: int) -> None:
        self.models = [7.0]
        self.groups = {f"client {who}": 7.0 for who in range(num_clients)}

    def model(self, updates: Updates, row: int) -> float:
        return self.models[updates.base_version[row]] + float(updates.client[row] + updates.index[row] / 10)

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> list[Any]:
        assert merge.groups is not None
        self.groups |= dict.fromkeys(merge.groups.resets, self.models[-1])
        self.groups |= {name: self.model(updates, row) for row, name in enumerate(merge.groups.names)}
        self.models.append(sum(share * self.groups[name] for name, share in merge.groups.weights.items()))
        return []

    def forget(self, version: int) -> None:
        pass

    def signals(self, names: frozenset[str], version: int) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(("lag_tolerance", "limit_s"), [(10, np.inf), (5, np.inf), (5, 7.0), (2, 7.0)])
def test_safa_makes_the_models_of_the_three_steps(fleet: Fleet, lag_tolerance: int, limit_s: float) -> None:
    """Beside it runs the paper's aggregation as written: the undrafted enter the cache after the sum, none waits."""
    learner = Cache(4)
    strategy = Safa(fraction=0.25, lag_tolerance=lag_tolerance, round_limit_s=limit_s)
    simulation = Simulation(strategy, fleet, model_server=learner)
    safa: Any = simulation.strategy
    cache, models, seen = [7.0] * 4, [7.0], set()
    decide = safa.merge

    def merge(view: ServerView, arrived: Updates) -> Merge:
        deprecated = safa._deprecated.tolist()
        merge = decide(view, arrived)
        new = [row for row in range(len(arrived)) if int(arrived.id[row]) not in seen]
        seen.update(arrived.id.tolist())
        picked = [row for row in new if arrived.client[row] in safa._picked]
        for client in deprecated:
            cache[client] = models[-1]
        for row in picked:
            cache[arrived.client[row]] = learner.model(arrived, row)
        models.append(sum(cache) / 4)
        for row in set(new) - set(picked):
            cache[arrived.client[row]] = learner.model(arrived, row)
        return merge

    safa.merge = merge
    num_bypassed = sum(len(simulation.step().merged) > 1 for _ in range(60))
    assert num_bypassed or limit_s < np.inf  # one is picked in each round, so a second model has bypassed the last
    assert learner.models == pytest.approx(models)


def test_fedbuff_continues_with_a_full_buffer_after_a_restart() -> None:
    """Three arrive at 5 s, the buffer holds one: two more rounds close at 5 s before anybody starts."""
    kept, replaced = (Simulation(FedBuff(buffer_size=1, concurrency=3), make_fleet([5.0, 5.0, 5.0])) for _ in range(2))
    for _ in range(5):
        fresh = FedBuff(buffer_size=1, concurrency=3)
        fresh.restore(replaced.strategy.state())
        replaced.strategy = fresh
        record, expected = replaced.step(), kept.step()
        assert (record.end_s, record.merged.tolist()) == (expected.end_s, expected.merged.tolist())
        assert record.started.tolist() == expected.started.tolist()
    assert kept.now_s == 10.0


def test_semisync_steps_rejects_extremely_unequal_clients() -> None:
    with pytest.raises(
        InputError, match="semisync-steps would give client 0 2e\\+12 steps per round, more than 10000000"
    ):
        Simulation(SemiSyncSteps(), make_fleet([1e-4, 1e8])).step()
