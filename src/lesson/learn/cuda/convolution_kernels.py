# mypy: disable-error-code="no-any-return, no-untyped-def, untyped-decorator"
"""Triton kernels for convolutions of many models at once, each with its own weights.

A convolution is one matrix product per model. Its rows are the patches of the images, which are gathered during the
product and never stored. There are no atomic operations, and block sizes depend only on shapes, so results are
reproducible.
"""

from typing import Literal

import triton
import triton.language as tl
from torch import Tensor

DotPrecision = Literal["tf32", "ieee"]
"""Precision of products: `tf32` (10 bits of mantissa, on tensor cores) or `ieee` (float32)."""
Pair = tuple[int, int]
MAX_ROWS, MAX_COLUMNS, MAX_DEPTH = 128, 64, 32
"""Largest block sizes of a matrix product."""
PATCHES_PER_PART = 1024
"""Number of patches that one program sums for a weight gradient; the partial sums are added afterwards."""
LAUNCH = {"num_warps": 4, "num_stages": 3}
"""Launch options: warps per program, and stages of the pipeline that prefetches the factors."""


@triton.jit
def _patches(
    images,
    row,
    tap,
    rows_end,
    height,
    width,
    patches_height,
    patches_width,
    stride_y,
    stride_x,
    padding_y,
    padding_x,
    channels: tl.constexpr,
    kernel_height: tl.constexpr,
    kernel_width: tl.constexpr,
    backward: tl.constexpr,
):
    """Load elements `tap` of patches `row` of one model's images, channels last; 0 outside the images.

    Patches are numbered by image, row and column, their elements by row, column and channel. If `backward`, the images
    are gradients of a layer's output, and the patch of a pixel holds the gradients of all outputs to which the pixel
    contributed.
    """
    x, y = row % patches_width, row // patches_width % patches_height
    image = row // (patches_width * patches_height)
    channel, place = tap % channels, tap // channels
    down, right = place // kernel_width, place % kernel_width
    if backward:
        ahead_y, ahead_x = y + padding_y - down, x + padding_x - right
        from_y, from_x = ahead_y // stride_y, ahead_x // stride_x
        inside = (ahead_y >= 0) & (ahead_x >= 0) & (from_y < height) & (from_x < width)
        inside &= (from_y * stride_y == ahead_y) & (from_x * stride_x == ahead_x)
    else:
        from_y, from_x = y * stride_y + down - padding_y, x * stride_x + right - padding_x
        inside = (from_y >= 0) & (from_x >= 0) & (from_y < height) & (from_x < width)
    inside &= (row < rows_end) & (place < kernel_height * kernel_width)
    return tl.load(images + ((image * height + from_y) * width + from_x) * channels + channel, mask=inside, other=0.0)


