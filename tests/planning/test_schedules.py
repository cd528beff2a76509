"""Measures of simulated schedules."""

import math
from pathlib import Path
from typing import Any

import pytest

from lesson import InputError, Schedule, Settings, compare_schedules, run
from lesson.planning import schedules


@pytest.fixture(autouse=True)
def _fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.csv").write_text(
        "client,latency_s,compute_s,upload_s,compute_j,transmit_j\na,5,4,1,1,10\nb,15,10,5,2,20\nc,40,30,10,3,30\n"
    )


def simulated(*strategies: str, **arguments: Any) -> list[Schedule]:
    return compare_schedules(strategies, latencies="fleet.csv", **arguments)


def test_measures_by_hand() -> None:
    """FedAvg: two rounds of 40 s, in each of which clients train for 5 + 15 + 40 = 60 s and use 66 J.

    LESSON with rounds of 20 s: 4 uploads of a and b with staleness 0, and 2 of c, one version later, for 2 · 33 J.
    """
    fedavg, lesson = simulated("fedavg", "lesson", deadline_s=20.0, time_budget_s=80.0)
    assert fedavg == Schedule(
        strategy="fedavg",
        seed=0,
        time_s=80.0,
        rounds=2,
        versions=2,
        updates=6,
        updates_per_h=6 / 80 * 3600,
        staleness=0.0,
        staleness_sd=0.0,
        staleness_max=0.0,
        concurrency=1.5,
        energy_j=132.0,
        ended_early="",
    )
    assert (lesson.versions, lesson.updates, lesson.staleness_max) == (4, 10, 1)
    assert (lesson.staleness, lesson.staleness_sd) == (0.2, pytest.approx(0.4))
    assert lesson.concurrency == pytest.approx((4 * 5 + 4 * 15 + 80) / 80)
    assert lesson.energy_j == 4 * 11 + 4 * 22 + 2 * 33


def test_concurrency_counts_updates_in_flight_and_canceled_ones() -> None:
    """FedBuff and FedAsync: the last arrival is at 45 s; until then, two and three clients train all the time.

    SAFA with rounds of 15 s: a trains for 5 s of each, b all the time, and c until it is canceled.
    """
    options = {"fedbuff": {"concurrency": 2}, "safa": {"lag_tolerance": 1, "round_limit_s": 15.0}}
    fedbuff, fedasync, safa = simulated("fedbuff", "fedasync", "safa", time_budget_s=47.0, options=options)
    assert (fedbuff.time_s, fedbuff.concurrency) == (45.0, pytest.approx(2.0))
    assert (fedasync.time_s, fedasync.concurrency) == (45.0, pytest.approx(3.0))
    assert (safa.time_s, safa.concurrency) == (45.0, pytest.approx((5 + 15 + 15) / 15))


def test_versions_count_aggregations() -> None:
    """K = 3: a arrives every 5 s, b at 15 s: the third and the sixth update arrive at 15 s and at 25 s."""
    (schedule,) = simulated("fedbuff", versions=2, options={"fedbuff": {"buffer_size": 3}})
    assert (schedule.versions, schedule.updates, schedule.time_s) == (2, 6, 25.0)
    (limited,) = simulated("fedbuff", versions=100, time_budget_s=20.0)
    assert (limited.versions, limited.time_s) == (1, 20.0)


def test_schedule_is_that_of_a_run() -> None:
    settings = Settings(num_clients=8, dataset="mnist", time_budget_s=200.0, seed=3, slowdown=0.5, eval_every_s=100.0)
    summary = run("lesson", settings=settings, out="run").summary
    (schedule,) = compare_schedules(["lesson"], settings=settings)
    assert (schedule.rounds, schedule.time_s) == (summary["rounds"], summary["time_s"])
    assert schedule.energy_j == pytest.approx(summary["energy_j"])


def test_each_seed_has_its_own_fleet() -> None:
    schedules = compare_schedules(["fedavg", "fedasync"], num_seeds=2, num_clients=5, seed=7, time_budget_s=300.0)
    assert [(one.strategy, one.seed) for one in schedules] == [
        ("fedavg", 7),
        ("fedasync", 7),
        ("fedavg", 8),
        ("fedasync", 8),
    ]
    assert len({one.energy_j for one in schedules}) == 4


def test_nothing_is_aggregated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are lost every 40 s; and if everybody disconnects for good before the first round, it closes at 0 s."""
    monkeypatch.setattr(schedules, "MAX_ROUNDS_UNCHANGED", 50)
    Path("lost.csv").write_text(
        "client,round,compute_s,upload_s,lost\n" + "".join(f"{who},1,30,10,1\n" for who in "abc")
    )
    (lost,) = simulated("fedavg", versions=5, trace="lost.csv")
    assert (lost.versions, lost.rounds, lost.ended_early) == (0, 50, "nothing was aggregated in 50 rounds")
    (gone,) = simulated("fedavg", disconnect_before=1.0, offline_forever=1.0)
    assert (gone.time_s, gone.updates_per_h, gone.concurrency) == (0.0, 0.0, 0.0)


def test_run_without_a_round() -> None:
    (schedule,) = simulated("fedavg", time_budget_s=10.0)
    assert (schedule.rounds, schedule.time_s, schedule.concurrency, schedule.updates_per_h) == (0, 0, 0, 0)
    assert math.isnan(schedule.staleness)


@pytest.mark.parametrize(
    ("strategies", "arguments", "message"),
    [
        (["fedavg", "fedavg"], {}, "strategies must be one or more different names"),
        ("fedavg", {}, "strategies must be one or more different names"),
        (["fedavg"], {"versions": 0}, "versions must be >= 1, got 0"),
        (["fedavg"], {"num_seeds": 0}, "num_seeds must be >= 1, got 0"),
        (["fedavg"], {"options": {"fedavg": {"buffer_size": 3}}}, "unknown setting 'buffer_size' for fedavg"),
        (["fedcs"], {"deadline_s": 1.0}, "none meets deadline_s = 1"),
    ],
)
def test_errors(strategies: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare_schedules(strategies, latencies="fleet.csv", **arguments)
