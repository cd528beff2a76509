"""Data and network of the workload, in the form FLGo asks for: it copies this file into a benchmark of its own."""

import torch
from common import read_job, tensors
from nets import start
from torch import Tensor, nn

JOB = read_job()


class Samples(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """All training samples in memory; a minibatch is gathered at once."""

    def __init__(self) -> None:
        images, labels = tensors(JOB.data, JOB.workload.dataset)
        held = JOB.workload.num_clients * JOB.workload.samples_per_client
        self._images, self._labels = images[:held], labels[:held]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self._images[row], self._labels[row]

    def __getitems__(self, rows: list[int]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self._images[rows], self._labels[rows], strict=True))


class Net(JOB.workload.net):  # type: ignore[name-defined]  # a base class that is known when it runs
    """The network, on images whose colors FLGo's collation has moved out of the innermost place."""

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (num_samples, 10)."""
        logits: Tensor = super().forward(images.contiguous(memory_format=torch.channels_last))
        return logits


def get_model() -> nn.Module:
    """The network everybody begins with."""
    return start(Net())


train_data = Samples()
test_data = None
