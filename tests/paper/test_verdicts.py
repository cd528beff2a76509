import numpy as np
import pytest

from lesson.paper.verdicts import Finding, Part, above, below, near

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
        (np.array([7.0]), near(7, 0), "inconclusive"),
        (np.array([7.0, 7.0]), near(7, 0), "holds"),
        (np.array([1.0, np.inf]), above(0), "inconclusive"),
    ],
)
def test_outcome_of_a_number(values, rule, outcome: str) -> None:
    assert Part("x", values, rule).outcome == outcome


def test_a_number_that_nothing_changes_needs_one_value() -> None:
    assert Part("x", np.array([7.0]), near(7, 0), exact=True).outcome == "holds"
    assert Part("x", np.array([7.0]), near(8, 0), exact=True).outcome == "fails"


def test_bounds_are_looked_at_one_by_one() -> None:
    """The least that each can be: all of them must be above; none says that they are not."""
    assert Part("x", np.array([1.2, 9.0, 1.1]), above(1), at_least=True).outcome == "holds"
    assert Part("x", np.array([0.9, 9.0, 1.1]), above(1), at_least=True).outcome == "inconclusive"
    assert Part("x", np.array([9.0]), above(1), at_least=True).outcome == "inconclusive"
    assert Part("x", np.array([1.2, 9.0, 1.1]), above(1), "times", at_least=True).shown() == "3.77 ×"


def finding(*outcomes: str) -> Finding:
    rules = {"holds": above(0.5), "inconclusive": above(0.9), "fails": above(1.3)}
    return Finding(
        "id", "s", "p", ["fig5"], [Part(f"{name}{place}", TIGHT, rules[name]) for place, name in enumerate(outcomes)]
    )


def test_verdict_follows_from_the_parts() -> None:
    assert finding("holds", "holds").verdict == "holds"
    assert finding("fails", "fails").verdict == "fails"
    assert finding("holds", "fails").verdict == "mixed"
    assert finding("holds", "inconclusive").verdict == "mixed"
    assert finding("inconclusive", "inconclusive").verdict == "inconclusive"
    assert finding("inconclusive", "fails").verdict == "fails"
    assert finding("inconclusive", "inconclusive").which == finding("holds").which == ""
    assert finding("inconclusive", "fails").which == "fails: fails1; inconclusive: inconclusive0"
    every = finding("holds", "inconclusive", "fails")
    assert every.which == "holds: holds0; fails: fails2; inconclusive: inconclusive1"


def test_numbers_are_written_with_their_unit() -> None:
    def shown(values: list[float], unit) -> str:
        return Part("x", np.array(values), above(), unit).shown()

    assert shown([0.71, 0.73], "share") == "72.0% ± 12.7%"
    assert shown([0.01, 0.03], "points") == "+2.0 ± 12.7 points"
    assert shown([1.0, 3.0], "times") == "2.00 ± 12.71 ×"
    assert shown([61706.0], "count") == "61,706"
    assert shown([0.02], "points") == "+2.0 points"
    assert shown([0.02], "share") == "2.0%"
    assert shown([1.0, np.inf], "times") == "never"


def test_claims_are_strict_json() -> None:
    never = Finding("id", "s", "p", ["fig5"], [Part("x", np.array([1.0, np.inf]), above())])
    assert never.to_dict() == {
        "id": "id",
        "statement": "s",
        "paper": "p",
        "ours": {"x": None},
        "ci95": {"x": None},
        "seeds": 2,
        "verdict": "inconclusive",
        "which": "",
        "items": ["fig5"],
        "parts": [
            {
                "label": "x",
                "ours": None,
                "ci95": None,
                "at_least": False,
                "unit": "share",
                "outcome": "inconclusive",
                "shown": "never",
            },
        ],
    }
