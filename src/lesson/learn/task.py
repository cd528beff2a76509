"""What is to be learnt: data, who holds which part of it, the model, and how it is trained locally."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lesson.arrays import FloatArray, IntArray
from lesson.learn.data import Dataset
from lesson.learn.dropout import draw_kept
from lesson.learn.minibatch import NO_SAMPLE, Sampler
from lesson.learn.models import FACTORIES, ModelFactory, Replica, initial_vector
from lesson.learn.partition import Partition, make_partition
from lesson.scenario import Scenario


@dataclass(frozen=True, eq=False)
class Work:
    """Client work that started from the same model version; arrays are (num_updates,), sorted by client and index."""

    client: IntArray
    index: IntArray
    lr: FloatArray
    local_steps: IntArray
    weight: FloatArray
    """What each trained model counts for in the sum that is asked for."""

    def __len__(self) -> int:
        return len(self.client)

    def __getitem__(self, rows: slice | IntArray) -> "Work":
        return Work(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


class Task:
    """Everything a trainer needs, on one device. Images stay bytes until a minibatch is made of them."""

    def __init__(
        self, dataset: Dataset, partition: Partition, factory: ModelFactory, batch_size: int, epochs: bool, seed: int
    ) -> None:
        self.partition, self.factory, self.seed, self.batch_size = partition, factory, seed, batch_size
        self.sampler = Sampler(partition, batch_size, epochs, seed)
        self.train_images, self.train_labels = _tensors(dataset.train_images, dataset.train_labels)
        self.test_images, self.test_labels = _tensors(dataset.test_images, dataset.test_labels)

    def batch(self, samples: IntArray) -> tuple[Tensor, Tensor]:
        """Images scaled to [0, 1] and labels of training samples."""
        rows = torch.from_numpy(samples)
        return scaled(self.train_images[rows]), self.train_labels[rows]

    def kept(self, replica: Replica, work: Work, padded: IntArray, step: int) -> Tensor | None:
        """Dropout factors for the samples of padded minibatches, one row per client; None for a model without."""
        if not replica.num_dropout_units:
            return None
        rows, columns = np.nonzero(padded != NO_SAMPLE)
        places = step * self.batch_size + columns
        return draw_kept(self.seed, replica.num_dropout_units, work.client[rows], work.index[rows], places)

    def initial_vector(self) -> Tensor:
        """The model every strategy of this seed begins with."""
        return initial_vector(self.factory, self.seed)

    def replica(self) -> Replica:
        """A model of one's own to load vectors into."""
        return Replica(self.factory)


def make_task(
    scenario: Scenario, dataset: Dataset, num_clients: int, seed: int, factory: ModelFactory | None = None
) -> Task:
    """The task of a scenario on a data set, with the paper's network for it unless another is given."""
    partition = make_partition(scenario, dataset.train_labels, num_clients, seed)
    chosen = factory or FACTORIES[dataset.name]
    return Task(dataset, partition, chosen, scenario.batch_size, scenario.local_epochs > 0, seed)


def scaled(images: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1], colours innermost in memory, which convolutions are fastest on."""
    values = torch.empty(images.shape, dtype=torch.float32, memory_format=torch.channels_last)
    return torch.div(images, 255, out=values)


def valid(samples: IntArray) -> tuple[IntArray, IntArray]:
    """The samples of padded minibatches in one array, and how many each minibatch has."""
    there = samples != NO_SAMPLE
    return samples[there], np.count_nonzero(there, axis=1)


def _tensors(images: np.ndarray, labels: IntArray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.array(images)), torch.from_numpy(np.array(labels))
