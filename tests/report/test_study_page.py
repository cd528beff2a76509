"""What the page of a study shows, worked out by hand, and the file it is in."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.run_folders import make_comparison, make_run
from helpers.small_tasks import tiny_task
from lesson import compare
from lesson.cli import main
from lesson.experiments.loading import load_study
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.report.page.contender import course_of
from lesson.report.page.document import as_json, document
from lesson.report.page.study_data import study_data
from lesson.report.page.study_page import repeating, write_study_page
from lesson.report.page.study_words import _leader
from lesson.report.page.work_data import fairness, latencies, participation, schedule
from lesson.report.study.metric_figure import draw_metric
from lesson.report.study.notebook import run_card
from lesson.settings.loading import load_settings
from lesson.settings.settings import Settings

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
    {
        "round": 1,
        "time_s": 20.0,
        "uploads": 1,
        "bytes_up": 100,
        "energy_j": 2.0,
        "merged": [0],
        "merged_staleness": [0],
        "merged_started_s": [0.0],
        "merged_arrived_s": [10.0],
    },
    {
        "round": 2,
        "time_s": 40.0,
        "uploads": 2,
        "bytes_up": 200,
        "energy_j": 3.0,
        "accuracy": 0.4,
        "merged": [0, 1],
        "merged_staleness": [0, 1],
        "merged_started_s": [20.0, 0.0],
        "merged_arrived_s": [30.0, 25.0],
    },
]


def test_a_schedule_by_hand() -> None:
    """Client 0 sends for 4 s and waits for the end of the round; of client 1 the parts are not known."""
    told = schedule(course_of(LINES), CLIENTS)
    assert told == {
        "pieces": [[0, 0.0, 6.0, 10.0, 20.0], [0, 20.0, 26.0, 30.0, 40.0], [1, 0.0, None, 25.0, 40.0]],
        "until_s": 40.0,
        "ends_s": [20.0, 40.0],
        "clients": [0, 1],
        "names": ["a", "b"],
        "num_clients": 3,
    }
    longer = [LINES[0] | {"merged_arrived_s": [18.0]}, *LINES[1:]]  # more steps, or waiting for a channel
    changed = schedule(course_of(longer), CLIENTS)
    assert changed is not None
    assert changed["pieces"][0] == [0, 0.0, None, 18.0, 20.0]
    assert schedule(course_of([]), CLIENTS) is None, "a fleet too large for names"


def test_a_schedule_of_many_short_rounds_has_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.report.page.work_data.MAX_ENDS", 1)
    told = schedule(course_of(LINES), CLIENTS)
    assert told is not None
    assert told["ends_s"] == []


def test_a_course_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    course = course_of(LINES)
    assert course.scores == [
        {"round": 2, "time_s": 40.0, "accuracy": 0.4, "uploads": 3, "bytes_up": 300, "energy_j": 5.0}
    ]
    assert course.merges == {0: 2, 1: 1}
    assert course.staleness == {0: 0, 1: 1}
    assert course.first == LINES
    unknown = course_of([line | {"energy_j": None} for line in LINES])
    assert np.isnan(unknown.scores[0]["energy_j"])
    monkeypatch.setattr("lesson.report.page.contender.MAX_FIRST", 1)
    assert course_of(LINES).first == LINES[:1]
    later = LINES[0] | {"round": 3, "time_s": 60.0, "accuracy": 0.9}
    assert course_of([*LINES, later]).scores[1:] == [
        {"round": 3, "time_s": 60.0, "accuracy": 0.9, "uploads": 4, "bytes_up": 400, "energy_j": 7.0}
    ]


def test_aggregations_count_as_rounds_where_each_arrival_ends_a_round(tmp_path: Path) -> None:
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


def test_participation_by_hand() -> None:
    """At a deadline of 20 s, client 0 is merged twice in 40 s, client 1 once and a version late, client 2 never."""
    never, first, second = participation([course_of(LINES)], [CLIENTS], AT_20)
    assert never == {"tier": 0, "clients": 1.0, "merged_per_1000s": 0.0, "share": 0.0, "staleness": None}
    assert first == {"tier": 1, "clients": 1.0, "merged_per_1000s": 50.0, "share": pytest.approx(2 / 3), "staleness": 0}
    assert second["merged_per_1000s"] == pytest.approx(25.0)
    assert second["staleness"] == 1.0
    nameless = [{name: value for name, value in line.items() if not name.startswith("merged")} for line in LINES]
    assert participation([course_of(nameless)], [CLIENTS], AT_20) == []


def test_fairness_by_hand() -> None:
    other = CLIENTS | {"class_accuracy": [0.8, 0.7]}
    told = fairness([CLIENTS, other], AT_20)
    assert told["classes"] == pytest.approx([0.9, 0.6])
    assert told["tiers"] == [{"tier": 1, "accuracy": 0.9}, {"tier": 2, "accuracy": 0.6}]
    assert told["clients"] == pytest.approx([0.6, 0.675, 0.75, 0.825, 0.9])


def test_tiers_are_the_same_for_every_strategy() -> None:
    """Nobody meets 5 s: the fastest client counts as tier 1 if the settings say so, whatever the strategy did."""
    filled = participation([course_of(LINES)], [CLIENTS], Settings(deadline_s=5.0, ensure_first_tier=True))
    left = participation([course_of(LINES)], [CLIENTS], Settings(deadline_s=5.0, ensure_first_tier=False))
    assert [row["tier"] for row in filled] == [0, 1, 5]
    assert [row["tier"] for row in left] == [0, 2, 5]


def test_tiers_in_the_text_are_those_of_all_seeds(tmp_path: Path) -> None:
    """At 20 s the fleets of the three seeds have different numbers of tiers; the charts show all of them."""
    make_comparison(tmp_path)
    data = study_data(load_study([tmp_path]), "")
    counts, shown = set[int](), set[int]()
    for seed in range(3):
        kept = json.loads((tmp_path / f"lesson-seed{seed}" / "clients.json").read_text())["clients"]["latency_s"]
        tiers = {math.ceil(latency_s / 20.0) for latency_s in kept}  # the fastest one may have been put into tier 1
        counts.add(len(tiers))
        shown |= tiers
    assert len(counts) > 1, "or else this test shows nothing"
    many = f"{min(counts)}–{max(counts)} tiers, depending on the seed"
    assert f"a deadline of 20 s sorts the clients into {many}." in data["what"]
    assert {row["tier"] for rows in data["fairness"] for row in rows["tiers"]} == shown


def test_tiers_in_the_text_count_the_client_put_into_tier_1(tmp_path: Path) -> None:
    """Nobody meets 1 s: the text has the tiers of the charts, with the fastest client in tier 1."""
    make_run(tmp_path / "run", strategy={"deadline_s": 1.0, "ensure_first_tier": True}, fleet={"num_clients": 3})
    data = study_data(load_study([tmp_path / "run"]), "")
    (rows,) = data["fairness"]
    tiers = [row["tier"] for row in rows["tiers"]]
    assert tiers[0] == 1
    assert f"sorts the clients into {len(tiers)} tiers, up to tier {tiers[-1]}." in data["what"]


def test_energy_that_nobody_measured_is_not_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "run", joules=None)
    data = study_data(load_study([tmp_path / "run"]), "")
    assert not [card for card in data["verdict"]["cards"] if "energy" in card["label"]]
    place = data["verdict"]["columns"].index("energy (kJ)") + 1
    assert [row[place] for row in data["verdict"]["rows"]] == ["–"]
    assert {row["joules"] for rows in data["costs"] for row in rows} == {None}


def put_on_wall_clock(folder: Path) -> None:
    """Turn a finished run into one whose times are measured."""
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"clock": "wall"}))


def test_a_run_on_the_wall_clock_is_not_said_to_be_simulated(tmp_path: Path) -> None:
    make_run(tmp_path / "run", run={"time_budget_s": 3600.0, "rounds": 9})
    put_on_wall_clock(tmp_path / "run")
    data = study_data(load_study([tmp_path / "run"]), "")
    assert data["what"].startswith("lesson was trained on mnist for 6 rounds in 600 seconds of elapsed time, with 1 ")
    assert data["time"] == "elapsed time"
    assert data["fleet"]["source"] == "measured"
    assert "simulated" not in as_json(data).replace("simulated_", "")
    run = Run.load(tmp_path / "run")
    assert "6 rounds, 600 seconds" in run_card(run)
    assert draw_metric(Study([run]), "time").axes[0].get_xlabel() == "elapsed time (s)"


def test_the_times_of_simulated_and_measured_runs_are_just_times(tmp_path: Path) -> None:
    for seed, name in enumerate(("simulated", "measured")):
        make_run(tmp_path / name, run={"seed": seed})
    assert study_data(load_study([tmp_path / "simulated", tmp_path / "measured"]), "")["time"] == "simulated time"
    put_on_wall_clock(tmp_path / "measured")
    assert study_data(load_study([tmp_path / "simulated", tmp_path / "measured"]), "")["time"] == "time"


def test_a_density_is_drawn_of_what_is_known() -> None:
    seconds = [float(value) for value in range(10, 30)]
    columns = {"compute_s": [None] * 20, "upload_s": [None] * 20, "latency_s": seconds}
    told = latencies({"clients": columns})
    assert told is not None
    assert list(told) == ["latency_s"]
    assert np.trapezoid(told["latency_s"]["y"], told["latency_s"]["x"]) == pytest.approx(1.0, abs=0.01)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    settings = Settings(
        fleet={"num_clients": 6},
        training={"batch_size": 5, "learning_rate": 0.5},
        data={"split": "iid"},
        run={"eval_every_s": 60.0, "time_budget_s": 900.0, "device": "cpu"},
    )
    out = tmp_path_factory.mktemp("study") / "compared"
    return compare(["lesson", "fedavg"], num_seeds=3, num_processes=1, settings=settings, out=out, task=tiny_task())


def test_what_a_study_shows(study: Study) -> None:
    data, table = study_data(study, "lesson again"), study.table()
    assert [group["label"] for group in data["groups"]] == ["lesson", "fedavg"]
    assert data["groups"][0]["color"] != data["groups"][1]["color"]
    (_, accuracy, *_), rows = data["verdict"]["columns"], data["verdict"]["rows"]
    assert accuracy == "accuracy (%)"
    assert rows[0][:2] == ["lesson", "3"]
    assert rows[0][2].startswith(f"{100 * table['accuracy_last10']['lesson']:.1f} ±")
    curve = data["curves"][0]["time_s"]
    low, mean, high = (np.array(curve[name]) for name in ("low", "mean", "high"))
    assert len(curve["at"]) == len(mean)
    assert (low <= mean).all()
    assert (mean <= high).all()
    assert (low < high).any()
    shares = [row["share"] for row in data["participation"][1]]
    assert sum(shares) == pytest.approx(1.0)
    times = {row["target"]: row["seconds"] for row in data["costs"][0]}
    assert times[0.5] == pytest.approx(table["time_to_0.5"]["lesson"])
    spent = {row["target"]: row["joules"] for row in data["costs"][0]}
    assert 0 < spent[0.5] < table["energy_j"]["lesson"]
    assert data["what"].startswith("2 configurations (lesson; fedavg) were trained on tiny for 900 simulated seconds, ")
    assert "6 clients that hold IID data" in data["what"]
    first = next(card for card in data["verdict"]["cards"] if card["label"].startswith("Shortest time to"))
    assert first["who"].startswith(("lesson", "fedavg"))
    assert data["settings"].startswith('preset = "released"')


def test_the_real_latency_of_a_promoted_client_is_shown(study: Study, tmp_path: Path) -> None:
    """If no client meets the deadline, the fastest is promoted; the explorer begins with the actual latencies."""
    settings = Settings(
        fleet={"num_clients": 6},
        training={"batch_size": 5},
        data={"split": "iid"},
        strategy={"deadline_s": 2.0, "ensure_first_tier": True},
        run={"eval_every_s": 10.0, "rounds": 20, "device": "cpu"},
    )
    short = compare(
        ["lesson"], num_seeds=1, num_processes=1, settings=settings, out=tmp_path / "short", task=tiny_task()
    )
    kept = json.loads((short.runs[0].path / "clients.json").read_text())
    assert min(kept["clients"]["latency_s"]) == 2.0
    data = study_data(short, "")
    truth = study_data(study, "")["fleet"]["clients"]["latency_s"]
    assert data["fleet"]["clients"]["latency_s"] == pytest.approx(truth)
    assert f"take the fastest client {min(truth):.1f} s" in data["what"]
    assert data["notes"][0].startswith("lesson-seed0: tier 1 would be empty")


def test_what_varies_is_not_told_as_everybodys(study: Study, tmp_path: Path) -> None:
    """Two deadlines and two fleets: each contender has its own tiers and names, and no sentence speaks for both."""
    other = Settings(
        fleet={"num_clients": 9},
        training={"batch_size": 2},
        data={"split": "iid"},
        strategy={"deadline_s": 60.0},
        run={"eval_every_s": 60.0, "time_budget_s": 300.0, "device": "cpu"},
    )
    wide = compare(["lesson"], num_seeds=1, num_processes=1, settings=other, out=tmp_path / "wide", task=tiny_task())
    both = load_study([study.runs[0].path, wide.runs[0].path])
    data = study_data(both, "")
    assert "and 6 or 9 clients" in data["what"]
    assert "deadline of" not in data["what"]
    assert [row["tier"] for row in data["participation"][1]] == [1]
    assert [len(one["names"]) for one in data["schedule"]] == [6, 9]
    again = repeating(both).splitlines()
    assert [line.partition(" --scenario")[0] for line in again] == ["lesson run", "lesson run"]


def test_seeds_with_a_gap_are_not_said_to_be_a_comparison(study: Study) -> None:
    gap = Study([run for run in study.runs if run.summary["seed"] != 1])
    assert repeating(gap).count("lesson run --scenario") == 4
    uneven = Study(study.runs[1:])
    assert repeating(uneven).startswith("lesson run")


def test_all_finished_runs_of_a_comparison_are_repeated_from_its_study_toml(study: Study, tmp_path: Path) -> None:
    out = Path(shutil.copytree(study.runs[0].path.parent, tmp_path / "out"))
    shutil.rmtree(out / "fedavg-seed1")
    assert repeating(load_study([out])) == f"lesson sweep {out / 'study.toml'} --out runs/again"
    (out / "study.toml").write_text("[study]\nformat = 1\nkind = 'reproduction'\n")
    assert repeating(Study([Run.load(out / "lesson-seed0")])).startswith("lesson run")


def test_archived_runs_cannot_be_repeated_from_their_files(study: Study) -> None:
    archived = replace(study.runs[0], path=None)
    assert repeating(Study([archived])) == repeating(Study([archived, *study.runs[1:]])) == ""


def test_the_run_that_is_shown_is_of_a_seed_that_all_have(study: Study) -> None:
    left = Study([run for run in study.runs if (run.summary["strategy"], run.summary["seed"]) != ("lesson", 0)])
    data = study_data(left, "")
    assert data["fleet"]["source"] == "seed 1"


def test_a_fleet_nobody_can_reach_has_a_page(tmp_path: Path) -> None:
    lost = Settings(
        fleet={"num_clients": 6},
        training={"batch_size": 5},
        data={"split": "iid"},
        radio={"noise_dbm": 5000.0},
        run={"eval_every_s": 60.0, "rounds": 3, "device": "cpu"},
    )
    silent = compare(["lesson"], num_seeds=1, num_processes=1, settings=lost, out=tmp_path / "lost", task=tiny_task())
    data = study_data(silent, "")
    assert "take the fastest" not in data["what"]
    assert data["latencies"] is None or "latency_s" not in data["latencies"]


def test_the_command_makes_the_same_runs_again(study: Study) -> None:
    command = repeating(study)
    found = re.fullmatch(
        r"lesson compare --scenario (\S+) --strategies lesson,fedavg --seed 0 --seeds 3 --out runs/again", command
    )
    assert found
    assert load_settings(found[1]).differences(study.runs[0].settings) == []
    assert repeating(Study([study.runs[0]])).startswith("lesson run --scenario ")


def test_a_page_is_one_small_file_with_the_same_bytes(study: Study, tmp_path: Path) -> None:
    write_study_page(study, tmp_path / "one.html")
    write_study_page(study, tmp_path / "two.html")
    page = (tmp_path / "one.html").read_bytes()
    assert page == (tmp_path / "two.html").read_bytes()
    assert len(page) < 6e6
    assert set(re.findall(rb'(?:src|href)="(.*?)"', page.partition(b"<script")[0])) == {b"data:,", b"#main"}


def test_nothing_in_the_numbers_can_end_the_script() -> None:
    text = as_json({"name": "</script><b>&\u2028", "never": float("inf"), "places": [1.5, float("nan")]})
    assert "<" not in text
    assert json.loads(text) == {"name": "</script><b>&\u2028", "never": None, "places": [1.5, None]}
    page = document("<b>{{data}}", [], {})
    assert "<title>&lt;b&gt;{{data}}</title>" in page
    assert "<b>{{data}}" not in page


def test_report_command(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = study.runs[0].path.parent
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"report: {folder / 'report.html'}\n"
    alone = str(study.runs[0].path)
    assert main(["report", alone, str(study.runs[3].path), "-o", str(tmp_path / "both.html")]) == 0
    assert _data(tmp_path / "both.html")["what"].startswith("2 configurations")
    capsys.readouterr()
    for argv, told in (
        ([alone, "-o", str(tmp_path / "page.txt")], "must end in .html"),
        ([alone, "-o", str(tmp_path / "none" / "page.html")], "does not exist"),
    ):
        assert main(["report", *argv]) == 2
        assert told in capsys.readouterr().err


def test_a_run_whose_clients_are_not_known_is_shown_without_them(study: Study, tmp_path: Path) -> None:
    """A folder of an older version has no clients.json."""
    shutil.copytree(study.runs[0].path, tmp_path / "old")
    (tmp_path / "old" / "clients.json").unlink()
    data = study_data(load_study([tmp_path / "old"]), "")
    assert data["fleet"] is data["latencies"] is data["schedule"][0] is None
    assert data["participation"] == [[]]
    beside = study_data(load_study([tmp_path / "old", study.runs[3].path]), "")
    assert beside["fleet"]["num_clients"] == 6


@pytest.mark.parametrize(
    ("file", "content"), [("clients.json", '{"a": 1}'), ("summary.json", "[]"), ("summary.json", "{}")]
)
def test_damaged_files_are_told_in_one_line(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: str
) -> None:
    shutil.copytree(study.runs[0].path, tmp_path / "bad")
    (tmp_path / "bad" / file).write_text(content)
    assert main(["report", str(tmp_path / "bad")]) == 2
    assert f"{file} is damaged" in capsys.readouterr().err


def _data(page: Path) -> dict[str, Any]:
    """The numbers inside a page."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def test_a_winner_is_named_only_where_seeds_support_it() -> None:
    """Differences of −1, −1.1 and −0.9 have the interval −1 ± 0.25; those of −3, 0 and 1 include 0."""
    ours = {0: 5.0, 1: 6.0, 2: 7.0}
    clear, unclear = {0: 6.0, 1: 7.1, 2: 7.9}, {0: 8.0, 1: 6.0, 2: 6.0}
    assert _leader({"a": ours, "b": clear}) == "a"
    assert _leader({"a": ours, "b": clear, "c": unclear}) == "a or c: not distinguishable with 3 seeds"
    two = [{seed: values[seed] for seed in (0, 1)} for values in (ours, clear)]
    assert _leader(dict(zip("ab", two, strict=True))) == "a or b: not distinguishable with 2 seeds"
    assert _leader({"a": ours}) == "a"


