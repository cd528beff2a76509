# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernels, each of which replaces many small GPU operations.

The draws of counters.py, minibatch.py and dropout.py use the same counters and are bit-identical. Pooling with bias and
ReLU is for layers.py.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

Key = tuple[int, int] | tuple[Tensor, Tensor]
_BLOCK = 256


@triton.jit
def _philox(a, b, c, d, left, right):
    for _ in tl.static_range(10):
        high_second, high_first = tl.umulhi(c, 0xCD9E8D57), tl.umulhi(a, 0xD2511F53)
        low_second, low_first = c * 0xCD9E8D57, a * 0xD2511F53
        a, b, c, d = high_second ^ b ^ left, low_second, high_first ^ d ^ right, low_first
        left, right = left + 0x9E3779B9, right + 0xBB67AE85
    return a, b, c, d


@triton.jit
def _word(block, row, first, second, third, left, right, lane, keyed: tl.constexpr):
    """Return the word number `lane` of the four random words of each row's block; `keyed` rows have their own keys."""
    if keyed:
        left, right = tl.load(left + row), tl.load(right + row)
    b = tl.load(first + row).to(tl.uint32)
    c = tl.load(second + row).to(tl.uint32)
    d = tl.load(third + row).to(tl.uint32)
    a, b, c, d = _philox(block.to(tl.uint32), b, c, d, left.to(tl.uint32), right.to(tl.uint32))
    return tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d)))


