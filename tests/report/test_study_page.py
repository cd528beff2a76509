"""The data that a study's page shows, worked out by hand."""

import json
import math
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.pages import data_of
from helpers.run_folders import RMSE, make_comparison_of, make_run
from helpers.small_tasks import tiny_task
from helpers.tuned import study_of
from lesson import InputError, compare
from lesson.experiments.loading import load_study
from lesson.experiments.run import Archived, Run
from lesson.experiments.study import Study
from lesson.report.page.course import course_of
from lesson.report.page.document import Item, Section, as_json, document
from lesson.report.page.study_data import study_data
from lesson.report.page.study_page import write_study_page
from lesson.report.page.work_data import fairness, latencies, participation, schedule
from lesson.report.results import failure_table
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
    assert course.merges == {0: 2, 1: 1}
    assert course.staleness == {0: 0, 1: 1}


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
    data = study_data(load_study([tmp_path]))
    labels = [group["label"] for group in data["groups"]]
    last = dict(zip(labels, (curve["round"]["at"][-1] for curve in data["curves"]), strict=True))
    assert last == {"fedbuff": math.ceil(len(lines) / 2), "lesson": len(lines)}
    assert data["counts_merges"] == ["fedbuff"]


def test_unknown_energy_is_not_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "run", joules=None)
    data = study_data(load_study([tmp_path / "run"]))
    assert not [card for card in data["cards"] if "energy" in card["label"]]
    assert {row["joules"] for rows in data["costs"] for row in rows} == {None}


def test_other_deadlines_are_compared_only_if_times_are_constant(tmp_path: Path) -> None:
    make_run(tmp_path / "run", radio={"fading": "rayleigh"})
    assert study_data(load_study([tmp_path / "run"]))["fleet"] is None


def test_times_on_the_wall_clock_are_not_simulated(tmp_path: Path) -> None:
    for seed, name in enumerate(("simulated", "measured")):
        make_run(tmp_path / name, run={"seed": seed})
    path = tmp_path / "measured" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"clock": "wall"}))
    data = study_data(load_study([tmp_path / "measured"]))
    assert (data["time"], data["fleet"]["source"]) == ("elapsed time", "measured")
    assert "simulated" not in data["what"]
    assert study_data(load_study([tmp_path / "simulated"]))["time"] == "simulated time"
    assert study_data(load_study([tmp_path / "simulated", tmp_path / "measured"]))["time"] == "time"


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
    name, seeds, (shown, value), *_ = data["table"]["rows"][0]
    assert [name, seeds] == [["lesson", None], ["3", 3]]
    assert shown.startswith(f"{100 * table['accuracy_last10']['lesson']:.1f} ±")
    assert value == pytest.approx(table["accuracy_last10"]["lesson"])
    assert data["rows"][0]["color"] == data["groups"][0]["color"]
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
    short, long = (study_data(load_study([tmp_path / name]))["fleet"]["clients"] for name in ("short", "long"))
    assert short["latency_s"] == pytest.approx(long["latency_s"])
    data = study_data(load_study([tmp_path / "short"]))
    assert data["fairness"][0]["tiers"][0]["tier"] == 1


def test_rows_have_commands_and_settings(study: Study, tmp_path: Path) -> None:
    """Runs are repeated from their folders, archived ones from the settings on the page."""
    row = study_data(study)["rows"][1]
    first, *others = [shlex.split(line) for line in row["command"].splitlines()]
    assert first[:3] == ["lesson", "run", "--scenario"]
    assert load_settings(first[3]).differences(study.runs[3].settings) == []
    assert len({line[-1] for line in [first, *others]}) == 3, "different output folders"
    (tmp_path / "some.toml").write_text(row["settings"])
    assert load_settings(str(tmp_path / "some.toml")).differences(study.runs[3].settings) == []
    run = study.runs[0]
    archived = replace(run, path=None, archived=Archived(run.name, {}, run.curve, run.clients))
    assert "--strategies lesson --seed 0 --seeds 1" in study_data(Study([archived]))["rows"][0]["command"]


def test_further_sections_need_no_runs(tmp_path: Path) -> None:
    table = failure_table(Study([], failures={"lesson-seed0": "disk is full"}))
    section = Section("Failures", "Why.", [Item("All", "lesson run", table=table), Item("Figure", png=b"png")])
    write_study_page(Study([]), tmp_path / "page.html", sections=[section], title="a title")
    (data,) = data_of(tmp_path / "page.html")["sections"]
    assert data["items"][0]["table"]["rows"] == [[["lesson-seed0", None], ["disk is full", None]]]
    assert data["items"][1]["png"] == "cG5n"
    with pytest.raises(InputError):
        write_study_page(Study([]), tmp_path / "page.html")


