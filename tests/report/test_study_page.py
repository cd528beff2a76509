"""The data that a study's page shows, worked out by hand."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.pages import data_of
from helpers.run_folders import RMSE, make_comparison, make_comparison_of, make_run
from helpers.small_tasks import tiny_task
from lesson import compare
from lesson.experiments.loading import load_study
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.report.page.contender import course_of
from lesson.report.page.document import as_json, document
from lesson.report.page.study_data import study_data
from lesson.report.page.study_page import repeating, write_study_page
from lesson.report.page.study_words import _leader
from lesson.report.page.work_data import fairness, latencies, participation, schedule
from lesson.settings.loading import load_settings
from lesson.settings.settings import Settings

FALLING = (6.0, 5.0, 4.0, 3.0, 2.0, 1.0)
AT_20 = Settings(deadline_s=20.0, ensure_first_tier=False)
CLIENTS: dict[str, Any] = {
    "num_clients": 3,
    "class_accuracy": [1.0, 0.5],
    "promoted": None,
    "clients": {
        "number": [0, 1, 2],
        "name": ["a", "b", "c"],
        "latency_s": [10.0, 25.0, None],
        "upload_s": [4.0, None, None],
        "compute_s": [6.0, None, None],
        "accuracy": [0.9, 0.6, None],
    },
}
LINES: list[dict[str, Any]] = [
    {"round": 1, "time_s": 20.0, "uploads": 1, "bytes_up": 100, "energy_j": 2.0}
    | {"merged": [0], "merged_staleness": [0], "merged_started_s": [0.0], "merged_arrived_s": [10.0]},
    {"round": 2, "time_s": 40.0, "uploads": 2, "bytes_up": 200, "energy_j": 3.0, "accuracy": 0.4}
    | {"merged": [0, 1], "merged_staleness": [0, 1], "merged_started_s": [20.0, 0.0], "merged_arrived_s": [30.0, 25.0]},
]


def test_schedule_by_hand() -> None:
    """Client 0 sends for 4 s and waits for the end of the round; of client 1, the parts are unknown."""
    assert schedule(course_of(LINES), CLIENTS) == {
        "pieces": [[0, 0.0, 6.0, 10.0, 20.0], [0, 20.0, 26.0, 30.0, 40.0], [1, 0.0, None, 25.0, 40.0]],
        "until_s": 40.0,
        "ends_s": [20.0, 40.0],
        "clients": [0, 1],
        "names": ["a", "b"],
        "num_clients": 3,
    }
    assert schedule(course_of([]), CLIENTS) is None, "a fleet too large for names"


def test_course_by_hand() -> None:
    course = course_of(LINES)
    assert course.scores == [
        {"round": 2, "time_s": 40.0, "accuracy": 0.4, "uploads": 3, "bytes_up": 300, "energy_j": 5.0}
    ]
    assert course.merges == {0: 2, 1: 1}
    assert course.staleness == {0: 0, 1: 1}
    unknown = course_of([line | {"energy_j": None} for line in LINES])
    assert np.isnan(unknown.scores[0]["energy_j"])


def test_participation_by_hand() -> None:
    """At a deadline of 20 s, client 0 is merged twice in 40 s, client 1 once and a version late, client 2 never."""
    never, first, second = participation([course_of(LINES)], [CLIENTS], AT_20)
    assert never == {"tier": 0, "clients": 1.0, "merged_per_1000s": 0.0, "share": 0.0, "staleness": None}
    assert first == {"tier": 1, "clients": 1.0, "merged_per_1000s": 50.0, "share": pytest.approx(2 / 3), "staleness": 0}
    assert second["merged_per_1000s"] == pytest.approx(25.0)
    assert second["staleness"] == 1.0
    # Nobody meets 5 s: the fastest client counts as tier 1 if the settings say so, whatever the strategy did.
    for ensure, tiers in ((True, [0, 1, 5]), (False, [0, 2, 5])):
        rows = participation([course_of(LINES)], [CLIENTS], Settings(deadline_s=5.0, ensure_first_tier=ensure))
        assert [row["tier"] for row in rows] == tiers


def test_fairness_by_hand() -> None:
    found = fairness([CLIENTS, CLIENTS | {"class_accuracy": [0.8, 0.7]}], AT_20)
    assert found["classes"] == pytest.approx([0.9, 0.6])
    assert found["tiers"] == [{"tier": 1, "accuracy": 0.9}, {"tier": 2, "accuracy": 0.6}]
    assert found["clients"] == pytest.approx([0.6, 0.675, 0.75, 0.825, 0.9])


def test_density_of_known_latencies() -> None:
    seconds = [float(value) for value in range(10, 30)]
    columns = {"compute_s": [None] * 20, "upload_s": [None] * 20, "latency_s": seconds}
    found = latencies({"clients": columns})
    assert found is not None
    assert list(found) == ["latency_s"]
    assert np.trapezoid(found["latency_s"]["y"], found["latency_s"]["x"]) == pytest.approx(1.0, abs=0.01)


def test_fedbuff_is_drawn_over_aggregations(tmp_path: Path) -> None:
    """Every second round aggregates: FedBuff's points are at 1, 1, 2, 2, …, LESSON's at 1, 2, 3, …"""
    for name in ("fedbuff", "lesson"):
        make_run(tmp_path / name, strategy={"name": name})
        path = tmp_path / name / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        changed = [line | {"staleness": None if line["round"] % 2 == 0 else 0.0} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    data = study_data(load_study([tmp_path]), "")
    labels = [group["label"] for group in data["groups"]]
    last = dict(zip(labels, (curve["round"]["at"][-1] for curve in data["curves"]), strict=True))
    assert last == {"fedbuff": math.ceil(len(lines) / 2), "lesson": len(lines)}
    assert data["counts_merges"] == ["fedbuff"]


def test_unknown_energy_is_not_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "run", joules=None)
    data = study_data(load_study([tmp_path / "run"]), "")
    assert not [card for card in data["verdict"]["cards"] if "energy" in card["label"]]
    assert {row["joules"] for rows in data["costs"] for row in rows} == {None}


def test_other_deadlines_are_compared_only_if_times_are_constant(tmp_path: Path) -> None:
    make_run(tmp_path / "run", radio={"fading": "rayleigh"})
    assert study_data(load_study([tmp_path / "run"]), "")["fleet"] is None


def test_times_on_the_wall_clock_are_not_simulated(tmp_path: Path) -> None:
    for seed, name in enumerate(("simulated", "measured")):
        make_run(tmp_path / name, run={"seed": seed})
    path = tmp_path / "measured" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"clock": "wall"}))
    data = study_data(load_study([tmp_path / "measured"]), "")
    assert (data["time"], data["fleet"]["source"]) == ("elapsed time", "measured")
    assert "simulated" not in data["what"]
    assert study_data(load_study([tmp_path / "simulated"]), "")["time"] == "simulated time"
    assert study_data(load_study([tmp_path / "simulated", tmp_path / "measured"]), "")["time"] == "time"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A trained comparison, not to be changed."""
    settings = Settings(
        fleet={"num_clients": 6},
        training={"batch_size": 5, "learning_rate": 0.5},
        data={"split": "iid"},
        run={"eval_every_s": 60.0, "time_budget_s": 900.0, "device": "cpu"},
    )
    out = tmp_path_factory.mktemp("study") / "compared"
    return compare(["lesson", "fedavg"], num_seeds=3, num_processes=1, settings=settings, out=out, task=tiny_task())


