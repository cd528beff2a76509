"""Robust aggregation of models: the coordinate-wise median and trimmed mean.

Both are from D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018, definitions 1 and 2. Results are bit-identical for any order of the models, and on their
device. The models may take most of its memory, so they are never copied as a whole. Values must not be NaN, except in
`finite_rows`.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from lesson.core.errors import InputError

BLOCK_VALUES = 1 << 22
"""Largest number of values that are sorted at a time, unless there are more models than that."""


def coordinate_median(models: Tensor) -> Tensor:
    """Return the median of each coordinate of models (n, p), shape (p,); for even n the mean of the middle two."""
    last = len(models) - 1
    return _of_sorted(models, lambda values: (values[:, last // 2].double() + values[:, (last + 1) // 2]) / 2)


def trimmed_mean(models: Tensor, share: float) -> Tensor:
    """Return the mean of each coordinate of models (n, p), shape (p,), without its smallest and largest values.

    ⌊share·n⌋ values are left out at either end.
    """
    if not 0 <= share < 0.5:
        raise InputError(f"share must be >= 0 and < 0.5, got {share}")
    cut = int(Fraction(str(share)) * len(models))  # exact: 0.29 · 100 is 28.999999999999996 in floats
    return _of_sorted(models, lambda values: values[:, cut : len(models) - cut].mean(1, dtype=torch.float64))


def norms(moves: Tensor) -> Tensor:
    """Return the Euclidean norm of each row of moves (n, p) in float64, shape (n,)."""
    lengths = torch.empty(len(moves), dtype=torch.float64, device=moves.device)
    for row, move in enumerate(moves):
        lengths[row] = move.double().norm()  # row by row, so that rounding does not depend on the other rows
    return lengths


def finite_rows(models: Tensor) -> Tensor:
    """Return whether all values of each row of models (n, p) are finite, shape (n,)."""
    return torch.stack(models.aminmax(dim=1)).isfinite().all(0)


def _of_sorted(models: Tensor, middle: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `middle` to the sorted values of each coordinate, some coordinates at a time; return shape (p,).

    `middle` maps shape (num_coordinates, n) to (num_coordinates,) in float64.
    """
    given = torch.empty_like(models[0])
    width = max(1, BLOCK_VALUES // len(models))
    for block, place in zip(models.split(width, dim=1), given.split(width), strict=True):
        place.copy_(middle(_sorted(block.T)) + 0.0)  # turns −0 into 0: sorting treats them as equal
    return given


def _sorted(values: Tensor) -> Tensor:
    """Sort each row; on a CPU with NumPy, which computes no indices and is several times as fast as torch."""
    return values.sort(1).values if values.is_cuda else torch.from_numpy(np.sort(values.contiguous().numpy(), 1))
