"""The metric of a task: its direction and its targets."""

import math
from typing import Any

import pytest

from lesson import InputError
from lesson.learn.metric import ACCURACY, RESERVED, Metric
from lesson.runs.read_back import Line, Summary

RMSE = Metric("rmse", higher_is_better=False, targets=(1.0, 4.0, 2.0))


def test_targets_are_sorted_by_difficulty() -> None:
    assert RMSE.targets == (4.0, 2.0, 1.0)
    assert Metric("r2", targets=(0.9, -1.0)).targets == (-1.0, 0.9)
    assert RMSE.time_names == ("time_to_4", "time_to_2", "time_to_1")


def test_target_is_reached_by_the_mean_of_three_evaluations() -> None:
    """Means of three: 4, 3 and 2 at 300, 400 and 500 s."""
    values, spent = [5.0, 4.0, 3.0, 2.0, 1.0], [100, 200, 300, 400, 500]
    assert RMSE.times_to(values, spent) == {"4": 300.0, "2": 500.0, "1": None}
    assert Metric("r2").time_to(4.0, values, spent) == 300.0, "for a higher target, the first mean is enough"
    assert ACCURACY.time_to(0.8, [0.5, 0.7, 0.8, 0.9], spent[:4]) == 400.0
    assert RMSE.time_to(4.0, values[:2], spent[:2]) is None
    assert RMSE.time_to(4e-9, [4e-9 * (1 + 1e-15)] * 3, spent[:3]) == 300.0, "up to rounding"
    assert RMSE.time_to(4e-9, [5e-9] * 3, spent[:3]) is None, "rounding is relative to the target"


def test_best_comes_first_and_unknown_values_last() -> None:
    values = [2.0, math.nan, 1.0, 3.0, 1.0]
    assert RMSE.order(values).tolist() == [2, 4, 0, 3, 1]
    assert Metric("r2").order(values).tolist() == [3, 0, 2, 4, 1]
    assert RMSE.cost(1.0) < RMSE.cost(2.0) < RMSE.cost(math.nan)
    assert ACCURACY.cost(0.9) < ACCURACY.cost(0.8)


def test_metric_is_read_back_from_a_summary() -> None:
    summary = RMSE.fields | {"time_to_s": RMSE.times_to([], [])}
    assert Metric.of(summary) == Metric.of(RMSE.outline) == RMSE
    assert ACCURACY.fields == ACCURACY.outline == {}
    assert Metric.of({"accuracy": 0.5}) is ACCURACY
    own = Metric("accuracy", targets=(0.25,))
    assert Metric.of(own.outline) == own


def test_values_are_rounded_for_archives() -> None:
    assert RMSE.rounded([0.00001234567, 1234567.8]).tolist() == [0.0000123457, 1234570.0]
    assert ACCURACY.rounded([0.123456]).tolist() == [0.1235]


def test_names_of_fields_are_reserved() -> None:
    fields = Line.__annotations__.keys() | Summary.model_fields.keys()
    assert fields - RESERVED == {"accuracy"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"name": name}, "metric must") for name in ("", "1st", "../x", "a" * 41, "loss")),
        ({"name": "accuracy", "higher_is_better": False}, "higher_is_better"),
        ({"name": "rmse", "targets": (math.inf,)}, "finite"),
        ({"name": "rmse", "targets": (1.0, 1.0000001)}, "six digits"),
    ],
)
def test_invalid_metrics_are_errors(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Metric(**given)
