# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, no-any-return, override"
# ruff: noqa: ARG004
"""Convolutions of many models at once, each with its own weights, as Triton kernels.

Under vmap, torch executes such a layer as a grouped convolution in cuDNN, which reaches only a few percent of the
GPU's throughput. Here, a layer is one matrix product per model. Its rows are the patches of the images, which are
gathered during the product and never stored. There are no atomic operations, and block sizes depend only on shapes, so
results are reproducible.
"""

from functools import cache
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from lesson.learn.cuda.graphs import Precision
from lesson.learn.device import lacks_memory

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


def _products(
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


def _weight_products(
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


class Convolution(nn.Conv2d):
    """A plain convolution that uses these kernels under vmap. `use_kernels` turns layers of a model into this class."""

    dot_precision: DotPrecision

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.dtype != torch.float32 or torch.is_autocast_enabled("cuda"):
            return super().forward(images)
        return _Layer.apply(images, self.weight, self.bias, self.stride, self.padding, self.dot_precision)

    def without_bias(self, images: Tensor) -> Tensor:
        """Return the output before the bias is added."""
        return _Layer.apply(images, self.weight, None, self.stride, self.padding, self.dot_precision)


def use_kernels(model: nn.Module, precision: Precision) -> None:
    """Let the plain convolutions of a model use these kernels under vmap, if they work for this precision."""
    dot_precision: DotPrecision = "tf32" if precision == "tf32" else "ieee"
    if precision == "bfloat16" or not _works(dot_precision):
        return
    for module in model.modules():
        if type(module) is nn.Conv2d and _is_plain(module):
            module.__class__ = Convolution
            setattr(module, "dot_precision", dot_precision)  # noqa: B010


def use_cudnn(model: nn.Module) -> bool:
    """Undo `use_kernels`; return whether the model had convolutions that used the kernels."""
    found = list[nn.Module](module for module in model.modules() if type(module) is Convolution)
    for module in found:
        module.__class__ = nn.Conv2d
    return bool(found)


@cache
def _works(dot_precision: DotPrecision) -> bool:
    """Return whether the kernels can be compiled for this GPU."""
    images, weights = torch.zeros(1, 1, 4, 4, 1, device="cuda"), torch.zeros(1, 3, 3, 1, 1, device="cuda")
    try:
        out = _products(images, weights, None, (2, 2), (1, 1), (0, 0), dot_precision)
        _weight_products(images, out, (3, 3), (1, 1), (0, 0), dot_precision)
    except Exception as error:  # whatever the compiler raises
        if lacks_memory(error):
            raise
        return False
    return True


def _is_plain(layer: nn.Conv2d) -> bool:
    return (
        layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


class _Layer(torch.autograd.Function):
    """Convolution of images, shape (num_images, channels, height, width); under vmap, it uses the kernels above."""

    @staticmethod
    def forward(
        images: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, precision: DotPrecision
    ) -> Tensor:
        return functional.conv2d(images, weight, bias, stride=stride, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        images, weight, _, *ctx.shape = inputs
        ctx.save_for_backward(images, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, weight = ctx.saved_tensors
        of_images = (
            _ImageGradient.apply(gradient, weight, images.shape, *ctx.shape) if ctx.needs_input_grad[0] else None
        )
        needs_weight = ctx.needs_input_grad[1]
        of_weight = _WeightGradient.apply(gradient, images, weight.shape, *ctx.shape) if needs_weight else None
        of_bias = gradient.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        return of_images, of_weight, of_bias, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], images: Tensor, weight: Tensor, bias: Tensor | None, *shape: Any
    ) -> Any:
        if in_dims[1] is None and (bias is None or in_dims[2] is None):  # frozen: one convolution of all images
            (images,) = models_first(info.batch_size, in_dims[:1], images)
            values = functional.conv2d(images.flatten(0, 1), weight, bias, stride=shape[0], padding=shape[1])
            return values.unflatten(0, images.shape[:2]), 0
        images, weight = models_first(info.batch_size, in_dims[:2], images, weight)
        if bias is not None:
            (bias,) = models_first(info.batch_size, in_dims[2:3], bias)
        sides = zip(images.shape[3:], weight.shape[3:], *shape[:2], strict=True)
        sizes = tuple((side + 2 * padding - size) // stride + 1 for side, size, stride, padding in sides)
        patches, columns = images.permute(0, 1, 3, 4, 2), weight.permute(0, 3, 4, 2, 1)
        return _products(patches, columns, bias, sizes, *shape).permute(0, 1, 4, 2, 3), 0


class _ImageGradient(torch.autograd.Function):
    """The gradient of `_Layer` with respect to its images."""

    @staticmethod
    def forward(
        gradient: Tensor, weight: Tensor, like: torch.Size, stride: Pair, padding: Pair, precision: DotPrecision
    ) -> Tensor:
        return conv2d_input(list(like), weight, gradient, stride=stride, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], gradient: Tensor, weight: Tensor, like: torch.Size, *shape: Any
    ) -> Any:
        if in_dims[1] is None:
            (gradient,) = models_first(info.batch_size, in_dims[:1], gradient)
            whole = [gradient.shape[0] * gradient.shape[1], *like[1:]]
            values = conv2d_input(whole, weight, gradient.flatten(0, 1), stride=shape[0], padding=shape[1])
            return values.unflatten(0, gradient.shape[:2]), 0
        gradient, weight = models_first(info.batch_size, in_dims[:2], gradient, weight)
        patches, columns = gradient.permute(0, 1, 3, 4, 2), weight.permute(0, 3, 4, 1, 2)
        sizes = like[-2], like[-1]
        return _products(patches, columns, None, sizes, *shape, backward=True).permute(0, 1, 4, 2, 3), 0


class _WeightGradient(torch.autograd.Function):
    """The gradient of `_Layer` with respect to its weight."""

    @staticmethod
    def forward(
        gradient: Tensor, images: Tensor, like: torch.Size, stride: Pair, padding: Pair, precision: DotPrecision
    ) -> Tensor:
        return conv2d_weight(images, list(like), gradient, stride=stride, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], gradient: Tensor, images: Tensor, like: torch.Size, *shape: Any
    ) -> Any:
        gradient, images = models_first(info.batch_size, in_dims[:2], gradient, images)
        patches, right = images.permute(0, 1, 3, 4, 2), gradient.permute(0, 1, 3, 4, 2)
        return _weight_products(patches, right, (like[-2], like[-1]), *shape).permute(0, 4, 3, 1, 2), 0


def models_first(num_models: int, in_dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """Move the model dimension of tensors under vmap to the front; expand tensors that all models share."""
    return [
        tensor.expand(num_models, *tensor.shape) if place is None else tensor.movedim(place, 0)
        for tensor, place in zip(tensors, in_dims, strict=True)
    ]
