"""Pairs of entries: what a comparison supports, and that pairs without a value cannot turn it around."""

from pathlib import Path

import numpy as np
import pytest

from helpers.tuned import FILE, everything, small
from lesson.experiments.tuned.pairs import Paired, paired_gain, paired_ratio
from lesson.experiments.tuned.study import TunedStudy
from lesson.settings.settings import Settings

TEN, TWENTY = "lesson τ=10", "lesson τ=20"
ONE = np.array([1.0, 1.0, 1.0, 1.0, 2.0])
"""Five values have a half-width of 2.776·s/√5; these have s = 0.447 and a half-width of 0.555."""


def test_verdicts() -> None:
    assert Paired(ONE, 0.0, 1.0).half == pytest.approx(0.5553, abs=1e-4)
    assert Paired(ONE, 0.0, 1.0).verdict == "higher"
    assert Paired(-ONE, 0.0, 1.0).verdict == "lower"
    assert Paired(ONE, 0.0, 1.8).verdict == "equivalent"  # 1.2 + 0.56 is within 1.8, although 0 is excluded
    assert Paired(ONE, 1.0, 0.1).verdict == "undecided"  # 0.64 to 1.76 includes 1
    assert Paired(ONE[:2], 0.0, 5.0).verdict == "undecided"  # two values have no interval


@pytest.mark.parametrize(
    ("sign", "margin", "higher", "lower", "verdict"),
    [
        (1, 1.0, 1, 0, "higher"),
        (1, 1.0, 0, 1, "undecided"),
        (-1, 1.0, 0, 1, "lower"),
        (-1, 1.0, 1, 0, "undecided"),
        (1, 1.0, 1, 1, "undecided"),
        (1, 1.8, 1, 0, "undecided"),
        (1, 1.8, 0, 1, "undecided"),
    ],
)
def test_pairs_left_out_must_agree_with_a_verdict(
    sign: int, margin: float, higher: int, lower: int, verdict: str
) -> None:
    """Without the pairs left out, the verdict is "higher", "lower" or, with a margin of 1.8, "equivalent"."""
    assert Paired(sign * ONE, 0.0, margin, higher, lower).verdict == verdict


def study(folder: Path, ten: list[float], twenty: list[float]) -> TunedStudy:
    """Return five seeds of two entries, each with the same accuracy at all eight evaluations."""
    design = small(folder, FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2, 3, 4]"))

    def accuracies(settings: Settings) -> list[float]:
        values = ten if settings.strategy.deadline_s == 10.0 else twenty
        return [values[settings.run.seed % 100]] * 8

    return design.study(everything(design, accuracies), {})


def test_a_run_that_collapsed_counts_against_its_entry(tmp_path: Path) -> None:
    """τ = 10 s is 20 points ahead in four pairs and collapses in the fifth, in which τ = 20 s is 50 points ahead."""
    one = study(tmp_path, [0.8, 0.81, 0.8, 0.79, 0.1], [0.6] * 5)
    gain, loss = paired_gain(one, TEN, TWENTY, 1.0), paired_gain(one, TWENTY, TEN, 1.0)
    assert gain.values == pytest.approx([0.2, 0.21, 0.2, 0.19])
    assert (gain.left_out_higher, gain.left_out_lower, gain.verdict) == (0, 1, "undecided")
    assert loss.values == pytest.approx(-gain.values)
    assert (loss.left_out_higher, loss.left_out_lower, loss.verdict) == (1, 0, "undecided")
    worse = study(tmp_path, [0.5, 0.51, 0.5, 0.49, 0.1], [0.6] * 5)
    assert paired_gain(worse, TEN, TWENTY, 1.0).verdict == "lower"
    alike = study(tmp_path, [0.6, 0.6, 0.6, 0.6, 0.1], [0.6] * 5)
    assert paired_gain(alike, TEN, TWENTY, 1.0).verdict == "undecided", "four of five runs are not equivalent"


def test_a_run_that_never_reaches_the_target_takes_longer(tmp_path: Path) -> None:
    """Both reach 70 % at the third evaluation, at 300 s, except one run of τ = 10 s."""
    never = study(tmp_path, [0.8, 0.8, 0.8, 0.8, 0.6], [0.8] * 5)
    ratio = paired_ratio(never, TEN, TWENTY, 1.0, "time_to_0.7")
    assert ratio.values.tolist() == [1.0] * 4
    assert (ratio.left_out_higher, ratio.left_out_lower, ratio.verdict) == (1, 0, "undecided")
    other = paired_ratio(never, TWENTY, TEN, 1.0, "time_to_0.7")
    assert (other.left_out_higher, other.left_out_lower) == (0, 1)
    assert paired_ratio(never, TEN, TWENTY, 1.0, "time_to_0.5").verdict == "equivalent"


def test_both_entries_need_the_same_seeds(tmp_path: Path) -> None:
    whole = study(tmp_path, [0.8] * 5, [0.8] * 5)
    part = {name: run for name, run in whole.done.items() if not (run.seed == 4 and "deadline_s=10" in name)}
    with pytest.raises(ValueError, match="must have runs with the same seeds at β = 1"):
        paired_gain(whole.design.study(part, {}), TEN, TWENTY, 1.0)
