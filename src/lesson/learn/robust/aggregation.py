"""What many models have in common, whatever a few of them are.

The coordinate-wise median and the trimmed mean are those of D. Yin, Y. Chen, K. Ramchandran, P. Bartlett,
"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018, definitions 1 and 2. Rows in
another order give the same bits. What is given lies where the models do, which may take most of the memory there: no
copy is made of all of them at once. No value may be NaN, except where it is asked for.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from lesson.core.errors import InputError

BLOCK_VALUES = 1 << 22
"""How many values are sorted at a time, at most, unless there are more models."""


def coordinate_median(models: Tensor) -> Tensor:
    """The middle value of each coordinate of models (n, p), (p,); for an even n the mean of the two in the middle."""
    last = len(models) - 1
    return _of_sorted(models, lambda values: (values[:, last // 2].double() + values[:, (last + 1) // 2]) / 2)


def trimmed_mean(models: Tensor, share: float) -> Tensor:
    """The mean of each coordinate of models (n, p) without the ⌊share·n⌋ smallest and as many largest values, (p,)."""
    if not 0 <= share < 0.5:
        raise InputError(f"share must be at least 0 and below 0.5, got {share}")
    cut = int(Fraction(str(share)) * len(models))  # as written: 0.29 · 100 is 28.999999999999996 in floats
    return _of_sorted(models, lambda values: values[:, cut : len(models) - cut].mean(1, dtype=torch.float64))


def norms(moves: Tensor) -> Tensor:
    """The Euclidean norm of each row of moves (n, p) in float64, (n,)."""
    lengths = torch.empty(len(moves), dtype=torch.float64, device=moves.device)
    for row, move in enumerate(moves):
        lengths[row] = move.double().norm()  # each on its own: its bits do not depend on the rows beside it
    return lengths


def finite_rows(models: Tensor) -> Tensor:
    """Whether all values of each row of models (n, p) are finite, (n,)."""
    return torch.stack(models.aminmax(dim=1)).isfinite().all(0)


def _of_sorted(models: Tensor, middle: Callable[[Tensor], Tensor]) -> Tensor:
    """What `middle` makes, in float64, of the sorted values of each coordinate, (some coordinates, n); (p,)."""
    given = torch.empty_like(models[0])
    width = max(1, BLOCK_VALUES // len(models))
    for block, place in zip(models.split(width, dim=1), given.split(width), strict=True):
        place.copy_(middle(_sorted(block.T)) + 0.0)  # −0 becomes 0: sorting does not tell one from the other
    return given


def _sorted(values: Tensor) -> Tensor:
    """Each row in order. On a CPU by numpy, which makes no indices and is several times as fast as torch."""
    return values.sort(1).values if values.is_cuda else torch.from_numpy(np.sort(values.contiguous().numpy(), 1))
