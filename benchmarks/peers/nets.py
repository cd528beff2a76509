"""The networks of the workloads in plain PyTorch, and their common initial values."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def start(net: nn.Module) -> nn.Module:
    """Initialize a network with the values that all frameworks start from: Glorot-uniform weights and zero biases."""
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)
    return net


class LeNet(nn.Module):
    """LeNet-5, 61,706 parameters. Pooling precedes the ReLU, as in this project, which gives the same values faster."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.full1, self.full2, self.out = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, 10)."""
        hidden = functional.relu(functional.max_pool2d(self.conv1(images), 2))
        hidden = functional.relu(functional.max_pool2d(self.conv2(hidden), 2)).flatten(1)
        logits: Tensor = self.out(functional.relu(self.full2(functional.relu(self.full1(hidden)))))
        return logits


class CifarNet(nn.Module):
    """This project's network for CIFAR-10 with PyTorch's own dropout, 1,144,650 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.conv3, self.conv4 = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
        self.dropout = nn.Dropout(0.75)
        self.full, self.out = nn.Linear(4096, 256), nn.Linear(256, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, 10)."""
        hidden = functional.relu(functional.max_pool2d(self.conv1(images), 2))
        hidden = functional.relu(functional.max_pool2d(self.conv2(hidden), 2))
        hidden = functional.relu(self.conv4(functional.relu(self.conv3(hidden)))).flatten(1)
        logits: Tensor = self.out(functional.relu(self.full(self.dropout(hidden))))
        return logits


class PflCnn(nn.Module):
    """The network of pfl-research's CIFAR-10 benchmark without its dropout layers, 1,626,442 parameters.

    Two unpadded 3 × 3 convolutions with 32 and 64 channels, one pooling, a layer of 128 units. The original drops 0.25
    of the units before the flattening and 0.5 before the output; this project supports only its own dropout rate, so
    all frameworks run without dropout.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.full, self.out = nn.Linear(12544, 128), nn.Linear(128, 10)
        start(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, 10)."""
        hidden = functional.relu(self.conv1(images))
        hidden = functional.relu(functional.max_pool2d(self.conv2(hidden), 2)).flatten(1)
        logits: Tensor = self.out(functional.relu(self.full(hidden)))
        return logits