def test_unknown_clients(study: Study, tmp_path: Path) -> None:
    shutil.copytree(study.runs[0].path, tmp_path / "old")
    (tmp_path / "old" / "clients.json").unlink()
    data = study_data(load_study([tmp_path / "old"]))
    assert data["fleet"] is data["latencies"] is data["schedule"][0] is None
    assert data["participation"] == [[]]
    assert study_data(load_study([tmp_path / "old", study.runs[3].path]))["fleet"]["num_clients"] == 6
    path = shutil.copytree(study.runs[0].path, tmp_path / "silent") / "clients.json"
    kept = json.loads(path.read_text())
    times = {name: [None] * 6 for name in ("latency_s", "compute_s", "upload_s")}
    path.write_text(json.dumps(kept | {"clients": kept["clients"] | times}))
    assert study_data(load_study([tmp_path / "silent"]))["fleet"] is None


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


def compared(out: Path, joules: float = 50.0, **better: Sequence[float]) -> list[str]:
    """Return who the cards name if strategies are better by this much with seeds 0, 1, …, and use these joules."""
    for name, several in better.items():
        for seed, one in enumerate(several):
            spent = 50.0 if name == "lesson" else joules
            make_run(out / f"{name}-seed{seed}", joules=spent, better=one, strategy={"name": name}, run={"seed": seed})
    return [card["who"] for card in study_data(load_study([out]))["cards"]]


def test_winner_is_named_only_if_seeds_support_it(tmp_path: Path) -> None:
    """Differences of 0.1, 0.11 and 0.09 have the interval 0.1 ± 0.025; those of 0.3, 0 and −0.1 include 0."""
    clear, unclear = [-0.1, -0.1, -0.07], [-0.3, 0.01, 0.12]
    assert compared(tmp_path / "clear", lesson=[0.0, 0.01, 0.02], fedcs=clear)[0] == "lesson"
    tied = compared(tmp_path / "tied", lesson=[0.0, 0.01, 0.02], fedcs=clear, fedavg=unclear)
    assert tied[0].startswith("lesson or fedavg: not distinguishable")
    assert "not distinguishable" in compared(tmp_path / "two", lesson=[0.0, 0.01], fedcs=[-0.1, -0.1])[0]
    assert len(tied) == 4


def test_sign_test_decides_if_others_miss_the_target(tmp_path: Path) -> None:
    """FedCS never reaches 80 %: six seeds show that it spends more joules; LESSON takes as long as the run."""
    _, *few = compared(tmp_path / "few", joules=60.0, lesson=[0.0] * 3, fedcs=[-0.3] * 3)
    _, time, energy, _ = compared(tmp_path / "enough", joules=60.0, lesson=[0.0] * 6, fedcs=[-0.3] * 6)
    assert all("not distinguishable" in who for who in few)
    assert "not distinguishable" in time
    assert energy == "lesson"


def test_cards_are_about_all_groups_and_drawn_lines_differ(tmp_path: Path) -> None:
    """30 deadlines in order of accuracy: the first, which spends the least energy, is not drawn; 24 others are."""
    for place in range(30):
        joules = 1.0 if place == 0 else 50.0
        make_run(tmp_path / f"{place}", joules=joules, better=0.001 * place, strategy={"deadline_s": 10.0 + place})
    data = study_data(load_study([tmp_path]))
    assert [card["who"].partition(" and ")[0] for card in data["cards"]][2] == "τ = 10 s"
    assert len({(one["color"], one["dash"]) for one in data["groups"]}) == len(data["groups"]) == 24
    assert sum(row["color"] is None for row in data["rows"]) == 6


def test_cards_of_a_tuned_comparison_follow_its_table(tmp_path: Path) -> None:
    """FedAvg is at 60 % early and then collapses, so it reaches no target in the table, and none on the cards."""

    def values(settings: Settings) -> list[float]:
        return [0.6] * 4 + [0.1] * 4 if settings.strategy.name == "fedavg" else [0.3] * 4 + [0.55] * 4

    data = study_data(study_of(tmp_path, values))
    fastest = next(card for card in data["cards"] if card["label"] == "Shortest time to 50 %")
    assert "fedavg" not in fastest["who"]
    assert "fedavg, β = 0.1 reaches it with none of 2 seeds" in fastest["note"]


def test_several_tasks_have_no_cards(tmp_path: Path) -> None:
    for name in ("mnist", "cifar10"):
        make_run(tmp_path / name, data={"dataset": name})
    data = study_data(load_study([tmp_path]))
    assert data["cards"] == []
    assert len(data["table"]["rows"]) == 2


def test_regressions_are_ranked_by_the_lowest_error(tmp_path: Path) -> None:
    """Seeds differ by 0.01, so half the interval is 4.303 · 0.01 / √3 = 0.02484, with the decimals of the mean."""
    make_comparison_of(tmp_path, RMSE, FALLING, worse=1.0)
    data = study_data(load_study([tmp_path]))
    assert data["metric"] == {"name": "rmse", "higher_is_better": False}
    best, shortest, *_ = data["cards"]
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
    best = study_data(Study(runs))["cards"][0]
    assert best["value"] == "2.010 ± 0.025"
    assert best["who"].startswith("fedavg")
