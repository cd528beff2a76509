# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The operations of programs (lanes/program.py) for all lanes in one kernel.

Each program instance computes some values of one lane, operation by operation; nothing depends on other lanes. Sums
are in double precision, in a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lesson.learn.lanes.program import NUMBERS_OF_OP, REALS_OF_OP
from lesson.learn.optimizers import OPTIMIZERS

_BLOCK = 1024
_WIDTH = tl.constexpr(len(NUMBERS_OF_OP))
_REALS = tl.constexpr(len(REALS_OF_OP))
_MOMENTUM, _ADAGRAD, _ADAM, _YOGI, _AMSGRAD = (tl.constexpr(number + 1) for number in range(len(OPTIMIZERS)))
assert list(OPTIMIZERS) == ["momentum", "adagrad", "adam", "yogi", "amsgrad"]


@triton.jit
def _value(vectors, slot, stride, places, inside, other):
    """Return some values of a slot in double precision; `other` if there is no slot."""
    mask = inside & (slot >= 0)
    return tl.load(vectors + slot * stride + places, mask=mask, other=0.0).to(tl.float64) + tl.where(
        slot >= 0, 0.0, other
    )


@triton.jit
def _operations_kernel(vectors, stride, length, bounds, numbers, reals, slots, factors, infinite, block: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = places < length
    first, last = tl.load(bounds + tl.program_id(1)), tl.load(bounds + tl.program_id(1) + 1)
    for operation in range(first, last):
        row = numbers + operation * _WIDTH
        end, kind = tl.load(row + _WIDTH - 1), tl.load(row + _WIDTH - 2)
        begin = tl.load(row - 1, mask=operation > 0, other=0)
        total = tl.zeros((block,), tl.float64)
        for term in range(begin, end):
            slot, factor = tl.load(slots + term), tl.load(factors + term)
            total += factor * tl.load(vectors + slot * stride + places, mask=inside, other=0.0).to(tl.float64)
        result = total
        if kind > 0:
            real = reals + operation * _REALS
            eta, beta1, beta2, epsilon = tl.load(real), tl.load(real + 1), tl.load(real + 2), tl.load(real + 3)
            model = _value(vectors, tl.load(row + 1), stride, places, inside, 0.0)
            m = _value(vectors, tl.load(row + 2), stride, places, inside, 0.0)
            v = _value(
                vectors, tl.load(row + 3), stride, places, inside, tl.where(kind == _AMSGRAD, 0.0, epsilon * epsilon)
            )
            square = total * total
            m = beta1 * m + tl.where(kind == _MOMENTUM, 1.0, 1.0 - beta1) * total
            sign = tl.where(v > square, 1.0, tl.where(v < square, -1.0, 0.0))
            yogi = v - (1.0 - beta2) * square * sign
            adam = beta2 * v + (1.0 - beta2) * square
            v = tl.where(kind == _ADAGRAD, v + square, tl.where(kind == _YOGI, yogi, adam))
            largest = v
            if kind == _AMSGRAD:
                largest = tl.maximum(_value(vectors, tl.load(row + 4), stride, places, inside, 0.0), v)
                tl.store(vectors + tl.load(row + 7) * stride + places, largest.to(tl.float32), mask=inside)
            tl.store(vectors + tl.load(row + 5) * stride + places, m.to(tl.float32), mask=inside)
            if kind == _MOMENTUM:
                result = model - eta * m
            else:
                tl.store(vectors + tl.load(row + 6) * stride + places, v.to(tl.float32), mask=inside)
                result = model - eta * m / (tl.sqrt(largest) + epsilon)
        stored = result.to(tl.float32)
        tl.store(vectors + tl.load(row) * stride + places, stored, mask=inside)
        is_finite = tl.abs(stored) < float("inf")
        tl.store(infinite + operation, 1, mask=tl.max(tl.where(inside & (is_finite == 0), 1, 0), 0) > 0)
        tl.debug_barrier()  # the next operation reads what this one has written


def execute(
    vectors: Tensor, length: int, bounds: Tensor, numbers: Tensor, reals: Tensor, slots: Tensor, factors: Tensor
) -> Tensor:
    """Execute the operations bounds[i] to bounds[i + 1] of each lane i; return which results are not finite.

    `vectors` has shape (num_slots, stride), of which `length` columns are used.
    """
    infinite = torch.zeros(len(numbers), dtype=torch.int32, device=vectors.device)
    grid = (triton.cdiv(length, _BLOCK), len(bounds) - 1)
    _operations_kernel[grid](
        vectors, vectors.stride(0), length, bounds, numbers, reals, slots, factors, infinite, _BLOCK
    )
    return infinite
