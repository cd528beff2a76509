"""Schedules that other simulators report; `experiments/validation/README.md` describes them."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from lesson import Schedule, compare_schedules

VALIDATION = Path(__file__).parents[2] / "experiments" / "validation"


def simulated(example: str, strategy: str, versions: int, **options: Any) -> Schedule:
    latencies = str(VALIDATION / example / "latencies.csv")
    (schedule,) = compare_schedules([strategy], versions=versions, latencies=latencies, options={strategy: options})
    return schedule


def test_qafel() -> None:
    """FedBuff with a start every 10 ms and half-normal durations: the archived runs have a staleness of 7.91 ± 6.05, at
    most 46, and a concurrency of 80.2. Here, there are fewer versions than in these runs."""
    schedule = simulated("qafel", "fedbuff", 1000, rate_per_s=100.0, buffer_size=10)
    assert schedule.staleness == pytest.approx(7.91, rel=0.02)
    assert schedule.staleness_sd == pytest.approx(6.05, rel=0.02)
    assert schedule.concurrency == pytest.approx(80.2, rel=0.02)
    assert 30 <= schedule.staleness_max <= 60


def test_nvflare() -> None:
    """NVFlare counts versions from 1. From 1 to 10, `sync` takes 4,933 s, and 467 s for each of the first three rounds.
    From 16 to 160, `async` takes 2,682 s."""
    rounds = simulated("nvflare", "fedavg", 9)
    assert rounds.time_s == pytest.approx(4933, rel=0.15)
    assert rounds.time_s / 9 == pytest.approx(467, rel=0.02)
    first, last = (simulated("nvflare", "fedasync", versions) for versions in (15, 159))
    assert last.time_s - first.time_s == pytest.approx(2682, rel=0.15)


def test_async_hfl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Four devices and two gateways, in the files of Async-HFL. With τ = 150 s, the tiers are 1, 1, 2 and 3.

    fedavg: 4 / 400 s = 36 / h. fedasync: 72 + 36 + 22.5 + 9 = 139.5 / h. lesson: 24 + 24 + 12 + 8 = 68 / h.
    """
    (tmp_path / "delay_client_to_gateway.csv").write_text("50,40\n0,70\n100,0\n300,400\n")
    (tmp_path / "comp.txt").write_text("10\n30\n60\n100\n")
    latencies = tmp_path / "latencies.csv"
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), str(latencies)])
    runpy.run_path(str(VALIDATION / "async_hfl.py"), run_name="__main__")
    by_hand = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines()[1:]]
    assert by_hand == [36, 139.5, 68]

    schedules = compare_schedules(
        ["fedavg", "fedasync", "lesson"], latencies=str(latencies), deadline_s=150.0, time_budget_s=36000.0
    )
    assert [schedule.updates_per_h for schedule in schedules] == pytest.approx(by_hand, rel=0.01)
    assert schedules[0].time_s / schedules[0].rounds == pytest.approx(400)
