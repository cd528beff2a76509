"""Small data sets and models that train within milliseconds."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from lesson.learn.data import Samples
from lesson.learn.models import CifarNet, MnistNet
from lesson.learn.task import Task
from lesson.learn.tasks import image_task
from lesson.learn.workload import Workload, make_workload
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


def tiny_data(num: int = 300) -> Samples:
    """Return noisy 6 × 6 images of three classes: bright at the top, at the bottom, or in the middle."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, num)
    images = rng.integers(0, 80, (num, 1, 6, 6))
    for label, rows in enumerate((slice(0, 2), slice(4, 6), slice(2, 4))):
        images[labels == label, :, rows] += 150
    half = 2 * num // 3
    split = images.astype(np.uint8)
    return Samples(split[:half], labels[:half], split[half:], labels[half:])


def tiny_logits(vector: Tensor, images: np.ndarray) -> Tensor:
    """Return the logits of images for these parameters of TinyNet, in plain torch."""
    model = TinyNet()
    nn.utils.vector_to_parameters(vector.clone(), model.parameters())
    with torch.no_grad():
        logits: Tensor = model(torch.from_numpy(images).float() / 255)
    return logits


def tiny_task(num: int = 300) -> Task:
    """Return the task of classifying the images of `tiny_data` with TinyNet."""
    return image_task("tiny", tiny_data(num), TinyNet)


def tiny_workload(num_clients: int = 6, **settings: object) -> Workload:
    usual = {"batch_size": 5, "split": "iid", "num_clients": num_clients, "device": "cpu"}
    return make_workload(Settings(**usual | settings), tiny_task())


def image_workload(
    settings: Settings,
    data: Samples,
    num_clients: int,
    seed: int,
    factory: Callable[[], nn.Module] | None = None,
    device: str = "cpu",
    holding_out: bool = False,
) -> Workload:
    """Return the workload of classifying images, by default with the paper's network for them."""
    model = factory or (CifarNet if data.train_inputs.shape[1] == 3 else MnistNet)
    chosen = settings.with_changes(num_clients=num_clients, seed=seed, device=device)
    return make_workload(chosen, image_task("images", data, model), holding_out)
