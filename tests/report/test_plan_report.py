"""Plans as text, figure and page."""

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from helpers.fleets import make_fleet
from helpers.pages import data_of
from lesson import Fleet, Settings, draw_fleet
from lesson.fleet.fleet import columns_of
from lesson.planning.plan import make_plan, propose_deadline_s
from lesson.report.page.explorer import Advice, Origin, explorer_data
from lesson.report.page.plan_page import MAX_CLIENTS, write_plan_page
from lesson.report.palette import tier_colors
from lesson.report.plan.figure import draw_plan
from lesson.report.plan.text import plan_notes, print_plan
from lesson.report.words import percent


def text(fleet: Fleet, deadline_s: float, width: int = 80, settings: Settings | None = None) -> str:
    file = io.StringIO()
    plan = make_plan(fleet, deadline_s, settings=settings)
    print_plan(plan, "title", [*plan_notes(plan), "a caveat"], Console(file=file, width=width, legacy_windows=False))
    return file.getvalue()


def test_notes_about_energy() -> None:
    """Updates need 11, 22 and 33 J: with 35 J, client 0 can afford three, and the others one."""
    fleet = make_fleet([5.0, 6.0, 7.0])
    assert "3 of 3 clients use up their energy budgets in the first 3 rounds" in text(
        fleet, 10.0, 200, Settings(energy_budget_j=35.0)
    )
    settings = Settings(num_clients=10, max_update_j=5.0)
    assert "clients need more than max_update_j, so they never" in text(draw_fleet(settings), 30.0, 200, settings)


