"""Compares gradients in the layouts that replicas choose with those in double precision.

`python -m helpers.layouts` does so in a process of its own, since a wrong layout may abort it.
"""

from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from lesson import Task
from lesson.learn.template import Replica, Template


class Shortcut(nn.Module):
    """A 3 × 3 convolution and a residual block whose shortcut is a 1 × 1 convolution with a stride."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, width, 3, padding=1)
        self.main = nn.Conv2d(width, 2 * width, 3, stride, padding=1)
        self.shortcut = nn.Conv2d(width, 2 * width, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.first(images))
        return (self.main(hidden) + self.shortcut(hidden)).mean((2, 3))


def patches(in_channels: int, width: int, stride: int) -> nn.Module:
    """A model that begins with a 1 × 1 convolution with a stride, and stores its weights channels-last."""
    layers = nn.Conv2d(in_channels, width, 1, stride), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def channels_first(images: Tensor) -> Tensor:
    """Images of shape (num, height, width, channels) as convolutions expect them; they stay channels-last in memory."""
    return images.permute(0, 3, 1, 2)


def worst_error(num_times: int = 3) -> float:
    """The largest relative error of gradients over models, numbers of channels and strides."""
    errors = []
    for make, in_channels, width, stride in product((Shortcut, patches), (1, 3, 6), (2, 4, 8, 16), (2,)):
        torch.manual_seed(0)
        images, labels = torch.rand(20, 16, 16, in_channels), torch.randint(0, width, (20,))

        def model(make=make, of=(in_channels, width, stride)) -> nn.Module:  # type: ignore[no-untyped-def]
            return make(*of)

        template = Template(
            Task(train=(images, labels), test=(images, labels), model=model, prepare=channels_first), seed=0
        )
        replica, vector = Replica(template), template.initial_vector()
        for _ in range(num_times):
            replica.load(vector.clone())
            outputs = replica.outputs(channels_first(images), training=True)
            gradient = replica.gradient(functional.cross_entropy(outputs, labels))
        exact = template.copy_model().double()
        functional.cross_entropy(exact(channels_first(images).double()), labels).backward()
        expected = torch.cat([one.grad.reshape(-1) for one in exact.parameters() if one.grad is not None])
        errors.append(float((gradient - expected).abs().max() / expected.abs().max()))
    return max(errors)


if __name__ == "__main__":
    print(worst_error())
