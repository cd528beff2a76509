"""Values of metrics in tables and sentences."""

import math

from lesson.learn.metric import ACCURACY, Metric
from lesson.report.words import metric_text, plain_number, target_text


def test_format_of_values() -> None:
    rmse = Metric("rmse", higher_is_better=False)
    assert (metric_text(ACCURACY, 0.9312), metric_text(rmse, 0.012345)) == ("93.1%", "0.01235")
    assert (target_text(ACCURACY, 0.9), target_text(rmse, 0.25)) == ("90%", "rmse 0.25")
    numbers = {0.0: "0.000", -3.14159: "-3.142", 123456.7: "123,457", 1e-9: "1e-09", 1e20: "1e+20", math.nan: "–"}
    assert [plain_number(one) for one in numbers] == list(numbers.values())
    assert plain_number(0.05, like=12.345) == "0.05", "an interval has the decimal places of its mean"
