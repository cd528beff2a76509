"""Measure a round of each built-in task: the trainer that `auto` picks against a plain PyTorch loop on the same work.

The two sides take turns in one process. Times are medians, and the ratio is the median of the ratios of consecutive
measurements. The data is random in the shapes of the task, since only shapes affect the time, and all minibatches are
full. The plain loop gets its minibatches for free: they are drawn before the measurement and already on the device. It
computes in the same precision as the trainer, TF32 on a GPU.
"""

import argparse
import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lesson import Settings, Task
from lesson.core.cores import num_cores
from lesson.learn.backend import Backend
from lesson.learn.cohort import Cohort
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda.backend import CudaBackend
from lesson.learn.models import CifarNet
from lesson.learn.process import configure_process
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.task import ModelFactory
from lesson.learn.tasks import BUILT_IN, NUM_CHARACTERS, scaled
from lesson.learn.workload import Workload, make_workload

LEARNING_RATE, SETTLE_S, BATCHES_PER_CLIENT = 0.01, 0.02, 10
TEXT, GRAY, COLOR, FEATURES = (80,), (28, 28, 1), (32, 32, 3), (60,)
SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "mnist": (GRAY, 10),
    "fashion-mnist": (GRAY, 10),
    "cifar10": (COLOR, 10),
    "cifar10-resnet": (COLOR, 10),
    "cifar100": (COLOR, 100),
    "femnist": (GRAY, 62),
    "shakespeare": (TEXT, NUM_CHARACTERS),
    "shakespeare-transformer": (TEXT, NUM_CHARACTERS),
    "synthetic": (FEATURES, 10),
}
"""Shape of a stored sample, and number of classes, of each built-in task."""
Batch = tuple[Tensor, Tensor]
Round = Callable[[], object]


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    num_clients: int
    steps: tuple[int, ...]
    """Numbers of local steps, one row each."""
    batch_size: int
    warm_up: int
    """Rounds before the measured ones, in which CUDA graphs are recorded."""
    repeats: int


FULL = {"cpu": Size(10, (1, 5), 20, 2, 5), "cuda": Size(50, (1, 5), 20, 2, 9)}
QUICK = Size(2, (1,), 2, 0, 1)


class PlainCifarNet(CifarNet):
    """The paper's network for CIFAR-10 with dropout from torch's generator."""

    def forward(self, images: Tensor, factors: Tensor | None = None) -> Tensor:
        """Return the logits, shape (num_samples, 10)."""
        ones = torch.ones(len(images), self.num_dropout_units, device=images.device)
        return super().forward(images, functional.dropout(ones, 0.75) if factors is None else factors)


class PlainCharLstm(nn.Module):
    """The character LSTM with torch's own layers, which use cuDNN on a GPU."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.out = nn.Linear(256, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, num_tokens, length)."""
        logits: Tensor = self.out(self.lstm(self.embedding(tokens))[0])
        return logits.transpose(1, 2)


PLAIN: dict[str, ModelFactory] = {"cifar10": PlainCifarNet, "shakespeare": lambda: PlainCharLstm(NUM_CHARACTERS)}
"""Models of the plain loop that are not those of the task."""


def made_up_task(name: str, num: int) -> Task:
    """Return a built-in task with random samples: images or features with one label each, or text."""
    shape, num_classes = SHAPES[name]
    inputs, targets = torch.randn(num, *shape), torch.randint(num_classes, (num,))
    if shape == TEXT:
        tokens = torch.randint(num_classes, (num, TEXT[0] + 1))
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
    elif len(shape) == 3:
        inputs = torch.randint(256, (num, *shape), dtype=torch.uint8)
    prepare = scaled if len(shape) == 3 else None
    samples = inputs, targets
    return Task(train=samples, test=samples, model=BUILT_IN[name].network, prepare=prepare, name=name)


def workload_of(name: str, size: Size, steps: int, device: str) -> Workload:
    """Return the workload of a built-in task with random samples, the same number for each client."""
    task = made_up_task(name, size.num_clients * size.batch_size * BATCHES_PER_CLIENT)
    options = {"split": "iid", "batch_size": size.batch_size, "local_steps": steps, "device": device}
    return make_workload(Settings(**options, num_clients=size.num_clients), task)


def everybody(workload: Workload, steps: int) -> Cohort:
    """Return one local training of each client."""
    num_clients = len(workload.holdings.num_samples)
    zeros = np.zeros(num_clients, dtype=np.int64)
    return Cohort(
        workload.initial_vector(),
        client=np.arange(num_clients),
        index=zeros,
        lr=np.full(num_clients, LEARNING_RATE),
        local_steps=zeros + steps,
        weight=np.full(num_clients, 1 / num_clients),
        first=zeros,
        most_samples=zeros + workload.batch_size,
        level=np.full(len(zeros), np.nan),
    )


