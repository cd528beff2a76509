import json
import math

import numpy as np
import pytest

from lesson.experiments.measures import Estimate
from lesson.paper.claims import CLAIMS
from lesson.paper.claims.base import finding
from lesson.paper.verdicts import Part, above, below, near, verdict_on

TIGHT, WIDE = np.array([1.0, 1.1, 0.9]), np.array([-1.0, 1.0, 3.0])  # means 1; halves .248 and 4.97


@pytest.mark.parametrize(
    ("values", "rule", "outcome"),
    [
        (TIGHT, above(0.5), "holds"),
        (TIGHT, above(0.9), "inconclusive"),
        (TIGHT, above(1.1), "inconclusive"),
        (TIGHT, above(1.3), "fails"),
        (WIDE, above(0.5), "inconclusive"),
        (TIGHT, below(1.5), "holds"),
        (TIGHT, below(1.1), "inconclusive"),
        (TIGHT, below(0.7), "fails"),
        (TIGHT, near(1.2, 0.5), "holds"),
        (TIGHT, near(1.2, 0.3), "inconclusive"),
        (TIGHT, near(1.5, 0.1), "fails"),
        (TIGHT, near(0.5, 0.1), "fails"),
        (np.array([7.0, 7.0]), near(7, 0), "inconclusive"),
        (np.array([7.0, 7.0, 7.0]), near(7, 0), "holds"),
        (np.array([1.0, 1.0, math.nan]), above(0), "inconclusive"),
    ],
)
def test_outcome_of_a_number(values, rule, outcome: str) -> None:
    assert Part.of("x", values, rule).outcome == outcome


def test_exact_number_needs_one_value() -> None:
    seven = Estimate.of(np.array([7.0]))
    assert Part("x", seven, near(7, 0), exact=True).outcome == "holds"
    assert Part("x", seven, near(8, 0), exact=True).outcome == "fails"


@pytest.mark.parametrize(
    ("values", "bounds", "outcome"),
    [
        ([2.0, 2.0, 2.0, 2.0, 2.0], {0, 1, 2, 3, 4}, "inconclusive"),  # five seeds
        ([1.2, 9.0, 1.1, 1.3, 1.4, 1.5], {1}, "holds"),  # six: the interval reaches from the smallest to the largest
        ([0.9, 9.0, 1.1, 1.3, 1.4, 1.5], {1}, "inconclusive"),
        ([0.4, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 0.3], {9}, "fails"),  # ten: from the second to the ninth
        ([0.4, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 0.3], {8, 9}, "inconclusive"),
    ],
)
def test_outcome_of_a_number_with_bounds(values: list[float], bounds: set[int], outcome: str) -> None:
    highest = [math.inf if place in bounds else value for place, value in enumerate(values)]
    part = Part("x", Estimate(np.array(values), np.array(highest)), above(1), "times")
    assert part.outcome == outcome


def verdict(*outcomes: str, added: str = "") -> str:
    rules = {"holds": above(0.5), "inconclusive": above(0.9), "fails": above(1.3)}
    parts = [Part.of("x", TIGHT, rules[outcome]) for outcome in outcomes]
    parts += [Part.of("added", TIGHT, rules[added], added=True)] if added else []
    return verdict_on(parts)


def test_verdict_of_several_parts() -> None:
    assert verdict("holds", "holds") == "holds"
    assert verdict("fails", "fails") == "fails"
    assert verdict("holds", "fails") == "mixed"
    assert verdict("holds", "inconclusive") == "mixed"
    assert verdict("inconclusive", "inconclusive") == "inconclusive"
    assert verdict("inconclusive", "fails") == "mixed"


def test_checks_added_to_the_paper_do_not_count() -> None:
    """Both printed numbers of "588 and 2,000 rounds" fail; their ratio, which we added, holds."""
    assert verdict("fails", "fails", added="holds") == "fails"
    assert verdict("holds", added="fails") == "holds"
    assert verdict(added="holds") == "inconclusive"


def test_claims_are_strict_json() -> None:
    unknown = Part.of("x", np.array([1.0] * 6 + [math.nan]), above())
    found = json.loads(json.dumps(finding(CLAIMS[0], [unknown]), allow_nan=False))
    assert (found["ours"], found["ci95"], found["verdict"]) == ({"x": None}, {"x": None}, "inconclusive")
    assert found["parts"][0]["interval"] == [None, None]
