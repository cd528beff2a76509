"""What the recipes share: workloads, their networks in plain PyTorch, data, timing and checks. No framework here."""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LEARNING_RATE = 0.1
CHECK_SAMPLES = 2000


class LeNet(nn.Module):
    """LeNet-5, 61,706 parameters. Pooling comes before the ReLU, as in this project: the same values, sooner."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.full1, self.full2, self.out = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (num_samples, 10)."""
        hidden = functional.relu(functional.max_pool2d(self.conv1(images), 2))
        hidden = functional.relu(functional.max_pool2d(self.conv2(hidden), 2)).flatten(1)
        return self.out(functional.relu(self.full2(functional.relu(self.full1(hidden)))))


class CifarNet(nn.Module):
    """The project's network for CIFAR-10, with torch's own dropout, 1,144,650 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.conv3, self.conv4 = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
        self.dropout = nn.Dropout(0.75)
        self.full, self.out = nn.Linear(4096, 256), nn.Linear(256, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (num_samples, 10)."""
        hidden = functional.relu(functional.max_pool2d(self.conv1(images), 2))
        hidden = functional.relu(functional.max_pool2d(self.conv2(hidden), 2))
        hidden = functional.relu(self.conv4(functional.relu(self.conv3(hidden)))).flatten(1)
        return self.out(functional.relu(self.full(self.dropout(hidden))))


class PflCnn(nn.Module):
    """The network of pfl-research's CIFAR-10 benchmark without its dropout layers, 1,626,442 parameters.

    Two unpadded 3 × 3 convolutions of 32 and 64, one pooling, a layer of 128. There it drops 0.25 of the units before
    the flattening and 0.5 before the output; this project takes no rate but its own, so nobody drops any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.full, self.out = nn.Linear(12544, 128), nn.Linear(128, 10)
        start(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (num_samples, 10)."""
        hidden = functional.relu(self.conv1(images))
        hidden = functional.relu(functional.max_pool2d(self.conv2(hidden), 2)).flatten(1)
        return self.out(functional.relu(self.full(hidden)))


@dataclass(frozen=True)
class Workload:
    """What everybody does in a round: so many clients, each so many steps on minibatches of its own samples."""

    dataset: str
    net: type[nn.Module]
    num_parameters: int
    num_clients: int
    samples_per_client: int
    cohort: int
    batch_size: int
    steps: int
    warm_up: int
    rounds: int
    """Rounds that are not counted, and that are."""

    @property
    def whole_epoch(self) -> bool:
        """Whether the local work is one pass over a client's samples."""
        return self.steps * self.batch_size == self.samples_per_client


WORKLOADS = {
    "lenet-step": Workload("mnist", LeNet, 61_706, 50, 1000, 50, 20, 1, 3, 20),
    "cifar-step": Workload("cifar10", CifarNet, 1_144_650, 50, 1000, 50, 20, 1, 2, 6),
    "lenet-epoch": Workload("mnist", LeNet, 61_706, 50, 1000, 50, 20, 50, 1, 2),
    "pfl-cifar10": Workload("cifar10", PflCnn, 1_626_442, 1000, 50, 50, 10, 5, 1, 4),
}


@dataclass(frozen=True)
class Job:
    """What a recipe is asked to do, and with how many processes of how many threads."""

    workload: Workload
    data: Path
    processes: int
    threads: int


def start(net: nn.Module) -> nn.Module:
    """The network with the values everybody begins with: Glorot-uniform weights and zero biases."""
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)
    return net


@lru_cache(maxsize=1)
def tensors(data: Path, dataset: str) -> tuple[Tensor, Tensor]:
    """All images scaled to [0, 1] and labels. Client i of n-sample clients holds rows n·i to n·(i + 1).

    Colours are innermost in memory, as in this project: convolutions are fastest on that, whoever calls them.
    """
    images = torch.from_numpy(np.load(data / f"{dataset}-images.npy"))
    scaled = torch.empty(images.shape, dtype=torch.float32, memory_format=torch.channels_last)
    return torch.div(images, 255, out=scaled), torch.from_numpy(np.load(data / f"{dataset}-labels.npy"))


def client_tensors(job: Job, client: int) -> tuple[Tensor, Tensor]:
    """Images and labels of one client."""
    size = job.workload.samples_per_client
    images, labels = tensors(job.data, job.workload.dataset)
    return images[client * size : (client + 1) * size], labels[client * size : (client + 1) * size]


def minibatches(workload: Workload, images: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A client's minibatches of one round, drawn without replacement, straight from memory."""
    order = torch.randperm(len(images))[: workload.steps * workload.batch_size]
    for rows in order.split(workload.batch_size):
        yield images[rows], labels[rows]


def train(net: nn.Module, workload: Workload, images: Tensor, labels: Tensor) -> None:
    """A client's local work, for frameworks that leave it to the user."""
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    for batch, targets in minibatches(workload, images, labels):
        optimiser.zero_grad()
        functional.cross_entropy(net(batch), targets).backward()
        optimiser.step()


class Stopwatch:
    """Seconds of each round, from `lap` to `lap`; the first call is the beginning."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def lap(self) -> None:
        """A round ends here."""
        self._times.append(time.perf_counter())

    def seconds(self, workload: Workload) -> list[float]:
        """Those of the rounds that count."""
        laps = [end - begin for begin, end in zip(self._times, self._times[1:], strict=False)]
        assert len(laps) == workload.warm_up + workload.rounds, f"{len(laps)} rounds were run"
        return laps[workload.warm_up :]


def read_job() -> Job:
    """What the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    return Job(WORKLOADS[arguments.workload], arguments.data, arguments.processes, arguments.threads)


def measure(recipe: Callable[[Job, Stopwatch], nn.Module | Tensor]) -> None:
    """Run a recipe on the workload of the command line, check what it learnt and print a line of JSON.

    The recipe runs all rounds, with a lap before the first and after each, and returns the last model.
    """
    job = read_job()
    torch.set_num_threads(job.threads)
    watch = Stopwatch()
    model = recipe(job, watch)
    report = {"seconds": watch.seconds(job.workload), "loss": check(job, model)}
    print(json.dumps(report), flush=True)


def check(job: Job, model: nn.Module | Tensor) -> list[float]:
    """The loss before and after on some of the training samples; raise unless it has fallen, on as many parameters."""
    images, labels = (part[:CHECK_SAMPLES] for part in tensors(job.data, job.workload.dataset))
    vector = model if isinstance(model, Tensor) else nn.utils.parameters_to_vector(model.parameters())
    net = start(job.workload.net()).eval()
    assert vector.numel() == job.workload.num_parameters, f"the model has {vector.numel()} parameters"
    losses = []
    with torch.no_grad():
        for values in (None, vector):
            if values is not None:
                nn.utils.vector_to_parameters(values.clone(), net.parameters())
            losses.append(float(functional.cross_entropy(net(images), labels)))
    assert losses[1] < losses[0], f"the loss went from {losses[0]:.4f} to {losses[1]:.4f}"
    return losses
