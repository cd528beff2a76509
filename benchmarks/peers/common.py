"""Code shared by the recipes: workloads, data, timing and checks. It imports no framework."""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nets import CifarNet, LeNet, PflCnn, start
from torch import Tensor, nn
from torch.nn import functional

LEARNING_RATE = 0.1
CHECK_SAMPLES = 2000


@dataclass(frozen=True)
class Workload:
    """What every framework does in a round: `cohort` clients train `steps` steps each on minibatches of their data."""

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
    """Warm-up rounds, which are not measured, and measured rounds."""
    gpu_rounds: int
    """Measured rounds on a GPU, where most rounds take milliseconds."""

    @property
    def whole_epoch(self) -> bool:
        """Whether local training is one pass over a client's samples."""
        return self.steps * self.batch_size == self.samples_per_client


WORKLOADS = {
    "lenet-step": Workload("mnist", LeNet, 61_706, 50, 1000, 50, 20, 1, 3, 20, 20),
    "cifar-step": Workload("cifar10", CifarNet, 1_144_650, 50, 1000, 50, 20, 1, 2, 6, 10),
    "lenet-epoch": Workload("mnist", LeNet, 61_706, 50, 1000, 50, 20, 50, 1, 2, 4),
    "pfl-cifar10": Workload("cifar10", PflCnn, 1_626_442, 1000, 50, 50, 10, 5, 1, 4, 10),
}


def tiny(workload: Workload) -> Workload:
    """Return the workload with few clients, samples and rounds, to check that a recipe works."""
    steps = min(workload.steps, 2)
    samples = steps * workload.batch_size if workload.whole_epoch else 2 * workload.batch_size
    everybody = workload.cohort == workload.num_clients
    return replace(
        workload,
        num_clients=4 if everybody else 8,
        samples_per_client=samples,
        cohort=4,
        steps=steps,
        warm_up=1,
        rounds=2,
    )


@dataclass(frozen=True)
class Job:
    """The workload of a recipe, and the number of processes and of threads in each."""

    workload: Workload
    data: Path
    processes: int
    threads: int
    count: bool
    """Whether to count the samples trained on, which is possible only in a single process."""


@lru_cache(maxsize=1)
def tensors(data: Path, dataset: str) -> tuple[Tensor, Tensor]:
    """Return all images, scaled to [0, 1], and all labels.

    With n samples per client, client i holds rows n·i to n·(i + 1) − 1. Images are channels-last, as in this project,
        because convolutions are fastest on this layout in any framework.
    """
    images = torch.from_numpy(np.load(data / f"{dataset}-images.npy"))
    scaled = torch.empty(images.shape, dtype=torch.float32, memory_format=torch.channels_last)
    return torch.div(images, 255, out=scaled), torch.from_numpy(np.load(data / f"{dataset}-labels.npy"))


def use_device() -> str:
    """Return the device to train on, a GPU if there is one; its products use TF32, as this project's do by default."""
    if not torch.cuda.is_available():
        return "cpu"
    cudnn: Any = torch.backends.cudnn
    torch.backends.cuda.matmul.fp32_precision = cudnn.conv.fp32_precision = "tf32"
    return "cuda"


@cache
def client_tensors(job: Job, client: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the images and labels of one client, which stay in the memory of the device."""
    size = job.workload.samples_per_client
    images, labels = tensors(job.data, job.workload.dataset)
    rows = slice(client * size, (client + 1) * size)
    return images[rows].to(device), labels[rows].to(device)


def minibatches(workload: Workload, images: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a client's minibatches of one round, drawn without replacement, directly from memory."""
    order = torch.randperm(len(images))[: workload.steps * workload.batch_size].to(images.device)
    for rows in order.split(workload.batch_size):
        yield images[rows], labels[rows]


def train(net: nn.Module, workload: Workload, images: Tensor, labels: Tensor) -> None:
    """Run a client's local training, for frameworks that leave it to the user."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    for batch, targets in minibatches(workload, images, labels):
        optimizer.zero_grad()
        functional.cross_entropy(net(batch), targets).backward()
        optimizer.step()


class Stopwatch:
    """Measures the seconds of each round between calls of `lap`; the first call starts it."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def lap(self) -> None:
        """Record the end of a round, once the GPU has finished it."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._times.append(time.perf_counter())

    def seconds(self, workload: Workload) -> list[float]:
        """Return the seconds of each measured round."""
        laps = [end - begin for begin, end in zip(self._times, self._times[1:], strict=False)]
        assert len(laps) == workload.warm_up + workload.rounds, f"{len(laps)} rounds were run"
        return laps[workload.warm_up :]


def read_job() -> Job:
    """Return the job given on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="measured rounds; by default as many as on a CPU")
    parser.add_argument("--count", action="store_true", help="check that so many samples are trained on as should be")
    parser.add_argument("--quick", action="store_true", help="run a tiny case of the workload, to check that it works")
    arguments = parser.parse_args()
    workload = WORKLOADS[arguments.workload]
    if arguments.rounds:
        workload = replace(workload, rounds=arguments.rounds)
    return Job(
        tiny(workload) if arguments.quick else workload,
        arguments.data,
        arguments.processes,
        arguments.threads,
        arguments.count,
    )


def measure(recipe: Callable[[Job, Stopwatch], nn.Module | Tensor]) -> None:
    """Run a recipe on the workload of the command line, check that it learned, and print a line of JSON.

    The recipe runs all rounds, calls `lap` before the first and after each, and returns the final model.
    """
    job = read_job()
    torch.set_num_threads(job.threads)
    watch, counted = Stopwatch(), count_samples(job.workload) if job.count else None
    model = recipe(job, watch)
    report = {"seconds": watch.seconds(job.workload), "loss": check(job, model)}
    if counted is not None:
        rounds = job.workload.warm_up + job.workload.rounds
        expected = rounds * job.workload.cohort * job.workload.steps * job.workload.batch_size
        assert sum(counted) == expected, f"{sum(counted)} samples were trained on, not {expected}"
    print(json.dumps(report), flush=True)


def count_samples(workload: Workload) -> list[int]:
    """Return a list that collects the sizes of all minibatches that the network is trained on in this process."""
    sizes: list[int] = []
    forward = workload.net.forward

    def counting(self: nn.Module, images: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            sizes.append(len(images))
        logits: Tensor = forward(self, images)
        return logits

    workload.net.forward = counting
    return sizes


def check(job: Job, model: nn.Module | Tensor) -> list[float]:
    """Return the loss before and after training on some of the samples.

    Raise unless the loss has fallen and the model has the workload's number of parameters.
    """
    images, labels = (part[:CHECK_SAMPLES] for part in tensors(job.data, job.workload.dataset))
    vector = (model if isinstance(model, Tensor) else nn.utils.parameters_to_vector(model.parameters())).cpu()
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
