import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from helpers.fleets import make_fleet
from lesson import Fleet, InputError, Settings, draw_fleet
from lesson.planning.plan import make_plan
from lesson.report.palette import tier_colors
from lesson.report.plan.figure import draw_plan
from lesson.report.plan.text import percent, plan_notes, print_plan


def text(
    fleet: Fleet,
    deadline_s: float,
    width: int = 80,
    num_rounds: int = 12,
    settings: Settings | None = None,
) -> str:
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    plan = make_plan(fleet, deadline_s, num_rounds=num_rounds, settings=settings)
    print_plan(plan, "title", [*plan_notes(plan), "a caveat"], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_schedule_is_drawn_like_the_papers() -> None:
    shown = text(make_fleet([5.0, 16.0, 30.0, 38.0]), 10.0, width=75, num_rounds=12)
    bars = {line.split(" × ")[0]: line[12:] for line in shown.splitlines() if " × " in line}
    for tier in range(1, 5):
        assert bars[f"tier {tier}"] == ("━" * (5 * tier - 1) + "◆") * (12 // tier)


def test_the_tables_hold_the_numbers() -> None:
    shown = text(make_fleet([5.0, 16.0, 30.0, 38.0]), 10.0)
    assert "LESSON 10 s   FedAvg 38 s   FedCS 10 s for 1 of 4 clients" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["3", "1", "25%", "30", "3", "rounds", "33.33"] in rows
    assert ["slowest", "38", "1", "38", "105.3", "0.00", "100%", "100%", "27.5"] in rows
    assert "note: a caveat" in shown


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
@pytest.mark.parametrize("deadline_s", [0.001, 1.0, 10.0, 100.0, np.inf])
def test_any_width_and_deadline_prints(width: int, deadline_s: float) -> None:
    shown = text(draw_fleet(Settings(), seed=1), deadline_s, width)
    assert max(len(line) for line in shown.splitlines()) <= max(width, 80)
    assert "…" not in shown.partition("Other deadlines")[2]


@pytest.mark.parametrize(("num_clients", "deadline_s"), [(50, 20.0), (50, 0.01), (20_000, 20.0)])
def test_who_is_on_time_is_shown_where_times_vary(num_clients: int, deadline_s: float) -> None:
    settings = Settings(slowdown=0.5)
    shown = text(draw_fleet(settings, num_clients), deadline_s, num_rounds=2, settings=settings)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert shown.count("on time") == 1  # in the table of deadlines it is on two lines
    others = shown.partition("Other deadlines")[2]
    assert "…" not in others
    rows = [line.split() for line in others.splitlines() if line.endswith("% ")]
    assert len(rows) >= 5
    assert all(0 < int(row[-1].removesuffix("%")) <= 100 for row in rows)
    assert "note: latencies vary (slowdown)" in shown
    unknown = [line for line in shown.partition("A round lasts")[0].splitlines() if line.endswith("– ")]
    assert bool(unknown) == (deadline_s == 0.01)
    still = text(draw_fleet(Settings()), 20.0)
    assert "time \n" not in still
    assert "on time" not in still
    assert "vary" not in still


@pytest.mark.parametrize(
    ("count", "total", "shown"),
    [
        (0, 200, "0%"),
        (1, 201, "<1%"),
        (1, 200, "1%"),
        (1, 8, "13%"),
        (57, 200, "29%"),
        (193, 200, "97%"),
        (198, 200, "99%"),
        (199, 200, ">99%"),
        (200, 200, "100%"),
    ],
)
def test_shares_are_rounded_half_up(count: int, total: int, shown: str) -> None:
    """0% and 100% mean none and all. 57 of 200 are 28.5 %, slightly less in floating point."""
    assert percent(count / total) == shown


def test_a_small_tier_does_not_have_a_share_of_0() -> None:
    rows = [line.split() for line in text(make_fleet([5.0] * 299 + [15.0]), 10.0).splitlines()]
    assert [row[:3] for row in rows if "%" in "".join(row[2:3])] == [["1", "299", ">99%"], ["2", "1", "<1%"]]


def test_many_tiers_are_cut_and_said_so() -> None:
    assert "… and 12 slower tiers, up to tier 66" in text(draw_fleet(Settings()), 1.0)


def test_notes_tell_of_unreachable_and_promoted_clients() -> None:
    shown = text(make_fleet([12.0, 25.0, np.inf], ensure_first_tier=True), 10.0, width=120)
    assert "note: tier 1 would be empty: the latency of the fastest client, 0, is set to 10 s instead of 12 s" in shown
    assert "note: 1 of 3 clients is unreachable and in no tier" in shown
    assert "FedCS has no clients: tier 1 is empty" in text(make_fleet([12.0]), 10.0)


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_figures_are_written_whole(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan.{suffix}"
    draw_plan(make_plan(draw_fleet(Settings()), 20.0), "title", path)
    assert path.read_bytes()[:4] in (b"\x89PNG", b"%PDF", b"<?xm")
    assert list(tmp_path.iterdir()) == [path]


def share_of(color: str, picture: Path) -> float:
    """The share of a picture's pixels that have a color."""
    pixels = (imread(picture)[..., :3] * 255).round().astype(int)
    wanted = [int(color[index : index + 2], 16) for index in (1, 3, 5)]
    return float(np.mean(np.all(np.abs(pixels - wanted) <= 2, axis=-1)))


def test_figures_show_every_tier(tmp_path: Path) -> None:
    """Each tier's color covers a good part of the picture: a block of the schedule and its clients."""
    plan = make_plan(make_fleet([5.0, 16.0, 30.0, 38.0]), 10.0)
    draw_plan(plan, "title", tmp_path / "plan.png")
    for color in tier_colors(4):
        assert share_of(color, tmp_path / "plan.png") > 0.01, color


@pytest.mark.parametrize(
    ("fleet", "deadline_s"),
    [
        (make_fleet([7.0], ensure_first_tier=True), 0.01),
        (make_fleet([7.0, 7.0, np.inf]), 7.0),
        (draw_fleet(Settings(), 6000), np.inf),
    ],
)
def test_odd_fleets_are_drawn(tmp_path: Path, fleet: Fleet, deadline_s: float) -> None:
    """The slowest tier has a block of the schedule: for the first fleet it is tier 1, to which its client was moved."""
    plan = make_plan(fleet, deadline_s)
    draw_plan(plan, "title", tmp_path / "plan.png")
    assert share_of(tier_colors(1)[0], tmp_path / "plan.png") > 0.01


def drawn_text(fleet: Fleet, deadline_s: float, path: Path) -> list[str]:
    """The texts of a figure, which matplotlib also writes as comments."""
    draw_plan(make_plan(fleet, deadline_s), "title", path)
    return re.findall("<!-- (.*) -->", path.read_text())


def test_an_outlier_does_not_determine_the_axis(tmp_path: Path) -> None:
    latencies = [*np.linspace(5, 60, 20), 1e6]
    told = drawn_text(make_fleet(latencies), 20.0, tmp_path / "plan.svg")
    assert "client latency (s); not drawn: 1 client slower than 60 s" in told
    assert "density (1/s)" in told
    ticks = told[: told.index("client latency (s); not drawn: 1 client slower than 60 s")]
    assert max(float(tick.replace("−", "-")) for tick in ticks) < 100


def test_unreachable_clients_are_counted_below_the_axis(tmp_path: Path) -> None:
    told = drawn_text(make_fleet([5.0, 16.0, np.inf, np.inf]), 10.0, tmp_path / "plan.svg")
    assert "client latency (s); not drawn: 2 unreachable clients" in told
    told = drawn_text(make_fleet([5.0, 16.0, 1e9, np.inf]), 10.0, tmp_path / "plan.svg")
    assert "client latency (s); not drawn: 1 client slower than 16 s and 1 unreachable client" in told


def test_latencies_of_several_magnitudes_are_drawn_on_a_log_scale(tmp_path: Path) -> None:
    told = drawn_text(make_fleet(list(np.geomspace(0.05, 900, 30))), 20.0, tmp_path / "plan.svg")
    assert told[: told.index("client latency (s)")] == ["0.1", "1", "10", "100", "1000"]
    assert "clients" in told


def test_figures_that_cannot_be_written(tmp_path: Path) -> None:
    plan = make_plan(make_fleet([5.0]), 10.0)
    with pytest.raises(InputError, match=r"figure must end in .png, .pdf, .svg, got"):
        draw_plan(plan, "title", tmp_path / "plan.gif")
    with pytest.raises(InputError, match=r"the folder '.*none' does not exist; create it first"):
        draw_plan(plan, "title", tmp_path / "none" / "plan.png")
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(InputError, match="is not writable"):
        draw_plan(plan, "title", tmp_path / "taken.png")


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_tiers_have_colors_of_their_own(count: int) -> None:
    assert len(set(tier_colors(count))) == count


def test_wide_tables_are_not_cut_off_in_narrow_terminals() -> None:
    # "0.01069 – 0.01093" makes the table of tiers wider than 80 characters.
    shown = text(make_fleet([0.010691, 0.010932, 0.022232, 0.023331]), 0.011, settings=Settings(slowdown=0.3))
    assert "0.01069 – 0.01093" in shown
    assert "on time" in shown
    assert "…" not in shown