@triton.jit
def _words_kernel(out, first, second, third, left, right, count, total, size: tl.constexpr, keyed: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = place < total
    row, word = tl.where(inside, place // count, 0), place % count
    drawn = _word(word // 4, row, first, second, third, left, right, word % 4, keyed)
    tl.store(out + place, drawn.to(tl.int64), mask=inside)


@triton.jit
def _dropout_kernel(
    out, first, second, third, left, right, num_units, num_words, total, size: tl.constexpr, keyed: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = place < total
    row, word = tl.where(inside, place // num_words, 0), place % num_words
    drawn = _word(word // 4, row, first, second, third, left, right, word % 4, keyed)
    unit = tl.arange(0, 16)
    factor = tl.where(((drawn[:, None] >> (2 * unit)[None, :].to(tl.uint32)) & 3) == 0, 4.0, 0.0)
    column = word[:, None] * 16 + unit[None, :]
    mask = inside[:, None] & (column < num_units)
    tl.store(out + row[:, None] * num_units + column, factor, mask=mask)


@triton.jit
def _draws_kernel(
    out, step, index, client, sizes, counts, left, right, batch_size, lanes: tl.constexpr, keyed: tl.constexpr
):
    """Floyd's algorithm, turn by turn, with one program per minibatch."""
    row = tl.program_id(0)
    turn = tl.arange(0, lanes)
    count = tl.load(counts + row)
    bound = tl.load(sizes + row) - count + turn
    word = _word(turn // 4, row + 0 * turn, step, index, client, left, right, turn % 4, keyed)
    drawn = ((word.to(tl.uint64) * (bound + 1).to(tl.uint64)) >> 32).to(tl.int64)
    chosen = tl.full((lanes,), -1, tl.int64)
    for this in range(count):
        number = tl.sum(tl.where(turn == this, drawn, 0), 0)
        repeated = tl.max((chosen == number).to(tl.int32), 0)
        chosen = tl.where(turn == this, tl.where(repeated > 0, bound, drawn), chosen)
    tl.store(out + row * batch_size + turn, chosen, mask=turn < batch_size)


@triton.jit
def _window(place, height, width, channels):
    """Return image and channel of a pooled value and the offset of the first of its 2 × 2 values, channels last."""
    channel = place % channels
    column = (place // channels) % (width // 2)
    row = place // (channels * (width // 2)) % (height // 2)
    image = place // (channels * (width // 2) * (height // 2))
    return image, channel, ((image * height + 2 * row) * width + 2 * column) * channels + channel


@triton.jit
def _pool_kernel(values, bias, out, code, height, width, channels, images_per_bias, total, size: tl.constexpr):
    """Compute relu(max + bias) of each 2 × 2 window, channels last, and the position of the maximum.

    The position is 0 to 3, or 4 if the result is not positive and ReLU passes no gradient.
    """
    place = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = place < total
    image, channel, first = _window(place, height, width, channels)
    best = tl.load(values + first, mask=inside)
    where = tl.zeros((size,), tl.int32)
    for other in tl.static_range(1, 4):
        value = tl.load(values + first + ((other // 2) * width + other % 2) * channels, mask=inside)
        where = tl.where(value > best, other, where)
        best = tl.maximum(value, best, propagate_nan=tl.PropagateNan.ALL)
    best += tl.load(bias + image // images_per_bias * channels + channel, mask=inside)
    tl.store(out + place, tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=inside)
    tl.store(code + place, tl.where(best > 0, where, 4).to(tl.uint8), mask=inside)


@triton.jit
def _unpool_kernel(gradient, code, out, height, width, channels, total, size: tl.constexpr):
    """Compute the gradient of `_pool_kernel` with respect to its values: only the maximum of a window gets it."""
    place = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = place < total
    _, _, first = _window(place, height, width, channels)
    value = tl.load(gradient + place, mask=inside)
    where = tl.load(code + place, mask=inside).to(tl.int32)
    for other in tl.static_range(4):
        part = tl.where(where == other, value, 0.0)
        tl.store(out + first + ((other // 2) * width + other % 2) * channels, part, mask=inside)


@triton.jit
def _add_weighted_kernel(sums, models, weights, rows, bounds, length, size: tl.constexpr):
    """Add Σ weight · model to a sum, over some rows."""
    place = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = place < length
    there = sums + tl.program_id(1) * length + place
    total = tl.load(there, mask=inside).to(tl.float64)
    for term in range(tl.load(bounds + tl.program_id(1)), tl.load(bounds + tl.program_id(1) + 1)):
        row = tl.load(rows + term)
        total += tl.load(weights + row) * tl.load(models + row * length + place, mask=inside).to(tl.float64)
    tl.store(there, total.to(tl.float32), mask=inside)


@triton.jit
def _descend_kernel(parameters, gradients, lr, stride, length, size: tl.constexpr):
    """Take a step of SGD with the parameters of one model, which has a step size of its own."""
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * size + tl.arange(0, size)
    inside = place < length
    there = parameters + row * stride + place
    moved = tl.load(there, mask=inside) - tl.load(lr + row) * tl.load(gradients + row * length + place, mask=inside)
    tl.store(there, moved, mask=inside)


@triton.jit
def vector_at(addresses, slot):
    """Return a pointer to the vector in a slot; to that in slot 0 if there is no slot."""
    return tl.load(addresses + tl.maximum(slot, 0)).to(tl.pointer_type(tl.float32))


@triton.jit
def _copy_rows_kernel(addresses, slots, rows, length, gathers: tl.constexpr, size: tl.constexpr):
    """Copy a row from the vector at an address, or to it; nothing if its slot is negative."""
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + row)
    place = tl.program_id(0) * size + tl.arange(0, size)
    inside = (place < length) & (slot >= 0)
    vector = vector_at(addresses, slot) + place
    there = rows + row * length + place
    if gathers:
        tl.store(there, tl.load(vector, mask=inside), mask=inside)
    else:
        tl.store(vector, tl.load(there, mask=inside), mask=inside)


def copy_rows(addresses: Tensor, slots: Tensor, rows: Tensor, gathers: bool) -> None:
    """Copy the vectors at the addresses of slots to rows, or the rows to them; see lanes/slots.py."""
    grid = triton.cdiv(rows.shape[1], 1024), len(slots)
    _copy_rows_kernel[grid](addresses, slots, rows, rows.shape[1], gathers, 1024)


def add_weighted(sums: Tensor, models: Tensor, weights: Tensor, rows: Tensor, bounds: Tensor) -> None:
    """Add Σ weight · model to each sum i, over the rows[bounds[i] : bounds[i + 1]], in double precision."""
    grid = triton.cdiv(models.shape[1], 1024), len(sums)
    _add_weighted_kernel[grid](sums, models, weights, rows, bounds, models.shape[1], 1024)


def descend(parameters: Tensor, gradients: Tensor, lr: Tensor) -> None:
    """Subtract lr[i] · gradients[i] from parameters[i], in place; all but the first axis must be contiguous."""
    length = parameters[0].numel()
    grid = triton.cdiv(length, 1024), len(parameters)
    _descend_kernel[grid](parameters, gradients, lr, parameters.stride(0), length, 1024)


def words(key: Key, count: int, *ids: Tensor) -> Tensor:
    """Return `count` random 32-bit words for each element of 1 to 3 id tensors of one shape, (*shape, count)."""
    shape = ids[0].shape
    rows = _three(ids)
    out = torch.empty(*shape, count, dtype=torch.int64, device=ids[0].device)
    if out.numel():
        grid = (triton.cdiv(out.numel(), _BLOCK),)
        _words_kernel[grid](out, *rows, *_words_of(key, shape), count, out.numel(), _BLOCK, _is_keyed(key))
    return out


def dropout_factors(key: Key, num_units: int, *ids: Tensor) -> Tensor:
    """Return the dropout factors of each row, 4 or 0, shape (num_rows, num_units)."""
    rows = _three(ids)
    out = torch.empty(len(ids[0]), num_units, device=ids[0].device)
    num_words = -(-num_units // 16)
    total = len(out) * num_words
    if total:
        _dropout_kernel[(triton.cdiv(total, _BLOCK),)](
            out, *rows, *_words_of(key, ids[0].shape), num_units, num_words, total, _BLOCK, _is_keyed(key)
        )
    return out


def _three(ids: tuple[Tensor, ...]) -> list[Tensor]:
    rows = [column.contiguous().flatten() for column in ids]
    return rows + [torch.zeros_like(rows[0])] * (3 - len(rows))


def _words_of(key: Key, shape: torch.Size) -> Sequence[int | Tensor]:
    """Return the words of a key: signed 32-bit integers, so that a kernel is compiled once, or one per element."""
    return [
        word.expand(shape).contiguous() if isinstance(word, Tensor) else word - (1 << 32) if word >= 1 << 31 else word
        for word in key
    ]


def _is_keyed(key: Key) -> bool:
    return isinstance(key[0], Tensor)


def draws(key: Key, batch_size: int, *ids: Tensor) -> Tensor:
    """Draw positions without replacement, shape (*shape, batch_size); short minibatches are padded with −1.

    Ids are step, index and client, then the number of samples to draw from, and how many are drawn.
    """
    rows, shape = [part.contiguous().flatten() for part in ids], ids[0].shape
    out = torch.empty(*shape, batch_size, dtype=torch.int64, device=ids[0].device)
    _draws_kernel[(len(rows[0]),)](
        out, *rows, *_words_of(key, shape), batch_size, triton.next_power_of_2(batch_size), _is_keyed(key)
    )
    return out


def pool(values: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return relu(max + bias) of each 2 × 2 window of (num, height, width, channels), and where the maximum was.

    `bias` has shape (num_models, channels); the images of each model are consecutive.
    """
    num, height, width, channels = values.shape
    out = torch.empty(num, height // 2, width // 2, channels, device=values.device)
    code = torch.empty(out.shape, dtype=torch.uint8, device=values.device)
    _pool_kernel[(triton.cdiv(out.numel(), _BLOCK),)](
        values, bias, out, code, height, width, channels, num // len(bias), out.numel(), _BLOCK
    )
    return out, code


def unpool(gradient: Tensor, code: Tensor) -> Tensor:
    """Return the gradient of `pool` with respect to its values."""
    num, half_height, half_width, channels = gradient.shape
    out = torch.empty(num, 2 * half_height, 2 * half_width, channels, device=gradient.device)
    _unpool_kernel[(triton.cdiv(gradient.numel(), _BLOCK),)](
        gradient, code, out, 2 * half_height, 2 * half_width, channels, gradient.numel(), _BLOCK
    )
    return out


def check() -> None:
    """Compile and run all kernels once; raises if that fails."""
    one = torch.ones(1, dtype=torch.int64, device="cuda")
    words((0, 0), 4, one)
    dropout_factors((0, 0), 16, one)
    draws((0, 0), 4, one, one, one, one, one)
    unpool(*pool(torch.zeros(1, 2, 2, 4, device="cuda"), torch.zeros(1, 4, device="cuda")))