def batches_of(workload: Workload, cohort: Cohort) -> list[list[Batch]]:
    """Return the minibatches of a cohort by client and step, as the model gets them."""
    samples = workload.minibatches(cohort, int(cohort.local_steps.max()))
    return [[workload.samples(step) for step in client] for client in samples.transpose(0, 1)]


def plain_round(
    model_factory: ModelFactory, batches_per_client: Sequence[Sequence[Batch]], lr: float, device: str
) -> Round:
    """Return a function that trains one client after another from the global model and averages their models.

    Weights of the average are the numbers of samples. Convolutions are channels-last, and a CPU uses all cores.
    """
    model = channels_last(model_factory().to(device))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    clients = [
        [(to_device(inputs, device), targets.to(device)) for inputs, targets in batches]
        for batches in batches_per_client
    ]
    sizes = [sum(len(targets) for _, targets in batches) for batches in clients]

    def run() -> None:
        torch.set_num_threads(num_cores())
        average = {name: torch.zeros_like(value) for name, value in state.items()}
        for batches, size in zip(clients, sizes, strict=True):
            model.load_state_dict(state)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            for inputs, targets in batches:
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            for name, value in model.state_dict().items():
                average[name].add_(value, alpha=size / sum(sizes))
        state.update(average)
        torch.set_num_threads(1)

    return run


def channels_last(model: nn.Module) -> nn.Module:
    """Return a model whose convolutions are channels-last, which is the faster layout."""
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]  # not in torch's hints


def to_device(inputs: Tensor, device: str) -> Tensor:
    """Copy a minibatch of inputs to the device, images channels-last."""
    return inputs.to(device, memory_format=torch.channels_last if inputs.dim() == 4 else torch.preserve_format)


@contextlib.contextmanager
def lesson_round(workload: Workload, cohort: Cohort, device: str) -> Iterator[tuple[Round, SimulatedClients]]:
    """Provide a function that runs the round of a cohort with the trainer that `auto` picks, and the clients."""
    backend: Backend = CudaBackend(workload, "tf32") if device == "cuda" else CpuBackend(workload)
    clients = SimulatedClients(workload, backend)

    def run() -> None:
        nonlocal cohort
        (model,) = clients.trainer_for(cohort.local_steps).sums([cohort])
        cohort = replace(cohort, base=model.clone(), index=cohort.index + 1)

    try:
        yield run, clients
    finally:
        clients.close()
        backend.close()


@contextlib.contextmanager
def tensor_cores(device: str) -> Iterator[None]:
    """Let products and convolutions use TF32 on a GPU, as the trainers do by default."""
    before = torch.get_float32_matmul_precision()
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # convolutions use TF32 unless told otherwise
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def timed_s(work: Round, device: str) -> float:
    """Return the wall-clock seconds until a round has finished on the device.

    It pauses first, so that idle threads of the other side stop spinning.
    """
    time.sleep(SETTLE_S)
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure(name: str, size: Size, steps: int, device: str) -> None:
    """Measure and print one row of the table."""
    workload = workload_of(name, size, steps, device)
    cohort = everybody(workload, steps)
    plain = plain_round(PLAIN.get(name, BUILT_IN[name].network), batches_of(workload, cohort), LEARNING_RATE, device)

    def plain_s() -> float:
        with tensor_cores(device):
            return timed_s(plain, device)

    with lesson_round(workload, cohort, device) as (ours, clients):
        pairs = [(plain_s(), timed_s(ours, device)) for _ in range(size.warm_up + size.repeats)][size.warm_up :]
        (trainer,) = clients.trainers
    theirs_s, ours_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(plain / ours for plain, ours in pairs)
    print(f"| {name} | {steps} | {theirs_s:.4f} | {ours_s:.4f} | {ratio:.2f} | {trainer} |", flush=True)


def main() -> None:
    """Print the table."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=default, choices=["cpu", "cuda"])
    parser.add_argument("--tasks", nargs="+", default=list(BUILT_IN), choices=list(BUILT_IN), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="run a tiny case of every task, to check that it works")
    chosen = parser.parse_args()
    size = QUICK if chosen.quick else FULL[chosen.device]
    configure_process()
    where = torch.cuda.get_device_name() if chosen.device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{where}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{size.num_clients} clients, minibatches of {size.batch_size}, median of {size.repeats}\n")
    print("| task | local steps | plain loop (s) | lesson (s) | plain / lesson | trainer |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in chosen.tasks:
        for steps in size.steps:
            measure(name, size, steps, chosen.device)


if __name__ == "__main__":
    main()
