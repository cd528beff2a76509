# mypy: disable-error-code="no-untyped-call, no-any-return, override, arg-type"
# ruff: noqa: ARG004
"""Faster layers for the paper's networks, for the model of one client or, under vmap, of many.

The weight gradient of a first layer, with one or three input channels, is slow in cuDNN's deterministic mode: it takes
longer than the rest of the step. As matrix products, one per image, it is nearly free. Bias, pooling and ReLU are one
kernel in each direction instead of seven; max(x + b) and max(x) + b are bit-identical.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lesson.learn.cuda import kernels
from lesson.learn.cuda.convolution import Convolution, models_first

FEW_CHANNELS = 4


def conv_pool_relu(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """Return relu(max_pool2d(layer(images), 2)), for a plain layer with a bias whose output has even sides."""
    if isinstance(layer, Convolution):
        values = layer.without_bias(images).permute(0, 2, 3, 1)
    elif layer.in_channels < FEW_CHANNELS and torch.is_grad_enabled():
        values = _as_products(layer, images)
    else:
        values = functional.conv2d(images, layer.weight, padding=layer.padding).permute(0, 2, 3, 1)
    assert layer.bias is not None
    pooled, _ = _Pool.apply(values, layer.bias)
    return pooled.permute(0, 3, 1, 2)


def _as_products(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """Return the convolution without bias, shape (num, height, width, channels), as products with patches."""
    size, edge = layer.kernel_size[0], int(layer.padding[0])
    missing = -layer.in_channels % FEW_CHANNELS if layer.in_channels > 1 else 0
    padded = functional.pad(images.permute(0, 2, 3, 1), (0, missing, edge, edge, edge, edge))
    patches = padded.unfold(1, size, 1).unfold(2, size, 1)  # (num, height, width, channels, size, size)
    num, height, width = patches.shape[:3]
    columns = patches.permute(0, 1, 2, 4, 5, 3).reshape(num, height * width, -1)
    weights = functional.pad(layer.weight.permute(2, 3, 1, 0), (0, 0, 0, missing)).flatten(0, 2)
    rest = -columns.shape[2] % FEW_CHANNELS
    columns, weights = functional.pad(columns, (0, rest)), functional.pad(weights, (0, 0, 0, rest))
    return torch.bmm(columns, weights.expand(num, -1, -1)).unflatten(1, (height, width))


class _Pool(torch.autograd.Function):
    """relu(max + bias) of each 2 × 2 window, channels last, and the position of the maximum."""

    @staticmethod
    def forward(values: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.pool(values.contiguous(), bias.reshape(-1, values.shape[-1]).contiguous())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        (code,) = ctx.saved_tensors
        return _Unpool.apply(gradient, code), torch.where(code < 4, gradient, 0.0).sum((0, 1, 2))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], values: Tensor, bias: Tensor) -> tuple[Any, Any]:
        values, bias = models_first(info.batch_size, in_dims, values, bias)
        pooled, code = _Pool.apply(values.flatten(0, 1), bias)
        shape = (info.batch_size, -1)
        return (pooled.unflatten(0, shape), code.unflatten(0, shape)), (0, 0)


class _Unpool(torch.autograd.Function):
    """The gradient of `_Pool` with respect to its values."""

    @staticmethod
    def forward(gradient: Tensor, code: Tensor) -> Tensor:
        return kernels.unpool(gradient.contiguous(), code)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], gradient: Tensor, code: Tensor) -> tuple[Tensor, int]:
        gradient, code = models_first(info.batch_size, in_dims, gradient, code)
        unpooled: Tensor = _Unpool.apply(gradient.flatten(0, 1), code.flatten(0, 1))
        return unpooled.unflatten(0, (info.batch_size, -1)), 0
