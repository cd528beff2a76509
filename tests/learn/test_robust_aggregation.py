import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lesson import InputError
from lesson.learn.robust import aggregation
from lesson.learn.robust.aggregation import coordinate_median, finite_rows, norms, trimmed_mean

FIVE = torch.tensor([[1.0, -4.0], [5.0, 0.5], [2.0, 7.0], [90.0, 0.0], [3.0, 1.0]])
"""Columns in order: 1, 2, 3, 5, 90 and −4, 0, 0.5, 1, 7."""


def bits(vector: Tensor) -> list[int]:
    """The bits of numbers: other ones for −0 than for 0."""
    kind = torch.int32 if vector.dtype == torch.float32 else torch.int64
    numbers: list[int] = vector.view(kind).tolist()
    return numbers


@st.composite
def many(draw: st.DrawFn, most: float = 2.0**100, at_least: int = 1) -> Tensor:
    """Up to nine models of up to six numbers, often the same ones."""
    num, width = draw(st.integers(at_least, 9)), draw(st.integers(1, 6))
    values = st.sampled_from([0.0, -0.0, 1.0, -2.5]) | st.floats(-most, most, width=32, allow_subnormal=False)
    row = st.lists(values, min_size=width, max_size=width)
    return torch.tensor(draw(st.lists(row, min_size=num, max_size=num)), dtype=torch.float32)


def test_the_middle_of_five() -> None:
    assert coordinate_median(FIVE).tolist() == [3.0, 0.5]


def test_the_middle_of_four_is_the_mean_of_two() -> None:
    """Without the last row: 1, 2, 5, 90 gives (2 + 5) / 2, and −4, 0, 0.5, 7 gives (0 + 0.5) / 2."""
    assert coordinate_median(FIVE[:4]).tolist() == [3.5, 0.25]


def test_the_middle_of_one_and_of_two() -> None:
    assert coordinate_median(FIVE[:1]).tolist() == [1.0, -4.0]
    assert coordinate_median(FIVE[:2]).tolist() == [3.0, -1.75]


def test_the_mean_of_the_two_in_the_middle_does_not_overflow() -> None:
    assert coordinate_median(torch.tensor([[2e38], [3e38]])).item() == pytest.approx(2.5e38)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, [101 / 5, 4.5 / 5]),
        (0.19, [101 / 5, 4.5 / 5]),  # ⌊0.95⌋ = 0
        (0.2, [(2 + 3 + 5) / 3, (0 + 0.5 + 1) / 3]),
        (0.39, [10 / 3, 0.5]),  # ⌊1.95⌋ = 1
        (0.4, [3.0, 0.5]),
        (0.49, [3.0, 0.5]),
    ],
)
def test_the_mean_of_what_is_left(share: float, expected: list[float]) -> None:
    assert trimmed_mean(FIVE, share).tolist() == pytest.approx(expected)


def test_a_share_is_cut_as_it_is_written() -> None:
    """0.29 of 100 is 29, though 0.29 * 100 is 28.999999999999996."""
    assert int(0.29 * 100) == 28
    values = torch.zeros(100, 1)
    values[70:] = 1.0  # places 29 … 70 are left, of which one is 1
    assert trimmed_mean(values, 0.29).item() == pytest.approx(1 / 42)


@pytest.mark.parametrize("share", [-0.1, 0.5, 1.0, float("nan")])
def test_a_share_that_leaves_no_values_is_rejected(share: float) -> None:
    with pytest.raises(InputError, match=rf"share must be >= 0 and < 0.5, got {share}"):
        trimmed_mean(FIVE, share)


def test_lengths() -> None:
    """3-4-5 and 8-15-17; squares of 1e30 do not fit into 32 bits."""
    lengths = norms(torch.tensor([[3.0, -4.0], [0.0, 0.0], [8e30, 15e30], [8e-30, 15e-30]]))
    assert lengths.dtype == torch.float64
    assert lengths.tolist() == pytest.approx([5.0, 0.0, 17e30, 17e-30], rel=1e-7)
    assert norms(torch.empty(0, 3)).shape == (0,)


