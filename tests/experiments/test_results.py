"""Runs as they are kept, and what is measured of them; every number here can be checked by hand."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lesson.core.errors import InputError
from lesson.experiments.measures import accuracy_at, common_target, last_accuracy, reached, times_longer
from lesson.experiments.results import Result, Results
from lesson.settings.settings import Settings


def result(accuracies: list[float], seed: int = 0, strategy: str = "lesson", stopped: str = "", **settings) -> Result:
    """Evaluations every 100 s and 5 rounds, 10 uploads between."""
    count = np.arange(1, len(accuracies) + 1)
    curve = pd.DataFrame({"round": 5 * count, "time_s": 100.0 * count, "accuracy": accuracies, "uploads": 10 * count})
    made = Settings(name=strategy, seed=seed, rounds=50, **settings)
    return Result(made, {"torch": "2"}, stopped, curve, pd.DataFrame())


def results(*runs: Result) -> Results:
    return Results({f"{place}": run for place, run in enumerate(runs)})


def test_a_line_of_json_gives_the_run_back() -> None:
    run = result([0.1, 0.2], deadline_s=math.inf, cpu_hz=(1e9, 2e9), stopped="the loss is no longer finite")
    line = run.to_json()
    json.loads(line, parse_constant=pytest.fail)
    back = Result.of_json(line)
    assert back.settings == run.settings
    assert (back.stopped, back.versions) == (run.stopped, run.versions)
    pd.testing.assert_frame_equal(back.curve, run.curve)


def test_results_are_kept_in_a_folder(tmp_path: Path) -> None:
    assert not Results.load(tmp_path).runs
    Results({"b": result([0.5], seed=1), "a": result([0.4])}).save(tmp_path)
    back = Results.load(tmp_path)
    assert list(back.runs) == ["lesson-mnist-seed0", "lesson-mnist-seed1"]
    assert [run.seed for run in back["lesson-mnist"]] == [0, 1]
    line = json.loads(result([0.4]).to_json())
    curves = ({"round": [1]}, line["curve"] | {"accuracy": ["x"]})
    for damaged in ({"series": 1}, line | {"settings": []}, *(line | {"curve": curve} for curve in curves)):
        (tmp_path / "runs.jsonl").write_text(json.dumps(damaged) + "\n")
        with pytest.raises(InputError, match="is damaged"):
            Results.load(tmp_path)


def test_energy_is_kept_where_it_is_known() -> None:
    run = result([0.1, 0.2])
    known = dataclasses.replace(run, curve=run.curve.assign(energy_j=[1.5, 3.25]))
    assert Result.of_json(known.to_json()).curve["energy_j"].tolist() == [1.5, 3.25]
    assert list(Result.of_json(run.to_json()).curve) == ["round", "time_s", "accuracy", "uploads"]
    assert reached(dataclasses.replace(known, curve=pd.concat([known.curve] * 2)), 0.15, "energy_j") == 3.25


def test_lines_kept_before_energy_was_are_saved_as_they_were() -> None:
    """But for settings that have come since, which are written with their defaults."""
    kept = Path(__file__).parents[2] / "results" / "paper" / "runs.jsonl"
    for line in kept.read_text().splitlines():
        before, after = (text.partition('"settings": ')[0] for text in (line, Result.of_json(line).to_json()))
        assert before == after


def test_last_accuracy_is_the_mean_of_ten_within_the_rounds_but_at_most_of_a_quarter() -> None:
    long = results(result([0.0] * 20 + [0.5] * 9 + [0.6]))
    assert last_accuracy(long, "lesson-mnist", 150) == pytest.approx([(6 * 0.5 + 0.6) / 7])  # 7 of 30
    assert last_accuracy(long, "lesson-mnist", 120) == pytest.approx([4 * 0.5 / 6])  # 6 of 24
    both = results(result([0.0, 0.0, *[0.5] * 9, 0.6, 0.9]), result([0.2, 0.4, 0.6], seed=1))
    assert last_accuracy(both, "lesson-mnist", 65) == pytest.approx([2 / 3, 0.6])  # 3 of 13, and 1 of 3
    assert last_accuracy(both, "lesson-mnist", 10) == pytest.approx([0.0, 0.4])


def test_a_run_that_diverged_guesses() -> None:
    lost = results(result([0.9, 0.9, 0.9], stopped="no longer finite"))
    assert last_accuracy(lost, "lesson-mnist", 15).tolist() == [0.1]
    assert accuracy_at(lost, "lesson-mnist", 300.0).tolist() == [0.1]


def test_accuracy_at_a_time_is_the_mean_of_the_three_before() -> None:
    assert accuracy_at(results(result([0.1, 0.2, 0.3, 0.4, 0.9])), "lesson-mnist", 450.0) == pytest.approx([0.3])


def test_a_target_is_reached_with_the_mean_of_three() -> None:
    run = result([0.4, 0.5, 0.6, 0.7])
    assert reached(run, 0.5, "time_s") == 300.0
    assert reached(run, 0.5, "round") == 15
    assert reached(run, 0.5, "uploads") == 30
    assert reached(run, 0.5, "time_s", rounds=10) == math.inf
    assert reached(run, 0.7, "time_s") == math.inf


def test_common_target_is_the_highest_that_all_reach() -> None:
    quick, slow = result([0.9] * 3), result([0.55] * 3, strategy="fedavg")
    assert common_target(results(quick), ["lesson-mnist"]) == 0.9
    assert common_target(results(quick, slow), ["lesson-mnist", "fedavg-mnist"]) == 0.5
    assert common_target(results(result([0.1])), ["lesson-mnist"]) == 0


def test_times_longer_is_paired_and_tells_when_it_is_a_bound() -> None:
    fast = [result([0.6] * 3), result([0.0, *[0.6] * 3], seed=1)]  # 300 s and 400 s
    slow = [result([0.0] * 3 + [0.6] * 3, strategy="fedavg"), result([0.0] * 8, seed=1, strategy="fedavg")]
    ratios, bound = times_longer(results(*fast, *slow), "fedavg-mnist", "lesson-mnist", 0.6, "time_s")
    assert ratios == pytest.approx([600 / 300, 800 / 400])
    assert bound == 1
    ratios, bound = times_longer(results(*fast, *slow), "lesson-mnist", "lesson-mnist", 0.6, "time_s")
    assert ratios.tolist() == [1, 1]
    assert not bound
    ratios, _ = times_longer(results(*fast, *slow), "lesson-mnist", "fedavg-mnist", 0.6, "time_s")
    assert ratios[0] == 0.5
    assert np.isnan(ratios[1])
