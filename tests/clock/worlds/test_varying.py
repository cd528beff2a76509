"""Times that vary, for every strategy: what it must keep, that a run resumes bit-identically, what is written down,
and one line about every setting that cannot be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import fields, traced
from helpers.resuming import check_resumes
from helpers.scripted import Scripted, ids
from helpers.small_tasks import tiny_task
from helpers.strategies import everyone, make
from lesson import Fleet, InputError, RoundLoop, Settings, Simulation, draw_fleet, simulate
from lesson.cli import main
from lesson.clock.worlds import make_world
from lesson.runs.execute import execute
from lesson.strategies.base import AllOf, Deadline, RoundPlan, ServerView
from lesson.strategies.fedcs_greedy import FedCSGreedy
from lesson.testing import check_world

PARTS: dict[str, Any] = {"task": tiny_task(), "num_threads": 1}
NUM_CLIENTS = 8
NEAR: dict[str, Any] = {"num_clients": NUM_CLIENTS, "area_km": 1.2, "cycles_per_sample": (0.5e8, 1.5e8)}
"""A fleet of which some, not all, are within 10 s."""
MOVING: dict[str, Any] = {"fading": "rayleigh", "speed_mps": (5.0, 30.0), "slowdown": 0.5, "download": True}
WAYS: dict[str, dict[str, Any]] = {
    "moving": MOVING | {"estimate": "quantile", "refresh_estimates_every_s": 70.0},
    "equal": {"spectrum": "equal", "fading": "rician", "estimate": "mean"},
    "in-turn": {"spectrum": "in-turn", "estimate_error": 0.3},
    "presence": {"presence": "presence.csv", "slowdown": 0.2},
    "trace": {"trace": "work.csv", "refresh_estimates_every_s": 100.0},
    "snr_trace": {"snr_trace": "snr.csv", "refresh_estimates_every_s": 70.0, "download": True},
    "throughput": {"throughput": "phones", "model_bits": 1e7, "download": True},
}
every_way = pytest.mark.parametrize("way", sorted(WAYS))


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients 1 to 3 come and go; everybody's work takes 1 to 30 s, other each time."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    when = [f"{client},{at},{at + 37.5 * client}" for client in (1, 2, 3) for at in (0, 130, 260, 600)]
    traced(Path("presence.csv"), "client,from_s,to_s " + " ".join(when))
    times_s = rng.uniform(0.5, 15, (NUM_CLIENTS, 5, 2)).round(3).tolist()
    work = [f"{who},{n + 1},{c},{u}" for who, rows in enumerate(times_s) for n, (c, u) in enumerate(rows)]
    traced(Path("work.csv"), "client,round,compute_s,upload_s " + " ".join(work))
    snr_db = rng.uniform(-15, 15, (3, 60)).round(1).tolist()
    channels = [f"{name},{time_s},{snr}" for name, rows in enumerate(snr_db) for time_s, snr in enumerate(rows)]
    traced(Path("snr.csv"), "trace,time_s,snr_db " + " ".join(channels))


def setting(way: str) -> tuple[Settings, Fleet]:
    """Return the settings and their fleet."""
    scenario = Settings(coherence_s=2.0, **NEAR, **WAYS[way])
    fleet = draw_fleet(scenario, seed=1)
    assert 0 < np.count_nonzero(fleet.latency_s <= 10) < NUM_CLIENTS
    return scenario, fleet


@everyone
def test_settings_under_which_nothing_varies_change_nothing(kind: type[Any]) -> None:
    scenario = Settings(shadowing_db=6.0, path_loss="umi", download=True, **NEAR)
    assert not scenario.varies
    fleet = draw_fleet(scenario)
    plain = [fields(record) for record in simulate(make(kind), fleet, rounds=30)]
    assert [fields(record) for record in simulate(make(kind), fleet, rounds=30, settings=scenario)] == plain


@every_way
def test_every_kind_of_varying_time_keeps_the_contract(way: str) -> None:
    scenario, fleet = setting(way)
    check_world(lambda: make_world(fleet, scenario, seed=1))


def test_a_run_with_uploads_in_turn_resumes_bit_identically() -> None:
    """`check_world` has no strategy whose clients upload in turn."""
    scenario, fleet = setting("in-turn")
    whole, broken = (Simulation(FedCSGreedy(10.0), fleet, seed=1, settings=scenario) for _ in range(2))
    for _ in range(40):
        values, arrays = broken.state()
        broken = Simulation(FedCSGreedy(10.0), fleet, seed=1, settings=scenario)
        broken.restore(json.loads(json.dumps(values, allow_nan=False)), arrays)
        assert fields(broken.step()) == fields(whole.step())


def settings(strategy: str = "lesson", rounds: int = 12, checkpoint_every_s: float = 1e9, **changes: Any) -> Settings:
    run = {"eval_every_s": 100.0, "rounds": rounds, "device": "cpu", "checkpoint_every_s": checkpoint_every_s}
    return Settings(num_clients=NUM_CLIENTS, batch_size=5, split="iid", name=strategy, run=run, **changes)


@pytest.mark.parametrize("way", ["moving", "presence", "snr_trace", "throughput"])
def test_a_run_folder_resumes_byte_identically(tmp_path: Path, way: str) -> None:
    check_resumes(settings(checkpoint_every_s=1e-9, **WAYS[way]), tmp_path, 5, **PARTS)


def strict(text: str) -> Any:
    """JSON that holds neither NaN nor Infinity."""

    def reject(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=reject)


@pytest.mark.parametrize("way", [*sorted(WAYS), "nothing"])
def test_misses_tier_changes_and_losses_are_recorded_only_if_times_vary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    varies = way != "nothing"
    chosen, surprises = settings(**WAYS.get(way, {})), ("misses", "retiered", "lost")
    execute(chosen, tmp_path / "run", **PARTS)
    lines = [strict(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    summary = strict((tmp_path / "run" / "summary.json").read_text())
    strict((tmp_path / "run" / "clients.json").read_text())
    assert len(lines) == 12
    for line in lines:
        assert [name in line for name in (*surprises, "merged_expected_s")] == [varies] * 4
        assert not varies or len(line["merged_expected_s"]) == len(line["merged"])
    for name in surprises:
        assert (name in summary) == varies
        assert not varies or summary[name] == sum(line[name] for line in lines)
    assert not varies or sum(summary[name] for name in surprises) > 0
    monkeypatch.setattr("lesson.runs.execute.MAX_NAMED", NUM_CLIENTS - 1)
    execute(chosen, tmp_path / "larger", **PARTS)
    line = strict((tmp_path / "larger" / "metrics.jsonl").read_text().splitlines()[0])
    assert [name in line for name in (*surprises, "merged_expected_s")] == [*[varies] * 3, False]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"shadowing_db": -1.0}, "[radio] shadowing_db must be >= 0, got -1.0"),
    ({"slowdown": -0.5}, "[fleet] slowdown must be >= 0, got -0.5"),
    ({"estimate_error": -0.1}, "[server] estimate_error must be >= 0, got -0.1"),
    ({"estimate_error": float("inf")}, "[server] estimate_error must be a finite number, got inf"),
    ({"coherence_s": 0.0}, "[radio] coherence_s must be >= 0.01, got 0.0"),
    ({"refresh_estimates_every_s": 0.0}, "[server] refresh_estimates_every_s must be > 0, got 0.0"),
    (
        {"speed_mps": (0.0, 2.0)},
        "[radio] speed_mps must be [low, high] with 0 < low <= high, or [0, 0] for none, got [0, 2]",
    ),
    (
        {"speed_mps": (3.0, 2.0)},
        "[radio] speed_mps must be [low, high] with 0 < low <= high, or [0, 0] for none, got [3, 2]",
    ),
    ({"speed_mps": (-1.0, 2.0)}, "[radio] speed_mps must be [low, high], both from 0 to 1000, got -1.0"),
    ({"fading": "some"}, "[radio] fading must be 'none', 'rayleigh' or 'rician', got 'some'"),
    ({"estimate_quantile": 0.0}, "[server] estimate_quantile must be > 0, got 0.0"),
    ({"estimate_window": 0}, "[server] estimate_window must be >= 1, got 0"),
    ({"carrier_ghz": 0.1}, "[radio] carrier_ghz must be >= 0.5, got 0.1"),
    ({"trace": "work.csv", "fading": "rayleigh"}, "[fleet] trace cannot be combined with fading"),
    ({"trace": "work.csv", "spectrum": "equal"}, "[fleet] trace cannot be combined with spectrum"),
    ({"trace": "work.csv", "slowdown": 0.1}, "[fleet] trace cannot be combined with slowdown"),
    ({"positions": "p.csv", "speed_mps": (1.0, 2.0)}, "[fleet] positions cannot be combined with [radio] speed_mps"),
    (
        {"presence": "p.csv", "spectrum": "in-turn"},
        "[fleet] presence cannot be combined with a shared [radio] spectrum",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_impossible_settings_are_rejected_when_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as rejected:
        Settings(**changes)
    assert str(rejected.value).startswith(message)
    assert "\n" not in str(rejected.value)


WORK, HERE, PLACES = "client,round,compute_s,upload_s ", "client,from_s,to_s ", "client,time_s,x_km,y_km "
BAD_FILES = [
    ("trace", WORK + "0,1,1,1 9,1,1,1", "file.csv line 3: unknown client '9'; the fleet has 2 clients: 0, 1"),
    ("trace", WORK + "0,1,1,1", "file.csv has no row for client '1'; all 2 clients must be listed"),
    ("trace", WORK + "0,1,1,1 1,1,1,1 1,3,1,1", "file.csv line 4: client '1' has round 1 and 3 but not 2"),
    ("trace", WORK + "0,1,1,1 1,1,1,1 1,1,2,1", "file.csv line 4: client '1' has round 1 twice, first on line 3"),
    ("trace", WORK + "0,1,-1,1 1,1,1,1", "file.csv line 2: compute_s must be finite and >= 0, got -1"),
    ("trace", WORK + "0,1,soon,1", "file.csv line 2: compute_s must be a number, got 'soon'"),
    (
        "trace",
        None,
        "file.csv does not exist; trace must be a CSV file with the columns client,round,compute_s,upload_s",
    ),
    (
        "presence",
        HERE + "0,0,10 0,5,20",
        "file.csv line 3: client '0' has overlapping intervals at 5 s, first on line 2",
    ),
    ("presence", HERE + "0,10,10", "file.csv line 2: to_s must be > from_s, or inf, got 10"),
    ("presence", HERE, "file.csv has no rows; add some below the header"),
    ("presence", None, "file.csv does not exist; presence must be a CSV file with the columns client,from_s,to_s"),
    ("positions", PLACES + "0,0,0,0 1,0,0,1.5", "file.csv line 3: client '1' is at (0, 1.5); x_km and y_km must be"),
    ("positions", PLACES + "0,0,0,0", "file.csv has no row for client '1'; all 2 clients must be listed"),
    (
        "positions",
        None,
        "file.csv does not exist; positions must be a CSV file with the columns client,time_s,x_km,y_km",
    ),
]


@pytest.mark.parametrize(("setting", "text", "message"), BAD_FILES, ids=lambda value: value)
def test_a_file_that_cannot_be_used_is_one_line_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, text: str | None, message: str
) -> None:
    if text is not None:
        traced(tmp_path / "file.csv", text)
    before = sorted(tmp_path.iterdir())
    scenario = ["fleet.num_clients=2", f"fleet.{setting}=file.csv"]
    changes = [word for change in scenario for word in ("--set", change)]
    assert main(["run", "--rounds", "1", "--device", "cpu", "--out", "runs/bad", *changes]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"lesson: {message}")
    assert output.err.count("\n") == 1
    assert "Traceback" not in output.out + output.err
    assert sorted(tmp_path.iterdir()) == before


def test_uploads_in_turn_on_a_split_band_are_rejected_before_anything_is_learnt(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="spectrum must not be 'equal' with a strategy whose clients upload in turn"):
        execute(settings("fedcs-greedy", spectrum="equal"), tmp_path / "run", **PARTS)
    assert not (tmp_path / "run").exists()


def test_settings_without_effect_on_times_are_reported() -> None:
    assert not Settings().caveats()
    assert not Settings(fading="rician", rician_k_db=3.0, coherence_s=2.0, estimate="mean").caveats()
    assert Settings(rician_k_db=3.0, estimate="mean").caveats() == [
        "rician_k_db = 3.0 has no effect unless fading is rician",
        "estimate = mean has no effect unless times vary, as with fading",
    ]


class StartsOnce(Scripted):
    """Starts all clients in round 1, and waits for them in rounds of 30 s."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        closes = AllOf(np.arange(3), by_s=np.inf if view.round > 2 else 30.0 * view.round)
        return RoundPlan(np.flatnonzero(view.idle) if view.round == 1 else ids(), closes)


def test_a_canceled_upload_leaves_its_share_of_the_band_to_the_others_after_a_resume() -> None:
    """A client is excluded at the end of round 2, and nobody starts in round 3: arrivals are computed again."""
    settings = Settings(num_clients=3, spectrum="equal", model_bits=2e6)
    fleet = draw_fleet(settings, seed=3)

    def begin() -> RoundLoop:
        return Simulation(StartsOnce(Deadline(0.0)), fleet, settings=settings, seed=3)

    whole, resumed = begin(), begin()
    for _ in range(2):
        whole.step()
    (busy, *_) = np.flatnonzero(whole.ledger.busy)
    whole.world.cancel(whole.ledger.exclude(ids(busy))[0])
    resumed.restore(*whole.state())
    assert fields(resumed.step()) == fields(whole.step())