def test_a_target_that_others_miss_has_a_winner_only_by_a_sign_test() -> None:
    """All of 5 lower: p = 2 / 2⁵ = 0.063; of 6: 2 / 2⁶ = 0.031; 6 of 7: 2 · (1 + 7) / 2⁷ = 0.125; 8 of 9: 0.039."""

    def leader(num_seeds: int, *wins_of_b: float) -> str:
        never = dict.fromkeys(range(num_seeds), math.inf)
        return _leader({"a": dict.fromkeys(range(num_seeds), 5.0), "b": never | dict(enumerate(wins_of_b))})

    assert leader(3) == "a or b: not distinguishable with 3 seeds"
    assert leader(5) == "a or b: not distinguishable with 5 seeds"
    assert leader(6) == "a"
    assert leader(7, 4.0) == "a or b: not distinguishable with 7 seeds"
    assert leader(7, 5.0) == "a or b: not distinguishable with 7 seeds"  # a tie counts against a
    assert leader(9, 4.0) == "a"


def test_a_configuration_that_never_reaches_the_target_is_compared_by_the_same_rule(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / f"lesson-seed{seed}", strategy={"name": "lesson"}, run={"seed": seed})
        make_run(tmp_path / f"fedcs-seed{seed}", better=-0.3, strategy={"name": "fedcs"}, run={"seed": seed})
    _, *cards = study_data(load_study([tmp_path]), "")["verdict"]["cards"]
    assert cards
    for card in cards:
        assert card["who"] == "lesson or fedcs: not distinguishable with 3 seeds"
        assert card["note"] == "fedcs reaches it with none of 3 seeds"


def test_the_report_does_not_name_a_winner_of_two_equal_strategies(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    cards = study_data(load_study([tmp_path]), "")["verdict"]["cards"]
    assert [card["label"] for card in cards] == [
        "Highest accuracy",
        "Shortest time to 80 %",
        "Least energy to 80 %",
        "Fewest uploads to 80 %",
    ]
    assert all(card["who"].endswith("not distinguishable with 3 seeds") for card in cards)