def test_tables_and_schedule_by_hand() -> None:
    """Tiers 1 to 4 of a deadline of 10 s: bars of 1 to 4 rounds."""
    shown = text(make_fleet([5.0, 16.0, 30.0, 38.0]), 10.0, width=75)
    bars = {line.split(" × ")[0]: line[12:] for line in shown.splitlines() if " × " in line}
    for tier in range(1, 5):
        assert bars[f"tier {tier}"] == ("━" * (5 * tier - 1) + "◆") * (12 // tier)
    rows = [line.split() for line in shown.splitlines()]
    assert ["3", "1", "25%", "30", "3", "rounds", "33.33"] in rows
    assert ["slowest", "38", "1", "38", "105.3", "0.00", "100%", "100%", "27.5"] in rows
    assert "a caveat" in shown


def test_large_numbers_have_no_exponent() -> None:
    shown = text(make_fleet([20_000.0, 45_000.0]), 20_000.0)
    assert "FedAvg 45,000 s" in shown
    assert "e+0" not in shown


@pytest.mark.parametrize(("width", "deadline_s"), [(30, 0.001), (80, 1.0), (200, np.inf)])
def test_any_width_and_deadline(width: int, deadline_s: float) -> None:
    shown = text(draw_fleet(Settings(), seed=1), deadline_s, width)
    assert max(len(line) for line in shown.splitlines()) <= max(width, 80)
    assert "…" not in shown.partition("Other deadlines")[2]


def test_share_on_time_is_shown_where_latencies_vary() -> None:
    fleet = make_fleet([0.010691, 0.010932, 0.022232, 0.023331])
    shown = text(fleet, 0.011, settings=Settings(slowdown=0.5))
    rows = [line.split() for line in shown.partition("Other deadlines")[2].splitlines() if line.endswith("% ")]
    assert all(0 < int(row[-1].removesuffix("%")) <= 100 for row in rows)
    assert "0.01069 – 0.01093" in shown, "wide tables are not cut off"
    assert "slowdown" in shown
    assert "on time" not in text(fleet, 0.011)


@pytest.mark.parametrize(
    ("count", "total", "shown"),
    [(0, 200, "0%"), (1, 201, "<1%"), (1, 200, "1%"), (57, 200, "29%"), (199, 200, ">99%"), (200, 200, "100%")],
)
def test_shares_are_rounded_half_up(count: int, total: int, shown: str) -> None:
    """0% and 100% mean none and all. 57 of 200 are 28.5 %, slightly less in floating point."""
    assert percent(count / total) == shown


def share_of(color: str, picture: Path) -> float:
    """Return the share of a picture's pixels that have a color."""
    pixels = (imread(picture)[..., :3] * 255).round().astype(int)
    wanted = [int(color[index : index + 2], 16) for index in (1, 3, 5)]
    return float(np.mean(np.all(np.abs(pixels - wanted) <= 2, axis=-1)))


@pytest.mark.parametrize(
    ("fleet", "deadline_s", "num_tiers"),
    [
        (make_fleet([5.0, 16.0, 30.0, 38.0]), 10.0, 4),
        (make_fleet([7.0], ensure_first_tier=True), 0.01, 1),
        (make_fleet([7.0, 7.0, np.inf]), 7.0, 1),
    ],
)
def test_figures_show_every_tier(tmp_path: Path, fleet: Fleet, deadline_s: float, num_tiers: int) -> None:
    """Each tier's color covers a good part of the picture: a block of the schedule and its clients."""
    draw_plan(make_plan(fleet, deadline_s), "title", tmp_path / "plan.png")
    for color in tier_colors(num_tiers):
        assert share_of(color, tmp_path / "plan.png") > 0.01, color


@pytest.mark.parametrize("ensure", [False, True])
def test_embedded_deadlines_are_those_of_a_plan(ensure: bool) -> None:
    """From deadlines that nobody meets to none at all; client "g" cannot be reached, and "f" is an outlier."""
    fleet = make_fleet([25.0, 12.0, 41.0, 41.5, 60.0, 7_000.0, math.inf], ensure_first_tier=ensure)
    fleet = replace(fleet, names=list("abcdefg"))
    data = explored(fleet, 23.4)
    chosen = {23.4, propose_deadline_s(fleet), math.inf}
    rows = {row["deadline_s"]: row for row in data["deadlines"]}
    assert list(rows) == sorted(rows)
    assert rows.keys() >= chosen
    assert (min(rows), max(rows.keys() - {math.inf})) == (3.0, 7_000.0)
    assert len(rows.keys() - chosen) > 100
    for deadline_s, row in rows.items():
        plan = make_plan(fleet, deadline_s, num_rounds=1)
        (expected,) = [one for one in plan.deadlines if one.deadline_s == deadline_s] or [data["fedavg"]]
        for name, value in (expected if isinstance(expected, dict) else vars(expected)).items():
            assert row[name] == value, (deadline_s, name)
        runs = [tier for tier, count in row["tiers"] for _ in range(count)]
        tiers = dict(zip(data["clients"]["name"], runs, strict=False))
        assert tiers == {name: tier for name, tier in zip(fleet.names, plan.tiers.tolist(), strict=True) if tier}
        assert (row["fedcs"] and row["fedcs"]["round_s"]) == plan.round_s["fedcs"]
    assert data["fedavg"]["round_s"] == make_plan(fleet, 23.4).round_s["fedavg"]


def test_fedcs_and_fedavg_by_hand() -> None:
    """At 20 s, FedCS uses 12 and 18 s: 100 updates per 1,000 s of 11 and 22 J. FedAvg: 3 in 60 s."""
    data = explored(make_fleet([12.0, 18.0, 50.0]), 20.0, Advice(20.0, fedavg_round_s=60.0))
    (row,) = [row for row in data["deadlines"] if row["deadline_s"] == 20.0]
    assert (row["fedcs"]["updates_per_1000s"], row["fedcs"]["served"]) == (100.0, 2 / 3)
    assert (row["fedcs"]["joules_per_update"], row["fedcs"]["staleness"]) == (16.5, 0.0)
    assert (data["fedavg"]["round_s"], data["fedavg"]["updates_per_1000s"]) == (60.0, 50.0)


def explored(fleet: Fleet, deadline_s: float, advice: Advice | None = None) -> dict[str, Any]:
    """Return the data of the deadline explorer for a whole fleet."""
    clients, ensure = columns_of(fleet, np.arange(len(fleet))), fleet.ensure_first_tier
    return explorer_data(clients, len(fleet), deadline_s, Origin("x"), ensure_first_tier=ensure, advice=advice)


def test_page_contains_clients_from_fast_to_slow(tmp_path: Path) -> None:
    fleet = draw_fleet(Settings(), 7, seed=2)
    write_plan_page(tmp_path / "plan.html", fleet, 12.5, Origin("</script>"), ["a <b> & c"])
    data = data_of(tmp_path / "plan.html")
    clients, order, population = data["fleet"]["clients"], np.argsort(fleet.latency_s), fleet.population
    assert population is not None
    assert clients["name"] == order.tolist()
    for name in ("compute_s", "upload_s", "latency_s"):
        assert clients[name] == getattr(fleet, name)[order].tolist(), name
    assert (clients["x_km"], clients["y_km"]) == (population.x_km[order].tolist(), population.y_km[order].tolist())
    assert (data["fleet"]["source"], data["fleet"]["num_clients"], data["notes"]) == ("</script>", 7, ["a <b> & c"])


def test_unknown_values_are_null(tmp_path: Path) -> None:
    fleet = make_fleet([5.0, math.inf])
    fleet.compute_j[:] = fleet.transmit_j[:] = math.nan
    write_plan_page(tmp_path / "plan.html", fleet, math.inf, Origin("two"))
    data = data_of(tmp_path / "plan.html")["fleet"]
    assert data["deadline_s"] is None
    assert data["clients"]["latency_s"] == [5.0, None]
    assert data["clients"]["x_km"] is data["clients"]["y_km"] is data["fedavg"]["joules_per_update"] is None


def test_large_fleets_are_sampled_by_latency(tmp_path: Path) -> None:
    fleet = draw_fleet(Settings(), 4 * MAX_CLIENTS, seed=1)
    write_plan_page(tmp_path / "plan.html", fleet, 20.0, Origin("many"))
    data = data_of(tmp_path / "plan.html")["fleet"]
    names, latencies = data["clients"]["name"], np.array(data["clients"]["latency_s"])
    assert len(set(names)) == MAX_CLIENTS
    assert (latencies == fleet.latency_s[names]).all()
    assert data["num_clients"] == 4 * MAX_CLIENTS
    for share in (0, 0.1, 0.5, 0.9, 1):
        assert np.quantile(latencies, share) == pytest.approx(np.quantile(fleet.latency_s, share), rel=1e-3)
    assert data["advice"]["proposed_s"] == propose_deadline_s(fleet), "the proposal is for the whole fleet"
