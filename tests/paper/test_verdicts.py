import json

import numpy as np
import pytest

from lesson.paper.verdicts import Finding, Part, above, below, near, sign_test_rank

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


def test_exact_number_needs_one_value() -> None:
    assert Part("x", np.array([7.0]), near(7, 0), exact=True).outcome == "holds"
    assert Part("x", np.array([7.0]), near(8, 0), exact=True).outcome == "fails"


def censored(values: list[float], bounds: set[int], rule=above(1)) -> Part:  # noqa: B008
    marks = np.array([place in bounds for place in range(len(values))])
    return Part("x", np.array(values), rule, "times", censored=marks)


@pytest.mark.parametrize(("num_values", "rank"), [(1, 0), (5, 0), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6)])
def test_ranks_of_the_interval_of_a_median(num_values: int, rank: int) -> None:
    """No head in five tosses: 1/32 = 3.1 % > 2.5 %; in six 1.6 %. At most one head in nine: 10/512 = 2.0 %, in eight
    9/256 = 3.5 %. Of 20, at most five heads have 2.07 % and at most six 5.8 %."""
    assert sign_test_rank(num_values) == rank


def test_five_seeds_with_bounds_decide_nothing() -> None:
    """All values on one side have a probability of 2 · 2⁻⁵ = 6.25 %, even if every bound meets the rule."""
    assert censored([2.0, 2.0, 2.0, 2.0, 2.0], {0, 1, 2, 3, 4}).outcome == "inconclusive"


def test_bounds_are_infinite_at_their_upper_end() -> None:
    """With six values the interval reaches from the smallest to the largest, with ten from the second to the ninth."""
    assert censored([1.2, 9.0, 1.1, 1.3, 1.4, 1.5], {1}).interval == (1.1, np.inf)
    assert censored([1.2, 9.0, 1.1, 1.3, 1.4, 1.5], {1}).outcome == "holds"
    assert censored([0.9, 9.0, 1.1, 1.3, 1.4, 1.5], {1}).outcome == "inconclusive"
    ten = [0.4, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 0.3]
    assert censored(ten, {9}).interval == (0.4, 0.9)  # the bound of 0.3 is the largest value: infinite
    assert censored(ten, {9}).outcome == "fails"
    assert censored(ten, {8, 9}).interval == (0.4, np.inf)
    assert censored(ten, {8, 9}).outcome == "inconclusive"


def test_bounds_are_never_averaged() -> None:
    """The times of FedCS over those of LESSON to 60 % on CIFAR-10: FedCS is faster in two of five seeds."""
    part = censored([0.907, 2.5, 0.795, 1.152, 1.09], {1})
    assert np.isnan(part.mean)
    assert np.isnan(part.ci95)
    assert part.median == (1.09, 1.09)
    bounds = censored([1.0, 2.0, 3.0, 4.0], {2, 3})
    assert bounds.median == (2.0, np.inf)
    assert censored([1.0, 2.0, 3.0, 4.0], {3}).median == (2.5, 2.5)
    assert censored([1.0, np.nan], {0}).outcome == "inconclusive"


def finding(*outcomes: str, added: str = "") -> Finding:
    rules = {"holds": above(0.5), "inconclusive": above(0.9), "fails": above(1.3)}
    parts = [Part(f"{name}{place}", TIGHT, rules[name]) for place, name in enumerate(outcomes)]
    parts += [Part("added", TIGHT, rules[added], added=True)] if added else []
    return Finding("id", "s", "p", ["fig5"], parts)


def test_verdict_of_several_parts() -> None:
    assert finding("holds", "holds").verdict == "holds"
    assert finding("fails", "fails").verdict == "fails"
    assert finding("holds", "fails").verdict == "mixed"
    assert finding("holds", "inconclusive").verdict == "mixed"
    assert finding("inconclusive", "inconclusive").verdict == "inconclusive"
    assert finding("inconclusive", "fails").verdict == "mixed"


def test_checks_added_to_the_paper_do_not_count() -> None:
    """Both printed numbers of "588 and 2,000 rounds" fail; their ratio, which we added, holds."""
    assert finding("fails", "fails", added="holds").verdict == "fails"
    assert finding("fails", "fails", added="holds").which == ""
    assert finding("holds", added="fails").verdict == "holds"
    assert finding("fails", added="holds").to_dict()["parts"][1]["added"]


def test_claims_are_strict_json() -> None:
    never = Finding("id", "s", "p", ["fig5"], [Part("x", np.array([1.0, np.inf]), above())])
    found = json.loads(json.dumps(never.to_dict(), allow_nan=False))
    assert (found["ours"], found["ci95"], found["verdict"]) == ({"x": None}, {"x": None}, "inconclusive")
