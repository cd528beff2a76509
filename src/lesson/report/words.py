"""Text for counts, metrics and targets: accuracies are shown in percent, other metrics as plain numbers."""

import math
from collections.abc import Mapping
from typing import Any

from lesson.learn.metric import Metric

DIGITS = 4
"""Significant digits of a metric other than accuracy."""
ROUNDING = 1e-9
"""Allowance for floating-point errors, as in 100 * 0.285 = 28.499999999999996."""


def count(number: int, what: str, several: str = "") -> str:
    """Return a count with its noun, such as "1 round" or "2,000 rounds"; `several` is an irregular plural."""
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def digits(value: float) -> str:
    """Return a number with four significant digits, but without an exponent if it is large."""
    return f"{value:,.0f}" if 1e4 <= value < 1e9 else f"{value:.4g}"


def percent(share: float) -> str:
    """Return a share in whole percent, rounded half up; only exact shares of 0 and 1 are 0% and 100%."""
    if 0 < share < 0.005 * (1 - ROUNDING):
        return "<1%"
    if 0.995 * (1 - ROUNDING) <= share < 1:
        return ">99%"
    return f"{math.floor(100 * share + 0.5 + ROUNDING)}%"


def unit_of(metric: Metric) -> str:
    """Return the unit in a heading, with a space before it."""
    return " (%)" if metric.is_share else ""


def metric_number(metric: Metric, value: float, decimals: int = 4) -> str:
    """Return a value as a bare number: an accuracy as a share with `decimals` decimal places."""
    return f"{value:.{decimals}f}" if metric.is_share else plain_number(value)


def metric_text(metric: Metric, value: float, space: str = "") -> str:
    """Return a value for a sentence: an accuracy in percent, with `space` before the sign."""
    return f"{100 * value:.1f}{space}%" if metric.is_share else plain_number(value)


def target_text(metric: Metric, target: float, space: str = "") -> str:
    """Return a target for a heading or a sentence, such as "90%" or "rmse 0.25"."""
    return f"{100 * target:g}{space}%" if metric.is_share else f"{metric.name} {target:g}"


def final_score(summary: Mapping[str, Any]) -> str:
    """Return the metric of the final model, such as "accuracy 0.9312"."""
    metric = Metric.of(summary)
    return f"{metric.name} {metric_number(metric, summary[metric.name])}"


def plain_number(value: float, like: float | None = None) -> str:
    """Return a number with four significant digits, or with as many decimal places as `like` has in this format."""
    size = abs(value if like is None else like)
    if math.isnan(value):
        return "–"
    if size and not 1e-5 <= size < 1e15:
        return f"{value:.{DIGITS}g}"
    decimals = max(0, DIGITS - 1 - math.floor(math.log10(size))) if size else DIGITS - 1
    return f"{value:,.{decimals}f}"