@triton.jit
def _rounded(values, precision: tl.constexpr):
    """Round to the nearest TF32 value, as cuDNN does; `tl.dot` would truncate, which makes results smaller."""
    if precision == "tf32":
        bits = (values.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        values = tl.where(values == values, bits.to(tl.float32, bitcast=True), values)  # NaN must stay NaN
    return values


@triton.jit
def _products_kernel(
    images,
    weights,
    bias,
    out,
    num_patches,
    height,
    width,
    patches_height,
    patches_width,
    stride_y,
    stride_x,
    padding_y,
    padding_x,
    image_values,
    channels: tl.constexpr,
    features: tl.constexpr,
    kernel_height: tl.constexpr,
    kernel_width: tl.constexpr,
    backward: tl.constexpr,
    has_bias: tl.constexpr,
    precision: tl.constexpr,
    num_rows: tl.constexpr,
    num_columns: tl.constexpr,
    depth: tl.constexpr,
):
    """Multiply a block of one model's patches by a block of its weights, shape (taps, features), and add the bias."""
    model = tl.program_id(2).to(tl.int64)
    taps: tl.constexpr = kernel_height * kernel_width * channels
    row = tl.program_id(0) * num_rows + tl.arange(0, num_rows)
    column = tl.program_id(1) * num_columns + tl.arange(0, num_columns)
    images += model * image_values
    weights += model * taps * features
    total = tl.zeros((num_rows, num_columns), tl.float32)
    for begin in range(0, taps, depth):
        tap = begin + tl.arange(0, depth)
        left = _patches(
            images,
            row[:, None],
            tap[None, :],
            num_patches,
            height,
            width,
            patches_height,
            patches_width,
            stride_y,
            stride_x,
            padding_y,
            padding_x,
            channels,
            kernel_height,
            kernel_width,
            backward,
        )
        there = (tap[:, None] < taps) & (column[None, :] < features)
        right = tl.load(weights + tap[:, None] * features + column[None, :], mask=there, other=0.0)
        total = tl.dot(_rounded(left, precision), _rounded(right, precision), total, input_precision=precision)
    if has_bias:
        total += tl.load(bias + model * features + column, mask=column < features, other=0.0)[None, :]
    out += (model * num_patches + row[:, None]) * features + column[None, :]
    tl.store(out, total, mask=(row[:, None] < num_patches) & (column[None, :] < features))


@triton.jit
def _weights_kernel(
    images,
    gradient,
    out,
    num_patches,
    num_parts,
    height,
    width,
    patches_height,
    patches_width,
    stride_y,
    stride_x,
    padding_y,
    padding_x,
    image_values,
    channels: tl.constexpr,
    features: tl.constexpr,
    kernel_height: tl.constexpr,
    kernel_width: tl.constexpr,
    patches_per_part: tl.constexpr,
    precision: tl.constexpr,
    num_rows: tl.constexpr,
    num_columns: tl.constexpr,
    depth: tl.constexpr,
):
    """Multiply a block of the transposed patches of one model by its gradient, shape (num_patches, features).

    Each program does this for a part of the patches.
    """
    place = tl.program_id(0).to(tl.int64)
    model, part = place // num_parts, (place % num_parts).to(tl.int32)
    taps: tl.constexpr = kernel_height * kernel_width * channels
    tap = tl.program_id(1) * num_rows + tl.arange(0, num_rows)
    column = tl.program_id(2) * num_columns + tl.arange(0, num_columns)
    images += model * image_values
    gradient += model * num_patches * features
    total = tl.zeros((num_rows, num_columns), tl.float32)
    for begin in range(0, patches_per_part, depth):
        row = part * patches_per_part + begin + tl.arange(0, depth)
        left = _patches(
            images,
            row[None, :],
            tap[:, None],
            num_patches,
            height,
            width,
            patches_height,
            patches_width,
            stride_y,
            stride_x,
            padding_y,
            padding_x,
            channels,
            kernel_height,
            kernel_width,
            False,
        )
        there = (row[:, None] < num_patches) & (column[None, :] < features)
        right = tl.load(gradient + row[:, None] * features + column[None, :], mask=there, other=0.0)
        total = tl.dot(_rounded(left, precision), _rounded(right, precision), total, input_precision=precision)
    out += (place * taps + tap[:, None]) * features + column[None, :]
    tl.store(out, total, mask=(tap[:, None] < taps) & (column[None, :] < features))


def _block(size: int, most: int) -> int:
    """Return a block size for `size`: a power of two between 16, the minimum of `tl.dot`, and `most`."""
    return min(most, max(16, triton.next_power_of_2(size)))


def products(
    images: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    sizes: Pair,
    stride: Pair,
    padding: Pair,
    precision: DotPrecision,
    *,
    backward: bool = False,
) -> Tensor:
    """Return the products of patches and weights, plus the bias, shape (num_models, num_images, *sizes, features).

    `images` has shape (num_models, num_images, height, width, channels), `weights` (num_models, *kernel_size, channels,
    features) and `bias` (num_models, features).
    """
    num_models, num_images, height, width, channels = images.shape
    features, num_patches = weights.shape[-1], num_images * sizes[0] * sizes[1]
    taps = weights[0].numel() // features
    blocks = MAX_ROWS, _block(features, MAX_COLUMNS), _block(taps, MAX_DEPTH)
    out = images.new_empty(num_models, num_images, *sizes, features)
    grid = triton.cdiv(num_patches, blocks[0]), triton.cdiv(features, blocks[1]), num_models
    shapes = num_patches, height, width, *sizes, *stride, *padding, images[0].numel()
    constant = channels, features, *weights.shape[1:3], backward, bias is not None, precision, *blocks
    factors = images.contiguous(), weights.contiguous(), None if bias is None else bias.contiguous()
    _products_kernel[grid](*factors, out, *shapes, *constant, **LAUNCH)
    return out


def weight_products(
    images: Tensor, gradient: Tensor, kernel_size: Pair, stride: Pair, padding: Pair, precision: DotPrecision
) -> Tensor:
    """Return the products of transposed patches and gradients, shape (num_models, *kernel_size, channels, features)."""
    num_models, num_images, height, width, channels = images.shape
    sizes, features = gradient.shape[2:4], gradient.shape[-1]
    taps, num_patches = kernel_size[0] * kernel_size[1] * channels, num_images * sizes[0] * sizes[1]
    blocks = _block(taps, MAX_COLUMNS), _block(features, MAX_COLUMNS), MAX_DEPTH
    num_parts = triton.cdiv(num_patches, PATCHES_PER_PART)
    out = images.new_empty(num_models, num_parts, *kernel_size, channels, features)
    grid = num_models * num_parts, triton.cdiv(taps, blocks[0]), triton.cdiv(features, blocks[1])
    shapes = num_patches, num_parts, height, width, *sizes, *stride, *padding, images[0].numel()
    constant = channels, features, *kernel_size, PATCHES_PER_PART, precision, *blocks
    _weights_kernel[grid](images.contiguous(), gradient.contiguous(), out, *shapes, *constant, **LAUNCH)
    return out.sum(1)
