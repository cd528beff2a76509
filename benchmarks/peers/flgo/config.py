"""Data and network of the workload in the form that FLGo expects; it copies this file into a generated benchmark."""

import torch
from common import read_job, tensors
from nets import start
from torch import Tensor, nn

JOB = read_job()


class Samples(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """All training samples in memory; a minibatch is gathered in one operation."""

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


class Net(JOB.workload.net):  # type: ignore[name-defined]  # the base class is known only at run time
    """The network, which restores the channels-last layout that FLGo's collation has lost."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, 10)."""
        logits: Tensor = super().forward(images.contiguous(memory_format=torch.channels_last))
        return logits


def get_model() -> nn.Module:
    """Return the initialized network."""
    return start(Net())


train_data = Samples()
test_data = None
