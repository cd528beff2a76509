# mypy: disable-error-code="no-untyped-call, no-any-return, override"
# ruff: noqa: ARG004
"""Convolutions of many models at once, each with its own weights, for training under vmap.

torch executes such a layer as a grouped convolution in cuDNN, which reaches only a few percent of the GPU's throughput.
Here, it is computed by the kernels in convolution_kernels.py.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from lesson.learn.cuda.convolution_kernels import DotPrecision, Pair, products, weight_products
from lesson.learn.cuda.graphs import Precision
from lesson.learn.device import lacks_memory


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
        out = products(images, weights, None, (2, 2), (1, 1), (0, 0), dot_precision)
        weight_products(images, out, (3, 3), (1, 1), (0, 0), dot_precision)
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
    """Convolution of images, shape (num_images, channels, height, width); under vmap, it uses the kernels."""

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
        return products(patches, columns, bias, sizes, *shape).permute(0, 1, 4, 2, 3), 0


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
        return products(patches, columns, None, sizes, *shape, backward=True).permute(0, 1, 4, 2, 3), 0


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
        return weight_products(patches, right, (like[-2], like[-1]), *shape).permute(0, 4, 3, 1, 2), 0


def models_first(num_models: int, in_dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """Move the model dimension of tensors under vmap to the front; expand tensors that all models share."""
    return [
        tensor.expand(num_models, *tensor.shape) if place is None else tensor.movedim(place, 0)
        for tensor, place in zip(tensors, in_dims, strict=True)
    ]
