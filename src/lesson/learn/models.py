"""The paper's two networks, with Glorot-uniform weights and zero biases, as in the authors' code."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from lesson.learn.counters import kernels_for


class MnistNet(nn.Module):
    """LeNet-5 for 28 × 28 gray images, 61,706 parameters.

    Pooling comes before the ReLU, which gives the same values in less time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.full1 = nn.Linear(400, 120)
        self.full2 = nn.Linear(120, 84)
        self.out = nn.Linear(84, 10)
        init_glorot(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, 10)."""
        hidden = conv_pool_relu(self.conv2, conv_pool_relu(self.conv1, images)).flatten(1)
        hidden = functional.relu(self.full2(functional.relu(self.full1(hidden))))
        logits: Tensor = self.out(hidden)
        return logits


class CifarNet(nn.Module):
    """Four 3 × 3 convolutions, dropout of 0.75 and a hidden layer of 256 units for 32 × 32 color images.

    The network has 1,144,650 parameters.
    """

    num_dropout_units = 4096
    """A model with this attribute gets dropout factors as its last argument in training."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 64, 3, padding=1)
        self.conv4 = nn.Conv2d(64, 64, 3, padding=1)
        self.full = nn.Linear(self.num_dropout_units, 256)
        self.out = nn.Linear(256, 10)
        init_glorot(self)

    def forward(self, images: Tensor, factors: Tensor | None = None) -> Tensor:
        """Return the logits, shape (num_samples, 10). `factors` are the dropout factors, 0 or 4; see dropout.py."""
        hidden = conv_pool_relu(self.conv2, conv_pool_relu(self.conv1, images))
        hidden = functional.relu(self.conv4(functional.relu(self.conv3(hidden)))).flatten(1)
        if factors is not None:
            hidden = hidden * factors
        logits: Tensor = self.out(functional.relu(self.full(hidden)))
        return logits


def conv_pool_relu(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """Apply a convolution, 2 × 2 max pooling and ReLU; on a GPU with custom kernels if they are available."""
    if kernels_for(images) is not None:
        from lesson.learn.cuda import layers

        return layers.conv_pool_relu(layer, images)
    return functional.relu(max_pool(layer(images)))


def max_pool(values: Tensor) -> Tensor:
    """Apply 2 × 2 max pooling; if no gradient is needed by pairwise maxima, as torch is slow for few channels."""
    if torch.is_grad_enabled():
        return functional.max_pool2d(values, 2)
    rows = torch.maximum(values[..., ::2], values[..., 1::2])
    return torch.maximum(rows[:, :, ::2], rows[:, :, 1::2])


def init_glorot(model: nn.Module) -> None:
    """Draw Glorot-uniform weights and set biases to 0."""
    for parameter in model.parameters():
        nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)