def test_data_of_a_study(study: Study, tmp_path: Path) -> None:
    write_study_page(study, tmp_path / "page.html")
    data, table = data_of(tmp_path / "page.html"), study.table()
    assert [group["label"] for group in data["groups"]] == ["lesson", "fedavg"]
    assert data["groups"][0]["color"] != data["groups"][1]["color"]
    assert data["verdict"]["rows"][0][:2] == ["lesson", "3"]
    assert data["verdict"]["rows"][0][2].startswith(f"{100 * table['accuracy_last10']['lesson']:.1f} ±")
    curve = data["curves"][0]["time_s"]
    low, mean, high = (np.array(curve[name]) for name in ("low", "mean", "high"))
    assert len(curve["at"]) == len(mean)
    assert (low <= mean).all()
    assert (mean <= high).all()
    assert (low < high).any()
    assert sum(row["share"] for row in data["participation"][1]) == pytest.approx(1.0)
    costs = next(row for row in data["costs"][0] if row["target"] == 0.5)
    assert costs["seconds"] == pytest.approx(table["time_to_0.5"]["lesson"])
    assert 0 < costs["joules"] < table["energy_j"]["lesson"]
    assert "900 simulated seconds" in data["what"]
    page = (tmp_path / "page.html").read_bytes()
    assert len(page) < 6e6
    assert set(re.findall(rb'(?:src|href)="(.*?)"', page.partition(b"<script")[0])) == {b"data:,", b"#main"}
    write_study_page(study, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == page


def test_actual_latency_of_a_promoted_client(tmp_path: Path) -> None:
    """If no client meets the deadline, the fastest is promoted; the explorer begins with the actual latencies."""
    for name, strategy in (("short", {"deadline_s": 2.0, "ensure_first_tier": True}), ("long", {"deadline_s": 200.0})):
        make_run(tmp_path / name, strategy=strategy, fleet={"num_clients": 6})
    assert min(Run.load(tmp_path / "short").read_clients()["clients"]["latency_s"]) == 2.0
    short, long = (study_data(load_study([tmp_path / name]), "")["fleet"]["clients"] for name in ("short", "long"))
    assert short["latency_s"] == pytest.approx(long["latency_s"])
    data = study_data(load_study([tmp_path / "short"]), "")
    assert data["fairness"][0]["tiers"][0]["tier"] == 1


def test_commands_that_reproduce_a_study(study: Study, tmp_path: Path) -> None:
    found = re.fullmatch(
        r"lesson compare --scenario (\S+) --strategies lesson,fedavg --seed 0 --seeds 3 --out runs/again",
        repeating(study),
    )
    assert found
    assert load_settings(found[1]).differences(study.runs[0].settings) == []
    assert repeating(Study(study.runs[:1])).startswith("lesson run --scenario ")
    gap = Study([run for run in study.runs if run.summary["seed"] != 1])
    assert repeating(gap).count("lesson run --scenario") == 4
    archived = replace(study.runs[0], path=None)
    assert repeating(Study([archived, *study.runs[1:]])) == ""
    out = Path(shutil.copytree(study.runs[0].path.parent, tmp_path / "out"))
    shutil.rmtree(out / "fedavg-seed1")
    assert repeating(load_study([out])) == f"lesson sweep {out / 'study.toml'} --out runs/again"


def test_unknown_clients(study: Study, tmp_path: Path) -> None:
    shutil.copytree(study.runs[0].path, tmp_path / "old")
    (tmp_path / "old" / "clients.json").unlink()
    data = study_data(load_study([tmp_path / "old"]), "")
    assert data["fleet"] is data["latencies"] is data["schedule"][0] is None
    assert data["participation"] == [[]]
    assert study_data(load_study([tmp_path / "old", study.runs[3].path]), "")["fleet"]["num_clients"] == 6


def test_hostile_text_cannot_end_the_script(tmp_path: Path) -> None:
    hostile = "</script><b>&\u2028"
    text = as_json({"name": hostile, "never": float("inf"), "places": [1.5, float("nan")]})
    assert "<" not in text
    assert json.loads(text) == {"name": hostile, "never": None, "places": [1.5, None]}
    assert "<b>" not in document("<b>{{data}}", [], {}).partition("<script")[0]
    make_run(tmp_path / "run")
    clients = tmp_path / "run" / "clients.json"
    clients.write_text(json.dumps(json.loads(clients.read_text()) | {"class_names": [hostile] * 10}))
    write_study_page(load_study([tmp_path / "run"]), tmp_path / "page.html")
    assert data_of(tmp_path / "page.html")["fairness"][0]["names"] == [hostile] * 10


def test_winner_is_named_only_if_seeds_support_it(tmp_path: Path) -> None:
    """Differences of −1, −1.1 and −0.9 have the interval −1 ± 0.25; those of −3, 0 and 1 include 0."""
    ours = {0: 5.0, 1: 6.0, 2: 7.0}
    clear, unclear = {0: 6.0, 1: 7.1, 2: 7.9}, {0: 8.0, 1: 6.0, 2: 6.0}
    assert _leader({"a": ours, "b": clear}) == "a"
    assert _leader({"a": ours, "b": clear, "c": unclear}).startswith("a or c: not distinguishable")
    two = [{seed: values[seed] for seed in (0, 1)} for values in (ours, clear)]
    assert _leader(dict(zip("ab", two, strict=True))).startswith("a or b: not distinguishable")
    make_comparison(tmp_path)
    cards = study_data(load_study([tmp_path]), "")["verdict"]["cards"]
    assert len(cards) == 4
    assert all("not distinguishable" in card["who"] for card in cards)


def test_sign_test_decides_if_others_miss_the_target(tmp_path: Path) -> None:
    """All of 5 lower: p = 2 / 2⁵ = 0.063; of 6: 2 / 2⁶ = 0.031; 6 of 7: 2 · (1 + 7) / 2⁷ = 0.125; 8 of 9: 0.039."""

    def has_winner(num_seeds: int, *wins_of_b: float) -> bool:
        never = dict.fromkeys(range(num_seeds), math.inf)
        leader = _leader({"a": dict.fromkeys(range(num_seeds), 5.0), "b": never | dict(enumerate(wins_of_b))})
        return leader == "a"

    assert [has_winner(3), has_winner(5), has_winner(6)] == [False, False, True]
    assert [has_winner(7, 4.0), has_winner(7, 5.0), has_winner(9, 4.0)] == [
        False,
        False,
        True,
    ]  # a tie counts against a
    for seed in range(3):
        make_run(tmp_path / f"lesson-seed{seed}", strategy={"name": "lesson"}, run={"seed": seed})
        make_run(tmp_path / f"fedcs-seed{seed}", better=-0.3, strategy={"name": "fedcs"}, run={"seed": seed})
    _, *cards = study_data(load_study([tmp_path]), "")["verdict"]["cards"]
    assert all("not distinguishable" in card["who"] for card in cards)


def test_regressions_are_ranked_by_the_lowest_error(tmp_path: Path) -> None:
    """Seeds differ by 0.01, so half the interval is 4.303 · 0.01 / √3 = 0.02484, with the decimals of the mean."""
    make_comparison_of(tmp_path, RMSE, FALLING, worse=1.0)
    data = study_data(load_study([tmp_path]), "")
    assert data["metric"] == {"name": "rmse", "higher_is_better": False}
    best, shortest, *_ = data["verdict"]["cards"]
    assert (best["who"], best["value"], shortest["value"]) == ("lesson", "1.010 ± 0.025", "467 s")
    assert [row["target"] for row in data["costs"][0]] == [4.0, 2.0]
    assert data["curves"][1]["time_s"]["mean"] == pytest.approx([6.01, 5.01, 4.01, 3.01, 2.01, 1.01])
    assert data["curves"][0]["time_s"]["high"][0] == pytest.approx(7.01 + 0.0248, abs=1e-4)
    assert all(one["classes"] == [] for one in data["fairness"])
    assert "accura" not in as_json(data).replace("accuracy_others", "")


def test_diverged_run_is_ranked_last(tmp_path: Path) -> None:
    make_comparison_of(tmp_path, RMSE, FALLING, worse=1.0)
    study = load_study([tmp_path])
    lost = study.runs[3]
    summary = lost.summary | {"rmse": math.nan, "rmse_last10": math.nan, "time_to_s": {"4": None, "2": None}}
    runs = [*study.runs[:3], replace(lost, summary=summary, diverged="no longer finite"), *study.runs[4:]]
    best = study_data(Study(runs), "")["verdict"]["cards"][0]
    assert best["value"] == "2.010 ± 0.025"
    assert best["who"].startswith("fedavg")