def test_many_small_steps_are_not_lost() -> None:
    """‖(1, 1e-4, …, 1e-4)‖ with 1e6 of them is √1.01; a sum of 32-bit numbers one by one would stay 1."""
    move = torch.full((1, 1_000_001), 1e-4)
    move[0, 0] = 1.0
    assert norms(move).item() == pytest.approx(1.01**0.5, rel=1e-8)


def test_rows_that_are_finite() -> None:
    inf, nan = float("inf"), float("nan")
    rows = torch.tensor([[1.0, 3e38], [inf, 0.0], [0.0, -inf], [nan, 0.0], [0.0, nan], [inf, nan], [-0.0, 1e-45]])
    assert finite_rows(rows).tolist() == [True, False, False, False, False, False, True]
    assert finite_rows(torch.empty(0, 3)).tolist() == []


@given(many(), st.data(), st.floats(0, 0.49))
def test_the_order_of_rows_changes_no_bit(models: Tensor, data: st.DataObject, share: float) -> None:
    order = data.draw(st.permutations(range(len(models))))
    other = models[order]
    assert bits(coordinate_median(other)) == bits(coordinate_median(models))
    assert bits(trimmed_mean(other, share)) == bits(trimmed_mean(models, share))
    assert bits(norms(other)) == bits(norms(models)[order])


@given(many())
def test_the_median_is_numpys(models: Tensor) -> None:
    expected = np.median(models.double().numpy(), axis=0).astype(np.float32)
    assert coordinate_median(models).tolist() == expected.tolist()
    assert coordinate_median(models.double()).dtype == torch.float64


@given(many(), st.floats(0, 0.49))
def test_the_trimmed_mean_is_the_mean_of_sorted_values(models: Tensor, share: float) -> None:
    cut = int(share * len(models) + 1e-9)
    kept = np.sort(models.double().numpy(), axis=0)[cut : len(models) - cut]
    scale = float(np.abs(kept).max())
    assert trimmed_mean(models, share).tolist() == pytest.approx(kept.mean(0).tolist(), rel=1e-6, abs=1e-6 * scale)


@given(many(), st.data())
def test_a_minority_does_not_move_them_beyond_the_others(honest: Tensor, data: st.DataObject) -> None:
    """Fewer than half: the median is between honest values, and so is the mean where as many are cut on each side."""
    num = data.draw(st.integers(0, len(honest) - 1))
    liars = torch.full((num, honest.shape[1]), data.draw(st.sampled_from([1e38, -1e38, 0.0])))
    together = torch.cat([honest, liars])
    share = min(0.49, (num + 0.5) / len(together))
    for merged in (coordinate_median(together), trimmed_mean(together, share)):
        assert (merged >= honest.min(0).values).all()
        assert (merged <= honest.max(0).values).all()


@given(many(at_least=2))
def test_blocks_change_no_bit_and_models_stay_as_they_are(models: Tensor) -> None:
    before = models.clone()
    whole = coordinate_median(models), trimmed_mean(models, 0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "BLOCK_VALUES", 2 * len(models))
        assert bits(coordinate_median(models)) == bits(whole[0])
        assert bits(trimmed_mean(models, 0.3)) == bits(whole[1])
        patch.setattr(aggregation, "BLOCK_VALUES", 1)
        assert bits(coordinate_median(models)) == bits(whole[0])
    assert bits(models.flatten()) == bits(before.flatten())


@pytest.mark.parametrize("num", [1, 2, 5])
def test_models_of_one_number_stay_as_they_are(num: int) -> None:
    models = torch.arange(float(num), 0.0, -1.0)[:, None]
    assert coordinate_median(models).item() == trimmed_mean(models, 0.49).item() == (num + 1) / 2
    assert models[:, 0].tolist() == list(range(num, 0, -1))


@given(many(most=2.0**20))
def test_a_length_grows_with_what_is_added(moves: Tensor) -> None:
    """‖2·x‖ = 2·‖x‖ to the bit, and no coordinate is longer than the whole."""
    assert torch.equal(norms(2 * moves), 2 * norms(moves))
    assert (norms(moves) * (1 + 1e-12) >= moves.double().abs().max(1).values).all()
