"""Small data sets and models that train within milliseconds."""

import numpy as np
import torch
from torch import Tensor, nn

from lesson.learn.data import Dataset
from lesson.learn.task import Task, make_task
from lesson.settings.settings import Settings


class TinyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.out = nn.Linear(2 * 4 * 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.relu(self.conv(images)).flatten(1))
        return logits


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(36, 3)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.out(images.flatten(1))
        return logits


def tiny_data(num: int = 300) -> Dataset:
    """Return noisy 6 × 6 images of three classes: bright at the top, at the bottom, or in the middle."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, num)
    images = rng.integers(0, 80, (num, 1, 6, 6))
    for label, rows in enumerate((slice(0, 2), slice(4, 6), slice(2, 4))):
        images[labels == label, :, rows] += 150
    half = 2 * num // 3
    split = images.astype(np.uint8)
    return Dataset("tiny", split[:half], labels[:half], split[half:], labels[half:])


def tiny_task(num_clients: int = 6, **settings: object) -> Task:
    settings = {"batch_size": 5, "split": "iid"} | settings
    return make_task(Settings(**settings), tiny_data(), num_clients, seed=0, factory=TinyNet)
